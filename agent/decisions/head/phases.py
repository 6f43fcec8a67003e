"""The head's phases: one function per phase, and how an attempt ends.

- `booting` waits for Ray, services, prepare steps, workers and the end of the last attempt, has
  the nodes compared, and then submits the job.
- `submitting` waits until the job is accepted; `running` follows it to its end, and stops it when
  it has lost a node or service that it needs. The links between the nodes are probed while others
  are awaited, or else once the job has begun.
- `judging` asks all nodes after a failure: a lost node may be its cause.
- `stopping` waits until the job has stopped, for the reason in `durable.stop`.
- `resuming` comes first where a killed agent left a job running: it follows that job.

An attempt ends in `end_attempt`: the next one begins (losses.py), or the head leaves.
"""

from __future__ import annotations

from signal import SIGTERM
from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.base import ends
from agent.base.text import listed
from agent.decisions import attempts
from agent.decisions.durable import Losses, Stop
from agent.decisions.head import (
    boot_waits,
    losses,
    members,
    own_ray,
    preflight,
    probes,
    service_order,
    shares,
    unrecorded_run,
)
from agent.decisions.head import head_state as h
from agent.decisions.head.boot_waits import pending_waits, stop_deadline, submit_wait
from agent.decisions.head.head_state import HeadPhase, JobShares, Saving, answer_of, leave
from agent.decisions.head.losses import ray_lost_outcome
from agent.decisions.shared import JobWant, LogLine, Step, StopAsked, Tick
from agent.decisions.stall import Stalled
from agent.plan import waits as wait_keys

if TYPE_CHECKING:
    from agent.base.ends import Outcome
    from agent.decisions.head.head_state import HeadEvent, HeadState

_OF_EARLIER_ATTEMPTS = {
    *(wait_keys.WORKERS, wait_keys.HEAD, wait_keys.CLEAR),
    *(wait_keys.MEMBERS, wait_keys.GROUP_NODES),
}
"""Waits for what an earlier attempt had."""
_SAVE_SHARE = 0.5  # Of the job's grace: for a new checkpoint, before the job is stopped.


def booting(state: HeadState, event: HeadEvent, now: float) -> HeadState:
    """Restart Ray if needed, check steps and services, then wait for what is missing."""
    # Have the last attempts made any progress?
    if answer_of(event, h.ProgressKnown) is not None and state.goal.has_job:
        newest = state.earlier.newest_checkpoint
        end = attempts.end_without_progress(state.lost_attempts, newest, state.goal.retries)
        if end is not None:
            return leave(state, end, now)
        state = losses.shorten_pause(state)

    # Does a worker, or a given Ray, report attempts of this run that the head has no record of?
    record = unrecorded_run.unrecorded_attempts(state, event)
    if record is not None and (state.goal.ray_is_given or unrecorded_run.may_run_on(state, record)):
        return resuming(unrecorded_run.follow_remembered(state, record, now), Tick(), now)
    if record is not None:
        state = unrecorded_run.adopt_run(state, record, now)
        return state if _is_leaving(state) else booting(state, Tick(), now)

    # Did Ray exit, or a prepare step or service fail?
    if state.ray.item.step is Step.LOST:
        state = own_ray.restart_ray(state, now)
        if _is_leaving(state):
            return state
    state = unrecorded_run.look_for_jobs(state, event)
    for (_, name), item in state.steps.by_key.items():
        if item.step is Step.LOST:
            end = ends.STEP_FAILED.outcome(name=name, evidence=item.in_full)
            return leave(state, end, now)
    state, broken = service_order.restart_services(state, now)
    if broken is None:
        broken = members.end_of_boot(state)
    if broken is not None:
        return leave(state, broken, now)

    state = preflight.finish_preflight(state, now)
    return state if _is_leaving(state) else _check_waits(state, now)


def _is_leaving(state: HeadState) -> bool:
    return state.phase is HeadPhase.LEAVING


