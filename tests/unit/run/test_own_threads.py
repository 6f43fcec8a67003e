"""What blocks on this node has threads of its own: none is missing to others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from agent.run.effects import Effects, Processes
from agent.run.node_run import kill_leftovers
from support.node_runs import node_run_with

if TYPE_CHECKING:
    from pathlib import Path


def test_leftovers_are_killed_while_all_threads_of_the_pool_hang(tmp_path: Path) -> None:
    """Else a stalled disk, or many requests for the job's series, would stop the next attempt."""
    rounds = iter([["ray::IDLE"], []])
    processes = Processes(kill_leftovers=lambda: next(rounds))
    run = node_run_with(tmp_path, ())
    run.effects = Effects(processes=processes)

    async def kill() -> str:
        pool = anyio.to_thread.current_default_thread_limiter()
        for number in range(int(pool.total_tokens)):
            pool.acquire_on_behalf_of_nowait(number)
        with anyio.fail_after(10):
            return await kill_leftovers(run, "attempt 1", 5.0)

    assert anyio.run(kill) == ""
    run.close()
