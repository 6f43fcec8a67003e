"""A job that hangs: the agent collects every node's stacks once and logs a warning."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from support.bundles import bundle_contents
from support.scenario import AGENT, BOOT, ENVIRONMENT, Cluster, ends

HANGS = """
import threading, time, ray
ray.init(logging_level="ERROR")

@ray.remote(num_cpus=1, scheduling_strategy="SPREAD")
class Trainer:
    def warm_up(self):
        return ray.util.get_node_ip_address()
    def all_reduce_that_never_ends(self):
        threading.Event().wait()

trainers = [Trainer.remote() for _ in range(4)]
print("nodes", len(set(ray.get([one.warm_up.remote() for one in trainers]))), flush=True)

def wait_for_the_trainers():
    ray.get([one.all_reduce_that_never_ends.remote() for one in trainers])

wait_for_the_trainers()
"""


TWICE = 'echo attempt $AGENT_ATTEMPT; [ "$AGENT_ATTEMPT" = 1 ] || exit 7; exec sleep 1000'
"""Hangs in the first attempt, as if an actor were missing, and ends in the second."""


@pytest.mark.fault(
    "worker-stall",
    "a worker is lost while a job runs and returns within AGENT_NODE_GRACE",
    "the job continues; if it makes no progress for AGENT_STALL, the attempt is lost",
)
@pytest.mark.pods(2)
def test_a_job_that_hangs_after_a_loss_is_retried(cluster: Cluster) -> None:
    """The node is back within its grace, so only AGENT_STALL can end the attempt."""
    cluster.env |= {"AGENT_STALL": "15s", "AGENT_JOB_RETRIES": "1"}
    head, worker = cluster.agents("sh", "-c", TWICE)
    head.wait_for("^attempt 1$", "stdout", timeout=BOOT)
    raylet = next(p for p in worker.processes() if p.name == "raylet")
    assert worker.exec(["kill", "-9", str(raylet.pid)]).returncode == 0
    head.wait_for("all needed nodes are back", timeout=BOOT)
    head.wait_for("attempt 1 of 2 is lost: the job shows no sign of work for", timeout=BOOT)
    assert ends([head, worker], 2 * BOOT) == [7, 7], head.tail()
    assert head.stdout() == "attempt 1\nattempt 2\n"
    head.wait_for("attempt 2 of 2: .*podb.*; 2 of 2 node", timeout=5)


STEPS_STOP = """
import os, pathlib, threading, time
saved = pathlib.Path("/tmp/step")
done = int(saved.read_text()) if saved.exists() else 0

def compute_score():
    threading.Event().wait()

for step in range(done + 1, 13):
    time.sleep(0.5)
    print(f"step {step}/12 loss=0.5", flush=True)
    saved.write_text(str(step))
    if step == 8 and os.environ["AGENT_ATTEMPT"] == "1":
        compute_score()
"""


@pytest.mark.fault(
    "steps-stop",
    "the job's steps stop",
    "all nodes are examined, and a sentence names node, process and function; if a second "
    "examination agrees, the attempt is lost and the next one resumes (AGENT_ON_STALL=retry)",
)
def test_a_job_whose_steps_stop_is_retried(cluster: Cluster) -> None:
    """By the median rule, with its least limit scaled; the second examination agrees."""
    cluster.env |= {"AGENT_JOB_RETRIES": "1", "POD_AGENT_STALL_LEAST": "10"}
    (Path(cluster.pods[0].tmp) / "train.py").write_text(STEPS_STOP)
    (head,) = cluster.agents(sys.executable, "/tmp/train.py")
    head.wait_for("^step 8/12", "stdout", timeout=BOOT)
    head.wait_for(r"AGENT_STALL\): examining the job", timeout=60)
    head.wait_for("stall: the job has made no step for .* since step 8", timeout=60)
    assert "driver on poda is in `compute_score` (train.py:" in head.stderr()
    head.wait_for(r"attempt 1 of 2 is lost: the job has made no step for \d+ s since", timeout=120)
    assert ends([head], 2 * BOOT) == [0], head.tail()
    assert head.stdout().splitlines() == [f"step {step}/12 loss=0.5" for step in range(1, 13)]
    assert "compute_score" in cluster.outcome(0)["attempts"][0]["reason"]


@pytest.mark.pods(2)
def test_a_job_that_hangs_is_inspected_on_every_node(cluster: Cluster) -> None:
    """Stacks of the driver and of all actors; the reason where py-spy is missing."""
    cluster.env["AGENT_STALL"] = "20s"
    for pod in cluster.pods:
        (Path(pod.tmp) / "train.py").write_text(HANGS)
    head, worker = cluster.agents(sys.executable, "/tmp/train.py")
    tool = str(ENVIRONMENT / "bin/py-spy")
    hidden = worker.exec(["mount", "--bind", "/dev/null", tool])  # only in this pod
    assert hidden.returncode == 0, hidden.stderr
    head.wait_for("^nodes 2$", "stdout", timeout=BOOT)
    head.wait_for("stall: the job shows no sign of work for", timeout=180)
    log = head.stderr()
    assert "driver on poda waits for a result of Ray in `wait_for_the_trainers` (train.py:" in log
    found = (cluster.file(0, "stacks-1.log")).read_text()
    assert re.search(
        r"Trainer.all_reduce_that_never_ends on poda.* are in `Trainer.all_reduce", log
    )
    assert "podb has no readable stack (py-spy is not installed here" in log or "podb" in found
    stall = json.loads(head.exec([AGENT, "status", "--json"]).stdout)["stall"]
    assert (stall["nodes"], stall["log"]) == (["poda"], "agent")
    assert "the job here: " in worker.stderr()
    # the agent's command exits with the same code
    driver = re.search(r"driver \(pid (\d+)\)", found)
    assert driver is not None
    assert head.exec(["kill", "-9", driver[1]]).returncode == 0
    assert ends([head, worker]) == [137, 137]
    assert head.stderr().count("stall: the job shows no sign of work") == 1
    bundle = bundle_contents(cluster, 0, head)
    assert "wait_for_the_trainers" in bundle["poda/stacks-1.log"]
    assert "py-spy is not installed here" in bundle["poda/stacks-1.log"].partition("--- podb")[2]
    assert '"check": "stall"' in bundle["status.json"]
