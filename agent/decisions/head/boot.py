"""The BOOTING phase: Ray, services, prepare steps and workers start; then submit the job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.base import ends
from agent.decisions.head import probes, retry, services, shares
from agent.decisions.head import state as h
from agent.decisions.head.retry import leave
from agent.decisions.head.state import HeadPhase
from agent.decisions.head.waits import pending_waits
from agent.decisions.values import Item, LogLine, Refused, Step, Tick, Wait
from agent.plan import waits as planned

if TYPE_CHECKING:
    from agent.decisions.head.retry import Decision
    from agent.decisions.head.state import HeadAction, HeadEvent, HeadState


def booting(state: HeadState, event: HeadEvent, now: float) -> Decision:
    """Restart Ray if needed, check steps and services, then wait for what is missing."""
    if isinstance(event, Refused):
        return leave(state, event.outcome, now)
    known = _apply_earlier_attempts(state, event, now)
    if known is not None:
        return known
    again: tuple[HeadAction, ...] = ()
    if state.ray.step is Step.LOST:
        state, again = _start_ray_again(state, now)
        if state.phase is HeadPhase.LEAVING:
            return state, again
    failed = next(((k, i) for k, i in state.steps.items() if i.step is Step.LOST), None)
    if failed is not None:
        (_, name), item = failed
        return leave(state, ends.STEP_FAILED.outcome(name=name, evidence=item.evidence), now)
    state, log, broken = services.restart_services(state, now)
    broken = broken or services.lost_service_node(state, now)
    if broken is not None:
        return leave(state, broken, now)
    state, result, refusal = probes.finish_preflight(state, now)
    if refusal is not None:
        after, actions = leave(state, refusal, now)
    else:
        after, actions = _check_waits(state, now)
    return after, (*again, *log, *result, *actions)


def _apply_earlier_attempts(state: HeadState, event: HeadEvent, now: float) -> Decision | None:
    """Apply what workers report about earlier attempts, and checkpoints that they saved."""
    if isinstance(event, h.CheckpointSeen):
        vain = retry.no_progress_outcome(state)
        return None if vain is None else leave(state, vain, now)
    if not isinstance(event, h.RunRemembered) or not retry.is_unknown_run(state, event):
        return None
    state, taken_up, over = retry.adopt_run(state, event, now)
    after, actions = booting(state, Tick(), now) if over is None else leave(state, over, now)
    return after, (*taken_up, *actions)


def _check_waits(state: HeadState, now: float) -> Decision:
    """Submit once no wait is left; end the run if a wait is over its deadline."""
    state = retry.expire_leftovers(state, now)
    pending = pending_waits(state)
    log: tuple[HeadAction, ...] = ()
    passed = {wait.key for wait in pending if wait.is_over(now)} & planned.NEVER_LATE
    if passed:
        state, log = _drop_never_late(state, passed)
        pending = pending_waits(state)
    late = next((wait for wait in pending if wait.is_over(now)), None)
    if late is not None:
        partial = _proceed_partially(state, late, now)
        after, actions = partial or leave(state, retry.timeout_outcome(state, late), now)
    else:
        after, actions = (_compare_before_long_wait if pending else _finish_boot)(state, now)
    return after, (*log, *actions)


def _drop_never_late(
    state: HeadState, passed: set[str]
) -> tuple[HeadState, tuple[HeadAction, ...]]:
    """Drop waits that only delay the job: a deadline in the past would loop for ever."""
    log: tuple[HeadAction, ...] = ()
    if planned.PAUSE in passed:
        state = replace(state, attempt=replace(state.attempt, not_before=state.attempt.began))
    if planned.PROBE in passed:
        state, log = probes.give_up_scores(state)
    return state, log


def _compare_before_long_wait(state: HeadState, now: float) -> Decision:
    """Compare the nodes as soon as all have joined, so that warnings precede a long wait."""
    alive = state.fleet.alive
    if not alive or len(alive) < state.required or alive is state.compared_workers:
        return state, ()
    if alive == state.compared_workers:
        return replace(state, compared_workers=alive), ()
    state, done, refusal = probes.compare_nodes(state, now)
    if refusal is None:
        return state, done
    after, actions = leave(state, refusal, now)
    return after, (*done, *actions)


def _start_ray_again(state: HeadState, now: float) -> Decision:
    """Restart Ray, which on a busy node exceeds its own start limit of 30 s now and then.

    If Ray was up before, all deadlines of the boot start again: workers have to rejoin.
    """
    ray, most = state.ray, 0 if state.goal.ray_is_given else h.RAY_RESTARTS
    what = "Ray was lost on the head" if ray.was_ready else "Ray did not start"
    is_late = now >= state.deadline_of(planned.HEAD) and not ray.was_ready
    if ray.restarts >= most or is_late:
        end = ends.RAY_NOT_STARTED.outcome(what=what, evidence=ray.evidence)
        return leave(state, end, now)
    again = Item(restarts=ray.restarts + 1)
    number = f"{again.restarts} of {most}"
    text = f"{what} ({ray.evidence}): try {number}"
    if ray.was_ready:
        text = f"{what}: {ray.evidence}; starting it again: {number}"
        state = replace(state, attempt=replace(state.attempt, began=now))
    return forget_ray(state, again), (LogLine(text, "warning"), h.RestartRay())


def forget_ray(state: HeadState, ray: Item) -> HeadState:
    """Reset the state that belongs to a Ray that exited."""
    fleet = state.fleet.with_ray_nodes(())
    gone = replace(state, ray=ray, hang=None, fleet=fleet)
    return replace(gone, gcs_answers=False, ray_head_ip=None, node_sizes={})


def _finish_boot(state: HeadState, now: float) -> Decision:
    state, done, refusal = probes.compare_nodes(state, now)
    if refusal is not None:
        after, actions = leave(state, refusal, now)
        return after, (*done, *actions)
    state, log = probes.give_up_scores(state)
    state, begun = probes.begin_preflight(state, now)
    after, actions = (state, begun) if begun else _submit_job(state, now)
    return after, (*done, *log, *actions)


def _submit_job(state: HeadState, now: float) -> Decision:
    nodes = f"{len(state.fleet.alive) + 1} node(s)"
    if not state.goal.has_job:
        ready = LogLine(
            f"the cluster of {nodes} is up and stays until it is stopped (AGENT_JOB=none)"
        )
        return state.enter(HeadPhase.RUNNING, now), (ready,)
    attempt = replace(
        state.attempt, submitted=now, last_status_at=now, checkpoint=state.newest_checkpoint
    )
    # an OOM kill during the boot does not explain how the job ends
    fleet = state.fleet.without_oom_evidence()
    state = replace(state, attempt=attempt, oom_evidence="", fleet=fleet)
    state = retry.fix_required_workers(state).enter(HeadPhase.SUBMITTING, now)
    doing = "starting the job by torchrun" if state.goal.by_torchrun else "submitting the job"
    ready = LogLine(f"{nodes} ready: {doing}")
    again = (LogLine(retry.attempt_sentence(state)),) if attempt.number > 1 else ()
    state = shares.start_shares(state) if state.goal.by_torchrun else state
    return state, (*again, ready, h.SubmitJob(attempt.id))


def _proceed_partially(state: HeadState, late: Wait, now: float) -> Decision | None:
    """Continue with fewer workers (AGENT_PARTIAL=proceed) if only workers are missing."""
    here, least = len(state.fleet.alive), state.goal.min_workers
    if late.key != planned.WORKERS or least >= state.required or here < least:
        return None
    missing = state.fleet.describe_missing(state.required, now)
    state = replace(state, required=here)
    log = LogLine(f"going on with {here} worker(s), as AGENT_PARTIAL=proceed; {missing}", "warning")
    after, actions = _check_waits(state, now)
    return after, (log, *actions)
