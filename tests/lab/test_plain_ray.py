"""Ray without an agent: a plain worker, a plain head, Ray of a container on the host."""

from __future__ import annotations

import signal
import subprocess
from typing import TYPE_CHECKING

import psutil
import pytest

from agent.processes.stale_ray import stale_ray
from support.scenario import AGENT, BOOT, RAY, Cluster, await_true

if TYPE_CHECKING:
    from tools.lab import Container

OPEN = {"RAY_AUTH_MODE": "disabled"}


@pytest.mark.pods(2)
def test_a_plain_ray_start_joins_as_a_worker(cluster: Cluster) -> None:
    """A node joined by a plain `ray start` counts, and the job uses it."""
    head = cluster.agent(0, "echo", "nodes={nodes} others={nodes-1}")
    pod = cluster.pods[1]
    idle = pod.start(["sleep", "infinity"], env=OPEN)
    head.wait_for("0 of 1 joined", timeout=BOOT)
    address = f"--address={cluster.pods[0].ip}:6379"

    def joined() -> bool:
        argv = [RAY, "start", address, f"--node-ip-address={pod.ip}"]
        return idle.exec(argv, timeout=60).returncode == 0

    await_true("plain ray start", joined, BOOT)
    assert head.wait(BOOT) == 0, head.tail()
    assert head.stdout() == "nodes=2 others=1\n"


@pytest.mark.pods(2)
def test_a_worker_joins_a_plain_head(cluster: Cluster) -> None:
    """A head without an agent is found by its open GCS port; its loss ends the worker with 75."""
    pod = cluster.pods[0]
    idle = pod.start(["sleep", "infinity"], env=OPEN)
    cluster.env["AGENT_HEAD_GRACE"] = "10s"
    worker = cluster.agent(1)
    start = [RAY, "start", "--head", f"--node-ip-address={pod.ip}", "--port=6379"]
    assert idle.exec(start, timeout=60).returncode == 0
    worker.wait_for("joining Ray at a plain Ray head", timeout=30)
    worker.wait_for("Ray is up on this node", timeout=BOOT)
    ask = [RAY, "list", "nodes", "--address=http://127.0.0.1:8265"]
    there = cluster.pods[1].ip
    await_true("Ray knows the worker", lambda: there in idle.exec(ask, env=OPEN).stdout, 30)
    pod.kill()
    assert worker.wait(60) == 75, worker.tail()
    assert cluster.outcome(1)["kind"] == "lost"


@pytest.mark.pods(1)
def test_a_worker_beside_its_head(cluster: Cluster) -> None:
    """RAY_WORKER=1 with AGENT_HEAD on the own address: the head is another process there."""
    pod = cluster.pods[0]
    idle = pod.start(["sleep", "infinity"], env=OPEN)
    start = [RAY, "start", "--head", f"--node-ip-address={pod.ip}", "--port=6379"]
    assert idle.exec(start, timeout=60).returncode == 0
    del cluster.env["HEAD_POD_ID"]
    env = {**cluster.env, "RAY_WORKER": "1", "AGENT_HEAD": pod.ip}
    worker = idle.spawn([AGENT], env=env)
    worker.wait_for("joining Ray at a plain Ray head", timeout=60)
    worker.wait_for("Ray is up on this node", timeout=BOOT)
    worker.signal(signal.SIGTERM)
    assert worker.wait(60) == 143, worker.tail()
    idle.kill()


def test_a_host_does_not_stop_a_containers_ray(idle: list[Container]) -> None:
    """A host's process list includes its containers' processes; their Ray is not stale."""
    of_a_ray = "/opt/ray/core/src/ray/raylet/raylet"
    stand_in = ["bash", "-c", f"exec -a {of_a_ray} sleep infinity"]
    in_container = idle[0].spawn(stand_in)
    on_host = subprocess.Popen(stand_in)
    try:

        def found() -> set[int]:
            return {process.pid for process in stale_ray("/tmp/pod-agent", everything=True)}

        await_true("the host's own", lambda: on_host.pid in found(), 10)
        inside = psutil.Process(in_container.pid)
        await_true("the container's", lambda: inside.cmdline()[0] == of_a_ray, 10)
        assert in_container.pid not in found()
    finally:
        on_host.kill()
        on_host.wait()
