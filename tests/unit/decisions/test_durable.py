"""What the next agent of a run has of it: all that it decides on, on its own clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.base.ends import Kind, Outcome
from agent.base.value import RunTime, Seconds, Value
from agent.decisions.attempts import Attempt
from agent.decisions.durable import Durable, Losses, Stop, on_clock
from agent.decisions.head import head_state as h
from agent.decisions.head.head_state import HeadPhase
from agent.decisions.receipt import Meter, Receipt, RunActivity
from agent.decisions.shared import Outage
from support.head_histories import histories
from support.heads import TICK, History, RayStarted, Trace

if TYPE_CHECKING:
    from agent.decisions.head.head_goal import HeadGoal

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


# --- durable is all ------------------------------------------------------------------------------

BESIDE = {
    "goal": "of the plan and of this node's own records",
    "phase": "RESUMING or BOOTING, then as Ray and the stop say",
    "phase_since": "deadlines of this agent's own waits",
    "began": "same",
    "not_before": "a pause after a loss: the next agent's boot takes its time, too",
    "job": "Ray reports it again",
    "has_resumed": "whether the attempt was open at the start",
    "watch_is_logged": "a line of each agent's log",
    "actions": "what the last event led to: what must not be lost of it is durable",
    "ray": "what this node's Ray answers; its restarts count for each agent",
    "items": "the node runs them, and reports them to each agent",
    "groups": "nodes and fronts report their members; what the log said of a shortage is repeated",
    "services": "the nodes report them; their restarts count for each agent",
    "steps": "the nodes report them; who may run one on a disk is durable, by name",
    "shares": "a launcher's processes end with their agent, and the attempt with them",
    "fleet": "the nodes report, and Ray lists them; which of its nodes are dead is durable",
    "reports_due": "set at the start",
    "uncounted": "of Ray's list",
    "comparison": "made again before the next submission",
    "probes": "same",
    "preflight": "same",
    "check": "same: a job that runs already is not asked about",
    "joined": "lines of each agent's log",
    "earlier": "what may still run is reported, or of the last attempt's nodes, which are durable",
    "ending": "announced again; a job that was to save before its stop is stopped at once",
    "notices": "the nodes report them again; those that the attempt counts are durable",
}
"""The fields of the state beside what is durable, and why the next agent needs none of them."""


def test_each_field_is_durable_or_has_a_reason() -> None:
    """A new one is put where it belongs."""
    assert {*h.HeadState.__struct_fields__} == {"durable", *BESIDE}


class Seen:
    """What the world shows to the next agent: the nodes' last reports, and Ray's list."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._reports: dict[str, h.WorkerReported] = {}
        self._nodes: h.RaySeen | None = None

    def take(self, event: h.HeadEvent, at: float) -> None:
        """Have the head decide on an event, and keep what will be shown again."""
        done = len(self._trace.actions)
        self._trace.take(event, at)
        if isinstance(event, h.WorkerReported):
            self._reports[event.worker.key] = event
        if isinstance(event, h.WorkerReplaced):
            self._reports.pop(event.key, None)
        if isinstance(event, h.RaySeen):
            self._nodes = event
        if any(isinstance(action, RayStarted) for action in self._trace.actions[done:]):
            self._nodes = None

    def next_agent(self) -> Trace:
        """Return the trace of an agent that starts at that time, and is shown all that at once."""
        before = self._trace
        left = on_clock(before.state.durable, -before.now)
        after = Trace(before.state.goal, [], left)
        workers = before.state.fleet.workers
        for key, report in self._reports.items():
            if not workers[key].silent:
                after.take(replace(report, worker=replace(report.worker, last_report_at=0.0)), 0.0)
        if self._nodes is not None:
            after.take(self._nodes, 0.0)
        return after


@given(histories())
def test_what_is_durable_is_all_that_the_next_agent_decides_on(
    drawn: tuple[HeadGoal, History],
) -> None:
    """Whenever an agent is killed: from what it left the next one knows how things are."""
    of, history = drawn
    trace = Trace(of, [])
    seen = Seen(trace)
    for at, event in history:
        seen.take(event, at)
        seen.take(TICK, at)  # nothing is overdue
        assert [trace.state.durable] == (trace.persisted or [trace.state.durable])[-1:]
        if trace.state.phase is HeadPhase.LEAVING:
            return

        left = on_clock(trace.state.durable, -at)
        found = seen.next_agent().state
        assert found.outcome == trace.state.outcome
        assert found.durable.ended == left.ended
        assert found.durable.outages == left.outages
        assert found.durable.holders == left.holders
        assert (found.attempt.id, found.attempt.number) == (left.attempt.id, left.attempt.number)
        if left.open_attempt is None:
            assert not found.has_resumed
            continue
        assert found.attempt == left.attempt
        assert found.losses == left.losses
        assert found.durable.stop == left.stop
        assert found.phase in {HeadPhase.RESUMING, HeadPhase.STOPPING}
