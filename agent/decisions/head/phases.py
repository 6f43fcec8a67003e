"""The head's phases: one function per phase, and how an attempt ends."""

from __future__ import annotations

import math
from signal import SIGTERM
from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.base import ends, times
from agent.base.ends import Outcome
from agent.base.text import listed
from agent.decisions import attempts
from agent.decisions.head import probes, retry, services
from agent.decisions.head import state as h
from agent.decisions.head.retry import leave, ray_lost_outcome
from agent.decisions.head.state import HeadPhase, JobShares, Saving, then
from agent.decisions.head.waits import pending_waits, stop_deadline, submit_wait
from agent.decisions.values import Item, LogLine, Refused, Step, StopAsked, Tick
from agent.plan import waits as planned

if TYPE_CHECKING:
    from agent.decisions.head.fleet import Worker
    from agent.decisions.head.state import Actions, Decision, HeadEvent, HeadState, Turn


def booting(state: HeadState, event: HeadEvent, now: float) -> Decision:
    """Restart Ray if needed, check steps and services, then wait for what is missing."""
    if isinstance(event, Refused):
        return leave(state, event.outcome, now)
    if isinstance(event, h.CheckpointSeen) and state.goal.has_job:
        end = attempts.end_without_progress(state.lost_attempts, state.newest_checkpoint)
        if end is not None:
            return leave(state, end, now)
    # a worker may have a record of this run that the head lacks (lost disk)
    record = event if isinstance(event, h.RunRemembered) and state.attempt.number == 1 else None
    own = (state.goal.run_id, 0, 0)
    if record is not None and (record.run_id, record.attempt, record.epoch) != own:
        state, log = retry.adopt_run(state, record, now)
        return (state, log) if _is_leaving(state) else then(log, booting(state, Tick(), now))
    again: Actions = ()
    if state.ray.step is Step.LOST:
        state, again = _restart_ray(state, now)
        if _is_leaving(state):
            return state, again
    for (_, name), item in state.steps.items():
        if item.step is Step.LOST:
            end = ends.STEP_FAILED.outcome(name=name, evidence=item.evidence)
            return leave(state, end, now)
    state, log, broken = services.restart_services(state, now)
    if broken is not None:
        return leave(state, broken, now)
    state, result = probes.finish_preflight(state, now)
    decision = (state, ()) if _is_leaving(state) else _check_waits(state, now)
    return then((*again, *log, *result), decision)


def _is_leaving(state: HeadState) -> bool:
    return state.phase is HeadPhase.LEAVING


def _check_waits(state: HeadState, now: float) -> Decision:
    """Submit once no wait is left; end the run if a wait is over its deadline."""
    state = retry.expire_leftovers(state, now)
    if now >= state.attempt.not_before:  # a deadline in the past would loop for ever
        state = replace(state, attempt=replace(state.attempt, not_before=state.attempt.began))
    pending = pending_waits(state)
    late = next((wait for wait in pending if wait.is_over(now)), None)
    here, least = len(state.fleet.alive), state.goal.min_workers
    if late and late.key == planned.WORKERS and least < state.required and here >= least:
        missing = state.fleet.describe_missing(state.required)
        what = f"going on with {here} worker(s), as AGENT_PARTIAL=proceed; {missing}"
        return then((LogLine(what, "warning"),), _check_waits(replace(state, required=here), now))
    if late is not None:
        # lost, if an earlier attempt had it
        had_it = late.key in {planned.WORKERS, planned.HEAD, planned.CLEAR}
        row = ends.NOT_BACK_IN_TIME if had_it and state.attempt.number > 1 else ends.NOT_IN_TIME
        end = row.outcome(what=late.what, evidence=late.evidence or "no report yet")
        return leave(state, end, now)
    if pending and now >= state.phase_since + state.goal.boot_limit:
        minutes, what = round((now - state.phase_since) / 60), pending[0].what
        evidence = pending[0].evidence or "no report yet"
        end = ends.BOOT_TOO_LONG.outcome(minutes=minutes, what=what, evidence=evidence)
        return leave(state, end, now)
    if not pending:
        return _finish_boot(state, now)
    # compare the nodes as soon as all have joined, so that warnings precede a long wait
    alive = state.fleet.alive
    if not alive or len(alive) < state.required or alive is state.compared_workers:
        return state, ()
    return probes.compare_nodes(state, now)


