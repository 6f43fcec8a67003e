"""Runs of a torchrun job in the lab."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from support.scenario import Cluster

if TYPE_CHECKING:
    from support.scenario import Cluster
    from tools.lab import Container

START = 40.0
STAND_IN = str(Path(__file__).parents[1] / "lab" / "stand_in")
BY_TORCHRUN = {"AGENT_LAUNCHER": "torchrun", "PYTHONPATH": STAND_IN, "AGENT_NUM_CPUS": "2"}


def start(cluster: Cluster, script: str, *args: str) -> list[Container]:
    """Start the agents with a Python job for torchrun."""
    cluster.env |= BY_TORCHRUN
    for pod in cluster.pods:
        (Path(pod.tmp) / "train.py").write_text(script)
    return cluster.agents(sys.executable, "/tmp/train.py", *args)


def job_log(cluster: Cluster, pod: int) -> str:
    """Return the output of a pod's ranks."""
    return cluster.file(pod, "job.log").read_text()