def _check_waits(state: HeadState, now: float) -> HeadState:
    """Submit once no wait is left; end the run if a wait is over its deadline."""
    state = losses.expire_leftovers(state, now)
    state = members.go_on_without(state, now)
    if now >= state.not_before:  # a deadline in the past would loop for ever
        state = replace(state, not_before=state.began)
    state = boot_waits.recount_uncounted(state, now)
    pending = pending_waits(state)
    late = next((wait for wait in pending if wait.is_over(now)), None)
    alive = state.fleet.alive

    # Are the workers late, and do those that joined suffice (AGENT_PARTIAL)?
    least = state.goal.min_workers
    may_shrink = least < state.required and len(alive) >= least and members.are_in_ray(state)
    if late is not None and late.key == wait_keys.WORKERS and may_shrink:
        missing = state.fleet.describe_missing(state.required)
        what = f"going on with {len(alive)} worker(s), as AGENT_PARTIAL=proceed; {missing}"
        state = state.with_attempt(required=len(alive)).log(what, "warning")
        return _check_waits(state, now)

    # Is a wait, or the whole boot, over its limit? What an earlier attempt had is lost.
    if late is not None:
        had_it = late.key in _OF_EARLIER_ATTEMPTS
        row = ends.NOT_BACK_IN_TIME if had_it and state.attempt.number > 1 else ends.NOT_IN_TIME
        evidence = late.in_full or "no report yet"
        end = row.outcome(what=late.what, evidence=evidence, remedy=late.remedy)
        return leave(state, end, now)
    if pending and now >= state.phase_since + state.goal.boot_limit:
        minutes = round((now - state.phase_since) / 60)
        what = pending[0].what
        evidence = pending[0].in_full or "no report yet"
        end = ends.BOOT_TOO_LONG.outcome(minutes=minutes, what=what, evidence=evidence)
        return leave(state, end, now)

    if not pending:
        return _finish_boot(state, now)
    # Compare the nodes as soon as all have joined, so that warnings precede a long wait.
    if not alive or len(alive) < state.required or alive is state.comparison.workers:
        return state
    state = probes.compare_nodes(state, now)
    return state if _is_leaving(state) else probes.probe_links(state, now)


def _finish_boot(state: HeadState, now: float) -> HeadState:
    state = probes.compare_nodes(state, now)
    if _is_leaving(state):
        return state

    # Does the job need the links? Else they are probed once it has begun: Ray starts it on the same
    # cores, and what is found is a warning.
    if state.goal.is_sized_by_links or not state.goal.has_job:
        state = probes.probe_links(state, now)
    else:
        state = replace(state, probes=replace(state.probes, await_job=True))
    state = preflight.begin_preflight(state, now)
    if any(preflight.preflight_waits(state)) or any(probes.probe_waits(state)):
        return state

    goal = state.goal
    nodes = len(state.fleet.alive) + 1
    if not goal.has_job:
        size = f"the cluster of {nodes} node(s)"
        stays = f"{size} is up and stays until it is stopped (AGENT_JOB=none)"
        return _log_watch(state.enter(HeadPhase.RUNNING, now).log(stays))

    newest = state.earlier.newest_checkpoint
    state = state.with_attempt(submitted=now, start=state.utc(now), checkpoint=newest)
    state = members.note_weights(state)
    state = _without_memory_kills(_begin_job(state, now, may_submit=True))
    state = losses.fix_required_workers(state).enter(HeadPhase.SUBMITTING, now)
    if state.attempt.number > 1:
        state = state.log(losses.attempt_sentence(state))
    if goal.by_shares:
        state = shares.start_shares(state)
        nodes = len(state.shares.by_node)
    ready = f"{nodes} of {goal.expected_workers + 1}"
    for wrong in state.fleet.wrong_ranks():
        state = state.log(wrong, "warning")
    line = LogLine(ready, "done", "nodes", now - state.began)
    return state.do(line)


def _begin_job(state: HeadState, now: float, *, may_submit: bool) -> HeadState:
    """Have this node submit the attempt, which is durable first, or follow it."""
    number = state.job.begun + 1
    want = JobWant(number, id=state.attempt.id, may_submit=may_submit)
    return state.with_job(last_status_at=now, want=want, begun=number)


