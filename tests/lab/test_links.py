"""Links that fail under a job: cut briefly or for good, one-way, slow and lossy."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

import pytest

from support.scenario import BOOT, ENVIRONMENT, Cluster, ends, keep_running, last_line, states

if TYPE_CHECKING:
    from tools.lab import Container, Pod

ROUNDS = """
import os, ray, time
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On

@ray.remote(num_cpus=0)
class Fellow:
    def add(self, number):
        return number + 1

ray.init(address="auto", log_to_driver=False)
nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
fellows = [Fellow.options(scheduling_strategy=On(node, soft=False)).remote() for node in nodes]
count = 0
print("nodes", len(nodes), flush=True)
while not os.path.exists("/tmp/enough"):
    assert ray.get([fellow.add.remote(count) for fellow in fellows]) == [count + 1] * len(nodes)
    count += 1
    print("round", count, flush=True)
    time.sleep(0.2)
raise SystemExit(7)
"""
"""Calls an actor on each node in a loop: a call across a cut link waits."""
JOB = (str(ENVIRONMENT / "bin/python"), "-c", ROUNDS)


def _rays(pod: Container) -> set[int]:
    """Return the processes that a Ray restart would replace."""
    return {p.pid for p in pod.processes() if p.name in {"raylet", "gcs_server"}}


def _rounds(head: Container) -> int:
    found = re.findall(r"^round (\d+)$", head.stdout(), re.MULTILINE)
    return int(found[-1]) if found else 0


@pytest.mark.fault(
    "link",
    "a worker's link is cut for ten seconds",
    "nothing is restarted, the job continues",
)
@pytest.mark.pods(2)
def test_a_link_that_is_cut_for_ten_seconds(cluster: Cluster) -> None:
    """Nothing is restarted; the job, which waits for the worker's actor, continues."""
    head, worker = cluster.agents(*JOB)
    head.wait_for("^round 3$", "stdout", timeout=BOOT)
    before = _rays(head), _rays(worker)
    cluster.pods[1].cut()
    cut = time.monotonic()
    head.wait_for("podb is silent", timeout=10)
    worker.wait_for("waiting for a reply from the head", timeout=10)
    keep_running(max(0.0, cut + 10 - time.monotonic()), head, worker)
    stood_at = _rounds(head)
    assert states(head) == {"podb": "lost"}
    cluster.pods[1].heal()
    head.wait_for("all needed nodes are back", timeout=20)
    assert states(head) == {"podb": "joined"}
    head.wait_for(f"^round {stood_at + 3}$", "stdout", timeout=30)
    assert (_rays(head), _rays(worker)) == before
    (cluster.pods[0].tmp / "enough").touch()
    assert ends([head, worker], 40) == [7, 7], head.tail()
    assert "joining again" not in worker.stderr()
    assert len(cluster.outcome(0)["attempts"]) == 1


@pytest.mark.fault(
    "link-gone",
    "a worker's link is cut permanently, in one direction or both",
    "head: 75 with its name after AGENT_NODE_GRACE; worker: 75 after AGENT_HEAD_GRACE",
)
@pytest.mark.pods(2)
@pytest.mark.parametrize("how", ["both ways", "to the worker", "to the head"])
def test_a_link_that_is_cut_for_good(cluster: Cluster, how: str) -> None:
    """The head ends after AGENT_NODE_GRACE, naming the node; the worker after its own grace."""
    cluster.env |= {"AGENT_NODE_GRACE": "20s", "AGENT_HEAD_GRACE": "30s"}
    # a stuck collective ignores signals as well
    head, worker = cluster.agents("sh", "-c", "echo here; exec sleep 1000")
    head.wait_for("^here$", "stdout", timeout=BOOT)
    lost = time.monotonic()
    _lose(cluster.pods[0], cluster.pods[1], how)
    # What the job's begin has asked of the worker may be under way: its next report is awaited.
    head.wait_for("podb is silent", timeout=30)
    worker.wait_for("waiting for a reply from the head", timeout=15)
    assert head.wait(90) == 75, head.tail()
    assert time.monotonic() - lost > 19
    assert "podb" in last_line(head)
    assert "AGENT_NODE_GRACE" in last_line(head)
    assert worker.wait(90) == 75, worker.tail()
    assert "head" in last_line(worker)


def _lose(head: Pod, worker: Pod, how: str) -> None:
    if how == "both ways":
        worker.cut()
    elif how == "to the worker":
        head.drop(worker)
    else:
        worker.drop(head)


@pytest.mark.fault(
    "link-one-way",
    "a worker's link loses all packets in one direction for ten seconds",
    "nothing is restarted, the job continues",
)
@pytest.mark.pods(2)
@pytest.mark.parametrize("how", ["to the worker", "to the head"])
def test_a_link_that_drops_one_direction_for_ten_seconds(cluster: Cluster, how: str) -> None:
    """As with a link cut in both directions, the job continues."""
    head, worker = cluster.agents(*JOB)
    head.wait_for("^round 3$", "stdout", timeout=BOOT)
    before = _rays(head), _rays(worker)
    _lose(cluster.pods[0], cluster.pods[1], how)
    cut = time.monotonic()
    head.wait_for("podb is silent", timeout=10)
    keep_running(max(0.0, cut + 10 - time.monotonic()), head, worker)
    stood_at = _rounds(head)
    for pod in cluster.pods:
        pod.heal()
    head.wait_for("all needed nodes are back", timeout=20)
    head.wait_for(f"^round {stood_at + 3}$", "stdout", timeout=30)
    assert (_rays(head), _rays(worker)) == before
    (cluster.pods[0].tmp / "enough").touch()
    assert ends([head, worker], 40) == [7, 7], head.tail()


@pytest.mark.fault(
    "link-bad",
    "a link loses 30 % of all packets each way, and delays the others by 200 ms",
    "boot and job succeed; if Ray fails (`ray start` gives up after 30 s without GCS), the "
    "next attempt succeeds",
)
@pytest.mark.pods(2)
@pytest.mark.timeout(720)
def test_a_slow_and_lossy_link(cluster: Cluster) -> None:
    """At 30 % loss and 200 ms delay, boot and job succeed, possibly in a later attempt.

    Ray itself may fail here: `ray start` gives up when GCS does not answer for 30 s, although its
    raylet has joined. The worker may also miss the head's verdict.
    """
    cluster.env |= {"AGENT_HEAD_GRACE": "90s", "AGENT_JOB_RETRIES": "3"}
    cluster.pods[1].slow(loss=0.3, delay=0.2)
    head, worker = cluster.agents(*JOB)
    head.wait_for("^round 3$", "stdout", timeout=6 * BOOT)
    (cluster.pods[0].tmp / "enough").touch()
    codes = ends([head, worker], 150)
    assert codes in ([7, 7], [7, 75]), head.tail()
    *lost, last = [attempt["exit_code"] for attempt in cluster.outcome(0)["attempts"]]
    assert (set(lost) <= {75}, last) == (True, 7)
