"""How an attempt ends (SIGTERM, a later head, the STOPPING phase), and whether one follows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.base import ends
from agent.base.outcome import Outcome
from agent.decisions.attempts import is_loss
from agent.decisions.head import retry, shares
from agent.decisions.head import state as h
from agent.decisions.head.boot import booting, forget_ray
from agent.decisions.head.retry import leave
from agent.decisions.head.state import HeadPhase, JobShares
from agent.decisions.head.waits import stop_deadline
from agent.decisions.values import Item, LogLine, Step, StopAsked, Tick
from agent.decisions.verdict import verdict_of

if TYPE_CHECKING:
    from agent.decisions.head.retry import Decision
    from agent.decisions.head.state import HeadAction, HeadEvent, HeadState


def on_stop(state: HeadState, event: StopAsked, now: float) -> Decision:
    """Handle SIGTERM or SIGINT: stop the job, then leave with the signal's exit code."""
    outcome = ends.stopped(event.signum, expected=not state.goal.has_job)
    if state.verdict is not None:
        return replace(state, verdict=_verdict_after_stop(state, outcome)), ()
    if state.phase is HeadPhase.JUDGING and state.attempt.report is not None:
        return leave(state, verdict_of(state.attempt.report, state.last_loss), now)
    submitted = state.phase in {HeadPhase.RESUMING, HeadPhase.RUNNING, HeadPhase.SUBMITTING}
    if submitted and state.goal.has_job:
        return stop_job(state, outcome, now, (LogLine(f"{outcome.reason}: stopping the job"),))
    return leave(state, outcome, now)


def _verdict_after_stop(state: HeadState, asked: Outcome) -> Outcome:
    """Return the outcome of a run that is asked to stop while its job already stops.

    The first verdict stands, unless it is a loss after which another attempt would follow.
    """
    verdict = state.verdict
    if verdict is None or (is_loss(verdict) and state.lost_attempt_count < state.goal.retries):
        return asked
    return verdict


def on_later_head(state: HeadState, event: h.LaterHead, now: float) -> Decision:
    """Stop for a later head of this run, which makes its own attempts.

    On a given Ray the later head follows the same job, which is left running.
    """
    end = ends.SUPERSEDED.outcome(run=state.goal.run_id, evidence=event.told_by)
    if state.verdict is not None:
        return replace(state, verdict=_verdict_after_stop(state, end)), ()
    if (
        state.attempt.submitted is None
        or state.phase is HeadPhase.JUDGING
        or state.goal.ray_is_given
    ):
        return leave(state, end, now)
    return stop_job(state, end, now, (LogLine(f"{end.reason}: stopping the job here", "warning"),))


def give_up_job(state: HeadState, outcome: Outcome, now: float) -> Decision:
    """End an attempt whose status Ray does not return; on a given Ray stop its job first."""
    if state.goal.ray_is_given:
        return stop_job(state, outcome, now, (LogLine(f"{outcome.reason}: stopping it"),))
    return end_attempt(state, outcome, now)


def stop_job(
    state: HeadState, verdict: Outcome, now: float, log: tuple[HeadAction, ...]
) -> Decision:
    """Stop the job and remember the verdict; without a job, leave at once."""
    if not state.goal.has_job:
        after, actions = leave(state, verdict, now)
        return after, (*log, *actions)
    state, follow = follow_resumed_job(
        replace(state, verdict=replace(verdict, phase=state.phase.value)), now
    )
    return state.enter(HeadPhase.STOPPING, now), (*log, *follow, h.StopJob(state.attempt.id))


def follow_resumed_job(state: HeadState, now: float) -> Decision:
    """Follow the job that a killed agent submitted, if this agent does not yet."""
    snapshot = state.goal.resumed_attempt
    if (
        state.phase is not HeadPhase.RESUMING
        or snapshot is None
        or state.attempt.submitted is not None
    ):
        return state, ()
    attempt = replace(state.attempt, submitted=snapshot.submitted, last_status_at=now)
    return replace(state, attempt=attempt), (h.FollowJob(attempt.id),)


def stopping(state: HeadState, event: HeadEvent, now: float) -> Decision:
    """Wait for the job to stop, until its grace is over."""
    assert state.verdict is not None  # noqa: S101 - entered only with a verdict
    own = state.attempt.id
    ended = isinstance(event, h.JobHeard) and event.id == own and event.report.ended
    verdict = state.verdict
    if state.goal.by_torchrun:
        state = shares.expire_silent_shares(state, now)
        ended = state.shares.is_settled
    refusal = event if isinstance(event, h.SubmitWaits) and event.id == own else None
    unknown = isinstance(event, h.NeverSubmitted) and event.id == own
    if ended and is_loss(verdict):
        verdict = _success_before_stop(state) or verdict
    never_ran = unknown or (refusal is not None and (refusal.cancelled or refusal.final))
    ends_with_ray = refusal is not None and not state.goal.ray_is_given
    is_late = now >= stop_deadline(state)
    if not (ended or never_ran or ends_with_ray or is_late or state.ray.step is Step.LOST):
        return state, ()
    if state.goal.by_torchrun and verdict.is_jobs_verdict:
        # shares that ended since may have failed earlier
        verdict = shares.shares_verdict(state)
    log = (LogLine("the job did not stop in time", "warning"),) if is_late and not ended else ()
    # our own Ray ends with its job; on a given Ray the job may still run, so no attempt follows
    has_stopped = ended or never_ran or not state.goal.ray_is_given
    after, actions = (end_attempt if has_stopped else leave)(state, verdict, now)
    return after, (*log, *actions)


def _success_before_stop(state: HeadState) -> Outcome | None:
    """Return the success of a job that succeeded before its stop took effect, or None.

    Ray 2.60 reports a job that it stopped as STOPPED, whatever its exit code.
    """
    if state.attempt.signaled:
        return None
    report = shares.job_report(state) if state.goal.by_torchrun else state.attempt.report
    return verdict_of(report, state.last_loss) if report is not None and report.succeeded else None


def end_attempt(state: HeadState, end: Outcome, now: float) -> Decision:
    """End an attempt: begin the next one if it was lost and retries are left, else leave."""
    again = retry.next_attempt(state, end, now)
    if isinstance(again, Outcome):
        return leave(state, again, now)
    begun, actions = again
    begun = replace(begun, shares=JobShares())
    if state.goal.owns_ray:  # a new Ray, so that no actor of this attempt is left
        begun, actions = forget_ray(begun, Item()), (*actions, h.RestartRay())
    after, more = booting(begun, Tick(), now)
    return after, (*actions, *more)