def _log_watch(state: HeadState) -> HeadState:
    """Log how to open the page, once for each head."""
    if not state.goal.watch or state.watch_is_logged:
        return state
    return replace(state, watch_is_logged=True).do(LogLine(state.goal.watch, subject="watch"))


def _without_memory_kills(state: HeadState) -> HeadState:
    """Forget the OOM kills during the boot: they do not explain how the job ends."""
    workers = {
        key: replace(worker, memory="") if worker.memory else worker
        for key, worker in state.fleet.workers.items()
    }
    return replace(state, fleet=replace(state.fleet, workers=workers)).with_ray(oom_evidence="")


def submitting(state: HeadState, event: HeadEvent, now: float) -> HeadState:
    """Wait until Ray accepts or refuses the job; give up after the submit limit."""
    job = state.job.item
    if state.ray.item.step is Step.LOST:
        return end_attempt(state, ray_lost_outcome(state), now)
    if job is not None and job.refusal is not None:  # it does not fit the nodes that joined
        return leave(replace(_withdrawn(state), shares=JobShares()), job.refusal, now)

    # Is the job accepted, or refused for good?
    if job is not None and job.is_accepted:
        which = f"attempt {state.attempt.number} of {state.last_attempt_number}"
        line = LogLine(f"{state.goal.job}, {which}", "done", "job")
        state = _log_watch(state.enter(HeadPhase.RUNNING, now).do(line))
        if state.goal.by_shares:
            state = shares.want_shares(state, job.basis)
        return running(state, event, now)  # a share may be absent, or the job over
    if job is not None and job.step is Step.LOST:
        return leave(state, ends.JOB_REFUSED_BY_RAY.outcome(evidence=job.evidence), now)

    wait = submit_wait(state)
    if wait.is_over(now):
        why = wait.in_full or "no answer from Ray's dashboard"
        return _give_up_job(state, ends.JOB_NOT_SUBMITTED.outcome(evidence=why), now)
    return state


def _withdrawn(state: HeadState) -> HeadState:
    """Forget that an attempt was to be submitted: it was refused or canceled before Ray had it."""
    return state.with_attempt(submitted=None)


def running(state: HeadState, event: HeadEvent, now: float) -> HeadState:
    """Follow the job to its end, or stop it if it lost a required node or service."""
    over = _end_of_job(state, now)
    if over is not None:
        return over

    # Has it begun? Then the links between the nodes are probed.
    report = state.job.report
    has_begun = state.goal.by_shares or (report is not None and report.has_begun)
    if state.probes.await_job and has_begun:
        state = probes.probe_links(state, now)

    # Is the job stalled, and is it to be ended for that?
    if isinstance(event, Stalled) and event.attempt == state.attempt.number:
        end = _end_of_stall(state, event)
        if end is not None:
            state = state.with_attempt(stall_key=event.cause_key)
            return stop_job(state.log(f"{end.reason}: stopping the job", "warning"), end, now)

    # Is the grace of a needed node over?
    state = losses.watch_required_nodes(state, now)
    grace = state.goal.limits[wait_keys.NODE]
    short = state.losses.below_required_since if state.goal.has_job else None
    if short is not None and now >= short + grace:
        gone = shares.absent_share_nodes(state)
        loss = f"lost a needed node: {gone}" if gone else state.losses.last
        return stop_job(state, ends.NODE_LOST.outcome(loss=loss), now)

    state, broken = service_order.restart_services(state, now)
    if broken is None:
        state, broken = members.watch_groups(state, now)
    return state if broken is None else stop_job(state, broken, now)


def _end_of_stall(state: HeadState, event: Stalled) -> Outcome | None:
    """Return the end of a stalled attempt; None if it is only logged (AGENT_ON_STALL)."""
    lost = state.attempt.lost_nodes
    suspects = f": {event.suspects}" if event.suspects else ""
    if event.is_without_reward and event.then in {"retry", "stop"}:
        row = ends.REWARD_LOST if event.then == "retry" else ends.REWARD_LOST_STOPS
        what = f"{event.what} ({event.setting})"
    elif event.then == "lost" and lost:
        row = ends.STALLED_SINCE_LOSS
        what = event.since_loss(listed(lost))
    elif event.then == "retry":
        row = ends.STALLED
        what = event.with_setting
    elif event.then == "stop":
        row = ends.STALL_STOPS
        what = event.with_setting
    else:
        return None
    return row.outcome(what=what, suspects=suspects, attempt=event.attempt)


