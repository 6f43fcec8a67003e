"""Whether every node still serves the job: asked of all at once, when the job has failed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from agent.decisions.head.state import NodesAsked
from agent.plan.waits import ASK_LIMIT
from agent.runtime.probes import port_answers

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.decisions.head.workers import Fleet

_AT_ONCE = 256
_PER_NODE = 2.0


async def ask_nodes(job_id: str, fleet: Fleet, tell: Callable[[NodesAsked], None]) -> None:
    """Ask all workers of a job that has failed."""
    tell(NodesAsked(job_id, await silent_ones(fleet)))


async def silent_ones(fleet: Fleet) -> dict[str, str]:
    """Ask each worker's raylets at the ports that GCS lists; return who does not answer, and why.

    GCS takes a quarter of a minute to miss a node; the kernel of a node that lives answers at once.
    """
    found: dict[str, str] = {}
    room = anyio.CapacityLimiter(_AT_ONCE)

    async def ask(ip: str, name: str, port: int) -> None:
        async with room:
            evidence = await port_answers(ip, port, _PER_NODE)
        if evidence:
            found[name] = f"its Ray does not answer, {evidence}"

    with anyio.move_on_after(ASK_LIMIT):
        async with anyio.create_task_group() as tasks:
            for ip, name in fleet.alive.items():
                for port in fleet.ports.get(ip, ()):
                    tasks.start_soon(ask, ip, name, port)
    return dict(found)
