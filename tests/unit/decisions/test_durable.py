"""What the next agent of a run has of it: moments on another clock."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agent.base.ends import Kind, Outcome
from agent.base.value import RunTime, Seconds, Value
from agent.decisions.attempts import Attempt
from agent.decisions.durable import Durable, Losses, Stop, on_clock
from agent.decisions.receipt import Meter, Receipt, RunActivity
from agent.decisions.shared import Outage

MOMENTS = st.integers(-(2**40), 2**40).map(lambda number: number / 1024)
"""Moments and distances without rounding."""
OUTAGES = st.builds(Outage, st.just("retriever"), st.just("pod2"), MOMENTS, st.none() | MOMENTS)
DURABLES = st.builds(
    Durable,
    st.just("run"),
    attempt=st.builds(Attempt, st.just("run-1"), submitted=st.none() | MOMENTS),
    losses=st.builds(Losses, st.none() | MOMENTS, st.text(), st.none() | MOMENTS),
    stop=st.none() | st.builds(Stop, st.just(Outcome(Kind.LOST, 75, "a loss")), MOMENTS),
    outages=st.lists(OUTAGES).map(tuple),
)


class Nested(Value):
    """A value with moments at every depth."""

    of: tuple[Outage, ...]
    by_name: dict[str, RunTime]
    took: Seconds = 3.0
    price: float = 4.0


@given(DURABLES, MOMENTS)
def test_there_and_back_is_the_same(durable: Durable, by: float) -> None:
    """What two agents passed on has its first moments again."""
    assert on_clock(on_clock(durable, by), -by) == durable


def test_only_moments_move() -> None:
    """Durations and numbers stay, and so does a moment that is not known."""
    before = Nested((Outage("a", "b", 1.0), Outage("c", "d", 2.0, 5.0)), {"e": 7.0})
    after = Nested((Outage("a", "b", 11.0), Outage("c", "d", 12.0, 15.0)), {"e": 17.0})
    assert on_clock(before, 10.0) == after


def test_a_meter_moves_with_its_open_step() -> None:
    """What was spent stays as it is."""
    meter = Meter(Receipt(boot=3.0), 5.0, 6.0, RunActivity("job", 1, step=2, step_at=4.0))
    moved = on_clock(meter, 100.0)
    assert moved == Meter(
        Receipt(boot=3.0), 105.0, 106.0, RunActivity("job", 1, step=2, step_at=104.0)
    )
