"""Sessions of earlier Rays: what is removed, and that a running one never is."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import anyio

from agent.processes.ray_machine import SESSION_QUIET, prune_sessions
from agent.processes.waiting import BestEffort

if TYPE_CHECKING:
    from pathlib import Path


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