def judging(state: HeadState, event: HeadEvent, now: float) -> HeadState:
    """Delay the end of a failed job until all nodes have answered, or the limit has passed.

    On a given Ray a node that does not answer is lost only if GCS reports it.
    """
    report = state.job.report
    assert report is not None  # noqa: S101 - entered only with the end of a job
    asked = answer_of(event, h.NodesAsked) is not None
    late = any(wait.is_over(now) for wait in pending_waits(state))
    if (asked and not state.job.unreachable_nodes) or late or losses.recent_loss(state, now):
        return end_attempt(state, losses.verdict_of_attempt(state, report, now), now)
    return state


def _end_of_job(state: HeadState, now: float) -> HeadState | None:
    """End an attempt whose job ended, or whose Ray exited or is silent; None if it continues."""
    # Did Ray report the end of the job, or did the nodes' shares end?
    report = state.job.report
    if report is not None and report.ended:
        if losses.must_ask_nodes(state, report, now):
            return state.enter(HeadPhase.JUDGING, now).do(h.Ask(h.AskNodes(state.attempt.id)))
        return end_attempt(state, losses.verdict_of_attempt(state, report, now), now)
    if state.goal.by_shares and shares.job_report(state) is not None:
        end = shares.shares_verdict(state, now)
        if state.shares.is_settled:
            return end_attempt(state, end, now)
        text = f"{end.reason}: stopping the job on the other nodes"
        return stop_job(state.log(text, "warning"), end, now)

    # Did Ray exit? With it the job is lost; a cluster without a job gets a new Ray.
    if state.ray.item.step is Step.LOST and state.goal.has_job:
        return end_attempt(state, ray_lost_outcome(state), now)
    if state.ray.item.step is Step.LOST:
        return own_ray.restart_ray(state, now)

    # Is Ray silent about the job for too long?
    has_status = state.goal.has_job and not state.goal.by_shares
    last_status_at = state.job.last_status_at
    if has_status and now >= last_status_at + state.goal.limits[wait_keys.JOB]:
        silent = round(now - last_status_at)
        return _give_up_job(state, ends.NO_STATUS_FROM_RAY.outcome(seconds=silent), now)
    return None


def resuming(state: HeadState, event: HeadEvent, now: float) -> HeadState:
    """Follow the job of a killed agent once Ray is up; RUNNING once Ray returns its status."""
    attempt = state.attempt
    if state.ray.item.step is Step.LOST:
        end = state.outcome or ray_lost_outcome(state)
        return end_attempt(_follow_resumed_job(state, now), end, now)

    # Was the agent killed before it submitted the job? Then boot for the same attempt.
    job = state.job.item
    if job is not None and job.never:
        again = attempts.Attempt(attempt.id, attempt.number, required=state.goal.expected_workers)
        state = state.with_durable(attempt=again, losses=Losses())
        state = state.with_earlier(former_workers=())
        state = replace(state, job=state.job.of_next(), began=now).with_ray(doubt_since=now)
        return booting(state.enter(HeadPhase.BOOTING, now), Tick(), now)

    # Does Ray have the job? Then it is followed like any other.
    if job is not None and job.is_accepted:
        state = state.log(f"attempt {attempt.number} goes on: its job is followed again")
        state = losses.record_losses_before_resume(state.enter(HeadPhase.RUNNING, now), now)
        return running(state, event, now)

    # Is Ray late? The killed agent's verdict stands; on a given Ray the job may still run.
    late = next((wait for wait in pending_waits(state) if wait.is_over(now)), None)
    if late is not None:
        evidence = f": {late.in_full}" if late.in_full else ""
        end = state.outcome or ends.JOB_NOT_FOUND.outcome(what=late.what, evidence=evidence)
        return _give_up_job(_follow_resumed_job(state, now), end, now)

    # Is Ray up? Follow the job, or go on with the stop that the killed agent began.
    if state.ray.item.step is not Step.READY or state.runs_attempt:
        return state
    stop = state.durable.stop
    if stop is not None:
        state = state.log(f"{stop.outcome.reason}: stopping the job, as the killed agent did")
    state = losses.record_losses_before_resume(_follow_resumed_job(state, now), now)
    if stop is None:
        return state
    return _want_job_stopped(state.enter(HeadPhase.STOPPING, stop.began_at))


