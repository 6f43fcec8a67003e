"""Ray's own processes: which are gone or stopped, and how long that is tolerated."""

from __future__ import annotations

import os
import shutil
import signal
from typing import TYPE_CHECKING

import anyio
import pytest

from agent.runtime import driver
from agent.runtime.driver import (
    STOPPED_LIMIT,
    RayParts,
    RayPartsState,
    RayProcess,
    ray_processes,
)
from agent.runtime.process import Child
from agent.runtime.waiting import NotYet, until

if TYPE_CHECKING:
    from pathlib import Path

GCS, RAYLET = RayProcess(10, "S"), RayProcess(11, "R")
BOTH = {"gcs_server": GCS, "raylet": RAYLET}


@pytest.mark.parametrize(
    ("looks", "gone", "stopped"),
    [
        ([{}], "", ""),
        ([{"gcs_server": GCS}, BOTH], "", ""),
        ([BOTH, {"gcs_server": GCS}], "its raylet (pid 11) is gone", ""),
        ([{"gcs_server": RayProcess(10, "Z")}], "its gcs_server (pid 10) is gone", ""),
        ([{"gcs_server": GCS}, {}], "its gcs_server (pid 10) is gone", ""),
        ([BOTH, {**BOTH, "raylet": RayProcess(11, "Z")}], "its raylet (pid 11) is gone", ""),
        ([{"raylet": RAYLET}, {"raylet": RayProcess(11, "D")}], "", ""),
        ([BOTH, {**BOTH, "raylet": RayProcess(11, "T")}], "", "its raylet (pid 11) is stopped"),
        ([{**BOTH, "raylet": RayProcess(11, "T")}, BOTH], "", ""),
    ],
)
def test_a_search_for_parts(looks: list[dict[str, RayProcess]], gone: str, stopped: str) -> None:
    """A process seen once must stay; a stopped one may continue."""
    seen = RayPartsState()
    verdicts = [seen.update(look, float(at)) for at, look in enumerate(looks)]
    assert verdicts[-1] == (gone, stopped)
    assert not any(gone for gone, _ in verdicts[:-1])


def test_what_only_hangs_is_borne_for_half_a_minute() -> None:
    """Then it counts as lost; if it continued in between, the time starts again."""
    seen, stopped = RayPartsState(), {**BOTH, "gcs_server": RayProcess(10, "T")}
    for at in (0.0, 20.0):
        assert not seen.update(stopped, at)[0]
    assert seen.update(BOTH, 25.0) == ("", "")
    assert not seen.update(stopped, 29.0)[0]
    assert not seen.update(stopped, 29.0 + STOPPED_LIMIT - 0.1)[0]
    assert seen.update(stopped, 29.0 + STOPPED_LIMIT)[0] == (
        "its gcs_server (pid 10) is stopped for 30 s"
    )


def test_a_part_that_is_killed_ends_its_ray(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once, although its parent does not reap its children; a stopped one is logged."""
    sleep = shutil.which("sleep")
    assert sleep is not None
    for name in ("gcs_server", "raylet"):
        shutil.copy(sleep, tmp_path / name)
    script = f"{tmp_path}/gcs_server 100 & {tmp_path}/raylet 100 & exec {sleep} 100"
    told: list[str] = []
    monkeypatch.setattr(driver, "say", lambda line, _level: told.append(line))

    async def story() -> tuple[str, int]:
        child = await Child.start("ray", ["/bin/sh", "-c", script], {}, lambda: tmp_path / "log")
        parts = RayParts(child, anyio.current_time)

        async def both() -> bool | NotYet:
            return True if len(ray_processes(child.pid)) == 2 else NotYet()

        async def heard() -> bool | NotYet:
            return True if told else NotYet()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(parts.watch)
            await until(both, 5.0)
            gcs, raylet = ray_processes(child.pid)["gcs_server"], ray_processes(child.pid)["raylet"]
            os.kill(gcs.pid, signal.SIGSTOP)
            await until(heard, 5.0)
            os.kill(gcs.pid, signal.SIGCONT)
            os.kill(raylet.pid, signal.SIGKILL)
            code = await child.wait()
            tasks.cancel_scope.cancel()
        return await parts.end_sentence(code), code

    sentence, code = anyio.run(story)
    assert "its gcs_server" in told[0]
    assert "its raylet" in sentence
    assert "is gone; `ray start` ended" in sentence
    assert code != 0  # it was stopped: its own end after 100 s would be 0
