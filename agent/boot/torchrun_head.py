"""The head's way to a job that torchrun starts: a share for every node, and its own here."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from agent.boot.share import LOG, Share, size_at_start
from agent.decisions.head import state as h
from agent.decisions.items import HERE
from agent.decisions.shared import OrderKind
from agent.runtime.output import JobOutput, WithoutPreamble
from agent.work.torchrun import Seat

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.boot.node_run import NodeRun
    from agent.control.reports import Reports
    from agent.decisions.head.state import HeadState
    from agent.runtime.output import Taker
    from agent.work.torchrun import PartOver
    from agent.work.where import Place


class TorchrunLink:
    """What the link to Ray is elsewhere: has an attempt started, stopped and followed."""

    def __init__(
        self,
        run: NodeRun,
        place: Place,
        tell: Callable[[h.HeadEvent], None],
        watcher: Taker | None = None,
    ) -> None:
        self._run = run
        self._watcher = watcher
        self._place = place
        self._tell = tell
        self._share = Share(run, self._own_over)
        self._tasks: anyio.abc.TaskGroup | None = None
        self._reports: Reports | None = None
        self._others: dict[str, int] = {}
        """The agents that have a share of the last attempt, and its number."""

    def _own_over(self, over: PartOver) -> None:
        self._tell(h.OwnPartOver(over))

    async def run(self) -> None:
        """Stay until cancelled: each node's own agent tells how its share goes."""
        await anyio.sleep_forever()

    async def launch(
        self,
        tasks: anyio.abc.TaskGroup,
        state: HeadState,
        reports: Reports,
        run_id: str,
        reward_ip: str,
    ) -> JobOutput:
        """Start every node's share of the attempt; return the output of this node's."""
        number, nodes = state.attempt.number, state.parts.sizes
        self._tasks, self._reports, self._others = tasks, reports, {}
        for rank, key in enumerate(state.parts.of):
            if key != HERE:
                self._others[key] = number
                seat = Seat(rank, nodes, reward_ip)
                reports.order(key, OrderKind.RUN_PART, "job", number, seat=seat)
        log = self._run.folder.file(LOG)
        begins = await size_at_start(self._run, log)
        output = JobOutput(
            *(log, WithoutPreamble.nothing(), None),
            skip=begins,
            on_passed=self._run.node.passed_on,
            watcher=self._watcher,
            begins=begins,
        )
        output.start()
        await self._share.start(tasks, number, Seat(0, nodes, reward_ip), self._place, run_id)
        self._tell(h.Submitted(state.attempt.id))
        return output

    async def follow(self, job_id: str, _mirror: object = None) -> None:
        """Follow no job of an earlier agent: the shares of it ended with that."""
        self._tell(h.NeverSubmitted(job_id))

    async def stop_job(self, _job_id: str) -> None:
        """Have every node stop its share."""
        for key, number in self._others.items():
            assert self._reports is not None  # noqa: S101 - they were ordered through it
            self._reports.order(key, OrderKind.STOP_PART, "job", number)
        assert self._tasks is not None  # noqa: S101 - stopped only after it was launched
        self._tasks.start_soon(self._share.stop, self._run.plan.budget.job)

    def forget(self, _job_id: str) -> None:
        """Ask no node about an attempt that is over: nobody is asked."""
        self._others = {}

    async def stop_own(self, grace: float) -> None:
        """Stop this node's share where it still runs."""
        await self._share.stop(grace)
