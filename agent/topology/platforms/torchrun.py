"""torchrun-style variables, set by hand or by a small scheduler: all three together, or none."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from agent.topology.platforms.claim import Claim, Names, number, ranked

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.settings import Settings

NAMES = Names(platform="torchrun", rank="NODE_RANK", nodes="NNODES", head="MASTER_ADDR")


def detect(environ: Mapping[str, str], settings: Settings) -> Claim | None:
    """Claim the node where an address, a rank and a count are set.

    One node proves nothing: images set all three for a torchrun of their own. Neither do they
    stand against HEAD_POD_ID, which the user set for this agent and for nothing else.
    """
    if not {NAMES.rank, NAMES.nodes, NAMES.head} <= environ.keys() or settings.head_pod_id:
        return None
    if number(environ, NAMES.nodes, 1) == 1:
        return None
    claim = ranked(environ, NAMES)
    on_runpod = "RUNPOD_POD_ID" in environ
    return replace(claim, node_name=f"node{claim.rank}", owns_machine=on_runpod, restarts=on_runpod)
