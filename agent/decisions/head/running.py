"""While the job is submitted, runs, and is judged: what ends it, and what only is said."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from agent.base.outcome import Kind, Outcome
from agent.base.words import listed
from agent.decisions.head import parts, retry, services
from agent.decisions.head import state as h
from agent.decisions.head.booting import without_ray
from agent.decisions.head.leaving import leave, leave_with, ray_lost
from agent.decisions.head.state import Phase
from agent.decisions.head.stopping import attempt_over, give_the_job_up, stop_job
from agent.decisions.head.waits import submit_wait, waits
from agent.decisions.items import Item, Step
from agent.decisions.shared import Said, Unfit
from agent.decisions.stall import StalledSinceLoss
from agent.plan import waits as planned

if TYPE_CHECKING:
    from agent.decisions.head.leaving import Decision
    from agent.decisions.head.state import HeadAction, HeadEvent, HeadState
    from agent.decisions.verdict import JobReport


def submitting(state: HeadState, event: HeadEvent, now: float) -> Decision:
    """Wait until Ray has the job, or refuses it, or says nothing for too long."""
    if state.ray.step is Step.LOST:
        return attempt_over(state, ray_lost(f"Ray was lost: {state.ray.evidence}"), now)
    if isinstance(event, Unfit):  # a recipe that does not fit what joined
        return leave(state, event.outcome, now)
    if isinstance(event, h.Submitted) and event.id == state.attempt.id:
        return _submitted(state.to(Phase.RUNNING, now), event, now)
    if isinstance(event, h.SubmitWaits) and event.id == state.attempt.id and event.final:
        why = f"Ray refused the job: {event.evidence}"
        return leave_with(state, now, 78, why, "AGENT_RUNTIME_ENV")
    wait = submit_wait(state)
    if wait.over(now):
        why = wait.evidence or "no answer from Ray's dashboard"
        reason = f"the job could not be submitted: {why}"
        return give_the_job_up(state, Outcome(Kind.UNAVAILABLE, 69, reason, culprit="ray"), now)
    return state, ()


def _submitted(state: HeadState, event: HeadEvent, now: float) -> Decision:
    if not state.goal.by_torchrun:
        return state, (Said("the job is submitted"),)
    after, actions = running(state, event, now)  # a worker's share may have ended already
    return after, (Said("the job is started"), *actions)


def running(state: HeadState, event: HeadEvent, now: float) -> Decision:
    """Follow the job: to its own end, or to the loss of what it needs."""
    over = _over_by_itself(state, event, now)
    if over is not None:
        return over
    stalled = _stalled_since_loss(state, event)
    if stalled is not None:
        told = Said(f"{stalled.reason}: stopping the job", "warning")
        return stop_job(state, stalled, now, (told,))
    state, said = _watch_nodes(state, now)
    grace = state.goal.limits[planned.NODE]
    short = state.short_since if state.goal.wants_job else None
    if short is not None and now >= short + grace:
        gone = parts.missing(state)
        loss = f"lost a needed node: {gone}" if gone else state.loss
        lost = Outcome(Kind.LOST, 75, f"{loss}, longer than AGENT_NODE_GRACE", culprit="node")
        return stop_job(state, lost, now, said)
    state, more, broken = services.watch(state, now)
    broken = broken or services.lost_alone(state, now)
    if broken is not None:
        return stop_job(state, broken, now, (*said, *more))
    return state, (*said, *more)


def _job_over(state: HeadState, report: JobReport, now: float) -> Decision:
    if retry.must_ask(state, report, now):
        return state.to(Phase.JUDGING, now), (h.AskNodes(state.attempt.id),)
    return attempt_over(state, retry.judged(state, report, now), now)


def judging(state: HeadState, event: HeadEvent, now: float) -> Decision:
    """Hold a failure back until all nodes were asked whether they are there, or too long.

    A node of a given Ray that does not answer is lost only if GCS reports it so.
    """
    report = state.attempt.report
    assert report is not None  # noqa: S101 - entered only with a job's end
    asked = isinstance(event, h.NodesAsked) and event.id == state.attempt.id
    late = any(wait.over(now) for wait in waits(state))
    if (asked and not state.attempt.doubt) or late or retry.recent_loss(state, now):
        return attempt_over(state, retry.judged(state, report, now), now)
    return state, ()


def _over_by_itself(state: HeadState, event: HeadEvent, now: float) -> Decision | None:
    """End a running attempt that has ended, or of which nothing is heard any more."""
    if isinstance(event, h.JobHeard) and event.id == state.attempt.id and event.report.ended:
        return _job_over(state, event.report, now)
    if state.goal.by_torchrun:
        return None if parts.report(state) is None else _part_over(state, now)
    if state.ray.step is Step.LOST and not state.goal.wants_job:
        return _serve_again(state, now)
    if state.ray.step is Step.LOST:
        return attempt_over(state, ray_lost(f"Ray was lost on the head: {state.ray.evidence}"), now)
    if state.goal.wants_job and now >= state.attempt.heard + state.goal.limits[planned.JOB]:
        silent = round(now - state.attempt.heard)
        return give_the_job_up(state, ray_lost(f"Ray said nothing of the job for {silent} s"), now)
    return None


def _stalled_since_loss(state: HeadState, event: HeadEvent) -> Outcome | None:
    """Return the end of an attempt whose actors were lost with a node that may be back."""
    attempt = state.attempt
    if not isinstance(event, StalledSinceLoss) or event.attempt != attempt.number:
        return None
    if not attempt.gone:
        return None
    gone = f"{listed(attempt.gone)} {'was' if len(attempt.gone) == 1 else 'were'} lost"
    reason = f"the job shows no sign of work for {event.duration} since {gone} (AGENT_STALL)"
    return Outcome(Kind.LOST, 75, reason, culprit="node")


def _serve_again(state: HeadState, now: float) -> Decision:
    """Start Ray again in place, where nobody's job was lost with it."""
    ray, most = state.ray, state.goal.ray_restarts
    lost = f"Ray was lost on the head: {ray.evidence}"
    if ray.counted(now) >= most:
        return leave(state, ray_lost(lost), now)
    again = Item(restarts=ray.counted(now) + 1, restarted=now)
    said = Said(f"{lost}; starting it again: {again.restarts} of {most}", "warning")
    state = replace(without_ray(state, again), attempt=replace(state.attempt, began=now))
    return state.to(Phase.BOOTING, now), (said, h.RestartRay())