def _restart_ray(state: HeadState, now: float) -> Decision:
    """Restart Ray, which on a busy node exceeds its own start limit of 30 s now and then.

    If Ray was up before, all deadlines of the boot start again: workers have to rejoin. With
    AGENT_JOB=none a running cluster is restarted the same way.
    """
    ray, most = state.ray, 0 if state.goal.ray_is_given else h.RAY_RESTARTS
    is_running = state.phase is HeadPhase.RUNNING
    tried = ray.recent_restarts(now) if is_running else ray.restarts
    what = "Ray was lost on the head" if ray.was_ready else "Ray did not start"
    is_late = now >= state.deadline_of(planned.HEAD) and not ray.was_ready
    if tried >= most or is_late:
        end = ends.RAY_NOT_STARTED.outcome(what=what, evidence=ray.evidence)
        return leave(state, ray_lost_outcome(state) if is_running else end, now)
    if ray.was_ready:
        state = replace(state, attempt=replace(state.attempt, began=now))
    state = state.enter(HeadPhase.BOOTING, now) if is_running else state
    restarted_at = now if is_running else None
    again = Item(evidence=ray.evidence, restarts=tried + 1, restarted_at=restarted_at)
    text = f"{what}: {ray.evidence}; starting it again: {tried + 1} of {most}"
    return without_ray(state, again), (LogLine(text, "warning"), h.RestartRay())


def without_ray(state: HeadState, ray: Item) -> HeadState:
    """Reset the state that belongs to a Ray that exited."""
    fleet = state.fleet.with_ray_nodes(())
    gone = replace(state, ray=ray, hang=None, fleet=fleet)
    return replace(gone, gcs_answers=False, ray_head_ip=None, node_sizes={})


def _finish_boot(state: HeadState, now: float) -> Decision:
    state, done = probes.compare_nodes(state, now)
    if _is_leaving(state):
        return state, done
    state, begun = probes.begin_preflight(state, now)
    before = (*done, *begun)
    if begun or any(probes.probe_waits(state)):
        return state, before
    goal, nodes = state.goal, f"{len(state.fleet.alive) + 1} node(s)"
    if not goal.has_job:
        stays = f"the cluster of {nodes} is up and stays until it is stopped (AGENT_JOB=none)"
        return state.enter(HeadPhase.RUNNING, now), (*before, LogLine(stays))
    attempt = replace(
        state.attempt, submitted=now, last_status_at=now, checkpoint=state.newest_checkpoint
    )
    # an OOM kill during the boot does not explain how the job ends
    known = state.fleet.workers.items()
    workers = {key: replace(one, memory="") if one.memory else one for key, one in known}
    fleet = replace(state.fleet, workers=workers)
    state = replace(state, attempt=attempt, oom_evidence="", fleet=fleet)
    state = retry.fix_required_workers(state).enter(HeadPhase.SUBMITTING, now)
    doing = "starting the job by torchrun" if goal.by_torchrun else "submitting the job"
    again = (LogLine(retry.attempt_sentence(state)),) if attempt.number > 1 else ()
    state = retry.start_shares(state) if goal.by_torchrun else state
    return state, (*before, *again, LogLine(f"{nodes} ready: {doing}"), h.SubmitJob(attempt.id))


