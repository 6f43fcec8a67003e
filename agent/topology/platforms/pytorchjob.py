"""Kubeflow PyTorchJob v1: MASTER_ADDR and RANK by pod, which alone would prove nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from agent.topology.platforms.claim import Claim, Names, fault, ranked

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.settings import Settings

BY_WORLD_SIZE = Names(platform="pytorchjob", rank="RANK", nodes="WORLD_SIZE", head="MASTER_ADDR")
"""Operators before 1.7: WORLD_SIZE counts pods."""
BY_PET = Names(platform="pytorchjob", rank="PET_NODE_RANK", nodes="PET_NNODES", head="MASTER_ADDR")
"""Operators from 1.7 on: WORLD_SIZE counts processes, PET_NNODES counts pods."""

EVIDENCE = {"KUBERNETES_SERVICE_HOST", "MASTER_ADDR", "RANK", "WORLD_SIZE"}
ELASTIC = "PET_RDZV_ENDPOINT"


def detect(environ: Mapping[str, str], settings: Settings) -> Claim | None:
    """Claim the pod where Kubernetes and all three of the operator's variables are seen."""
    if "RUNPOD_POD_ID" in environ or "LOCAL_RANK" in environ:
        return None  # no Kubernetes of the user's, or a process of torchrun's: RANK counts those
    by_pet = {BY_PET.rank, BY_PET.nodes} <= environ.keys()
    if environ.keys() >= EVIDENCE:
        return replace(ranked(environ, BY_PET if by_pet else BY_WORLD_SIZE), owns_machine=True)
    if {"KUBERNETES_SERVICE_HOST", ELASTIC} <= environ.keys() and settings.head is None:
        given = f"{ELASTIC}={environ[ELASTIC]} without a rank (an elastic PyTorchJob)"
        raise fault(
            "AGENT_HEAD",
            given,
            "the head's host in AGENT_HEAD on every pod, or a fixed number of pods",
        )
    return None
