"""The head's decisions under random histories: no dead end, one submission, one end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.base.ends import shell_code
from agent.decisions.head import head_decide as head
from agent.decisions.head import head_state as h
from agent.decisions.head.head_state import HeadPhase
from agent.decisions.head.own_ray import RAY_RESTARTS
from agent.decisions.shared import (
    ALL_REDUCE,
    SCORE,
    Answer,
    Answered,
)
from agent.job.services import Where
from support.head_histories import FINE, GOALS, PAUSES, histories, times
from support.heads import (
    NOTHING_DURABLE,
    PREPARED,
    RETRIEVER,
    RETRIEVER_SPEC,
    REWARD,
    REWARD_SPEC,
    TERM,
    TICK,
    History,
    StopJob,
    SubmitJob,
    Trace,
    accepted,
    job,
    job_report,
    lost,
    never,
    nodes,
    ray_doubt,
    ray_lost,
    ray_waits,
    ready,
    reported,
    resumed,
)

if TYPE_CHECKING:
    from agent.decisions.durable import Durable
    from agent.decisions.head.head_goal import HeadGoal

OURS = {0, 69, 75, 78, 130, 143}


OF_MORE = [
    *times(3, never(), accepted(2)),
    *times(2, ray_lost("exit 1"), ready(REWARD), reported(2)),
    *times(2, Answered(Answer(ALL_REDUCE, "")), reported(2, answers=(Answer(SCORE, ""),))),
    *times(1, ready(RETRIEVER), lost(RETRIEVER, "exit 1")),
    *times(1, h.WorkerReplaced("agent2"), ray_waits(""), h.RunRemembered("other", 1)),
    *times(1, ray_doubt("its dashboard is stopped"), job("FAILED", 7), job("FAILED")),
]
"""Events of attempts, services and probes that may coincide."""
ALONE = replace(REWARD_SPEC, alone=True, where=Where("rank", 1))


@st.composite
def goals_with_more(draw: st.DrawFn) -> tuple[HeadGoal, Durable]:
    """Draw a goal with every item that has its own deadline, and what an earlier agent left."""
    services = [(), (REWARD_SPEC,), (REWARD_SPEC, RETRIEVER_SPEC), (ALONE,)]
    of = replace(
        draw(GOALS),
        preflight=draw(st.booleans()),
        services=draw(st.sampled_from(services)),
        shares_by=draw(st.sampled_from(["", "", "torchrun", "node"])),
    )
    if of.has_job and not of.by_shares and draw(st.booleans()):
        return of, resumed(required=of.expected_workers)
    return of, NOTHING_DURABLE


def _as_of_now(event: h.HeadEvent, now: float) -> h.HeadEvent:
    if not isinstance(event, h.WorkerReported):
        return event
    return h.WorkerReported(replace(event.worker, last_report_at=now))


def serves(trace: Trace) -> bool:
    """Return whether this is the cluster that stays until it is stopped."""
    return trace.state.phase is HeadPhase.RUNNING and not trace.state.goal.has_job


@given(histories())
def test_no_history_breaks_the_rules(drawn: tuple[HeadGoal, History]) -> None:
    """Phases only go forward, every state has a deadline, actions are done once."""
    of, history = drawn
    trace, order = Trace(of, []), list(HeadPhase)
    for at, event in history:
        before, attempt = trace.state.phase, trace.state.attempt.number
        trace.take(event, at)
        after = trace.state.phase
        begins_anew = trace.state.attempt.number != attempt
        served = not of.has_job and before is HeadPhase.RUNNING and after is HeadPhase.BOOTING
        if not begins_anew and not served:  # a Ray without a job is restarted in place
            assert order.index(after) >= order.index(before)
        assert trace.state.attempt.number - attempt in {0, 1}
        has_end = head.deadline(trace.state) is not None
        assert has_end or after is HeadPhase.LEAVING or serves(trace)
        assert [wait.what for wait in head.pending_waits(trace.state) if not wait.what] == []
    actions = list(trace.kinds())
    submitted = [action.id for action in trace.effects if isinstance(action, SubmitJob)]
    assert len(set(submitted)) == len(submitted) <= of.has_job * (of.retries + 1)
    assert {action.id for action in trace.effects if isinstance(action, StopJob)} <= set(submitted)
    assert actions.count("StopJob") <= len(submitted)
    numbers = [ended.number for ended in trace.state.durable.ended]
    assert len(numbers) <= of.retries
    # The boot after the last one may have ended the run at once.
    assert {0, *numbers} >= {*trace.progress_asked} >= {*numbers[:-1]}
    if of.has_job:
        assert actions.count("RayStarted") <= (RAY_RESTARTS + 1) * (of.retries + 1)
    assert actions.count("Ask") <= len(submitted)
    assert actions.count("EndRun") == (trace.state.phase is HeadPhase.LEAVING)
    assert "EndRun" not in actions[:-1]


@given(histories())
def test_every_history_ends(drawn: tuple[HeadGoal, History]) -> None:
    """If only time passes, the head ends, once, with a code of the contract."""
    of, history = drawn
    trace = Trace(of, history)
    assert trace.finish()
    if serves(trace):
        trace.take(TERM, trace.now)
    (end,) = trace.outcomes
    reports = [job_report(event) for _, event in history]
    codes = [report.driver_exit_code for report in reports if report is not None]
    own = {shell_code(code) for code in codes if code is not None}
    assert end.exit_code in OURS | own
    assert end.reason
    assert end.phase in {phase.value for phase in HeadPhase} - {HeadPhase.LEAVING.value}


@settings(max_examples=settings().max_examples * 4)  # the events for a loop rarely coincide
@given(goals_with_more(), st.data())
def test_no_deadline_survives_a_tick(begins: tuple[HeadGoal, Durable], data: st.DataObject) -> None:
    """After a tick the next deadline is later: the head never loops."""
    of, left = begins
    trace, events = Trace(of, [], left), st.sampled_from(FINE + OF_MORE * 2)
    lost: list[h.HeadEvent] = [never(), nodes(2, 3, 4)]
    begin = [*PREPARED, *data.draw(st.sampled_from([[], lost[1:], lost]))]
    for event in [*begin, *data.draw(st.lists(events, max_size=25))]:
        trace.take(_as_of_now(event, trace.now), trace.now)
        trace.take(TICK, trace.now + data.draw(st.sampled_from([*PAUSES, 1 / 3, 7.7, 10.0, 20.0])))
        then = head.deadline(trace.state)
        assert then is None or then > trace.now


@given(histories())
def test_leaving_is_final(drawn: tuple[HeadGoal, History]) -> None:
    """After the verdict, nothing changes it and no further action follows."""
    of, history = drawn
    trace = Trace(of, [])
    trace.take(TERM, 0.0)
    verdict, actions = trace.state.outcome, trace.actions.copy()
    for at, event in history:
        trace.take(event, at)
    assert (trace.state.phase, trace.state.outcome) == (HeadPhase.LEAVING, verdict)
    assert trace.actions == actions


@given(histories())
def test_time_alone_decides_nothing_early(drawn: tuple[HeadGoal, History]) -> None:
    """Before the deadline a tick changes no phase and causes no action."""
    trace = Trace(*drawn)
    for _ in range(2):  # one event may leave the effect of another to the next
        trace.take(TICK, trace.now)
    then = head.deadline(trace.state)
    before, done = trace.state.phase, len(trace.actions)
    if then is not None and then > trace.now:
        trace.take(TICK, (trace.now + then) / 2)
        assert (trace.state.phase, len(trace.actions)) == (before, done)
