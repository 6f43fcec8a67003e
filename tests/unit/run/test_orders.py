"""What the head wants and orders, over the real port."""

from __future__ import annotations

import anyio

from agent.decisions import worker
from agent.decisions.shared import OrderKind, Want
from agent.decisions.worker import worker_state as w
from support.free_ports import free_port
from support.heads import RETRIEVER
from support.linked_worker import SECONDS, LinkedWorker, head_at

SECOND = {RETRIEVER: Want(2)}


async def trace(port: int) -> LinkedWorker:
    """Tell a worker three things one after another, and wait for each."""
    one = LinkedWorker(port)
    async with head_at(port) as reports, anyio.create_task_group() as tasks:
        tasks.start_soon(one.link.run)
        with anyio.fail_after(SECONDS):
            while not one.state.last_reply_at:
                await one.changed.wait()
        reports.want("agent1", {RETRIEVER: Want()})
        await one.until_told(1)
        reports.order("agent1", OrderKind.SEND_LOG, "ray")
        await one.until_told(2)
        reports.want("agent1", SECOND)
        await one.until_told(3)
        tasks.cancel_scope.cancel()
    return one


def test_messages_arrive_at_once_and_count_once() -> None:
    """A held report returns them at once; the next reply does not repeat them."""
    one = anyio.run(trace, free_port())
    assert [action for action in one.actions if isinstance(action, w.SendLog)] == [w.SendLog("ray")]
    assert worker.wanted_of(one.state) == SECOND