def submitting(state: HeadState, event: HeadEvent, now: float) -> Decision:
    """Wait until Ray accepts or refuses the job; give up after the submit limit."""
    if state.ray.step is Step.LOST:
        return end_attempt(state, ray_lost_outcome(state), now)
    if isinstance(event, Refused):  # the recipe does not fit the nodes that joined
        return leave(state, event.outcome, now)
    if isinstance(event, h.Submitted):
        state = state.enter(HeadPhase.RUNNING, now)
        if not state.goal.by_torchrun:
            return state, (LogLine("the job is submitted"),)
        # a worker's share may already have ended
        return then((LogLine("the job is started"),), running(state, event, now))
    if isinstance(event, h.SubmitWaits) and event.final:
        return leave(state, ends.JOB_REFUSED_BY_RAY.outcome(evidence=event.evidence), now)
    wait = submit_wait(state)
    if wait.is_over(now):
        why = wait.evidence or "no answer from Ray's dashboard"
        return give_up_job(state, ends.JOB_NOT_SUBMITTED.outcome(evidence=why), now)
    return state, ()


def running(state: HeadState, event: HeadEvent, now: float) -> Decision:
    """Follow the job to its end, or stop it if it lost a required node or service."""
    over = _end_of_job(state, event, now)
    if over is not None:
        return over
    attempt, lost = state.attempt, state.attempt.lost_nodes
    if isinstance(event, attempts.StalledSinceLoss) and event.attempt == attempt.number and lost:
        gone = f"{listed(lost)} {'was' if len(lost) == 1 else 'were'} lost"
        end = ends.STALLED_SINCE_LOSS.outcome(duration=event.duration, loss=gone)
        return stop_job(state, end, now, (LogLine(f"{end.reason}: stopping the job", "warning"),))
    state, log = _watch_required_nodes(state, now)
    grace = state.goal.limits[planned.NODE]
    short = state.below_required_since if state.goal.has_job else None
    if short is not None and now >= short + grace:
        gone = retry.absent_share_nodes(state)
        loss = f"lost a needed node: {gone}" if gone else state.last_loss
        return stop_job(state, ends.NODE_LOST.outcome(loss=loss), now, log)
    state, more, broken = services.restart_services(state, now)
    if broken is not None:
        return stop_job(state, broken, now, (*log, *more))
    return state, (*log, *more)


def judging(state: HeadState, event: HeadEvent, now: float) -> Decision:
    """Delay the end of a failed job until all nodes have answered, or the limit has passed.

    On a given Ray a node that does not answer is lost only if GCS reports it.
    """
    report = state.attempt.report
    assert report is not None  # noqa: S101 - entered only with the end of a job
    asked = isinstance(event, h.NodesAsked)
    late = any(wait.is_over(now) for wait in pending_waits(state))
    if (asked and not state.attempt.unreachable_nodes) or late or retry.recent_loss(state, now):
        return end_attempt(state, retry.attempt_end(state, report, now), now)
    return state, ()


def _end_of_job(state: HeadState, event: HeadEvent, now: float) -> Decision | None:
    """End an attempt whose job ended, or whose Ray exited or is silent; None if it continues."""
    if isinstance(event, h.JobReported) and event.report.ended:
        if retry.must_ask_nodes(state, event.report, now):
            return state.enter(HeadPhase.JUDGING, now), (h.AskNodes(state.attempt.id),)
        return end_attempt(state, retry.attempt_end(state, event.report, now), now)
    if state.goal.by_torchrun and retry.job_report(state) is not None:
        end = retry.shares_verdict(state)
        if state.shares.is_settled:
            return end_attempt(state, end, now)
        log = LogLine(f"{end.reason}: stopping the job on the other nodes", "warning")
        return stop_job(state, end, now, (log,))
    if state.ray.step is Step.LOST and state.goal.has_job:
        return end_attempt(state, ray_lost_outcome(state), now)
    if state.ray.step is Step.LOST:
        return _restart_ray(state, now)
    has_status = state.goal.has_job and not state.goal.by_torchrun
    if has_status and now >= state.attempt.last_status_at + state.goal.limits[planned.JOB]:
        silent = round(now - state.attempt.last_status_at)
        return give_up_job(state, ends.NO_STATUS_FROM_RAY.outcome(seconds=silent), now)
    return None


