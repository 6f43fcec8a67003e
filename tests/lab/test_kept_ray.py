"""Ray between two attempts: it stays up where it is healthy, and is cleared."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.scenario import BOOT, Cluster, ends

if TYPE_CHECKING:
    from tools.lab import Container

STEPS = """
import os, subprocess, sys, threading, time
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On

ray.init(log_to_driver=False)

@ray.remote(num_cpus=0)
class Engine:
    def start(self):
        subprocess.Popen(["sleep", "1000"], start_new_session=True)
        subprocess.Popen(["env", "-i", "/bin/sleep", "1000"])
        return os.getpid()

nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
lifetime = {"lifetime": "detached"} if "detached" in sys.argv else {}
engines = [
    Engine.options(name=f"engine-{number}", scheduling_strategy=On(node, soft=False), **lifetime)
    for number, node in enumerate(nodes)
]
engines = [engine.remote() for engine in engines]
ray.get([engine.start.remote() for engine in engines])
print(f"attempt {os.environ['AGENT_ATTEMPT']} on {len(engines)} nodes", flush=True)

for step in range(1, 11):
    time.sleep(0.3)
    print(f"step {step}/10 loss=0.5", flush=True)
    if step == 8 and os.environ["AGENT_ATTEMPT"] == "1":
        threading.Event().wait()
"""
"""An engine on each node, with child processes of which Ray knows nothing; then steps that stop."""
RAY = {"gcs_server", "raylet"}


def ray_of(pod: Container) -> set[int]:
    """Return the pids of Ray's own processes in a pod."""
    return {process.pid for process in pod.processes() if process.name in RAY}


def children_of(pod: Container) -> set[int]:
    """Return the pids of what the engines started in a pod."""
    sleeping = ("sleep 1000", "/bin/sleep 1000")
    return {p.pid for p in pod.processes() if p.cmdline in sleeping and not p.zombie}


@pytest.mark.pods(2)
@pytest.mark.parametrize("actors", ["of the job", "detached"])
def test_ray_is_kept_after_a_stall(cluster: Cluster, actors: str) -> None:
    """Its nodes are the same, nothing of the first attempt runs; detached actors end with Ray."""
    cluster.env |= {"AGENT_JOB_RETRIES": "1", "POD_AGENT_STALL_LEAST": "5"}
    for pod in cluster.pods:
        (Path(pod.tmp) / "train.py").write_text(STEPS)
    head, worker = cluster.agents(sys.executable, "/tmp/train.py", actors)
    pods = (head, worker)
    head.wait_for("^attempt 1 on 2 nodes$", "stdout", timeout=BOOT)
    first_ray = [ray_of(pod) for pod in pods]
    first = [children_of(pod) for pod in pods]
    assert [len(pids) for pids in first] == [2, 2]

    # The second attempt begins on the same Ray, unless something lives on in it.
    head.wait_for("^attempt 2 on 2 nodes$", "stdout", timeout=3 * BOOT)
    second = [children_of(pod) for pod in pods]
    assert [len(pids) for pids in second] == [2, 2]
    assert [a & b for a, b in zip(first, second, strict=True)] == [set(), set()]
    is_same = [ray_of(pod) == pids for pod, pids in zip(pods, first_ray, strict=True)]
    assert is_same == [actors != "detached"] * 2
    assert ("Ray cannot stay up for the next attempt" in head.stderr()) == (actors == "detached")

    assert ends([head, worker], BOOT) == [0, 0], head.tail()
    assert children_of(head) | children_of(worker) == set()


@pytest.mark.pods(2)
def test_ray_is_kept_after_a_failure_by_a_loss(cluster: Cluster) -> None:
    """A link was cut, and the job fails soon after it is back: the attempt is lost, Ray is not."""
    cluster.env["AGENT_JOB_RETRIES"] = "1"
    waits = "sleep 1000 & wait $!; exit 1"
    job = f'echo attempt $AGENT_ATTEMPT; [ "$AGENT_ATTEMPT" = 1 ] || exit 7; {waits}'
    head, worker = cluster.agents("sh", "-c", job)
    head.wait_for("^attempt 1$", "stdout", timeout=BOOT)
    first = ray_of(head), ray_of(worker)
    cluster.pods[1].cut()
    head.wait_for("lost a needed node", timeout=20)
    cluster.pods[1].heal()
    head.wait_for("all needed nodes are back", timeout=20)
    (driver,) = (process for process in head.processes() if process.cmdline == "sleep 1000")
    assert head.exec(["kill", "-9", str(driver.pid)]).returncode == 0
    head.wait_for("attempt 1 of 2 is lost: .*podb", timeout=30)
    head.wait_for("^attempt 2$", "stdout", timeout=30)
    assert (ray_of(head), ray_of(worker)) == first
    assert ends([head, worker]) == [7, 7], head.tail()
