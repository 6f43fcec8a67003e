"""How an attempt ends: stopped, over, given up; another follows, or the head leaves."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from agent.base.outcome import Kind, Outcome, stopped
from agent.decisions.attempts import is_loss
from agent.decisions.head import parts, retry
from agent.decisions.head import state as h
from agent.decisions.head.booting import booting, without_ray
from agent.decisions.head.leaving import leave
from agent.decisions.head.shares import Parts
from agent.decisions.head.state import Phase
from agent.decisions.head.waits import stop_deadline
from agent.decisions.items import Item, Step
from agent.decisions.shared import Said, StopAsked, Tick
from agent.decisions.verdict import verdict_of

if TYPE_CHECKING:
    from agent.decisions.head.leaving import Decision
    from agent.decisions.head.state import HeadAction, HeadEvent, HeadState


def on_stop(state: HeadState, event: StopAsked, now: float) -> Decision:
    """Do as was asked from outside: stop the job, then leave."""
    outcome = stopped(event.signum, expected=not state.goal.wants_job)
    if state.verdict is not None:
        return replace(state, verdict=_without_retry(state, outcome)), ()
    if state.phase is Phase.JUDGING and state.attempt.report is not None:
        return leave(state, verdict_of(state.attempt.report, state.loss), now)
    submitted = state.phase in {Phase.RESUMING, Phase.RUNNING, Phase.SUBMITTING}
    if submitted and state.goal.wants_job:
        return stop_job(state, outcome, now, (Said(f"{outcome.reason}: stopping the job"),))
    return leave(state, outcome, now)


def _without_retry(state: HeadState, asked: Outcome) -> Outcome:
    """Return what a run ends with that is asked to stop while its job stops already.

    Its own verdict stands, unless that was a loss after which another attempt would have followed.
    """
    verdict = state.verdict
    if verdict is None or (is_loss(verdict) and state.losses < state.goal.retries):
        return asked
    return verdict


def superseded(state: HeadState, event: h.LaterHead, now: float) -> Decision:
    """Make room for a later head of this run, which makes its own attempts: ours must not go on.

    On a Ray that others keep the later head follows this very job: it is left alone there.
    """
    why = f"superseded: a later head of run {state.goal.run_id} is at work ({event.told_by})"
    remedy = "Nothing, if that one was meant; else give only one node the head's name"
    end = Outcome(Kind.LOST, 75, why, culprit="head", remedy=remedy, is_superseded=True)
    if state.verdict is not None:
        return replace(state, verdict=_without_retry(state, end)), ()
    if state.attempt.submitted is None or state.phase is Phase.JUDGING or state.goal.ray_is_given:
        return leave(state, end, now)
    return stop_job(state, end, now, (Said(f"{why}: stopping the job here", "warning"),))


def give_the_job_up(state: HeadState, outcome: Outcome, now: float) -> Decision:
    """End an attempt of which Ray reports nothing; on a given Ray its job must be stopped first."""
    if state.goal.ray_is_given:
        return stop_job(state, outcome, now, (Said(f"{outcome.reason}: stopping it"),))
    return attempt_over(state, outcome, now)


def stop_job(
    state: HeadState, verdict: Outcome, now: float, said: tuple[HeadAction, ...]
) -> Decision:
    """Stop the job, and keep for what; without one, leave at once."""
    if not state.goal.wants_job:
        after, actions = leave(state, verdict, now)
        return after, (*said, *actions)
    state, follow = followed(replace(state, verdict=replace(verdict, phase=state.phase.value)), now)
    return state.to(Phase.STOPPING, now), (*said, *follow, h.StopJob(state.attempt.id))


def followed(state: HeadState, now: float) -> Decision:
    """Have a job followed that an earlier agent submitted, unless that was done."""
    known = state.goal.underway
    if state.phase is not Phase.RESUMING or known is None or state.attempt.submitted is not None:
        return state, ()
    attempt = replace(state.attempt, submitted=known.submitted, heard=now)
    return replace(state, attempt=attempt), (h.Follow(attempt.id),)


def stopping(state: HeadState, event: HeadEvent, now: float) -> Decision:
    """Wait for the end of a job that was told to stop, within the grace."""
    assert state.verdict is not None  # noqa: S101 - entered only with a verdict
    own = state.attempt.id
    ended = isinstance(event, h.JobHeard) and event.id == own and event.report.ended
    verdict = state.verdict
    if state.goal.by_torchrun:
        state = parts.looked(state, now)
        ended = state.parts.settled
    refusal = event if isinstance(event, h.SubmitWaits) and event.id == own else None
    unknown = isinstance(event, h.NeverSubmitted) and event.id == own
    if ended and is_loss(verdict):
        verdict = _success(state) or verdict
    never_ran = unknown or (refusal is not None and (refusal.cancelled or refusal.final))
    dies_with_ray = refusal is not None and not state.goal.ray_is_given
    over = now >= stop_deadline(state)
    if ended or never_ran or dies_with_ray or over or state.ray.step is Step.LOST:
        if state.goal.by_torchrun and verdict.is_jobs_verdict:
            verdict = parts.verdict(state)  # shares that ended since may tell of an earlier failure
        late = (Said("the job did not stop in time", "warning"),) if over and not ended else ()
        gone = ended or never_ran or not state.goal.ray_is_given  # ours is ended with its Ray
        after, actions = (attempt_over if gone else leave)(state, verdict, now)
        return after, (*late, *actions)
    return state, ()


def _success(state: HeadState) -> Outcome | None:
    """Return the end of an attempt whose job succeeded before its stop; None where it did not.

    A job that Ray stopped is STOPPED, whatever its exit code (2.60).
    """
    if state.attempt.signaled:
        return None
    report = parts.report(state) if state.goal.by_torchrun else state.attempt.report
    return verdict_of(report, state.loss) if report is not None and report.succeeded else None


def attempt_over(state: HeadState, end: Outcome, now: float) -> Decision:
    """Leave with the end of an attempt, or try again where that may help."""
    again = retry.another(state, end, now)
    if isinstance(again, Outcome):
        return leave(state, again, now)
    begun, actions = again
    begun = replace(begun, parts=Parts())
    if state.goal.owns_ray:  # nothing of the attempt outlives the Ray that it ran on
        begun, actions = without_ray(begun, Item()), (*actions, h.RestartRay())
    after, more = booting(begun, Tick(), now)
    return after, (*actions, *more)
