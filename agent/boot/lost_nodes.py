"""Whether every node still serves the job: asked of all at once, when the job has failed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from agent.decisions.head.state import NodesAsked
from agent.plan.waits import ASK_LIMIT
from agent.runtime.probes import port_answers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_AT_ONCE = 256
_PER_NODE = 2.0


async def ask_nodes(
    job_id: str, nodes: Mapping[str, str], port: int, tell: Callable[[NodesAsked], None]
) -> None:
    """Ask all nodes of our own Ray; of a given one nothing but GCS's word is known."""
    tell(NodesAsked(job_id, await silent_ones(nodes, port)))


async def silent_ones(nodes: Mapping[str, str], port: int) -> dict[str, str]:
    """Ask the raylet of each node (address to name); return who does not answer, and why.

    GCS takes a quarter of a minute to miss a node; the kernel of a node that lives answers at once.
    """
    found: dict[str, str] = {}
    room = anyio.CapacityLimiter(_AT_ONCE)

    async def ask(ip: str, name: str) -> None:
        async with room:
            evidence = await port_answers(ip, port, _PER_NODE)
        if evidence:
            found[name] = f"its Ray does not answer, {evidence}"

    with anyio.move_on_after(ASK_LIMIT):
        async with anyio.create_task_group() as tasks:
            for ip, name in nodes.items():
                tasks.start_soon(ask, ip, name)
    return dict(found)
