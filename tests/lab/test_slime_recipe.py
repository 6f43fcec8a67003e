"""slime-grpo end to end: its engines on a group, some of which are killed, and its resume."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support import stand_in_slime
from support.scenario import BOOT, REPO, ends, stale_samples

if TYPE_CHECKING:
    from support.scenario import Cluster

MODEL = "/tmp/Qwen3-4B"


def set_up(cluster: Cluster, shared: Path, steps: int) -> None:
    """Install slime's stand-in on each pod, and ask for the recipe on three nodes."""
    for pod in cluster.pods:
        place = pod.tmp / "slime"
        stand_in_slime.install(place, str(REPO / "tests"), str(REPO), str(shared), steps)
        (pod.tmp / "Qwen3-4B").mkdir()
    cluster.env |= {
        "AGENT_JOB": "slime-grpo",
        "AGENT_MODEL": MODEL,
        "AGENT_TRAIN_DATA": "/data/train.jsonl",
        "AGENT_CHECKPOINTS": f"{shared}/run",
        "AGENT_NUM_GPUS": "2",
        "AGENT_NUM_CPUS": "8",
        "AGENT_WORKING_DIR": "/tmp/slime",
        "PYTHONPATH": f"/tmp/slime/packages:{REPO}",
        "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin",
    }


@pytest.mark.pods(3)
def test_slime_trains_while_engines_are_killed(cluster: Cluster, shared: Path) -> None:
    """One node trains and two of three generate, as the file says."""
    set_up(cluster, shared, 20)
    for pod in cluster.pods:
        (pod.tmp / "split.toml").write_text("[groups.rollout]\nnodes = 2\n")
    cluster.env["AGENT_SERVICES"] = "/tmp/split.toml"
    agents = cluster.agents()
    head = agents[0]
    head.wait_for("^step 3/", "stdout", timeout=BOOT)
    assert f"on {cluster.pods[0].ip}" in head.stdout()
    assert "slime: 1 x 2 GPUs" in head.stdout()

    # One engine after the other is killed while it trains.
    killed = 0
    while head.running and "step 18/" not in head.stdout():
        found = [
            process.host_pid
            for process in agents[1 + killed % 2].processes()
            if "rehearsal-engine" in process.cmdline
        ]
        if found:
            os.kill(found[0], signal.SIGKILL)
            killed += 1
        time.sleep(2)
    assert killed >= 2
    assert ends(agents) == [0, 0, 0], head.tail()
    assert len(cluster.outcome(0)["attempts"]) == 1
    assert stale_samples(head.stdout()) == 0
    left = sorted(path.name for path in (shared / "run/weights").iterdir())
    assert len(left) == 2, left

    # Another run would go on from the checkpoint with more nodes that train.
    for pod in cluster.pods:
        (pod.tmp / "split.toml").write_text("[groups.rollout]\nnodes = 1\n")
    cluster.env["AGENT_RERUN"] = "1"
    smaller = cluster.agents()
    assert ends(smaller) == [78, 78, 78], smaller[0].tail()
    assert "written by 2 processes" in smaller[0].stderr()
