"""The order of turns, where some steps take seconds and others milliseconds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.bundled.turns import QueuedRequest, Turns

STEP = 3.0  # seconds of a hard step


def run(
    turns: Turns, requests: dict[QueuedRequest, float], seconds: float
) -> dict[QueuedRequest, float]:
    """Let requests with steps of these lengths take turns; return when each had its first one."""
    now = 0.0
    first = dict[QueuedRequest, float]()
    numbers = {turns.wait(one): one for one in requests}
    while now < seconds:
        number = turns.next()
        assert number is not None
        request = numbers.pop(number)
        first.setdefault(request, now)
        turns.end(request, turns.begin(request), requests[request])
        now += requests[request]
        numbers[turns.wait(request)] = request
    for number in numbers:
        turns.cancel(number)
    return first


@pytest.mark.parametrize("good_client", ["a", "b"])
def test_short_steps_pass_long_ones(good_client: str) -> None:
    """Of one client or another: the good one has its first turn next, and most of the turns."""
    turns = Turns()
    hard = [turns.enter("a") for _ in range(4)]
    run(turns, dict.fromkeys(hard, STEP), 30.0)
    good = turns.enter(good_client)
    before = good.used
    first = run(turns, {good: 0.01, **dict.fromkeys(hard, STEP)}, STEP + 0.5)
    assert first[good] == 0.0
    assert good.used - before >= 0.3


def test_many_short_visits_gain_nothing() -> None:
    """A client that comes with one hard step after the other waits for the one that used less."""
    turns = Turns()
    good = turns.enter("good")
    for _ in range(20):
        visit = turns.enter("visitor")
        turns.end(visit, turns.begin(visit), STEP)
        turns.leave(visit)
    visit, waits = turns.enter("visitor"), turns.wait(good)
    turns.wait(visit)
    assert turns.next() == waits


def test_an_old_client_is_not_behind_a_new_one_for_ever() -> None:
    """What was used while nobody else was there does not count against a client later."""
    turns = Turns()
    old = turns.enter("old")
    for _ in range(1000):
        turns.end(old, turns.begin(old), STEP)
    new = turns.enter("new")
    assert old.client.used - new.client.used <= STEP


@given(st.lists(st.tuples(st.integers(0, 5_000), st.floats(0, 10)), max_size=200))
def test_everybody_who_waits_gets_a_turn(steps: list[tuple[int, float]]) -> None:
    """Each turn is given once, and nothing is kept of clients that have left long ago."""
    turns = Turns()
    waiting = set()
    for client, seconds in steps:
        request = turns.enter(str(client))
        waiting.add(turns.wait(request))
        turns.end(request, turns.begin(request), seconds)
        turns.leave(request)
    given_turns = [turns.next() for _ in steps]
    assert set(given_turns) == waiting
    assert turns.next() is None


def test_clients_without_requests_are_forgotten() -> None:
    """Memory does not grow with the number of addresses."""
    turns = Turns()
    for number in range(4_500):
        turns.leave(turns.enter(f"10.0.{number // 256}.{number % 256}"))
    assert turns.remembered() <= 4_200
