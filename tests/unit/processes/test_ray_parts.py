"""Ray's own processes: which are gone or stopped, and how long that is tolerated."""

from __future__ import annotations

import os
import shutil
import signal
from typing import TYPE_CHECKING, cast

import anyio
import pytest

from agent.base import times
from agent.processes import ray_parts
from agent.processes.process import Child
from agent.processes.ray_parts import RayParts, ray_processes
from agent.processes.waiting import NotYet, until
from agent.record.node_record import ProcessStat

if TYPE_CHECKING:
    from pathlib import Path

GCS, RAYLET = ProcessStat("gcs_server", "S", 1), ProcessStat("raylet", "R", 1)
BOTH = {10: GCS, 11: RAYLET}


def in_state(state: str, stat: ProcessStat) -> ProcessStat:
    """Return a process in another state."""
    return stat._replace(state=state)


@pytest.mark.parametrize(
    ("tables", "lost", "stopped"),
    [
        ([{}], "", ""),
        ([{10: GCS}, BOTH], "", ""),
        ([BOTH, {10: GCS}], "its raylet (pid 11) is gone", ""),
        ([{10: in_state("Z", GCS)}], "its gcs_server (pid 10) is gone", ""),
        ([{10: GCS}, {}], "its gcs_server (pid 10) is gone", ""),
        ([BOTH, {**BOTH, 11: in_state("Z", RAYLET)}], "its raylet (pid 11) is gone", ""),
        ([{11: RAYLET}, {11: in_state("D", RAYLET)}], "", ""),
        ([BOTH, {**BOTH, 11: in_state("T", RAYLET)}], "", "its raylet (pid 11) is stopped"),
        ([{**BOTH, 11: in_state("T", RAYLET)}, BOTH], "", "its raylet (pid 11) is stopped"),
    ],
)
def test_a_search_for_parts(
    tables: list[dict[int, ProcessStat]], lost: str, stopped: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process seen once must stay; a stopped one may continue, and is logged."""
    logged: list[str] = []
    monkeypatch.setattr(ray_parts, "say", lambda line, _level: logged.append(line))
    clock = iter(range(len(tables)))
    parts = RayParts(cast("Child", None), lambda: next(clock))
    verdicts = [parts.find_lost(look) for look in tables]
    assert verdicts[-1] == lost
    assert not any(verdicts[:-1])
    assert logged == ([f"{stopped}: Ray is taken for lost after 30 s"] if stopped else [])


def test_what_only_hangs_is_borne_for_half_a_minute() -> None:
    """Then it counts as lost; if it continued in between, the time starts again."""
    stopped, limit = {**BOTH, 10: in_state("T", GCS)}, times.RAY_HANGS
    lost = "its gcs_server (pid 10) is stopped for 30 s"
    history = [
        *((0.0, stopped, ""), (20.0, stopped, ""), (25.0, BOTH, ""), (29.0, stopped, "")),
        *((29.0 + limit - 0.1, stopped, ""), (29.0 + limit, stopped, lost)),
    ]
    clock = iter([at for at, _, _ in history])
    parts = RayParts(cast("Child", None), lambda: next(clock))
    assert [parts.find_lost(found) for _, found, _ in history] == [end for _, _, end in history]


def test_a_part_that_is_killed_ends_its_ray(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once, although its parent does not reap its children; a stopped one is logged."""
    sleep = shutil.which("sleep")
    assert sleep is not None
    for name in ("gcs_server", "raylet"):
        shutil.copy(sleep, tmp_path / name)
    script = f"{tmp_path}/gcs_server 100 & {tmp_path}/raylet 100 & exec {sleep} 100"
    logged: list[str] = []
    monkeypatch.setattr(ray_parts, "say", lambda line, _level: logged.append(line))

    async def scenario() -> tuple[str, int]:
        child = await Child.start("ray", ["/bin/sh", "-c", script], {}, lambda: tmp_path / "log")
        parts = RayParts(child, anyio.current_time)

        async def both() -> bool | NotYet:
            return True if len(ray_processes(child.pid)) == 2 else NotYet()

        async def is_logged() -> bool | NotYet:
            return True if logged else NotYet()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(parts.watch)
            await until(both, 5.0, longest=0.05)
            pids = {stat.name: pid for pid, stat in ray_processes(child.pid).items()}
            os.kill(pids["gcs_server"], signal.SIGSTOP)
            await until(is_logged, 5.0, longest=0.05)
            os.kill(pids["gcs_server"], signal.SIGCONT)
            os.kill(pids["raylet"], signal.SIGKILL)
            code = await child.wait()
            tasks.cancel_scope.cancel()
        return parts.end_sentence(code), code

    sentence, code = anyio.run(scenario)
    assert "its gcs_server" in logged[0]
    assert "its raylet" in sentence
    assert "is gone; `ray start` ended" in sentence
    assert code != 0  # it was stopped: its own end after 100 s would be 0
