"""Pods are stopped by RunPod's API after the job's end, with real agents."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest

from support.scenario import BOOT, REPO, await_true

if TYPE_CHECKING:
    from support.scenario import Cluster
    from tools.lab import Container

KEY = "rpa_0123456789abcdef0123"
STOP_POD = {
    "AGENT_ON_DONE": "stop-pod",
    "AGENT_RUNPOD_API": "http://127.0.0.1:9443",
    "RUNPOD_API_KEY": KEY,
}


def requests_of(server: Container) -> list[list[object]]:
    """Return the requests that the server printed."""
    lines = server.stdout().splitlines()
    return [json.loads(line) for line in lines if line.startswith("[")]


@pytest.mark.pods(2)
def test_pods_are_stopped_after_the_verdict(cluster: Cluster) -> None:
    """Each agent stops its own pod, the worker first, and exits with the job's code."""
    program = str(REPO / "tests/support/runpod_server.py")
    servers = [
        pod.start([sys.executable, "-u", program, "9443", KEY, pod.name]) for pod in cluster.pods
    ]
    for server in servers:
        server.wait_for("serving", stream="stdout", timeout=30)
    head, worker = cluster.agents("sh", "-c", "exit 5", env=STOP_POD)
    worker.wait_for("RunPod accepted to stop this pod", timeout=BOOT)
    assert cluster.outcome(1)["exit_code"] == 5
    assert not any("POST" in request for request in requests_of(servers[0]))
    worker.kill()  # RunPod stops a pod with SIGTERM
    head.wait_for("RunPod accepted to stop this pod", timeout=40)
    assert cluster.outcome(0)["exit_code"] == 5
    for pod, server in zip(cluster.pods, servers, strict=True):
        assert ["POST", pod.name, "stop", 200] in requests_of(server)
    await_true("the log is on disk", lambda: "accepted" in cluster.file(0, "agent.log").read_text())
    assert KEY not in cluster.file(0, "agent.log").read_text()
    for server in servers:
        server.kill()
