"""Kubeflow Trainer v2: a TrainJob's pods find torchrun's own PET_* variables."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from agent.topology.platforms.claim import Claim, Names, ranked

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.settings import Settings

# PET_NPROC_PER_NODE counts processes: GPUs on a GPU pod, CPUs on another, `auto` by default.
NAMES = Names(
    platform="kubeflow-trainer",
    rank="PET_NODE_RANK",
    nodes="PET_NNODES",
    head="PET_MASTER_ADDR",
)


def detect(environ: Mapping[str, str], _settings: Settings) -> Claim | None:
    """Claim the pod where a rank comes with the head's address, both as PET_*.

    PyTorchJob v1 sets a PET_NODE_RANK too, but its MASTER_ADDR has no prefix.
    """
    if NAMES.head not in environ and (NAMES.rank not in environ or "MASTER_ADDR" in environ):
        return None
    return replace(ranked(environ, NAMES), owns_machine=True)
