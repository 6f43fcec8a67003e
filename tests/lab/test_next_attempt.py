"""From a lost attempt to the next: nothing of the one runs beside the other."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.scenario import BOOT, Cluster, ends

if TYPE_CHECKING:
    from tools.lab import Container

STEPS = """
import os, subprocess, threading, time
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
engines = [
    Engine.options(
        name=f"engine-{number}", scheduling_strategy=On(node, soft=False), lifetime="detached"
    ).remote()
    for number, node in enumerate(nodes)
]
ray.get([engine.start.remote() for engine in engines])
print(f"attempt {os.environ['AGENT_ATTEMPT']} on {len(engines)} nodes", flush=True)

for step in range(1, 11):
    time.sleep(0.3)
    print(f"step {step}/10 loss=0.5", flush=True)
    if step == 8 and os.environ["AGENT_ATTEMPT"] == "1":
        threading.Event().wait()
"""
"""A detached engine on each node, with child processes unknown to Ray; then steps that stop."""
RAY = {"gcs_server", "raylet"}


def ray_of(pod: Container) -> set[int]:
    """Return the pids of Ray's own processes in a pod."""
    return {process.pid for process in pod.processes() if process.name in RAY}


def children_of(pod: Container) -> set[int]:
    """Return the pids of what the engines started in a pod."""
    sleeping = ("sleep 1000", "/bin/sleep 1000")
    return {p.pid for p in pod.processes() if p.cmdline in sleeping and not p.zombie}


@pytest.mark.fault("steps-stop")
@pytest.mark.pods(2)
def test_nothing_of_an_attempt_runs_beside_the_next(cluster: Cluster) -> None:
    """Each attempt begins on a new Ray: detached actors and their child processes are ended."""
    cluster.env |= {"AGENT_JOB_RETRIES": "1", "POD_AGENT_STALL_LEAST": "5"}
    for pod in cluster.pods:
        (Path(pod.tmp) / "train.py").write_text(STEPS)
    head, worker = cluster.agents(sys.executable, "/tmp/train.py")
    pods = (head, worker)
    head.wait_for("^attempt 1 on 2 nodes$", "stdout", timeout=BOOT)
    first_ray = [ray_of(pod) for pod in pods]
    first = [children_of(pod) for pod in pods]
    assert [len(pids) for pids in first] == [2, 2]

    head.wait_for("^attempt 2 on 2 nodes$", "stdout", timeout=3 * BOOT)
    second = [children_of(pod) for pod in pods]
    assert [len(pids) for pids in second] == [2, 2]
    assert [a & b for a, b in zip(first, second, strict=True)] == [set(), set()]
    assert [ray_of(pod) & pids for pod, pids in zip(pods, first_ray, strict=True)] == [set(), set()]

    assert ends([head, worker], BOOT) == [0, 0], head.tail()
    assert children_of(head) | children_of(worker) == set()
