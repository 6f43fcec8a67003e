"""The worker's decisions under random histories: no dead end, one Ray at a time, one end."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agent.base.ends import Kind, Outcome
from agent.decisions import worker
from agent.decisions.shared import RAY, ItemsReported
from agent.decisions.worker import worker_state as w
from agent.decisions.worker.worker_state import WorkerPhase
from support.heads import RETRIEVER, lost, pending, ready
from support.workers import (
    DOWN,
    INT,
    RAY_UP,
    TERM,
    TICK,
    Began,
    History,
    WorkerTrace,
    goal,
    replied,
    wanted,
)

OURS = {69, 75, 78, 130, 143}
PREPARED = ready("AGENT_PREPARE_EACH")
FAILED = lost("AGENT_PREPARE_EACH", "exit 2")
ORDERS = [
    *(
        wanted(n, name, generation=n)
        for n in (1, 2)
        for name in (RETRIEVER, "AGENT_PREPARE_EACH", "nothing of ours")
    ),
]
VERDICT = Outcome(Kind.JOB_FAILED, 7, "the job ended", "running")


def times(number: int, *events: w.WorkerEvent) -> list[w.WorkerEvent]:
    """Repeat events, so that they are drawn more often."""
    return list(events) * number


EVENTS = [
    *times(4, TICK),
    *times(8, replied()),
    *times(2, replied(ready=False), replied(ip="10.0.0.9"), replied(epoch=2), replied(epoch=None)),
    *times(3, w.HeadSilent("refused"), PREPARED),
    *times(6, RAY_UP, DOWN),
    *times(2, pending(RAY, "refused")),
    *times(
        1,
        FAILED,
        replied(refusal="version mismatch"),
        replied(verdict=VERDICT),
    ),
    *times(1, TERM, INT),
    *times(1, *ORDERS, ready(RETRIEVER), lost(RETRIEVER, "exit 1")),
    *times(1, replied(phase="held", ready=False, held=True)),
]
"""What can happen, in the proportions that let many histories get far."""
PAUSES = [0.0, 0.1, 0.5, 0.5, 1.0, 1.0, 10.0, 10.0, 61.0, 119.0, 1000.0]


@st.composite
def histories(draw: st.DrawFn) -> tuple[w.WorkerGoal, History]:
    """Draw a goal and what happens, on a clock that never goes back.

    Only a Ray that was started can come up or end.
    """
    of = goal(prepare=draw(st.booleans()))
    trace, history = WorkerTrace(of, []), []
    for _ in range(draw(st.integers(0, 25))):
        event = draw(st.sampled_from(EVENTS))
        ray = trace.items.get(RAY)
        is_of_ray = isinstance(event, ItemsReported) and event.items[0].name == RAY
        if is_of_ray and (ray is None or not ray.is_running):
            continue
        trace.take(event, trace.now + draw(st.sampled_from(PAUSES)))
        history.append((trace.now, event))
    return of, history


@given(histories())
def test_no_history_breaks_the_rules(drawn: tuple[w.WorkerGoal, History]) -> None:
    """Every state but the last has a deadline, and the end comes once."""
    of, history = drawn
    trace = WorkerTrace(of, [])
    for at, event in history:
        left = trace.state.phase is WorkerPhase.LEAVING
        trace.take(event, at)
        leaves = trace.state.phase is WorkerPhase.LEAVING
        assert leaves or not left
        assert leaves or worker.deadline(trace.state) is not None
    assert len(trace.outcomes) == (trace.state.phase is WorkerPhase.LEAVING)
    assert not trace.outcomes or isinstance(trace.effects[-1], w.EndWorker)


@given(histories())
def test_no_deadline_survives_a_tick(drawn: tuple[w.WorkerGoal, History]) -> None:
    """Once the worker has looked at the time, the next look is later: it never spins."""
    of, history = drawn
    trace = WorkerTrace(of, [])
    for at, event in history:
        trace.take(event, at)
        trace.take(TICK, at)
        then = worker.deadline(trace.state)
        assert then is None or then > at


@given(histories())
def test_only_a_ray_that_runs_has_joined(drawn: tuple[w.WorkerGoal, History]) -> None:
    """Each generation begins once, after the one before, and none that has ended is joined."""
    of, history = drawn
    trace = WorkerTrace(of, [])
    for at, event in history:
        trace.take(event, at)
        ray = trace.items.get(RAY)
        runs = ray is not None and ray.is_running
        assert runs or not trace.state.joined
    began = [one.generation for one in trace.effects if isinstance(one, Began) and one.name == RAY]
    assert began == sorted({*began})


@given(histories())
def test_every_history_ends(drawn: tuple[w.WorkerGoal, History]) -> None:
    """If nothing more happens but time, the worker leaves, once, with a code of the contract."""
    of, history = drawn
    trace = WorkerTrace(of, history)
    assert trace.finish()
    (end,) = trace.outcomes
    received = {e.verdict.exit_code for _, e in history if isinstance(e, w.HeadSpoke) and e.verdict}
    assert end.exit_code in OURS | received
    assert end.reason
    assert end.phase


@given(histories())
def test_leaving_is_final(drawn: tuple[w.WorkerGoal, History]) -> None:
    """Once it leaves, nothing changes its end and nothing more is done."""
    of, history = drawn
    trace = WorkerTrace(of, [(0.0, TERM)])
    state, actions = trace.state, trace.actions.copy()
    for at, event in history:
        trace.take(event, at)
    assert trace.state == state
    assert trace.actions == actions
