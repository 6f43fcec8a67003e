"""How a job is stopped: Ray is asked first; where it does not take that, its driver itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from agent.decisions.head.state import DriverSignaled
from agent.record.log import say
from agent.runtime import driver

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from agent.boot.submitting import Submitting
    from agent.boot.torchrun_head import TorchrunLink
    from agent.bridge.link import RayLink

TAKEN_WITHIN = 5.0
"""A dashboard that answers takes the stop of a job within a second."""


async def stop_job(
    link: RayLink | TorchrunLink,
    job_id: str,
    settled: Callable[[], Awaitable[None]],
    submitting: Submitting,
    tell: Callable[[DriverSignaled], None],
) -> None:
    """Have a job stopped; a dashboard that hangs does not cost it its SIGTERM and its grace.

    Why it is stopped is `settled` before: an agent that goes on for this one could not tell.
    A job that was not handed over yet is not submitted any more.
    """
    if await submitting.give_up():
        return
    await settled()
    with anyio.move_on_after(TAKEN_WITHIN):
        await link.stop_job(job_id)
        return
    asked = driver.ask_to_end(job_id)
    if asked:  # else it runs on another machine, or is over
        tell(DriverSignaled(job_id))
        mute = f"Ray did not take the stop of the job within {TAKEN_WITHIN:g} s"
        say(f"{mute}: SIGTERM sent to its driver itself ({asked})", "warning")
