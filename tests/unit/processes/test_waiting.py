"""Waits until a condition holds or a timeout; and the queue of events."""

from __future__ import annotations

import subprocess
import sys
import threading

import anyio
import pytest

from agent.bridge.child import repeat
from agent.processes.waiting import Inbox, NotYet, TimedOutError, until

pytestmark = pytest.mark.anyio


class Asked:
    """A condition that holds from the n-th time on that it is asked for."""

    def __init__(self, holds_at: int) -> None:
        self.times = 0
        self._holds_at = holds_at

    async def __call__(self) -> str | NotYet:
        """Ask once."""
        self.times += 1
        return "here" if self.times >= self._holds_at else NotYet(f"try {self.times}")


@pytest.mark.parametrize("limit", [None, 5.0])
@pytest.mark.parametrize("holds_at", [1, 4])
async def test_it_returns_what_it_waited_for(limit: float | None, holds_at: int) -> None:
    """The first answer that is not NotYet is the result, and nothing is asked after it."""
    check = Asked(holds_at)
    assert await until(check, limit, step=0.001) == "here"
    assert check.times == holds_at


@pytest.mark.parametrize("answer", [False, 0, "", None])
async def test_a_false_answer_is_an_answer(answer: object) -> None:
    """Only NotYet means not yet."""

    async def check() -> object:
        return answer

    assert await until(check, 5.0) is answer


async def test_a_slow_first_answer_is_the_last() -> None:
    """The limit counts from the first question on."""
    check = Asked(2)

    async def slowly() -> str | NotYet:
        await anyio.sleep(0.02)
        return await check()

    with pytest.raises(TimedOutError, match="try 1"):
        await until(slowly, 0.01)
    assert check.times == 1


_AT_ONCE = """
import sys
import anyio
from agent.processes.waiting import until

async def check():
    return True

anyio.run(until, check, None)
assert "tenacity" not in sys.modules
"""


def test_what_holds_at_once_loads_nothing() -> None:
    """The start of a node asks for much that holds at once."""
    subprocess.run([sys.executable, "-c", _AT_ONCE], check=True, timeout=30)


async def test_it_times_out_with_the_last_evidence() -> None:
    """At the deadline the error has the last evidence, and every change was reported."""
    check = Asked(10**9)
    sentences: list[str] = []
    with pytest.raises(TimedOutError) as caught:
        await until(check, 0.05, step=0.005, longest=0.01, on_evidence=sentences.append)
    assert check.times > 1
    assert str(caught.value) == f"try {check.times}"
    assert sentences == [f"try {n + 1}" for n in range(len(sentences))]
    assert len(sentences) >= check.times - 1


async def test_the_last_question_is_asked_at_the_deadline() -> None:
    """A long step neither outlasts the deadline nor ends the wait before it."""
    with anyio.fail_after(30):
        assert await until(Asked(2), 0.05, step=60.0, longest=60.0) == "here"


async def test_the_same_evidence_is_logged_once() -> None:
    """Evidence is not reported again until it changes."""
    answers = iter(["refused", "refused", "slow", "refused", ""])
    sentences: list[str] = []

    async def check() -> bool | NotYet:
        evidence = next(answers)
        return NotYet(evidence) if evidence else True

    await until(check, 5.0, step=0.001, on_evidence=sentences.append)
    assert sentences == ["refused", "slow", "refused"]


async def test_a_bug_in_a_condition_is_no_timeout() -> None:
    """An error of the condition's own comes through as it is."""

    async def check() -> NotYet:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await until(check, 5.0)


async def test_it_can_be_canceled_between_two_steps() -> None:
    """A stop request does not wait for the next step."""
    with anyio.move_on_after(0.02) as scope:
        await until(Asked(10**9), None, step=60.0, longest=60.0)
    assert scope.cancelled_caught


def test_beats_end_on_request() -> None:
    """A thread's heartbeat stops at once on request, also in the middle of a step."""
    stop, count = threading.Event(), 0
    for _ in repeat(stop, 0.001):
        count += 1
        if count == 3:
            stop.set()
    assert count == 3
    assert list(repeat(stop, 60.0)) == []


async def test_events_are_taken_in_order() -> None:
    """One queue sees everything in the order in which it came, and None after its patience."""
    inbox: Inbox[str] = Inbox(str)
    inbox.put("a")
    inbox.put("b")
    taken = [await inbox.take(limit) for limit in (None, 0.0, 0.01, 0.0)]
    assert taken == ["a", "b", None, None]


async def test_an_event_wakes_the_taker() -> None:
    """A taker with all the time in the world gets an event when it comes."""
    inbox: Inbox[str] = Inbox(str)
    taken: list[str | None] = []

    async def take() -> None:
        taken.append(await inbox.take(None))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(take)
        await anyio.wait_all_tasks_blocked()
        inbox.put("late")
    assert taken == ["late"]
