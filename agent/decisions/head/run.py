"""The phases of a job on the head: RESUMING, SUBMITTING, RUNNING and JUDGING."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.base import ends
from agent.base.text import listed
from agent.decisions.attempts import Attempt, StalledSinceLoss
from agent.decisions.head import retry, services, shares
from agent.decisions.head import state as h
from agent.decisions.head.boot import booting, forget_ray
from agent.decisions.head.end import end_attempt, follow_resumed_job, give_up_job, stop_job
from agent.decisions.head.retry import leave, ray_lost_outcome
from agent.decisions.head.state import HeadPhase
from agent.decisions.head.waits import pending_waits, submit_wait
from agent.decisions.values import Item, LogLine, Refused, Step, Tick
from agent.plan import waits as planned

if TYPE_CHECKING:
    from agent.base.outcome import Outcome
    from agent.decisions.head.retry import Decision
    from agent.decisions.head.state import HeadAction, HeadEvent, HeadState
    from agent.decisions.values import Wait
    from agent.decisions.verdict import JobReport


def submitting(state: HeadState, event: HeadEvent, now: float) -> Decision:
    """Wait until Ray accepts or refuses the job; give up after the submit limit."""
    if state.ray.step is Step.LOST:
        return end_attempt(state, ray_lost_outcome(state), now)
    if isinstance(event, Refused):  # the recipe does not fit the nodes that joined
        return leave(state, event.outcome, now)
    if isinstance(event, h.Submitted) and event.id == state.attempt.id:
        return _on_submitted(state.enter(HeadPhase.RUNNING, now), event, now)
    if isinstance(event, h.SubmitWaits) and event.id == state.attempt.id and event.final:
        return leave(state, ends.JOB_REFUSED_BY_RAY.outcome(evidence=event.evidence), now)
    wait = submit_wait(state)
    if wait.is_over(now):
        why = wait.evidence or "no answer from Ray's dashboard"
        return give_up_job(state, ends.JOB_NOT_SUBMITTED.outcome(evidence=why), now)
    return state, ()


def _on_submitted(state: HeadState, event: HeadEvent, now: float) -> Decision:
    if not state.goal.by_torchrun:
        return state, (LogLine("the job is submitted"),)
    after, actions = running(state, event, now)  # a worker's share may already have ended
    return after, (LogLine("the job is started"), *actions)


def running(state: HeadState, event: HeadEvent, now: float) -> Decision:
    """Follow the job to its end, or stop it if it lost a required node or service."""
    over = _end_of_job(state, event, now)
    if over is not None:
        return over
    stalled = _stalled_since_loss(state, event)
    if stalled is not None:
        warning = LogLine(f"{stalled.reason}: stopping the job", "warning")
        return stop_job(state, stalled, now, (warning,))
    state, log = _watch_required_nodes(state, now)
    grace = state.goal.limits[planned.NODE]
    short = state.below_required_since if state.goal.has_job else None
    if short is not None and now >= short + grace:
        gone = shares.absent_share_nodes(state)
        loss = f"lost a needed node: {gone}" if gone else state.last_loss
        return stop_job(state, ends.NODE_LOST.outcome(loss=loss), now, log)
    state, more, broken = services.restart_services(state, now)
    broken = broken or services.lost_service_node(state, now)
    if broken is not None:
        return stop_job(state, broken, now, (*log, *more))
    return state, (*log, *more)


def _end_by_report(state: HeadState, report: JobReport, now: float) -> Decision:
    if retry.must_ask_nodes(state, report, now):
        return state.enter(HeadPhase.JUDGING, now), (h.AskNodes(state.attempt.id),)
    return end_attempt(state, retry.attempt_end(state, report, now), now)


def judging(state: HeadState, event: HeadEvent, now: float) -> Decision:
    """Delay the end of a failed job until all nodes have answered, or the limit has passed.

    On a given Ray a node that does not answer is lost only if GCS reports it.
    """
    report = state.attempt.report
    assert report is not None  # noqa: S101 - entered only with the end of a job
    asked = isinstance(event, h.NodesAsked) and event.id == state.attempt.id
    late = any(wait.is_over(now) for wait in pending_waits(state))
    if (asked and not state.attempt.unreachable_nodes) or late or retry.recent_loss(state, now):
        return end_attempt(state, retry.attempt_end(state, report, now), now)
    return state, ()


def _end_of_job(state: HeadState, event: HeadEvent, now: float) -> Decision | None:
    """End an attempt whose job ended, whose Ray exited, or without status from Ray."""
    if isinstance(event, h.JobHeard) and event.id == state.attempt.id and event.report.ended:
        return _end_by_report(state, event.report, now)
    if state.goal.by_torchrun:
        return None if shares.job_report(state) is None else _end_by_shares(state, now)
    if state.ray.step is Step.LOST and not state.goal.has_job:
        return _restart_ray_without_job(state, now)
    if state.ray.step is Step.LOST:
        return end_attempt(state, ray_lost_outcome(state), now)
    if state.goal.has_job and now >= state.attempt.last_status_at + state.goal.limits[planned.JOB]:
        silent = round(now - state.attempt.last_status_at)
        return give_up_job(state, ends.NO_STATUS_FROM_RAY.outcome(seconds=silent), now)
    return None


def _stalled_since_loss(state: HeadState, event: HeadEvent) -> Outcome | None:
    """Return the end of an attempt that makes no progress since it lost a node."""
    attempt = state.attempt
    if not isinstance(event, StalledSinceLoss) or event.attempt != attempt.number:
        return None
    if not attempt.lost_nodes:
        return None
    gone = f"{listed(attempt.lost_nodes)} {'was' if len(attempt.lost_nodes) == 1 else 'were'} lost"
    return ends.STALLED_SINCE_LOSS.outcome(duration=event.duration, loss=gone)


def _restart_ray_without_job(state: HeadState, now: float) -> Decision:
    """Restart Ray of a cluster without a job (AGENT_JOB=none)."""
    ray, most = state.ray, 0 if state.goal.ray_is_given else h.RAY_RESTARTS
    lost = ray_lost_outcome(state)
    if ray.recent_restarts(now) >= most:
        return leave(state, lost, now)
    again = Item(restarts=ray.recent_restarts(now) + 1, restarted_at=now)
    log = LogLine(f"{lost.reason}; starting it again: {again.restarts} of {most}", "warning")
    state = replace(forget_ray(state, again), attempt=replace(state.attempt, began=now))
    return state.enter(HeadPhase.BOOTING, now), (log, h.RestartRay())


def _end_by_shares(state: HeadState, now: float) -> Decision:
    """End a torchrun attempt; if a share failed, stop the others first."""
    end = shares.shares_verdict(state)
    if state.shares.is_settled:
        return end_attempt(state, end, now)
    log = LogLine(f"{end.reason}: stopping the job on the other nodes", "warning")
    return stop_job(state, end, now, (log,))


def _watch_required_nodes(state: HeadState, now: float) -> tuple[HeadState, tuple[HeadAction, ...]]:
    short = retry.is_below_required(state)
    if short and state.below_required_since is None:
        # spares do not replace the attempt's own workers
        has_spares = len(state.fleet.alive) >= state.required
        gone = shares.absent_share_nodes(state) or (
            listed(retry.unreturned_nodes(state)) if has_spares else ""
        )
        missing = state.fleet.describe_missing(state.required, now)
        loss = f"lost a needed node ({f'{gone}; {missing}' if gone else missing})"
        grace = round(state.goal.limits[planned.NODE])
        follows = f"the job is stopped unless it is back within {grace} s"
        stays = "the cluster stays up, and the node can rejoin"
        log = LogLine(f"{loss}: {follows if state.goal.has_job else stays}", "warning")
        return replace(state, below_required_since=now, last_loss=loss, last_loss_at=now), (log,)
    if not short and state.below_required_since is not None:
        return replace(state, below_required_since=None), (LogLine("all needed nodes are back"),)
    return state, ()


def resuming(  # noqa: PLR0911 - one case, one return
    state: HeadState, event: HeadEvent, now: float
) -> Decision:
    """Follow the job of a killed agent once Ray is up; RUNNING once Ray returns its status."""
    own = state.attempt.id
    if isinstance(event, Refused):
        return leave(state, event.outcome, now)
    if state.ray.step is Step.LOST:
        lost = ray_lost_outcome(state)
        state, _ = follow_resumed_job(state, now)
        return end_attempt(state, state.verdict or lost, now)
    if isinstance(event, h.NeverSubmitted) and event.id == own:
        return _boot_again(state, now)
    if isinstance(event, h.Submitted | h.JobHeard) and event.id == own:
        log = LogLine(f"attempt {state.attempt.number} goes on: its job is followed again")
        state = retry.record_losses_before_resume(state.enter(HeadPhase.RUNNING, now), now)
        after, actions = running(state, event, now)
        return after, (log, *actions)
    late = next((wait for wait in pending_waits(state) if wait.is_over(now)), None)
    if late is not None:
        return _end_resuming_late(state, late, now)
    if state.ray.step is Step.READY and state.attempt.submitted is None:
        return _follow_resumed_job(state, now)
    return state, ()


def _follow_resumed_job(state: HeadState, now: float) -> Decision:
    snapshot = state.goal.resumed_attempt
    assert snapshot is not None  # noqa: S101 - entered only with an attempt under way
    state, follow = follow_resumed_job(state, now)
    state = retry.record_losses_before_resume(state, now)
    if state.verdict is None:
        return state, follow
    log = LogLine(f"{state.verdict.reason}: stopping the job, as the killed agent did")
    return state.enter(HeadPhase.STOPPING, snapshot.stop_ordered_at), (
        log,
        *follow,
        h.StopJob(state.attempt.id),
    )


def _end_resuming_late(state: HeadState, late: Wait, now: float) -> Decision:
    """End an attempt that cannot be found: with the killed agent's verdict, or else as lost.

    On a given Ray the job may still run: stop it, perhaps for the second time.
    """
    evidence = f": {late.evidence}" if late.evidence else ""
    end = state.verdict or ends.JOB_NOT_FOUND.outcome(what=late.what, evidence=evidence)
    if state.goal.ray_is_given:
        return stop_job(state, end, now, (LogLine(f"{end.reason}: stopping the job"),))
    state, _ = follow_resumed_job(state, now)
    return end_attempt(state, end, now)


def _boot_again(state: HeadState, now: float) -> Decision:
    """Boot for the same attempt: the agent was killed before it submitted the job."""
    attempt = Attempt(state.attempt.id, state.attempt.number, began=now)
    state = replace(state, attempt=attempt, required=state.goal.expected_workers)
    state = replace(
        state, below_required_since=None, last_loss="", last_loss_at=None, hang_since=now
    )
    return booting(state.enter(HeadPhase.BOOTING, now), Tick(), now)
