"""Causes in the job's output: named at the end, and decisive for another attempt."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from support.scenario import BOOT, RAY, Cluster, ends, last_line

if TYPE_CHECKING:
    from tools.lab import Container

QUOTA = "OSError: [Errno 122] Disk quota exceeded: 'global_step_40/model.pt'"
ACCESS = "RuntimeError: CUDA error: an illegal memory access was encountered"
FAIL = """
echo attempt $AGENT_ATTEMPT
until [ -e /tmp/go$AGENT_ATTEMPT ]; do sleep 0.1; done
echo "{line}"
exit 3
"""
"""Fails with a line when the scenario says so."""
KILLED_ACTOR = """
import os
import signal
import ray

ray.init()

@ray.remote
class Trainer:
    def step(self):
        print("loading the optimizer of shard 3", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

ray.get(Trainer.remote().step.remote())
"""


def fail_after_a_loss(head: Container, worker: Container, attempt: int) -> None:
    """Kill the worker's pod, then let the job fail by itself."""
    head.wait_for(f"^attempt {attempt}$", "stdout", timeout=BOOT)
    worker.kill()
    head.wait_for("podb left Ray|podb was lost", timeout=20)
    assert head.exec(["touch", f"/tmp/go{attempt}"]).returncode == 0


@pytest.mark.pods(2)
def test_a_permanent_cause_is_not_tried_again(cluster: Cluster) -> None:
    """A quota that is used up ends the run after one attempt, although a worker was lost."""
    cluster.env |= {"AGENT_JOB_RETRIES": "2"}
    head, worker = cluster.agents("sh", "-c", FAIL.format(line=QUOTA))
    fail_after_a_loss(head, worker, 1)
    assert ends([head]) == [3], head.tail()
    assert "not tried again" in last_line(head)
    assert QUOTA in last_line(head)
    assert head.stdout().count("attempt") == 1


@pytest.mark.pods(2)
def test_the_same_cause_twice_ends_the_run(cluster: Cluster) -> None:
    """Two attempts with one cause and no newer checkpoint end a run that has three."""
    cluster.env |= {"AGENT_JOB_RETRIES": "2"}
    job = ("sh", "-c", FAIL.format(line=ACCESS))
    head, worker = cluster.agents(*job)
    fail_after_a_loss(head, worker, 1)
    head.wait_for("attempt 1 of 3 is lost", timeout=60)
    fail_after_a_loss(head, cluster.agent(1, *job), 2)
    assert ends([head]) == [75], head.tail()
    assert "accessed memory illegally" in last_line(head)
    assert [one["number"] for one in cluster.outcome(0)["attempts"]] == [1, 2]


@pytest.mark.pods(2)
def test_a_killed_actor_is_named(cluster: Cluster) -> None:
    """The end names what Ray recorded about an actor that was killed."""
    head, worker = cluster.agents(sys.executable, "-c", KILLED_ACTOR)
    assert ends([head, worker]) == [1, 1], head.tail()
    assert "a worker process of Ray ended without an error" in last_line(head)


@pytest.mark.pods(1)
@pytest.mark.parametrize(
    ("program", "cause", "instead"),
    [
        (
            ["sh", "-ec", f"{RAY} start --head --num-gpus 8  # pod-agent: ignore"],
            "the job's own code starts a Ray",
            "Remove it",
        ),
        (
            [sys.executable, "-c", "import ray; ray.init(num_gpus=8)"],
            "gives `ray.init` num_cpus and num_gpus",
            "Write `ray.init()`",
        ),
    ],
)
def test_a_ray_of_the_job_s_own_is_named(
    cluster: Cluster, program: list[str], cause: str, instead: str
) -> None:
    """A job that starts or sizes a Ray of its own fails, and its end names that line."""
    head = cluster.agent(0, *program)
    assert ends([head]) == [1], head.tail()
    assert cause in last_line(head)
    assert instead in last_line(head)
    assert "ray stop" not in last_line(head)
