"""RunPod Instant Clusters: ranks from RunPod, and a fast network between the nodes on ens1."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from agent.topology.platforms.claim import Claim, Names, ranked

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.settings import Settings

# WORLD_SIZE counts GPUs here; it is not read. MASTER_ADDR repeats PRIMARY_ADDR until a job or an
# image sets its own.
NAMES = Names(
    platform="runpod-cluster",
    rank="NODE_RANK",
    nodes="NUM_NODES",
    head="PRIMARY_ADDR",
    gpus="NUM_TRAINERS",
)
INTERFACE = "ens1"
"""The first of the internal interfaces, ens1 to ens8; eth0 leads to the internet only."""


def detect(environ: Mapping[str, str], _settings: Settings) -> Claim | None:
    """Claim the node of an Instant Cluster."""
    if NAMES.head not in environ or not {NAMES.rank, NAMES.nodes} & environ.keys():
        return None
    claim = ranked(environ, NAMES)
    return replace(
        claim,
        node_name=environ.get("RUNPOD_POD_ID", "").strip() or f"node{claim.rank}",
        interface=INTERFACE,
        owns_machine=True,
        restarts=True,
    )
