"""dstack: ranks and addresses in DSTACK_*, on any backend."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from agent.topology.platforms.claim import Claim, Names, ranked

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.settings import Settings

NAMES = Names(
    platform="dstack",
    rank="DSTACK_NODE_RANK",
    nodes="DSTACK_NODES_NUM",
    head="DSTACK_MASTER_NODE_IP",
    gpus="DSTACK_GPUS_PER_NODE",
    run_id=("DSTACK_RUN_ID", "DSTACK_RUN_NAME"),
)


def detect(environ: Mapping[str, str], _settings: Settings) -> Claim | None:
    """Claim the node where dstack's rank and node count are set (also for a single node)."""
    if not {NAMES.rank, NAMES.nodes} & environ.keys():
        return None
    claim = ranked(environ, NAMES)
    return replace(claim, node_name=f"node{claim.rank}", owns_machine=True)
