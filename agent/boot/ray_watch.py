"""The head's eye on its own Ray: GCS, Ray's processes, and what of them only hangs."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import anyio

from agent.boot.gcs_watch import watch_gcs
from agent.decisions.head import state as h
from agent.record.log import say
from agent.runtime.ray_helpers import watch_helpers
from agent.runtime.ray_parts import RayParts

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.boot.node_run import NodeRun
    from agent.runtime.process import Child
    from agent.work.where import Place


async def watch_ray(
    run: NodeRun,
    child: Child,
    place: Place,
    tell: Callable[[h.HeadEvent], None],
    is_awaited: Callable[[], bool],
) -> h.RayGone:
    """Watch one `ray start` until it has ended; return how it did."""

    def tell_of_hangs(evidence: str, beside_job: bool) -> None:  # noqa: FBT001 - an event's fields
        tell(h.RayHangs(evidence, beside_job))

    gcs = (place.node_ip, run.plan.ports.gcs)
    parts = RayParts(child, run.now, partial(say, level="warning"))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch_gcs, *gcs, 0.1, tell, is_awaited)
        tasks.start_soon(parts.watch)
        tasks.start_soon(watch_helpers, child, tell_of_hangs, run.best_effort)
        code = await child.wait()
        tasks.cancel_scope.cancel()
    run.child_ended(child)
    return h.RayGone(await parts.end_sentence(code), run.memory.recent())
