"""Agents in the lab's pods with a recipe, and a framework in the pods' Python."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    import tools.lab as podlab

AGENT = str(Path(sys.prefix) / "bin/pod-agent")


def start(
    lab: podlab.Lab, pod: podlab.Pod, agent: str, python: Path, env: Mapping[str, str]
) -> podlab.Container:
    """Start an agent in a pod, with a framework's environment first on PATH."""
    own = {
        "HEAD_POD_ID": lab.pods[0].name,
        "RUNPOD_POD_ID": pod.name,
        "EXPECTED_WORKERS": str(len(lab.pods) - 1),
        "AGENT_ON_DONE": "exit",
        "PATH": os.pathsep.join([str(python.parent), os.defpath]),
    }
    return pod.start([agent], env={**own, **env})
