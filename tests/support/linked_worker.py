"""A worker's decisions behind a real link to a head's port."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import anyio

from agent.decisions import worker
from agent.decisions.shared import StepOver
from agent.port.client import HeadLink
from agent.port.node_network import bind
from agent.port.protocol import Hello, Reply, Report
from agent.port.reports import Expected, Reports
from agent.port.server import AgentServer
from support.statuses import A_WORKER
from support.workers import goal

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from agent.decisions.worker import worker_state as w

SECONDS = 20.0
HELLO = Hello("pod1", 1)
FIRST = Reply(1, "run-1", "booting", ray_ready=False, head_ip="10.0.0.1", news=0)


class LinkedWorker:
    """A worker's decisions behind a real link to a head's port; actions are only recorded."""

    def __init__(self, port: int) -> None:
        first = worker.first_state(goal(prepare=True))
        self.state, _ = worker.decide(first, StepOver("AGENT_PREPARE_EACH"), 0.5)
        self.actions: list[w.WorkerAction] = []
        self.changed = anyio.Event()
        self.link = HeadLink(
            *("127.0.0.1", port, port, None),
            lambda: HELLO,
            self._report,
            self._take,
            lambda _reply: None,
        )

    def _take(self, event: w.WorkerEvent) -> None:
        before = self.state
        self.state, actions = worker.decide(self.state, event, 1.0)
        self.actions += actions
        if self.state.last_order != before.last_order:
            self.link.report_now()
        self.changed.set()
        self.changed = anyio.Event()

    def _report(self, ip: str) -> Report:
        obeyed = self.state.last_order
        number, by = (0, "") if obeyed is None else (obeyed.number, obeyed.by)
        return Report("agent1", ip, self.state.phase.value, obeyed=number, obeyed_by=by)

    async def until_obeyed(self, number: int) -> None:
        """Wait until an order with this number was received."""
        with anyio.fail_after(SECONDS):
            while self.state.last_order is None or self.state.last_order.number < number:
                await self.changed.wait()


@contextlib.asynccontextmanager
async def head_at(port: int) -> AsyncIterator[Reports]:
    """Serve a head's port."""
    reports = Reports(FIRST, Expected(None, "", "", ""), lambda _event: None, lambda: 0.0)
    site = AgentServer(token=None, ready=lambda: True, status=lambda: A_WORKER, reports=reports)
    runner = await site.open([bind("127.0.0.1", port)])
    try:
        yield reports
    finally:
        await runner.cleanup()