def _part_over(state: HeadState, now: float) -> Decision:
    """End an attempt with its shares; where one failed, the others are stopped first."""
    end = parts.verdict(state)
    if state.parts.settled:
        return attempt_over(state, end, now)
    said = Said(f"{end.reason}: stopping the job on the other nodes", "warning")
    return stop_job(state, end, now, (said,))


def _watch_nodes(state: HeadState, now: float) -> tuple[HeadState, tuple[HeadAction, ...]]:
    short = retry.is_short(state)
    if short and state.short_since is None:
        others_do = len(state.fleet.alive) >= state.required  # and stand in for nobody
        gone = parts.missing(state) or (listed(retry.away(state)) if others_do else "")
        known = state.fleet.describe_missing(state.required, now)
        loss = f"lost a needed node ({f'{gone}; {known}' if gone else known})"
        grace = round(state.goal.limits[planned.NODE])
        follows = f"the job is stopped unless it is back within {grace} s"
        stays = "the cluster stays, and takes it back when it comes"
        said = Said(f"{loss}: {follows if state.goal.wants_job else stays}", "warning")
        return replace(state, short_since=now, loss=loss, lost_at=now), (said,)
    if not short and state.short_since is not None:
        return replace(state, short_since=None), (Said("all needed nodes are back"),)
    return state, ()
