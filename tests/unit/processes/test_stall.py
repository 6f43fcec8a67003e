"""A job without progress: what it keeps busy."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import anyio
import pytest

from agent.processes.driver import busy_cores, output_of

if TYPE_CHECKING:
    from pathlib import Path


IN_ITS_STEAD = """
from agent.processes import parent
from agent.processes.driver import job_processes
parent.former_agents = {former}
print([one.process.pid for one in job_processes(None) if one.role == "ray::Trainer"])
"""


@pytest.mark.parametrize("former", [(1,), ()])
def test_a_stall_of_a_killed_agent_is_examined_by_the_next(former: tuple[int, ...]) -> None:
    """It is below our parent then: who looked only below us would take the job for idle."""
    left = ["ray::Trainer", "-c", "input()"]
    with subprocess.Popen(left, executable=sys.executable, stdin=subprocess.PIPE) as trainer:
        try:
            argv = [sys.executable, "-c", IN_ITS_STEAD.format(former=former)]
            found = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60)
        finally:
            trainer.kill()
    assert found.stdout == f"{[trainer.pid] if former else []}\n"


# --- how busy ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("used", "seconds", "processes", "is_busy"),
    [(0.0, 10.0, 4, False), (1.0, 10.0, 4, False), (5.0, 10.0, 4, True), (0.0, 0.0, 0, False)],
)
def test_processors_that_work(
    used: float, seconds: float, processes: int, *, is_busy: bool
) -> None:
    """Processes that only wait use a little each."""
    assert bool(busy_cores(used, seconds, processes)) is is_busy


def fake(folder: Path, name: str, script: str) -> str:
    """Make a tool from a shell script; return its path."""
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


# --- where it is ---------------------------------------------------------------------------------


def test_a_tool_has_its_time(tmp_path: Path) -> None:
    """What it prints, or why there is nothing; it is not waited for for ever."""
    log = tmp_path / "tool.log"

    async def ask(script: str, limit: float = 20.0) -> tuple[str, str]:
        return await output_of([fake(tmp_path, "tool", script)], {}, lambda: log, limit)

    assert anyio.run(ask, "echo one; echo two") == ("one\ntwo\n", "")
    said, fault = anyio.run(ask, "echo one; echo broken >&2; exit 3")
    assert (said, fault) == ("one\n", "exit code 3; last output: broken")
    assert anyio.run(ask, "exec sleep 100", 0.3) == ("", "tool did not end within 0.3 s")
    missing = anyio.run(output_of, ["/none/py-spy"], {}, lambda: log, 5.0)
    assert missing == ("", "[Errno 2] No such file or directory: '/none/py-spy'")
