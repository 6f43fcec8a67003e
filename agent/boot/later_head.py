"""Whether a later head of the same run is at work: its higher epoch stands in `run.json` then.

Where the disk has locks that cannot be; over a network some disks forget them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from agent.decisions.head.state import LaterHead, RunRemembered
from agent.record.run_record import proof_of
from agent.runtime.waiting import NotYet, until

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.boot.node_run import NodeRun
    from agent.boot.run_keeper import RunKeeper
    from agent.control.protocol import Hello

_EVERY = 3.0


async def watch_record(run: NodeRun, keeper: RunKeeper, tell: Callable[[LaterHead], None]) -> None:
    """Read the run's record now and then, and tell of a later head that has written it."""

    async def read() -> int:
        return await anyio.to_thread.run_sync(keeper.later_epoch, abandon_on_cancel=True)

    async def look() -> int | NotYet:
        epoch = await run.best_effort("a look for a later head's record", read)
        return epoch if isinstance(epoch, int) and epoch else NotYet()

    tell(LaterHead(await until(look, None, step=_EVERY, longest=_EVERY), "run.json has its epoch"))


def memory_of(
    keeper: RunKeeper, tell: Callable[[RunRemembered], None]
) -> Callable[[Hello, int], bool]:
    """Return a callback for workers' hellos and epochs: it returns whether a decision follows."""

    def take(hello: Hello, epoch: int) -> bool:
        known = remembered(keeper, hello, epoch)
        if known is not None:
            tell(known)
        return known is not None

    return take


def remembered(keeper: RunKeeper, hello: Hello, epoch: int) -> RunRemembered | None:
    """Return the run of a worker that outlived its head; `epoch` is the last that it followed.

    None where its proof is not of this job, or where our own record says more.
    """
    run_id, attempt = hello.run_id, hello.attempt
    proof = proof_of(keeper.record.fingerprint, run_id, attempt, epoch)
    if hello.fingerprint != proof or keeper.has_record_of(run_id):
        return None
    return RunRemembered(run_id, attempt, epoch if epoch > keeper.record.epoch else 0)