def on_stop(state: HeadState, event: StopAsked, now: float) -> HeadState:
    """Handle SIGTERM or SIGINT: stop the job, then leave with the signal's exit code.

    SIGTERM also announces that the platform takes the head's node away: the job may save first.
    """
    end = ends.stopped(event.signum, expected=not state.goal.has_job, on_request=event.on_request)
    if state.outcome is not None:
        return _stop_again(state, end, now, saves=event.signum == SIGTERM)
    return end_now(state, end, now, saves=event.signum == SIGTERM)


def end_now(state: HeadState, outcome: Outcome, now: float, *, saves: bool) -> HeadState:
    """Stop the job if it was submitted, then leave with this outcome.

    `saves` if a job that saves on a signal may do so first, within half of its grace.
    """
    if state.phase is HeadPhase.JUDGING and state.job.report is not None:
        return leave(state, attempts.verdict_of(state.job.report, state.losses.last), now)

    is_submitted = state.phase in {HeadPhase.RESUMING, HeadPhase.RUNNING, HeadPhase.SUBMITTING}
    if not is_submitted or not state.goal.has_job:
        return leave(state, outcome, now)

    saving = None
    if saves and state.goal.notice_signal and state.phase is HeadPhase.RUNNING:
        until = now + _SAVE_SHARE * state.goal.job_stop_grace
        saving = Saving(until, is_of_grace=True)
    return stop_job(state.log(f"{outcome.reason}: stopping the job"), outcome, now, saving)


def _stop_again(state: HeadState, outcome: Outcome, now: float, *, saves: bool) -> HeadState:
    """Handle a further reason to stop; the second stop of this run no longer lets the job save.

    The first verdict stands, unless it is a loss after which another attempt would follow.
    """
    saving = state.ending.saving
    stop = state.durable.stop
    if stop is not None and attempts.may_be_retried(stop.outcome) and state.another_follows:
        state = state.with_durable(stop=replace(stop, outcome=outcome))

    if saving is None:
        return state
    if saves and not saving.is_of_grace:  # so far only workers are taken away
        until = min(saving.until, now + _SAVE_SHARE * state.goal.job_stop_grace)
        saving = replace(saving, until=until, is_of_grace=True)
        return _count_stop_from(state, now).with_ending(saving=saving)
    return _want_job_stopped(state.with_ending(saving=None))


def on_later_head(state: HeadState, event: h.LaterHead, now: float) -> HeadState:
    """Stop for a later head of this run, which makes its own attempts.

    On a given Ray the later head follows the same job, which is left running.
    """
    end = ends.SUPERSEDED.outcome(run=state.durable.run_id, evidence=event.evidence)
    if state.outcome is not None:
        return _stop_again(state, end, now, saves=False)
    is_early = not state.runs_attempt
    if is_early or state.phase is HeadPhase.JUDGING or state.goal.ray_is_given:
        return leave(state, end, now)
    return stop_job(state.log(f"{end.reason}: stopping the job here", "warning"), end, now)


def _give_up_job(state: HeadState, outcome: Outcome, now: float) -> HeadState:
    """End an attempt whose status Ray does not return; on a given Ray stop its job first."""
    if state.goal.ray_is_given:
        return stop_job(state.log(f"{outcome.reason}: stopping the job"), outcome, now)
    return end_attempt(state, outcome, now)


def stop_job(
    state: HeadState, verdict: Outcome, now: float, saving: Saving | None = None
) -> HeadState:
    """Stop the job, or have it save first, and remember the verdict; without a job, leave."""
    if not state.goal.has_job:
        return leave(state, verdict, now)
    verdict = replace(verdict, phase=state.phase.value)
    state = _follow_resumed_job(state.with_ending(saving=saving), now)
    state = state.with_durable(stop=Stop(verdict, now)).enter(HeadPhase.STOPPING, now)
    return _want_job_stopped(state) if saving is None else state


