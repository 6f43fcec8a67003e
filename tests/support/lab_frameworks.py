"""Frameworks' stand-ins in the Python of a lab's pod."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from support import stand_in_frameworks
from support.scenario import REPO

if TYPE_CHECKING:
    from support.scenario import Cluster

TORCH = Path(__file__).parents[1] / "lab" / "stand_in"
NEEDED = {"AGENT_MODEL": "org/model", "AGENT_TRAIN_DATA": "/data/train.parquet"}
SIZE = {"AGENT_NUM_GPUS": "2", "AGENT_NUM_CPUS": "24"}
PLACE = "/tmp/frameworks"


def install(cluster: Cluster, framework: str, version: str = "") -> None:
    """Install a framework's stand-in on every pod."""
    for pod in cluster.pods:
        stand_in_frameworks.install(pod.tmp / "frameworks", framework, version)
    path = {"PYTHONPATH": f"{PLACE}:{REPO / 'tests'}"}
    cluster.env |= {**NEEDED, **SIZE, **path, "AGENT_CHECKPOINTS": "/tmp/checkpoints"}
