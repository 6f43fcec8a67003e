"""dstack: ranks and addresses in DSTACK_*, on any backend."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.errors import Problem, SettingsError
from agent.platforms.claim import Claim, number

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.settings import Settings


def detect(environ: Mapping[str, str], _settings: Settings) -> Claim | None:
    """Claim the node where dstack's rank and node count are set (also for a single node)."""
    if "DSTACK_NODE_RANK" not in environ and "DSTACK_NODES_NUM" not in environ:
        return None
    nodes = number(environ, "DSTACK_NODES_NUM", 1)
    if nodes is None:
        missing = Problem("DSTACK_NODES_NUM", "nothing", "the number of nodes beside the rank")
        raise SettingsError((missing,))
    rank = number(environ, "DSTACK_NODE_RANK", 0, nodes - 1)
    if rank is None:
        missing = Problem("DSTACK_NODE_RANK", "nothing", "this node's rank beside the node count")
        raise SettingsError((missing,))
    master = environ.get("DSTACK_MASTER_NODE_IP", "").strip() or None
    if master is None and nodes > 1:
        missing = Problem("DSTACK_MASTER_NODE_IP", "nothing", "the address of the node of rank 0")
        raise SettingsError((missing,))
    evidence = [f"DSTACK_NODE_RANK={rank}", f"DSTACK_NODES_NUM={nodes}"]
    if nodes > 1:
        evidence.append(f"DSTACK_MASTER_NODE_IP={master}")
    return Claim(
        platform="dstack",
        is_head=rank == 0,
        evidence=tuple(evidence),
        role_variable="RAY_WORKER + DSTACK_NODE_RANK",
        knows_role=True,
        knows_ranks=True,
        head_host=master if nodes > 1 else None,
        node_name=f"node{rank}",
        own_names=(master,) if rank == 0 and master and nodes > 1 else (),
        rank=rank,
        nodes=nodes,
        gpus_per_node=number(environ, "DSTACK_GPUS_PER_NODE"),
        run_id=environ.get("DSTACK_RUN_ID") or environ.get("DSTACK_RUN_NAME"),
        owns_machine=True,
        alone=nodes == 1,
    )