def _watch_required_nodes(state: HeadState, now: float) -> Decision:
    short = retry.is_below_required(state)
    if short and state.below_required_since is None:
        # spares do not replace the attempt's own workers
        has_spares = len(state.fleet.alive) >= state.required
        own = listed(retry.unreturned_nodes(state)) if has_spares else ""
        gone = retry.absent_share_nodes(state) or own
        missing = state.fleet.describe_missing(state.required)
        loss = f"lost a needed node ({f'{gone}; {missing}' if gone else missing})"
        grace = round(state.goal.limits[planned.NODE])
        follows = f"the job is stopped unless it is back within {grace} s"
        stays = "the cluster stays up, and the node can rejoin"
        log = LogLine(f"{loss}: {follows if state.goal.has_job else stays}", "warning")
        return replace(state, below_required_since=now, last_loss=loss, last_loss_at=now), (log,)
    if not short and state.below_required_since is not None:
        return replace(state, below_required_since=None), (LogLine("all needed nodes are back"),)
    return state, ()


def resuming(state: HeadState, event: HeadEvent, now: float) -> Decision:
    """Follow the job of a killed agent once Ray is up; RUNNING once Ray returns its status."""
    attempt = state.attempt
    if isinstance(event, Refused):
        return leave(state, event.outcome, now)
    if state.ray.step is Step.LOST:
        end = state.verdict or ray_lost_outcome(state)
        return end_attempt(follow_resumed_job(state, now)[0], end, now)
    if isinstance(event, h.NeverSubmitted):
        # the agent was killed before it submitted the job: boot for the same attempt
        attempt = attempts.Attempt(attempt.id, attempt.number, began=now)
        state = replace(retry.without_loss(state), attempt=attempt, hang_since=now)
        return booting(state.enter(HeadPhase.BOOTING, now), Tick(), now)
    if isinstance(event, h.Submitted | h.JobReported):
        log = LogLine(f"attempt {attempt.number} goes on: its job is followed again")
        state = retry.record_losses_before_resume(state.enter(HeadPhase.RUNNING, now), now)
        return then((log,), running(state, event, now))
    late = next((wait for wait in pending_waits(state) if wait.is_over(now)), None)
    if late is not None:
        # the killed agent's verdict stands; on a given Ray the job may still run: stop it
        evidence = f": {late.evidence}" if late.evidence else ""
        end = state.verdict or ends.JOB_NOT_FOUND.outcome(what=late.what, evidence=evidence)
        if state.goal.ray_is_given:
            return stop_job(state, end, now, (LogLine(f"{end.reason}: stopping the job"),))
        return end_attempt(follow_resumed_job(state, now)[0], end, now)
    snapshot = state.goal.resumed_attempt
    if snapshot is None or state.ray.step is not Step.READY or attempt.submitted is not None:
        return state, ()
    state, follow = follow_resumed_job(state, now)
    state = retry.record_losses_before_resume(state, now)
    if state.verdict is not None:
        log = LogLine(f"{state.verdict.reason}: stopping the job, as the killed agent did")
        state = state.enter(HeadPhase.STOPPING, snapshot.stop_ordered_at)
        follow = (log, *follow, h.StopJob(attempt.id))
    return state, follow


def on_stop(state: HeadState, event: StopAsked, now: float) -> Decision:
    """Handle SIGTERM or SIGINT: stop the job, then leave with the signal's exit code.

    SIGTERM also announces that the platform takes the head's node away: the job may save first.
    """
    end = ends.stopped(event.signum, expected=not state.goal.has_job)
    return _end_now(state, end, now, saves=event.signum == SIGTERM)


