"""The head's desk: reports in, news out, a farewell at the end."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import anyio

from agent.base.outcome import Kind, Outcome
from agent.control.protocol import Reply, Report
from agent.control.reports import Desk

if TYPE_CHECKING:
    from agent.decisions.head.state import Worker, WorkerReported

FIRST = Reply("one", "run-1", "booting", ray_ready=False, gcs_port=6379, news=0)
POD1 = Report("pod1", "10.0.0.2", 1, "joining Ray", ray="2.60.0", python="3.11.7")
DONE = Outcome(Kind.DONE, 0, "the job succeeded")
SOON = 0.05
LATE = 20.0


class Counter:
    """A desk, and what it told."""

    def __init__(self) -> None:
        self.heard: list[Worker] = []
        self.desk = Desk(FIRST, ("2.60.0", "3.11.7"), self._tell, lambda: 12.5)

    def _tell(self, event: WorkerReported) -> None:
        self.heard.append(event.worker)


def test_a_report_is_told_and_answered() -> None:
    """A first report is answered at once, and the head's story hears who it was."""
    counter = Counter()
    assert anyio.run(counter.desk.take, replace(POD1, hold=LATE)) == FIRST
    (worker,) = counter.heard
    assert (worker.name, worker.ip, worker.rank, worker.heard) == ("pod1", "10.0.0.2", 1, 12.5)
    assert not worker.gone


def test_a_report_is_held_until_there_is_news() -> None:
    """A worker that knows all is answered in the moment that something changes."""
    counter, replies = Counter(), list[Reply]()

    async def ask() -> None:
        replies.append(await counter.desk.take(replace(POD1, news=0, hold=LATE)))

    async def story() -> None:
        with anyio.fail_after(LATE / 2):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask)
                tasks.start_soon(ask)
                await anyio.wait_all_tasks_blocked()
                assert replies == []
                counter.desk.publish("running", ray_ready=True, verdict=DONE)

    anyio.run(story)
    assert {reply.news for reply in replies} == {1}
    assert [reply.verdict for reply in replies] == [DONE, DONE]


def test_patience_ends() -> None:
    """Without news a held report is answered when its patience ends, with what there is."""
    counter = Counter()
    counter.desk.publish("booting", ray_ready=False, verdict=None)  # says nothing new
    assert anyio.run(counter.desk.take, replace(POD1, news=0, hold=SOON)) == FIRST


def test_another_version_is_refused() -> None:
    """A worker whose Ray differs is refused by name, and nobody waits for its goodbye."""
    counter = Counter()
    reply = anyio.run(counter.desk.take, replace(POD1, ray="2.50.0"))
    assert "Ray 2.50.0 here, 2.60.0 on the head" in reply.refusal
    assert counter.heard[0].refused == reply.refusal
    assert anyio.run(counter.desk.farewell, LATE, 0) == ([], 0)


def test_farewell_waits_for_each() -> None:
    """The head stays until every worker has said goodbye."""
    counter = Counter()
    pod2 = replace(POD1, name="pod2", ip="10.0.0.3")

    async def leave() -> None:
        for report in (POD1, pod2):
            await counter.desk.take(replace(report, leaving=True))

    async def story() -> tuple[list[str], int]:
        await counter.desk.take(POD1)
        await counter.desk.take(pod2)
        with anyio.fail_after(LATE / 2):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(leave)
                silent = await counter.desk.farewell(LATE, 0)
        return silent

    assert anyio.run(story) == ([], 0)
    assert [worker.gone for worker in counter.heard] == [False, False, True, True]


def test_farewell_names_those_who_stay_silent() -> None:
    """Who does not say goodbye in time is named."""
    counter = Counter()
    anyio.run(counter.desk.take, POD1)
    assert anyio.run(counter.desk.farewell, SOON, 0) == (["pod1"], 0)


def test_farewell_waits_for_those_who_are_about_to_call() -> None:
    """A worker that was never heard of is waited for, and told the end if it calls in time."""
    counter, ended = Counter(), list[tuple[list[str], int]]()

    async def part() -> None:
        ended.append(await counter.desk.farewell(LATE, 1))

    async def story() -> None:
        with anyio.fail_after(LATE / 2):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(part)
                await anyio.wait_all_tasks_blocked()
                assert ended == []
                await counter.desk.take(POD1)
                await anyio.wait_all_tasks_blocked()
                assert ended == []
                await counter.desk.take(replace(POD1, leaving=True))

    anyio.run(story)
    assert ended == [([], 0)]
    assert anyio.run(counter.desk.farewell, SOON, 2) == ([], 2)