def _count_stop_from(state: HeadState, at: float) -> HeadState:
    """Count the limit of the stop, and its phase, from another time."""
    stop = state.durable.stop
    assert stop is not None  # noqa: S101 - while the job is being stopped
    state = state.with_durable(stop=replace(stop, began_at=at))
    return replace(state, phase_since=at)


def _follow_resumed_job(state: HeadState, now: float) -> HeadState:
    """Follow the job that a killed agent submitted, if this agent does not yet."""
    if state.phase is not HeadPhase.RESUMING or state.runs_attempt:
        return state
    return _begin_job(state, now, may_submit=False)


def stopping(state: HeadState, _event: HeadEvent, now: float) -> HeadState:
    """Wait for the job to stop, until its grace is over."""
    verdict = state.outcome
    assert verdict is not None  # noqa: S101 - entered only with a stop

    # Has the job ended?
    report = state.job.report
    ended = report is not None and report.ended
    if state.goal.by_shares:
        state = shares.expire_silent_shares(state, now)
        ended = state.shares.is_settled

    # Did it succeed before its stop took effect? One that Ray 2.60 stopped is STOPPED, whatever
    # its exit code.
    if ended and attempts.is_loss(verdict) and not state.attempt.signaled:
        report = shares.job_report(state) if state.goal.by_shares else report
        if report is not None and report.succeeded:
            verdict = attempts.verdict_of(report, state.losses.last)

    # Is there anything left to wait for?
    job = state.job.item
    never_ran = job is not None and job.step is Step.LOST and not job.is_accepted
    is_late = now >= stop_deadline(state)
    if not (ended or never_ran or is_late or state.ray.item.step is Step.LOST):
        return _stop_after_save(state, now)

    # Shares that ended since the stop began may have failed earlier.
    if state.goal.by_shares and verdict.is_jobs_verdict:
        verdict = shares.shares_verdict(state, now)
    want = state.job.want
    is_canceled = job is not None and job.never and want is not None and want.may_submit
    if is_canceled and not attempts.may_be_retried(verdict):
        state = _withdrawn(state)
    if is_late and not ended:
        state = state.log("the job did not stop in time", "warning")

    # Our own Ray ends with its job; on a given Ray the job may still run: no attempt follows.
    if ended or never_ran or not state.goal.ray_is_given:
        return end_attempt(state, verdict, now)
    return leave(state, verdict, now)


def _stop_after_save(state: HeadState, now: float) -> HeadState:
    """Stop a job that may save first, once it has saved, or its time to save is over."""
    saving = state.ending.saving
    attempt = state.attempt
    if saving is None:
        return state

    # Has it saved, is its time over, or did the announced node leave?
    has_left = not {*attempt.announced_nodes}.isdisjoint(attempt.lost_nodes)
    is_away = has_left and not saving.is_of_grace
    if not saving.over and not is_away and now < saving.until:
        return state

    why = saving.over or "the job has not saved in time"
    if not saving.is_of_grace:
        state = _count_stop_from(state, now)
    state = state.with_ending(saving=None)
    return _want_job_stopped(state.log(f"{why}: stopping the job"))


def _want_job_stopped(state: HeadState) -> HeadState:
    """Want the job, or its shares, to be stopped."""
    want = state.job.want
    if want is not None:
        state = state.with_job(want=replace(want, is_to_stop=True))
    return shares.stop_shares(state)


def end_attempt(state: HeadState, end: Outcome, now: float) -> HeadState:
    """End an attempt: begin the next one if it was lost and retries are left, else leave.

    Our own Ray is started anew for it: detached actors, and processes with sessions of their own,
    end with the former one.
    """
    state = losses.begin_next_attempt(state, end, now)
    if _is_leaving(state):
        return state
    state = replace(state, shares=JobShares()).with_ending(saving=None)
    return booting(own_ray.renew_ray(state, now), Tick(), now)
