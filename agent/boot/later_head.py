"""Whether a later head of the same run is at work: its higher epoch stands in `run.json` then.

Where the disk has locks that cannot be; over a network some disks forget them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from agent.decisions.head.state import LaterHead, RunRemembered
from agent.runtime.waiting import NotYet, until

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.boot.run_keeper import RunKeeper

_EVERY = 3.0


async def watch_record(keeper: RunKeeper, tell: Callable[[LaterHead], None]) -> None:
    """Read the run's record now and then, and tell of a later head that has written it."""

    async def look() -> int | NotYet:
        epoch = await anyio.to_thread.run_sync(keeper.later_epoch, abandon_on_cancel=True)
        return epoch or NotYet()

    tell(LaterHead(await until(look, None, step=_EVERY, longest=_EVERY), "run.json has its epoch"))


def remembered(keeper: RunKeeper, run_id: str, attempt: int, epoch: int) -> RunRemembered | None:
    """Return what a worker that outlived its head tells us; None where our own record says more."""
    if keeper.has_record_of(run_id):
        return None
    return RunRemembered(run_id, attempt, epoch if epoch > keeper.record.epoch else 0)
