"""A worker and a head of its run with a lower epoch: a slow clock, or an earlier head."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
import pytest

from agent.decisions.durable import EPOCH_STEP, Durable, Succession
from agent.decisions.worker import worker_state as w
from agent.port.node_network import bind
from agent.port.protocol import Hello
from agent.port.reports import Expected, Reports
from agent.port.server import AgentServer
from agent.record.run_record import ChosenRun
from agent.run.head_server import first_reply, proof
from agent.run.run_store import RunStore
from support import heads
from support.free_ports import free_port
from support.linked_worker import Link
from support.run_records import record_of, submitted
from support.statuses import A_WORKER

if TYPE_CHECKING:
    from pathlib import Path

    from aiohttp import web

    from agent.decisions.head import head_state as h

JOB = "f" * 16


class Head:
    """A head's port, record and decisions; the run ID is the platform's, whatever its disk has."""

    def __init__(self, root: Path, epoch: int, *, has_attempt: bool = False) -> None:
        left = Durable("run", JOB, epoch)
        left = submitted(left) if has_attempt else left
        (root / "run").mkdir(parents=True)
        chosen = ChosenRun("run", record_of(left))
        self.store = RunStore(root, JOB, chosen, Succession(job_survives=True))
        self.scenario = heads.Trace(heads.goal(1, retries=3), [], self.store.durable)

    async def open(self, port: int, tasks: anyio.abc.TaskGroup) -> web.BaseRunner:
        """Open its port."""
        store = self.store

        def tell(known: h.RunRemembered) -> None:
            tasks.start_soon(decide, known)

        async def decide(known: h.RunRemembered) -> None:
            self.scenario.take(known, 1.0)
            assert self.scenario.effects == []
            durable = self.scenario.state.durable
            store.put(durable, 1.0)
            await store.on_disk()
            reports.publish(epoch=durable.epoch, attempt=durable.attempt.number)
            reports.run_decided.set()

        number = self.scenario.state.attempt.number
        first = await first_reply(store, number, "10.0.0.1")
        expected = Expected(None, "", "", "")
        memory = partial(store.recall, tell)
        reports = Reports(
            first, expected, lambda _: None, anyio.current_time, on_recalled_run=memory
        )
        if store.durable.open_attempt is not None:
            shown = proof(store.durable, number)
            reports.publish(phase="running", attempt=number, fingerprint=shown)
        site = AgentServer(
            token=None, ready=lambda: True, status=lambda _reader: A_WORKER, reports=reports
        )
        return await site.open([bind("127.0.0.1", port)])


def a_worker(port: int) -> Link:
    """Return a worker's link, whose hello names the run that it has followed."""

    def hello() -> Hello:
        if not worker.replies:
            return Hello("pod1", 1)
        last = worker.replies[-1]
        return Hello("pod1", 1, None, "", "", last.run_id, last.submitted, last.fingerprint)

    worker = Link(port, hello=hello)
    return worker


@pytest.mark.parametrize("killed_when", ["booting", "running"])
def test_a_head_without_its_disk_whose_clock_is_behind(tmp_path: Path, killed_when: str) -> None:
    """Same run ID, lower epoch: its workers report to it, and it raises its epoch above theirs."""
    port = free_port()
    has_attempt = killed_when == "running"
    first = Head(tmp_path / "a", 900, has_attempt=has_attempt)
    second = Head(tmp_path / "b", 100)
    worker = a_worker(port)
    raised = 900 + EPOCH_STEP

    async def trace() -> None:
        async with anyio.create_task_group() as tasks:
            runner = await first.open(port, tasks)
            tasks.start_soon(worker.link.run)
            await worker.last(w.HeadSpoke, "epoch=900")
            await runner.cleanup()
            runner = await second.open(port, tasks)
            await worker.last(w.HeadSpoke, f"epoch={raised}")
            tasks.cancel_scope.cancel()
        await runner.cleanup()

    anyio.run(trace)
    assert second.store.durable.epoch == raised
    assert [one.number for one in second.store.durable.ended] == [1] * has_attempt


def test_an_earlier_head_is_not_followed(tmp_path: Path) -> None:
    """Its record has its own attempt, so that it adopts nothing, and its epoch stays."""
    port = free_port()
    later = Head(tmp_path / "a", 900, has_attempt=True)
    earlier = Head(tmp_path / "b", 100, has_attempt=True)
    worker = a_worker(port)

    async def trace() -> None:
        async with anyio.create_task_group() as tasks:
            runner = await later.open(port, tasks)
            tasks.start_soon(worker.link.run)
            await worker.last(w.HeadSpoke, "epoch=900")
            await runner.cleanup()
            runner = await earlier.open(port, tasks)
            await worker.last(w.HeadSilent, "is an earlier one")
            greeted = len(worker.events) + 2
            with anyio.fail_after(20):
                while len(worker.events) < greeted:
                    await anyio.lowlevel.checkpoint()
            tasks.cancel_scope.cancel()
        await runner.cleanup()

    anyio.run(trace)
    assert "is an earlier one" in str(worker.events[-1])
    assert not any(isinstance(one, w.HeadSpoke) and one.epoch == 100 for one in worker.events)
    assert (earlier.scenario.effects, earlier.store.record.epoch) == ([], 100)
