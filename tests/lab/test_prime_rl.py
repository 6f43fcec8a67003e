"""Engines of prime-rl on a group, and its other processes by the script of the example."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support import stand_in_prime_rl
from support.launches import EXAMPLES
from support.scenario import BOOT, REPO, ends

if TYPE_CHECKING:
    from support.scenario import Cluster

COMMAND = (
    *(str(EXAMPLES / "prime-rl/train.sh"), "{shared}/rl.toml", "{shared}/run"),
    *("http://{{head_ip}}:8000/v1", "{{addresses:engine|url|space}}"),
)


def set_up(cluster: Cluster, shared: Path, steps: int) -> list[str]:
    """Install the stand-ins and the example's files; return the job's command."""
    text = (EXAMPLES / "services/prime-rl.toml").read_text()
    text = text.replace("/volume/runs/reverse", f"{shared}/run").replace("/volume", str(shared))
    for pod in cluster.pods:
        path = [str(REPO / "tests"), str(REPO)]
        stand_in_prime_rl.install(pod.tmp / "bin", path)
        (pod.tmp / "services.toml").write_text(text.replace("nodes = 2 #", "nodes = 1 #"))
    reward = f"http://{cluster.pods[0].ip}:5000/get_reward"
    config = {"run": f"{shared}/run", "broadcast": "filesystem", "reward": reward, "steps": steps}
    (shared / "rl.toml").write_text(json.dumps(config))
    cluster.env |= {
        "AGENT_LAUNCHER": "node",
        "AGENT_SERVICES": "/tmp/services.toml",
        "AGENT_NUM_GPUS": "2",
        "AGENT_REWARD": "builtin",
        "PYTHONPATH": str(REPO),
        "PATH": f"/tmp/bin:{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin",
    }
    return [word.format(shared=shared) for word in COMMAND]


@pytest.mark.pods(3)
def test_prime_rl_trains_while_engines_are_killed(cluster: Cluster, shared: Path) -> None:
    """Two nodes train, one has two engines, one of which is killed again and again."""
    agents = cluster.agents(*set_up(cluster, shared, 16))
    head = agents[0]
    head.wait_for("^step 3/", "stdout", timeout=BOOT)
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


@pytest.mark.pods(3)
def test_the_orchestrator_is_killed(cluster: Cluster, shared: Path) -> None:
    """The trainers would wait for ever: the job ends on all nodes, and the next run trains."""
    command = set_up(cluster, shared, 8)
    agents = cluster.agents(*command)
    head = agents[0]
    head.wait_for("^step 3/", "stdout", timeout=BOOT)
    (orchestrator,) = [p for p in head.processes() if "bin/orchestrator" in p.cmdline]
    os.kill(orchestrator.host_pid, signal.SIGKILL)
    assert ends(agents) == [137, 137, 137], head.tail()

    cluster.env["AGENT_RERUN"] = "1"
    again = cluster.agents(*command)
    assert ends(again) == [0, 0, 0], again[0].tail()
