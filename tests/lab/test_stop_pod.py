"""Pods are stopped by RunPod's API after the job's end, with real agents."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest

from support.scenario import BOOT, REPO, await_true, instant_cluster, read_outcome

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


@pytest.mark.pods(2, interface="ens1")
def test_the_head_deletes_an_instant_cluster(cluster: Cluster) -> None:
    """The worker is held; once it has the verdict, the head deletes the cluster, and no pod."""
    del cluster.env["HEAD_POD_ID"], cluster.env["EXPECTED_WORKERS"]
    program = str(REPO / "tests/support/runpod_server.py")
    members = [f"{pod.name}=cluster_1" for pod in cluster.pods]
    servers = [
        pod.start([sys.executable, "-u", program, "9443", KEY, *members]) for pod in cluster.pods
    ]
    for server in servers:
        server.wait_for("serving", stream="stdout", timeout=30)

    deletes = {**STOP_POD, "AGENT_ON_DONE": "terminate-pod"}
    job = ("sh", "-c", "exit 5")
    head, worker = (
        cluster.agent(rank, *job, env={**deletes, **instant_cluster(cluster.pods, rank)})
        for rank in range(2)
    )
    worker.wait_for("holding the pod until the head deletes its cluster", timeout=BOOT)
    head.wait_for("RunPod accepted to delete this pod's cluster", timeout=20)
    for rank, pod in enumerate(cluster.pods):
        (folder,) = pod.tmp.glob(f"logs/2*/node{rank}")
        assert read_outcome(folder)["exit_code"] == 5
    assert [r for r in requests_of(servers[0]) if r[0] == "DELETE"] == [
        ["DELETE", "cluster_1", "", 204]
    ]
    assert "not all agents" not in head.stderr()
    assert not any(r[0] in {"POST", "DELETE"} for r in requests_of(servers[1]))
    for server in servers:
        server.kill()
