"""The dashboard hangs (SIGSTOP) where the agent needs it: every wait has a deadline."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

import pytest

from support.scenario import BOOT, RAY, Cluster, await_true, ends, keep_running

if TYPE_CHECKING:
    from tools.lab import Container, ProcessInfo

CLEANS_UP = "trap 'echo bye; exit 3' TERM; echo here; while :; do sleep 0.2; done"


def _dashboard(pod: Container) -> list[ProcessInfo]:
    """List the dashboard's processes: it has several, and one of them serves the jobs API."""
    marks = ("ray-dashboard-", "dashboard/dashboard.py")
    return [p for p in pod.processes() if any(mark in p.cmdline for mark in marks)]


def _to_the_dashboard(head: Container, how: str) -> None:
    pids = [str(p.pid) for p in _dashboard(head)]
    assert head.exec(["kill", f"-{how}", *pids]).returncode == 0


def _is_up(head: Container) -> bool:
    """Check that it accepts jobs, and that Ray's node, with its dashboard agent, is up."""
    lines = [p.cmdline for p in head.processes()]
    marks = ("ray-dashboard-JobHead", "ray::DashboardAgent")
    return all(any(line.startswith(mark) for line in lines) for mark in marks)


@pytest.mark.fault("dashboard-asked")
@pytest.mark.pods(1)
def test_a_job_is_stopped_without_the_dashboard(cluster: Cluster) -> None:
    """The agent itself sends the driver SIGTERM and waits for its grace."""
    head = cluster.agent(0, "sh", "-c", CLEANS_UP)
    head.wait_for("^here$", "stdout", timeout=BOOT)
    _to_the_dashboard(head, "STOP")
    head.signal(signal.SIGTERM)
    assert head.wait(60) == 143, head.tail()
    assert "Ray did not take the stop of the job within 5 s: SIGTERM sent to its driver" in (
        head.stderr()
    )
    assert head.stdout().endswith("bye\n")
    assert "did not stop in time" not in head.stderr()


@pytest.mark.fault(
    "dashboard-asked",
    "Ray's dashboard hangs before a job is submitted, while no job runs, or at a stop",
    "logged within 3 s; Ray is restarted after 30 s; at a stop the driver still gets SIGTERM",
)
@pytest.mark.pods(2)
@pytest.mark.parametrize("comes_back", [True, False])
def test_a_dashboard_that_hangs_before_the_job(cluster: Cluster, *, comes_back: bool) -> None:
    """No job is submitted to it; after 30 s Ray is started again in place."""
    head = cluster.agent(0, "sh", "-c", "exit 7")
    head.wait_for("0 of 1 joined", timeout=BOOT)
    await_true("the dashboard is up", lambda: _is_up(head), BOOT)
    _to_the_dashboard(head, "STOP")
    stopped = time.monotonic()
    head.wait_for(r"dashboard.* is stopped: Ray is started again unless .* within 30 s", timeout=10)
    assert time.monotonic() - stopped < 4
    worker = cluster.agent(1, "sh", "-c", "exit 7")
    if comes_back:
        keep_running(5, head)
        _to_the_dashboard(head, "CONT")
        head.wait_for("Ray runs again: none of its processes is stopped", timeout=10)
    else:
        again = r"Ray was lost on the head: its dashboard .* is stopped for \d+ s; .* again: 1 of 2"
        head.wait_for(again, timeout=45)
        assert time.monotonic() - stopped > 29
    assert ends([head, worker], 150) == [7, 7], head.tail()
    assert ("starting it again" in head.stderr()) != comes_back
    assert len(cluster.outcome(0)["attempts"]) == 1


@pytest.mark.fault("dashboard-asked")
@pytest.mark.pods(1)
def test_a_dashboard_that_hangs_without_a_job(cluster: Cluster) -> None:
    """Ray is started again in place, unless a job of the user runs there."""
    cluster.env |= {"AGENT_JOB": "none"}
    head = cluster.agent(0)
    head.wait_for("is up and stays", timeout=BOOT)
    submit = [RAY, "job", "submit", "--no-wait", "--address=http://127.0.0.1:8265", "--"]
    assert head.exec([*submit, "sleep", "1000"], timeout=BOOT).returncode == 0
    await_true("the job runs", lambda: bool(_sleepers(head)), BOOT)
    _to_the_dashboard(head, "STOP")
    head.wait_for(r"dashboard.* is stopped: left alone, since a job runs", timeout=10)
    keep_running(33, head)
    (driver,) = _sleepers(head)
    assert head.exec(["kill", "-9", str(driver.pid)]).returncode == 0
    head.wait_for(
        r"Ray was lost on the head: its dashboard .*; starting it again: 1 of 2", timeout=50
    )
    head.wait_for(r"is up and stays[\s\S]*is up and stays", timeout=BOOT)
    head.signal(signal.SIGTERM)
    assert head.wait(40) == 0


def _sleepers(pod: Container) -> list[ProcessInfo]:
    return [p for p in pod.processes() if p.cmdline == "sleep 1000" and not p.zombie]
