"""Orphans: adopted, reaped, and killed; a signal reaches only the intended process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import psutil
import pytest

from agent.processes.process import kill, kill_marked

ADOPTION = """
import os, subprocess, sys, time
import anyio, psutil
from agent.processes import parent, process

parent.become_subreaper()
# A shell that ends at once leaves two: one of another session, and one that ends by itself.
subprocess.run(["sh", "-c", "setsid sleep 1000 & (sleep 0.1; exit 3) &"], check=True)
adopted = psutil.Process().children()
assert len(adopted) == 2, adopted
assert anyio.run(process.stop_descendants, 20.0) == []
assert psutil.Process().children() == []
"""


def test_orphans_are_ended_and_reaped() -> None:
    """Whatever their session, none of them is left, not even as a zombie."""
    done = subprocess.run([sys.executable, "-c", ADOPTION], check=False, timeout=60)
    assert done.returncode == 0


def test_a_signal_never_reaches_another_of_the_same_pid(monkeypatch: pytest.MonkeyPatch) -> None:
    """PID and start time identify a process; another process with the PID gets no signal."""
    with subprocess.Popen(["sleep", "1000"]) as child:
        meant, other = psutil.Process(child.pid), psutil.Process(child.pid)
        # A former owner of this PID, in psutil's form.
        monkeypatch.setattr(other, "_ident", (other.pid, meant.create_time() - 60))
        assert kill([other]) == []
        with pytest.raises(psutil.NoSuchProcess):
            other.send_signal(signal.SIGKILL)
        assert child.poll() is None
        assert kill([meant]) == [f"sleep (pid {child.pid})"]
        assert child.wait(20) == -signal.SIGKILL


def test_the_dead_are_not_signaled() -> None:
    """A reaped process is reported as gone."""
    with subprocess.Popen(["true"]) as child:
        process = psutil.Process(child.pid)
    assert kill([process]) == []
    assert not os.path.exists(f"/proc/{child.pid}")  # noqa: PTH110 - a name, not a file


def test_what_carries_a_mark_is_killed_and_nothing_else() -> None:
    """A rank without its torchrun is identified by its rendezvous variables."""
    environ = {**os.environ, "RUN_ID": "run-1"}
    started = [
        subprocess.Popen(["sleep", "1000"], env={**environ, "RUN_ID": mark}, start_new_session=True)
        for mark in ("run-1", "run-2")
    ]
    try:
        (name,) = kill_marked("RUN_ID", "run-1".__eq__)
        assert name == f"sleep (pid {started[0].pid})"
        assert started[0].wait(10) == -signal.SIGKILL
        assert started[1].poll() is None
        assert kill_marked("RUN_ID", "run-1".__eq__) == []
    finally:
        for process in started:
            process.kill()
            process.wait()
