"""What a Ray or a job left running on this node: ended, and seen to be gone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from agent.base.words import listed
from agent.boot.node_run import stop_ray
from agent.record.log import say
from agent.runtime import driver
from agent.runtime.waiting import NotYet, TimedOutError, until

if TYPE_CHECKING:
    from agent.decisions.attempts import Attempt
    from agent.runtime.process import Child

_WITHIN = 10.0
"""What cannot be killed in so long stays."""


async def end_attempt(attempt: Attempt, ray: Child | None, grace: float) -> str:
    """End an attempt with the Ray that it ran on; return what is there all the same."""
    if ray is not None:
        await stop_ray(ray, grace)
    return await clear_away(f"attempt {attempt.number}", _WITHIN)


async def clear_away(whose: str, limit: float | None) -> str:
    """End what Ray's workers and drivers left running here; return what is there all the same.

    Without a limit, only return when nothing is.
    """

    async def gone() -> bool | NotYet:
        killed = await anyio.to_thread.run_sync(driver.end_all)
        for name in killed:
            if name not in told:
                told.append(name)
                say(f"{whose} had left {name} running: killed", "warning")
        return NotYet(listed(killed)) if killed else True

    told: list[str] = []
    try:
        await until(gone, limit, longest=0.5)
    except TimedOutError as late:
        return late.evidence
    return ""
