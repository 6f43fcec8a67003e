"""The worker's decisions under random histories: no dead end, one Ray at a time, one end."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agent.base.ends import Kind, Outcome
from agent.decisions import worker
from agent.decisions.values import Order, OrderKind, ServiceGone, ServiceReady, StepOver
from agent.decisions.worker import state as w
from agent.decisions.worker.state import RayStep, StartRay, StopRay, WorkerPhase
from unit.heads import RETRIEVER
from unit.workers import INT, TERM, TICK, History, Story, goal, spoke

OURS = {69, 75, 78, 130, 143}
PREPARED = StepOver("AGENT_PREPARE_EACH")
FAILED = StepOver("AGENT_PREPARE_EACH", "exit 2")
ORDERS = [
    w.Ordered(Order("head1", n, kind, name))
    for n, kind in enumerate([OrderKind.START_SERVICE, OrderKind.RUN_STEP, OrderKind.SEND_LOG], 1)
    for name in (RETRIEVER, "AGENT_PREPARE_EACH", "nothing of ours")
]
VERDICT = Outcome(Kind.JOB_FAILED, 7, "the job ended", "running")


def times(number: int, *events: w.WorkerEvent) -> list[w.WorkerEvent]:
    """Repeat events, so that they are drawn more often."""
    return list(events) * number


EVENTS = [
    *times(4, TICK),
    *times(8, spoke()),
    *times(2, spoke(ready=False), spoke(ip="10.0.0.9"), spoke(epoch=2), spoke(epoch=None)),
    *times(3, w.HeadSilent("refused"), PREPARED),
    *times(6, w.RayUp(), w.RayExited("exit 1")),
    *times(2, w.WorkerRaySilent("refused")),
    *times(
        1,
        FAILED,
        spoke(refusal="version mismatch"),
        spoke(verdict=VERDICT),
    ),
    *times(1, TERM, INT),
    *times(1, *ORDERS, ServiceReady(RETRIEVER), ServiceGone(RETRIEVER, "exit 1")),
    *times(1, spoke(phase="held", ready=False, held=True)),
]
"""What can happen, in the proportions that let many histories get far."""
PAUSES = [0.0, 0.1, 0.5, 0.5, 1.0, 1.0, 10.0, 10.0, 61.0, 119.0, 1000.0]


@st.composite
def histories(draw: st.DrawFn) -> tuple[w.WorkerGoal, History]:
    """Draw a goal and what happens, on a clock that never goes back.

    Only a Ray that was started can come up, and only one that lives can end.
    """
    of = goal(prepare=draw(st.booleans()))
    story, history = Story(of, []), []
    for _ in range(draw(st.integers(0, 25))):
        event, ray = draw(st.sampled_from(EVENTS)), story.state.ray
        if isinstance(event, w.RayUp) and ray not in {RayStep.STARTING, RayStep.STOPPING}:
            continue
        if isinstance(event, w.RayExited) and ray is RayStep.DOWN:
            continue
        story.take(event, story.now + draw(st.sampled_from(PAUSES)))
        history.append((story.now, event))
    return of, history


@given(histories())
def test_no_history_breaks_the_rules(drawn: tuple[w.WorkerGoal, History]) -> None:
    """Every state but the last has a deadline, and the end comes once."""
    of, history = drawn
    story = Story(of, [])
    for at, event in history:
        left = story.state.phase is WorkerPhase.LEAVING
        story.take(event, at)
        leaves = story.state.phase is WorkerPhase.LEAVING
        assert leaves or not left
        assert leaves or worker.deadline(story.state) is not None
    assert len(story.ends) == (story.state.phase is WorkerPhase.LEAVING)
    assert not story.ends or isinstance(story.deeds[-1], w.EndWorker)


@given(histories())
def test_no_deadline_survives_a_tick(drawn: tuple[w.WorkerGoal, History]) -> None:
    """Once the worker has looked at the time, the next look is later: it never spins."""
    of, history = drawn
    story = Story(of, [])
    for at, event in history:
        story.take(event, at)
        story.take(TICK, at)
        then = worker.deadline(story.state)
        assert then is None or then > at


@given(histories())
def test_never_two_rays_at_once(drawn: tuple[w.WorkerGoal, History]) -> None:
    """Ray is started only where none of ours runs, and stopped or called joined where one does."""
    of, history = drawn
    story, running = Story(of, []), False
    for at, event in history:
        if isinstance(event, w.RayExited):
            running = False
        done = len(story.deeds)
        story.take(event, at)
        for deed in story.deeds[done:]:
            if isinstance(deed, StartRay):
                assert not running
                running = True
            if isinstance(deed, StopRay):
                assert running
        assert running or not story.state.joined


@given(histories())
def test_every_story_ends(drawn: tuple[w.WorkerGoal, History]) -> None:
    """If nothing more happens but time, the worker leaves, once, with a code of the contract."""
    of, history = drawn
    story = Story(of, history)
    assert story.finish()
    (end,) = story.ends
    heard = {e.verdict.exit_code for _, e in history if isinstance(e, w.HeadSpoke) and e.verdict}
    assert end.exit_code in OURS | heard
    assert end.reason
    assert end.phase


@given(histories())
def test_leaving_is_final(drawn: tuple[w.WorkerGoal, History]) -> None:
    """Once it leaves, nothing changes its end and nothing more is done."""
    of, history = drawn
    story = Story(of, [(0.0, TERM)])
    state, deeds = story.state, story.actions.copy()
    for at, event in history:
        story.take(event, at)
    assert story.state == state
    assert story.actions == deeds
