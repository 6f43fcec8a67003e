"""SkyPilot: ranks and addresses in SKYPILOT_*, beside a Ray of its own that is left alone."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from agent.base.ports import PortBase
from agent.topology.platforms.claim import Claim, Names, fault, lines, ranked

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.settings import Settings

NAMES = Names(
    platform="skypilot",
    rank="SKYPILOT_NODE_RANK",
    nodes="SKYPILOT_NUM_NODES",
    head="SKYPILOT_NODE_IPS",
    gpus="SKYPILOT_NUM_GPUS_PER_NODE",
    run_id=("SKYPILOT_TASK_ID",),
)
# SkyPilot's Ray (seen in 0.5 to 0.8): GCS 6380, dashboard 8266, workers from 11002 on, and
# Ray's own choice for the rest, the client's 10001 among it.
PORTS = PortBase(agent=8276, client=20_001, first_worker=20_002, last_worker=29_999)
NOTE = (
    f"the agent's ports begin at {PORTS.agent}: SkyPilot's own Ray holds 6380 and 8266 "
    "(AGENT_PORT, the same on every node, moves ours)"
)


def detect(environ: Mapping[str, str], _settings: Settings) -> Claim | None:
    """Claim the node where SkyPilot runs a task."""
    if not {NAMES.rank, NAMES.head} & environ.keys():
        return None
    addresses = lines(environ, NAMES.head)
    claim = ranked(environ, NAMES, head=addresses[0] if addresses else None)
    if addresses and len(addresses) != claim.nodes:
        counted = f"{len(addresses)} addresses beside {NAMES.nodes}={claim.nodes}"
        raise fault(NAMES.head, counted, "one address a line for each node")
    return replace(
        claim,
        evidence=(
            *claim.evidence[:2],
            *(f"{NAMES.head} begins with {host}" for host in [claim.head_host] if host),
        ),
        node_name=f"node{claim.rank}",
        ports=PORTS,
        owns_machine=False,  # its own Ray lives on this machine, and its jobs depend on it
        notes=(NOTE,),
    )
