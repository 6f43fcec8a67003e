"""An executor and what it reports, for tests of what runs on a node."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio

from agent.processes.waiting import NotYet, until
from agent.run.executor import Executor

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from agent.decisions.shared import ItemReport, ItemsReported, Wants
    from agent.run.executor import Clear, Runner


class Executing:
    """An executor, and all that it has reported."""

    def __init__(
        self,
        tasks: anyio.abc.TaskGroup,
        runner_of: Callable[[str], Runner | None],
        clear_of: Callable[[str], Clear | None] | None,
    ) -> None:
        self.sent: list[ItemsReported] = []
        more = () if clear_of is None else (clear_of,)
        self.executor = Executor(tasks, runner_of, self.sent.append, *more)

    @property
    def item(self) -> ItemReport:
        """The item that was reported last."""
        return self.sent[-1].items[-1]

    async def wants(self, wants: Wants) -> None:
        """Want these things, and let them begin or end."""
        self.executor.apply(wants)
        await anyio.wait_all_tasks_blocked()

    async def until(self, holds: Callable[[ItemReport], bool]) -> None:
        """Wait until all items of the last report are so."""

        async def look() -> bool | NotYet:
            items = self.sent[-1].items if self.sent else ()
            return True if items and all(map(holds, items)) else NotYet()

        await until(look, None, longest=0.05)


@asynccontextmanager
async def executing(
    runner_of: Callable[[str], Runner | None],
    clear_of: Callable[[str], Clear | None] | None = None,
) -> AsyncIterator[Executing]:
    """Have an executor with these runners, which is closed at the end."""
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            there = Executing(tasks, runner_of, clear_of)
            yield there
            await there.executor.close()