def hours_deadline(state: HeadState) -> float | None:
    """Return when AGENT_MAX_HOURS is to be announced, or is over; None if neither follows."""
    if state.verdict is not None or math.isinf(state.goal.max_hours):
        return None
    tenth = state.goal.max_hours * 360  # a tenth of the hours, in seconds
    warned_before = min(times.HOURS_WARNING, tenth)
    return state.goal.ends_at - (0.0 if state.hours_warned else warned_before)


def end_by_hours(state: HeadState, turn: Turn) -> Decision:
    """Announce the end by AGENT_MAX_HOURS; then stop the job, with its grace to save."""
    goal, now = state.goal, turn.now
    over = hours_deadline(state)
    if over is None or now < over:
        return state, ()
    log: Actions = ()
    if not state.hours_warned:
        nodes, left = goal.expected_workers + 1, max(0.0, goal.ends_at - now)
        cost = "" if goal.price is None else f", ${goal.price * goal.max_hours * nodes:.2f}"
        used = f"{goal.max_hours:g} h of {nodes} node(s){cost}"
        stopped = "job" if goal.has_job else "cluster"
        what = f"the {stopped} is stopped in {round(left)} s: AGENT_MAX_HOURS allows {used}"
        state, log = replace(state, hours_warned=True), (LogLine(what, "warning"),)
    if now < goal.ends_at:
        return state, log
    end = ends.MAX_HOURS.outcome(hours=goal.max_hours)
    return then(log, _end_now(state, end, now, saves=True))


def _end_now(state: HeadState, outcome: Outcome, now: float, *, saves: bool) -> Decision:
    """Stop the job if it was submitted, then leave with this outcome.

    `saves` if a job that saves on a signal may do so first, within half of its grace.
    """
    if state.verdict is not None:
        return _stop_again(state, outcome, now, saves=saves)
    if state.phase is HeadPhase.JUDGING and state.attempt.report is not None:
        return leave(state, attempts.verdict_of(state.attempt.report, state.last_loss), now)
    submitted = state.phase in {HeadPhase.RESUMING, HeadPhase.RUNNING, HeadPhase.SUBMITTING}
    if submitted and state.goal.has_job:
        may_save = saves and state.goal.notice_signal and state.phase is HeadPhase.RUNNING
        until = now + times.SAVE_SHARE * state.goal.job_stop_grace
        saving = Saving(until, is_of_grace=True) if may_save else None
        log = LogLine(f"{outcome.reason}: stopping the job")
        return stop_job(state, outcome, now, (log,), saving)
    return leave(state, outcome, now)


def _stop_again(state: HeadState, outcome: Outcome, now: float, *, saves: bool) -> Decision:
    """Handle a further reason to stop; the second stop of this run no longer lets the job save.

    The first verdict stands, unless it is a loss after which another attempt would follow.
    """
    saving, verdict = state.saving, state.verdict
    if verdict is None or (attempts.is_loss(verdict) and state.another_follows):
        state = replace(state, verdict=outcome)
    if saving is None:
        return state, ()
    if saves and not saving.is_of_grace:  # so far only workers are taken away
        until = min(saving.until, now + times.SAVE_SHARE * state.goal.job_stop_grace)
        return replace(state.enter(state.phase, now), saving=Saving(until, is_of_grace=True)), ()
    return replace(state, saving=None), (h.StopJob(state.attempt.id),)


def on_later_head(state: HeadState, event: h.LaterHead, now: float) -> Decision:
    """Stop for a later head of this run, which makes its own attempts.

    On a given Ray the later head follows the same job, which is left running.
    """
    end = ends.SUPERSEDED.outcome(run=state.goal.run_id, evidence=event.evidence)
    if state.verdict is not None:
        return _stop_again(state, end, now, saves=False)
    is_early = state.attempt.submitted is None
    if is_early or state.phase is HeadPhase.JUDGING or state.goal.ray_is_given:
        return leave(state, end, now)
    return stop_job(state, end, now, (LogLine(f"{end.reason}: stopping the job here", "warning"),))


