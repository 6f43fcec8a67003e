"""SIGUSR1 and SIGUSR2 reach the job and kill no agent; a worker does not forward them."""

from __future__ import annotations

import signal
import sys
from functools import partial
from typing import TYPE_CHECKING

import pytest

from support.scenario import BOOT, Cluster, await_true, ends

if TYPE_CHECKING:
    from tools.lab import Container

SHELL = "trap 'echo got usr1; exit 11' USR1; echo running; while :; do sleep 0.1; done"


@pytest.mark.pods(2)
def test_sigusr1_reaches_the_heads_job_only(cluster: Cluster) -> None:
    """A worker logs it without forwarding it; the head forwards it to the job at any time.

    The head is the container's first process; its init forwards signals even before Ray runs.
    """
    head, worker = cluster.agents("sh", "-c", SHELL)
    worker.wait_for("pod-agent on", timeout=20)
    worker.signal(signal.SIGUSR2)
    worker.wait_for("SIGUSR2 is not passed on: the job's driver runs on the head", timeout=20)
    head.wait_for("starting Ray", timeout=20)
    head.signal(signal.SIGUSR1)
    head.wait_for("SIGUSR1 is not passed on: no job of this run is running here", timeout=20)
    head.wait_for("running", stream="stdout", timeout=BOOT)
    head.signal(signal.SIGUSR1)
    head.wait_for(r"SIGUSR1 passed on to the job \(pid \d+, sh\)$", timeout=20)
    assert ends([head, worker]) == [11, 11]
    assert "got usr1" in head.stdout()


@pytest.mark.fault("signals")
@pytest.mark.pods(1)
def test_sigusr1_reaches_a_program_below_a_shell(cluster: Cluster) -> None:
    """A Python program that a shell waits for gets both signals; the exit code is its own."""
    program = (
        "import signal, time\n"
        "received = []\n"
        "def note(number, frame):\n"
        "    received.append(number); print('got', number, flush=True)\n"
        "signal.signal(10, note); signal.signal(12, note)\n"
        "print('running', flush=True)\n"
        "while len(set(received)) < 2: time.sleep(0.05)\n"
        "time.sleep(1); raise SystemExit(21)\n"
    )
    script = f'{sys.executable} -c "$PROGRAM"; code=$?; echo $code; exit $code'
    head = cluster.agent(0, "sh", "-c", script, env={"PROGRAM": program})
    head.wait_for("running", stream="stdout", timeout=BOOT)
    for signum in (signal.SIGUSR1, signal.SIGUSR2):
        head.signal(signum)
        head.wait_for(rf"{signum.name} passed on to the job \(pid \d+, python", timeout=20)
        await_true("the signal arrives", partial(has_printed, head, f"got {int(signum)}"))
    assert head.wait(BOOT) == 21


def has_printed(head: Container, text: str) -> bool:
    """Check whether the job's output contains a text."""
    return text in head.stdout()
