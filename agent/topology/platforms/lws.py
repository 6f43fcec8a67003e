"""LeaderWorkerSet on Kubernetes: one group of pods, its leader has index 0."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from agent.topology.platforms.claim import Claim, Names, ranked

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.settings import Settings

NAMES = Names(
    platform="lws",
    rank="LWS_WORKER_INDEX",  # set by LWS itself from 0.6 on; before, by the downward API
    nodes="LWS_GROUP_SIZE",
    head="LWS_LEADER_ADDRESS",
)


def detect(environ: Mapping[str, str], _settings: Settings) -> Claim | None:
    """Claim the pod of a group."""
    if not {NAMES.rank, NAMES.nodes, NAMES.head} & environ.keys():
        return None
    return replace(ranked(environ, NAMES), owns_machine=True)
