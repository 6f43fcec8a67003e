"""A dashboard that hangs (SIGSTOP) where the agent needs it: nothing waits for it for ever."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

import pytest

from scenario import BOOT, Cluster, ends, last_line, let_pass

if TYPE_CHECKING:
    from podlab import Container

PATIENT = "trap 'echo bye; exit 3' TERM; echo here; while :; do sleep 0.2; done"


def _to_the_dashboard(head: Container, how: str) -> None:
    pids = [str(p.pid) for p in head.processes() if p.name.startswith("ray-dashboard")]
    assert head.exec(["kill", f"-{how}", *pids]).returncode == 0


@pytest.mark.slow
@pytest.mark.pods(1)
def test_a_job_is_stopped_all_the_same(cluster: Cluster) -> None:
    """Its driver gets its SIGTERM and its grace, by the agent itself."""
    head = cluster.agent(0, "sh", "-c", PATIENT)
    head.wait_for("^here$", "stdout", timeout=BOOT)
    _to_the_dashboard(head, "STOP")
    head.signal(signal.SIGTERM)
    assert head.wait(60) == 143, head.tail()
    assert "Ray did not take the stop of the job within 5 s: SIGTERM sent to its driver" in (
        head.stderr()
    )
    assert head.stdout().endswith("bye\n")
    assert "did not stop in time" not in head.stderr()


@pytest.mark.slow
@pytest.mark.pods(2)
@pytest.mark.parametrize("comes_back", [True, False])
def test_a_job_that_cannot_be_submitted(cluster: Cluster, *, comes_back: bool) -> None:
    """Two minutes is what the dashboard has to take the job; then all end with 69, and say so."""
    head = cluster.agent(0, "sh", "-c", "exit 7")
    head.wait_for("GCS answered", timeout=BOOT)
    head.wait_for("0 of 1 joined", timeout=BOOT)
    let_pass(12, head)  # until the dashboard is there, and was met
    _to_the_dashboard(head, "STOP")
    worker = cluster.agent(1, "sh", "-c", "exit 7")
    head.wait_for("submitting the job", timeout=BOOT)
    began = time.monotonic()
    if comes_back:
        let_pass(20, head, worker)
        _to_the_dashboard(head, "CONT")
        assert ends([head, worker], 60) == [7, 7], head.tail()
    else:
        assert ends([head, worker], 160) == [69, 69], head.tail()
        assert time.monotonic() - began < 150
        assert "the job could not be submitted" in last_line(head)
