"""A worker whose link is cut for good stops its processes; the head continues without it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.scenario import BOOT, Cluster, await_true, ends

if TYPE_CHECKING:
    from tools.lab import Container, ProcessInfo

TWICE = 'echo attempt $AGENT_ATTEMPT; [ "$AGENT_ATTEMPT" = 1 ] || exit 7; exec sleep 1000'


def _has_ray(pod: Container) -> bool:
    return any(p.name in {"raylet", "gcs_server"} and not p.zombie for p in pod.processes())


@pytest.mark.fault(
    "fence",
    "a worker stays cut off",
    "it stops its Ray and its part of the job at 0.8 of AGENT_NODE_GRACE, before the next "
    "attempt begins, and rejoins when the head answers",
)
@pytest.mark.pods(2)
def test_a_worker_that_is_cut_off_fences_itself(cluster: Cluster) -> None:
    """Its Ray stops before the next attempt starts on the remaining nodes."""
    cluster.env |= {
        "AGENT_JOB_RETRIES": "1",
        "AGENT_NODE_GRACE": "15s",
        "AGENT_PARTIAL": "proceed",
        "AGENT_MIN_WORKERS": "0",
        "AGENT_WAIT_WORKERS": "30s",
    }
    head, worker = cluster.agents("sh", "-c", TWICE)
    head.wait_for("^attempt 1$", "stdout", timeout=BOOT)
    cluster.pods[1].cut()
    worker.wait_for("neither the head .* nor its GCS was reached for 12 s", timeout=30)
    await_true("its Ray is gone", lambda: not _has_ray(worker), 15)
    assert "attempt 2" not in head.stdout()
    assert head.wait(BOOT) == 7, head.tail()
    assert head.stdout() == "attempt 1\nattempt 2\n"
    assert cluster.outcome(0)["attempts"][0]["exit_code"] == 75


@pytest.mark.fault("fence")
@pytest.mark.pods(2)
def test_a_fenced_worker_rejoins(cluster: Cluster) -> None:
    """The link heals after the fence: the worker lost only its Ray, and rejoins."""
    cluster.env |= {"AGENT_JOB": "none", "AGENT_NODE_GRACE": "5s"}
    head, worker = cluster.agents()
    head.wait_for("is up and stays", timeout=BOOT)
    cluster.pods[1].cut()
    worker.wait_for("nor its GCS was reached for 4 s", timeout=30)
    await_true("its Ray is gone", lambda: not _has_ray(worker), 15)
    cluster.pods[1].heal()
    head.wait_for("all needed nodes are back", timeout=BOOT)
    assert worker.stderr().count("Ray is up on this node") == 2


@pytest.mark.fault("fence")
@pytest.mark.pods(2)
def test_a_fenced_workers_prepare_step_runs_again(cluster: Cluster) -> None:
    """The step is stopped while the head is out of reach, and runs again before the job."""
    step = "[ $RUNPOD_POD_ID = poda ] || [ -e /tmp/go ] || sleep 1000"
    cluster.env |= {"AGENT_PREPARE_EACH": step, "AGENT_NODE_GRACE": "10s"}
    head, worker = cluster.agents("sh", "-c", "exit 7")
    head.wait_for("podb last reported", timeout=BOOT)
    await_true("it prepares", lambda: bool(_sleepers(worker)), BOOT)
    cluster.pods[1].cut()
    worker.wait_for("nor its GCS was reached for 8 s .*stopping all that runs here", timeout=40)
    await_true("nothing of it runs", lambda: not _sleepers(worker), 15)
    (cluster.pods[1].tmp / "go").touch()
    cluster.pods[1].heal()
    worker.wait_for(r"stopping all that runs here[\s\S]*AGENT_PREPARE_EACH: running", timeout=30)
    assert ends([head, worker]) == [7, 7], head.tail() + worker.tail()


def _sleepers(pod: Container) -> list[ProcessInfo]:
    return [p for p in pod.processes() if p.cmdline == "sleep 1000" and not p.zombie]