def give_up_job(state: HeadState, outcome: Outcome, now: float) -> Decision:
    """End an attempt whose status Ray does not return; on a given Ray stop its job first."""
    if state.goal.ray_is_given:
        return stop_job(state, outcome, now, (LogLine(f"{outcome.reason}: stopping it"),))
    return end_attempt(state, outcome, now)


def stop_job(
    state: HeadState, verdict: Outcome, now: float, log: Actions, saving: Saving | None = None
) -> Decision:
    """Stop the job, or have it save first, and remember the verdict; without a job, leave."""
    if not state.goal.has_job:
        return then(log, leave(state, verdict, now))
    verdict = replace(verdict, phase=state.phase.value)
    state, follow = follow_resumed_job(replace(state, verdict=verdict), now)
    own, signum = state.attempt.id, state.goal.notice_signal
    first = h.StopJob(own) if saving is None else h.SaveJob(own, signum)
    state = replace(state.enter(HeadPhase.STOPPING, now), saving=saving)
    return state, (*log, *follow, first)


def follow_resumed_job(state: HeadState, now: float) -> Decision:
    """Follow the job that a killed agent submitted, if this agent does not yet."""
    snapshot, is_followed = state.goal.resumed_attempt, state.attempt.submitted is not None
    if state.phase is not HeadPhase.RESUMING or snapshot is None or is_followed:
        return state, ()
    attempt = replace(state.attempt, submitted=snapshot.attempt.submitted, last_status_at=now)
    return replace(state, attempt=attempt), (h.FollowJob(attempt.id),)


def stopping(state: HeadState, event: HeadEvent, now: float) -> Decision:
    """Wait for the job to stop, until its grace is over."""
    assert state.verdict is not None  # noqa: S101 - entered only with a verdict
    ended = isinstance(event, h.JobReported) and event.report.ended
    verdict = state.verdict
    if state.goal.by_torchrun:
        state = retry.expire_silent_shares(state, now)
        ended = state.shares.is_settled
    refusal = event if isinstance(event, h.SubmitWaits) else None
    unknown = isinstance(event, h.NeverSubmitted)
    if ended and attempts.is_loss(verdict) and not state.attempt.signaled:
        # the job succeeded before its stop took effect; one that Ray 2.60 stopped is STOPPED,
        # whatever its exit code
        report = retry.job_report(state) if state.goal.by_torchrun else state.attempt.report
        if report is not None and report.succeeded:
            verdict = attempts.verdict_of(report, state.last_loss)
    never_ran = unknown or (refusal is not None and (refusal.canceled or refusal.final))
    ends_with_ray = refusal is not None and not state.goal.ray_is_given
    is_late = now >= stop_deadline(state)
    if not (ended or never_ran or ends_with_ray or is_late or state.ray.step is Step.LOST):
        return _stop_after_save(state, event, now)
    if state.goal.by_torchrun and verdict.is_jobs_verdict:
        # shares that ended since may have failed earlier
        verdict = retry.shares_verdict(state)
    log = (LogLine("the job did not stop in time", "warning"),) if is_late and not ended else ()
    # our own Ray ends with its job; on a given Ray the job may still run, so no attempt follows
    has_stopped = ended or never_ran or not state.goal.ray_is_given
    return then(log, (end_attempt if has_stopped else leave)(state, verdict, now))


def _stop_after_save(state: HeadState, event: HeadEvent, now: float) -> Decision:
    """Stop a job that may save first, once it has saved, or its time to save is over."""
    saving, attempt = state.saving, state.attempt
    if saving is None:
        return state, ()
    over = event if isinstance(event, h.SaveOver) else None
    has_left = not {*attempt.announced_nodes}.isdisjoint(attempt.lost_nodes)
    is_away = has_left and not saving.is_of_grace
    if over is None and not is_away and now < saving.until:
        return state, ()
    why = (over.evidence if over else "") or "the job has not saved in time"
    log = LogLine(f"{why}: stopping the job")
    since = state.phase_since if saving.is_of_grace else now
    return replace(state, saving=None, phase_since=since), (log, h.StopJob(attempt.id))


