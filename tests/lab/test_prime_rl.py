"""The recipe prime-rl end to end: engines that are killed, and a run that resumes."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support import stand_in_prime_rl
from support.scenario import BOOT, REPO, ends, stale_samples

if TYPE_CHECKING:
    from support.scenario import Cluster


def set_up(cluster: Cluster, shared: Path, steps: int) -> None:
    """Install prime-rl's stand-ins on each pod; one of the nodes generates, the others train."""
    for pod in cluster.pods:
        stand_in_prime_rl.install(pod.tmp / "bin", [str(REPO / "tests"), str(REPO)])
        (pod.tmp / "Qwen3-4B").mkdir()
        (pod.tmp / "split.toml").write_text("[groups.rollout]\nnodes = 1\n")
    cluster.env |= {
        "AGENT_SERVICES": "/tmp/split.toml",
        "AGENT_JOB": "prime-rl",
        "AGENT_MODEL": "/tmp/Qwen3-4B",
        "AGENT_TRAIN_DATA": "reverse-text",
        "AGENT_CHECKPOINTS": f"{shared}/run",
        "AGENT_JOB_ARGS": f"--max-steps {steps} --ckpt.interval 4",
        "AGENT_NUM_GPUS": "2",
        "PYTHONPATH": f"/tmp/bin/packages:{REPO}",
        "PATH": f"/tmp/bin:{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin",
    }


@pytest.mark.pods(3)
def test_prime_rl_trains_while_engines_are_killed(cluster: Cluster, shared: Path) -> None:
    """Two nodes train, one has two engines, one of which is killed again and again."""
    set_up(cluster, shared, 16)
    agents = cluster.agents()
    head = agents[0]
    head.wait_for("^step 3/", "stdout", timeout=BOOT)
    assert "rl: 4 workers, environment reverse-text, step 0" in head.stdout()
    killed = 0
    while head.running and "step 14/" not in head.stdout():
        engines = [
            process
            for agent in agents[1:]
            for process in agent.processes()
            if "rehearsal-engine" in process.cmdline
        ]
        if len(engines) == 2:
            os.kill(engines[0].host_pid, signal.SIGKILL)
            killed += 1
        time.sleep(1)
    assert killed
    assert ends(agents) == [0, 0, 0], head.tail()
    assert len(cluster.outcome(0)["attempts"]) == 1
    assert stale_samples(head.stdout()) == 0


@pytest.mark.pods(3)
def test_the_orchestrator_ends(cluster: Cluster, shared: Path) -> None:
    """The trainers would wait for ever: the job ends on all nodes, and the next run resumes.

    The orchestrator leaves its part of a checkpoint, from which prime-rl could not resume.
    """
    set_up(cluster, shared, 14)
    agents = cluster.agents()
    head = agents[0]
    head.wait_for("^step 7/", "stdout", timeout=BOOT)
    (orchestrator,) = [p for p in head.processes() if "bin/orchestrator" in p.cmdline]
    os.kill(orchestrator.host_pid, signal.SIGTERM)
    assert ends(agents) == [1, 1, 1], head.tail()
    steps = {path.name: {part.name for part in path.iterdir()} for path in steps_of(shared)}
    assert steps["step_4"] == {"orchestrator", "trainer"}
    assert {"orchestrator"} in steps.values()
    assert f"newest checkpoint: {shared}/run/checkpoints/step_4" in head.stderr()

    cluster.env["AGENT_RERUN"] = "1"
    again = cluster.agents()
    assert ends(again) == [0, 0, 0], again[0].tail()
    assert "environment reverse-text, step 4" in again[0].stdout()
    assert "resumes after step 4" in again[0].stdout() + again[0].stderr()


@pytest.mark.pods(3)
def test_a_node_that_trains_is_killed(cluster: Cluster, shared: Path) -> None:
    """The next attempt resumes, with the same engines, once the node is back."""
    set_up(cluster, shared, 16)
    cluster.env |= {"AGENT_NODE_GRACE": "2s", "AGENT_JOB_RETRIES": "1"}
    agents = cluster.agents()
    head = agents[0]
    head.wait_for("^step 6/", "stdout", timeout=BOOT)
    engines = {p.host_pid for p in agents[2].processes() if "rehearsal-engine" in p.cmdline}
    agents[1].kill()
    again = cluster.agent(1)
    head.wait_for("^step 12/", "stdout", timeout=BOOT)
    still = {p.host_pid for p in agents[2].processes() if "rehearsal-engine" in p.cmdline}
    assert still == engines
    assert ends([head, again, agents[2]]) == [0, 0, 0], head.tail()
    resumed = re.findall("environment reverse-text, step ([0-9]+)", head.stdout())
    assert resumed[0] == "0"
    assert int(resumed[1]) >= 4
    assert [one["number"] for one in cluster.outcome(0)["attempts"]] == [1, 2]
    assert stale_samples(head.stdout()) == 0


def steps_of(shared: Path) -> list[Path]:
    """Return the folders of checkpoints, in whatever state."""
    return sorted((shared / "run/checkpoints").glob("*step_*"))
