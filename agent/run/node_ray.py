"""This node's Ray, from start to stop, and what it leaves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio

from agent.base.text import listed
from agent.plan.plan import RAY
from agent.processes import driver
from agent.processes.ray_parts import RayParts
from agent.processes.waiting import NotYet, TimedOutError, until
from agent.record.log import say

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from agent.job.services import Placeholders
    from agent.processes.process import Child
    from agent.run.node_run import NodeRun


async def start_ray(run: NodeRun, placeholders: Placeholders, env: Mapping[str, str]) -> Child:
    """Start this node's Ray."""
    if run.surviving is None or not run.surviving.has_ray:
        say(f"starting Ray's head on {placeholders.node_ip}:{run.plan.ports.gcs}")
    process = run.plan.process(RAY)
    return await run.start(process.name, process.command(placeholders), env, process.log)


async def watch_until_end(
    run: NodeRun, child: Child, *watches: Callable[[], Coroutine[Any, Any, None]]
) -> str:
    """Watch one `ray start`, and run the given watches, until it ends; return how it ended."""
    parts = RayParts(child, run.now)
    async with anyio.create_task_group() as tasks:
        for watch in (parts.watch, *watches):
            tasks.start_soon(watch)
        code = await child.wait()
        tasks.cancel_scope.cancel()
    run.node.remove_process(child.pid)
    return parts.end_sentence(code)


async def stop_ray(child: Child, grace: float) -> None:
    """Stop this node's Ray."""
    await child.stop(grace, leader_ends_group=True)


async def kill_leftovers(whose: str, limit: float | None) -> str:
    """Kill what Ray's workers and drivers left; return what remains (nothing, without a limit)."""
    logged: list[str] = []

    async def kill() -> bool | NotYet:
        killed = await anyio.to_thread.run_sync(driver.kill_leftovers)
        for name in killed:
            if name not in logged:
                logged.append(name)
                say(f"{whose} had left {name} running: killed", "warning")
        return NotYet(listed(killed)) if killed else True

    try:
        await until(kill, limit, longest=0.5)
    except TimedOutError as late:
        return str(late)
    return ""
