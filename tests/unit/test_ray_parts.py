"""Ray's own processes: who is gone, who is stopped, and for how long that is borne."""

from __future__ import annotations

import os
import shutil
import signal
from typing import TYPE_CHECKING

import anyio
import pytest

from agent.runtime.process import Child
from agent.runtime.ray_parts import HANGS_AFTER, Part, PartsSeen, RayParts, parts_of
from agent.runtime.waiting import NotYet, until

if TYPE_CHECKING:
    from pathlib import Path

GCS, RAYLET = Part(10, "S"), Part(11, "R")
BOTH = {"gcs_server": GCS, "raylet": RAYLET}


@pytest.mark.parametrize(
    ("looks", "gone", "stopped"),
    [
        ([{}], "", ""),
        ([{"gcs_server": GCS}, BOTH], "", ""),
        ([BOTH, {"gcs_server": GCS}], "its raylet (pid 11) is gone", ""),
        ([{"gcs_server": Part(10, "Z")}], "its gcs_server (pid 10) is gone", ""),
        ([{"gcs_server": GCS}, {}], "its gcs_server (pid 10) is gone", ""),
        ([BOTH, {**BOTH, "raylet": Part(11, "Z")}], "its raylet (pid 11) is gone", ""),
        ([{"raylet": RAYLET}, {"raylet": Part(11, "D")}], "", ""),
        ([BOTH, {**BOTH, "raylet": Part(11, "T")}], "", "its raylet (pid 11) is stopped"),
        ([{**BOTH, "raylet": Part(11, "T")}, BOTH], "", ""),
    ],
)
def test_a_look(looks: list[dict[str, Part]], gone: str, stopped: str) -> None:
    """What was there once must be there; what is stopped may go on."""
    seen = PartsSeen()
    verdicts = [seen.judge(look, float(at)) for at, look in enumerate(looks)]
    assert (verdicts[-1].gone, verdicts[-1].stopped) == (gone, stopped)
    assert not any(verdict.gone for verdict in verdicts[:-1])


def test_what_only_hangs_is_borne_for_half_a_minute() -> None:
    """Then it is taken for lost; one that went on in between begins anew."""
    seen, stopped = PartsSeen(), {**BOTH, "gcs_server": Part(10, "T")}
    for at in (0.0, 20.0):
        assert not seen.judge(stopped, at).gone
    assert not seen.judge(BOTH, 25.0).stopped
    assert not seen.judge(stopped, 29.0).gone
    assert not seen.judge(stopped, 29.0 + HANGS_AFTER - 0.1).gone
    assert seen.judge(stopped, 29.0 + HANGS_AFTER).gone == (
        "its gcs_server (pid 10) is stopped for 30 s"
    )


def test_a_part_that_is_killed_ends_its_ray(tmp_path: Path) -> None:
    """Within 3 s, though its parent does not look at its children; a stopped one is told."""
    sleep = shutil.which("sleep")
    assert sleep is not None
    for name in ("gcs_server", "raylet"):
        shutil.copy(sleep, tmp_path / name)
    script = f"{tmp_path}/gcs_server 100 & {tmp_path}/raylet 100 & exec {sleep} 100"
    told: list[str] = []

    async def story() -> tuple[str, float]:
        child = await Child.start("ray", ["/bin/sh", "-c", script], {}, lambda: tmp_path / "log")
        parts = RayParts(child, anyio.current_time, told.append)

        async def both() -> bool | NotYet:
            return True if len(parts_of(child.pid)) == 2 else NotYet()

        async def heard() -> bool | NotYet:
            return True if told else NotYet()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(parts.watch)
            await until(both, 5.0)
            gcs, raylet = parts_of(child.pid)["gcs_server"], parts_of(child.pid)["raylet"]
            os.kill(gcs.pid, signal.SIGSTOP)
            await until(heard, 5.0)
            os.kill(gcs.pid, signal.SIGCONT)
            began = anyio.current_time()
            os.kill(raylet.pid, signal.SIGKILL)
            code = await child.wait()
            tasks.cancel_scope.cancel()
        return await parts.end_sentence(code), anyio.current_time() - began

    sentence, seconds = anyio.run(story)
    assert "its gcs_server" in told[0]
    assert "its raylet" in sentence
    assert "is gone; `ray start` ended" in sentence
    assert seconds < 3