def end_attempt(state: HeadState, end: Outcome, now: float) -> Decision:
    """End an attempt: begin the next one if it was lost and retries are left, else leave."""
    again = retry.next_attempt(state, end, now)
    if isinstance(again, Outcome):
        return leave(state, again, now)
    begun, actions = again
    begun = replace(begun, shares=JobShares(), saving=None)
    if state.goal.owns_ray:  # a new Ray, so that no actor of this attempt is left
        begun, actions = without_ray(begun, Item()), (*actions, h.RestartRay())
    return then(actions, booting(begun, Tick(), now))


def answer_notices(state: HeadState, turn: Turn) -> Decision:
    """Have the job save before it loses an announced node; release nodes that nothing waits for."""
    event, now, former = turn.event, turn.now, state.leaving
    if isinstance(event, h.WorkerReported) and event.worker.notice is not None:
        state = _with_notice(state, event.worker)
    if isinstance(event, h.WorkerReplaced) and event.key in state.leaving | state.released:
        gone = {event.key}
        state = replace(state, leaving=state.leaving - gone, released=state.released - gone)
    if not state.leaving:
        return state, ()
    is_free = state.phase is HeadPhase.RUNNING and state.goal.has_job and state.verdict is None
    if state.leaving != former and is_free and state.goal.notice_signal and _is_needed(state):
        # the job gets its signal; it is stopped when it has saved, or when the first node leaves
        workers = state.fleet.workers
        taken = [workers[key] for key in sorted(state.leaving) if key in workers]
        seconds = min((worker.notice or 0.0 for worker in taken), default=0.0)
        end = ends.NODE_TAKEN.outcome(nodes=listed([worker.label for worker in taken]))
        within = f"the job may save within {round(seconds)} s, and is stopped then"
        log = LogLine(f"{end.reason}: {within}", "warning")
        return stop_job(state, end, now, (log,), Saving(now + seconds, is_of_grace=False))
    if state.saving is not None:
        return state, ()
    free = sorted(state.leaving)
    state = replace(state, leaving=frozenset(), released=state.released | state.leaving)
    return state, tuple(h.ReleaseWorker(key) for key in free)


def _with_notice(state: HeadState, worker: Worker) -> HeadState:
    """Record a notice with the running attempt, and that the worker waits for an answer."""
    attempt, goal = state.attempt, state.goal
    is_running = attempt.submitted is not None and attempt.ended is None
    # without retries and without the signal, a notice leads to no further attempt
    may_retry = bool(goal.retries or goal.notice_signal)
    if is_running and may_retry and worker.name not in attempt.announced_nodes:
        names = (*attempt.announced_nodes, worker.name)[-retry.MAX_LOST_NODES :]
        state = replace(state, attempt=replace(attempt, announced_nodes=names))
    if worker.has_left:
        return replace(state, leaving=state.leaving - {worker.key})
    if worker.key in state.released:
        return state
    return replace(state, leaving=state.leaving | {worker.key})


def _is_needed(state: HeadState) -> bool:
    """Return whether the attempt cannot go on without the nodes that are taken away."""
    if state.goal.by_torchrun:
        return not state.leaving.isdisjoint(state.shares.by_node)
    # as if these nodes were lost
    fleet, workers = state.fleet, state.attempt.workers
    ips = {fleet.workers[key].ip for key in state.leaving if key in fleet.workers}
    alive = {ip: name for ip, name in fleet.alive.items() if ip not in ips}
    lost = {ip: fleet.alive[ip] for ip in workers.keys() & ips & fleet.alive.keys()}
    attempt = replace(state.attempt, lost_workers={**state.attempt.lost_workers, **lost})
    state = replace(state, fleet=replace(fleet, alive=alive), attempt=attempt)
    return retry.is_below_required(state)
