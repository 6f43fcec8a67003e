"""Ray's own processes that are gone or stopped, and sessions of earlier Rays."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, cast

import anyio
import pytest

from agent.base import times
from agent.processes import ray_parts
from agent.processes.process import Child
from agent.processes.ray_parts import RayParts, ray_processes
from agent.processes.ray_temp import SESSION_QUIET, prune_sessions
from agent.processes.waiting import BestEffort
from agent.record.node_record import ProcessStat
from support.conditions import is_so

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


@pytest.mark.anyio
async def test_a_part_that_is_killed_ends_its_ray(
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
    child = await Child.start("ray", ["/bin/sh", "-c", script], {}, lambda: tmp_path / "log")
    parts = RayParts(child, anyio.current_time)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(parts.watch)
        await is_so(lambda: len(ray_processes(child.pid)) == 2, 5.0)
        pids = {stat.name: pid for pid, stat in ray_processes(child.pid).items()}
        os.kill(pids["gcs_server"], signal.SIGSTOP)
        await is_so(lambda: bool(logged), 5.0)
        os.kill(pids["gcs_server"], signal.SIGCONT)
        os.kill(pids["raylet"], signal.SIGKILL)
        code = await child.wait()
        tasks.cancel_scope.cancel()
    sentence = parts.end_sentence(code)
    assert "its gcs_server" in logged[0]
    assert "its raylet" in sentence
    assert "is gone; `ray start` ended" in sentence
    assert code != 0  # it was stopped: its own end after 100 s would be 0


# --- sessions of earlier Rays -----------------------------------------------------------------


def made(temp: Path, day: int, age: float = 2 * SESSION_QUIET) -> Path:
    """Make a session's folder as Ray leaves it, with spilled objects."""
    session = temp / f"session_2026-01-{day:02}_10-00-00_000001_77"
    for part in ("logs", "ray_spilled_objects_abc"):
        (session / part).mkdir(parents=True)
    for file in (session / "logs/raylet.out", session / "ray_spilled_objects_abc/x"):
        file.write_text("x")
    then = time.time() - age - 40 + day
    for path in (*session.rglob("*"), session):
        os.utime(path, (then, then))
    return session


def test_the_disk_is_freed(tmp_path: Path) -> None:
    """Old sessions are removed; used ones, new ones, links and other names stay."""
    dead = [made(tmp_path, day) for day in range(1, 7)]
    lives, fresh = made(tmp_path, 20), made(tmp_path, 21, age=0)
    strange = tmp_path / "session_mine"
    strange.mkdir()
    link = tmp_path / "session_2020-01-01_10-00-00_000001_77"
    link.symlink_to(lives)
    (tmp_path / "session_latest").symlink_to(dead[0])
    code = "print('up', flush=True); import time; time.sleep(60)"
    command = [sys.executable, "-c", code, f"--session-name={lives.name}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as raylet:
        try:
            assert raylet.stdout is not None
            raylet.stdout.readline()
            anyio.run(prune_sessions, str(tmp_path), BestEffort())
        finally:
            raylet.kill()
    assert [one.exists() for one in dead] == [False] * 3 + [True] * 3
    assert [(one / "logs/raylet.out").exists() for one in dead[3:]] == [True] * 3
    assert not any((one / "ray_spilled_objects_abc").exists() for one in dead[3:])
    for one in (lives, fresh):
        assert (one / "ray_spilled_objects_abc/x").exists()
    assert strange.exists()
    assert link.is_symlink()


def test_where_there_is_none(tmp_path: Path) -> None:
    """On a pod's first run there is nothing to remove, not even a folder."""
    anyio.run(prune_sessions, str(tmp_path / "none"), BestEffort())
    assert not (tmp_path / "none").exists()
