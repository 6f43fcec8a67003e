"""End what an attempt left on this node, beside a Ray that stays up for the next attempt."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from agent.base import times
from agent.decisions.head.head_state import Cleared
from agent.decisions.head.kept_ray import RayNotCleared
from agent.processes.driver import WORKERS_TITLE, NoRayletError
from agent.record.background import result_in_thread
from agent.run.node_run import kill_until_none

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.bridge.link import RayLink
    from agent.decisions.shared import HeadEvent
    from agent.processes.process import Child
    from agent.run.node_run import NodeRun


async def clear_cluster(
    run: NodeRun, link: RayLink, ray: Child, attempt: int, send: Callable[[HeadEvent], None]
) -> None:
    """Wait until GCS has nothing of an attempt, end its rest on the head, and send the result.

    GCS is asked again after that: a driver that had outlived its job's status is ended by then.
    """
    left = await link.await_empty(times.RAY_EMPTIED)
    left = left or await clear_node(run, ray, attempt)
    left = left or await link.await_empty(times.RAY_EMPTIED)
    if left:
        send(RayNotCleared(attempt, left))
    else:
        await send_cleared(run, attempt, send)


async def clear_node(run: NodeRun, ray: Child, attempt: int) -> str:
    """Kill what an attempt left on this node, in and beside Ray; return what remains."""
    kill = await result_in_thread(partial(run.effects.processes.killer_beside_ray, ray.pid))
    try:
        whose = f"attempt {attempt}"
        return await kill_until_none(kill, whose, times.LEFTOVERS_KILLED, usual=WORKERS_TITLE)
    except NoRayletError:
        return "its Ray has ended meanwhile"


async def send_cleared(
    run: NodeRun, attempt: int, send: Callable[[HeadEvent], None], leftovers: str = ""
) -> None:
    """Send that an attempt has left nothing here, once its GPUs' memory is free, too."""
    await run.gpu_memory.await_free()
    send(Cleared(attempt, leftovers))
