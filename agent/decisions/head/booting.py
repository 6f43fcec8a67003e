"""While the head boots: everything comes up, or says why it does not."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from agent.decisions.head import agreement, clearing, parts, preflight, probes, retry, services
from agent.decisions.head import state as h
from agent.decisions.head.leaving import leave, leave_with
from agent.decisions.head.state import Phase
from agent.decisions.head.waits import waits
from agent.decisions.items import Item, Step
from agent.decisions.shared import Said, Tick, Unfit, Wait
from agent.plan import waits as planned

if TYPE_CHECKING:
    from agent.decisions.head.leaving import Decision
    from agent.decisions.head.state import HeadAction, HeadEvent, HeadState


def booting(state: HeadState, event: HeadEvent, now: float) -> Decision:
    """Wait for all that the plan has; end where something failed or never came."""
    if isinstance(event, Unfit):
        return leave(state, event.outcome, now)
    known = _of_earlier_attempts(state, event, now)
    if known is not None:
        return known
    again: tuple[HeadAction, ...] = ()
    if state.ray.step is Step.LOST:
        state, again = _start_ray_again(state, now)
        if state.phase is Phase.LEAVING:
            return state, again
    failed = next(((k, i) for k, i in state.steps.items() if i.step is Step.LOST), None)
    if failed is not None:
        (_, name), item = failed
        return leave_with(state, now, 69, f"{name} failed: {item.evidence}", name)
    state, said, broken = services.watch(state, now)
    broken = broken or services.lost_alone(state, now)
    if broken is not None:
        return leave(state, broken, now)
    state, told, refusal = preflight.weighed(state, now)
    if refusal is not None:
        after, actions = leave(state, refusal, now)
    else:
        after, actions = _awaiting(state, now)
    return after, (*again, *said, *told, *actions)


def _of_earlier_attempts(state: HeadState, event: HeadEvent, now: float) -> Decision | None:
    """Heed what is heard of them: from a worker that remembers, and of what they saved."""
    if isinstance(event, h.CheckpointSeen):
        vain = retry.no_progress(state)
        return None if vain is None else leave(state, vain, now)
    if not isinstance(event, h.RunRemembered) or not retry.is_news(state, event):
        return None
    state, taken_up, over = retry.take_up(state, event, now)
    after, actions = booting(state, Tick(), now) if over is None else leave(state, over, now)
    return after, (*taken_up, *actions)


def _awaiting(state: HeadState, now: float) -> Decision:
    """Go on when nothing is waited for any more; end where something never came in time."""
    state = clearing.passed(state, now)
    pending = waits(state)
    said: tuple[HeadAction, ...] = ()
    passed = {wait.key for wait in pending if wait.over(now)} & planned.NEVER_LATE
    if passed:
        state, said = _without(state, passed)
        pending = waits(state)
    late = next((wait for wait in pending if wait.over(now)), None)
    if late is not None:
        partial = _proceed_partially(state, late, now)
        why = f"{late.what} never came in time: {late.evidence or 'no word'}"
        code = retry.code_of(state, late)
        after, actions = partial or leave_with(state, now, code, why, late.what)
    else:
        after, actions = (_while_waiting if pending else _boot_done)(state, now)
    return after, (*said, *actions)


def _without(state: HeadState, passed: set[str]) -> tuple[HeadState, tuple[HeadAction, ...]]:
    """Drop waits that are never late: a deadline in the past would make the head spin."""
    said: tuple[HeadAction, ...] = ()
    if planned.PAUSE in passed:
        state = replace(state, attempt=replace(state.attempt, not_before=state.attempt.began))
    if planned.PROBE in passed:
        state, said = probes.given_up(state)
    return state, said


def _while_waiting(state: HeadState, now: float) -> Decision:
    """Compare the nodes once all workers are there: what differs is told before a long wait."""
    alive = state.fleet.alive
    if not alive or len(alive) < state.required or alive is state.compared:
        return state, ()
    if alive == state.compared:
        return replace(state, compared=alive), ()
    state, done, refusal = agreement.weighed(state, now)
    if refusal is None:
        return state, done
    after, actions = leave(state, refusal, now)
    return after, (*done, *actions)


def _start_ray_again(state: HeadState, now: float) -> Decision:
    """Start Ray again: on a busy node its own limit of 30 s is passed now and then.

    Where it was up, and was lost while others were awaited, all that is awaited has its time anew:
    workers have to join once more.
    """
    ray, most = state.ray, state.goal.ray_restarts
    what = "Ray was lost on the head" if ray.answered else "Ray did not start"
    is_late = now >= state.until(planned.HEAD) and not ray.answered
    if ray.restarts >= most or is_late:
        return leave_with(state, now, 69, f"{what}: {ray.evidence}", "ray")
    again = Item(restarts=ray.restarts + 1)
    number = f"{again.restarts} of {most}"
    told = f"{what} ({ray.evidence}): try {number}"
    if ray.answered:
        told = f"{what}: {ray.evidence}; starting it again: {number}"
        state = replace(state, attempt=replace(state.attempt, began=now))
    return without_ray(state, again), (Said(told, "warning"), h.RestartRay())


def without_ray(state: HeadState, ray: Item) -> HeadState:
    """Forget what was known of a Ray that is gone."""
    fleet = state.fleet.with_nodes(())
    gone = replace(state, ray=ray, hang=None, fleet=fleet)
    return replace(gone, gcs_answers=False, ray_head=None, sizes={})


def _boot_done(state: HeadState, now: float) -> Decision:
    state, done, refusal = agreement.weighed(state, now)
    if refusal is not None:
        after, actions = leave(state, refusal, now)
        return after, (*done, *actions)
    state, said = probes.given_up(state)
    state, begun = preflight.begin(state, now)
    after, actions = (state, begun) if begun else _go_on(state, now)
    return after, (*done, *said, *actions)


def _go_on(state: HeadState, now: float) -> Decision:
    nodes = f"{len(state.fleet.alive) + 1} node(s)"
    if not state.goal.wants_job:
        ready = Said(f"the cluster of {nodes} is up and stays until it is stopped (AGENT_JOB=none)")
        return state.to(Phase.RUNNING, now), (ready,)
    attempt = replace(state.attempt, submitted=now, heard=now, checkpoint=state.checkpoint)
    # what ran out of memory during the boot does not explain the end of the job
    fleet = state.fleet.without_memory()
    state = replace(state, attempt=attempt, memory="", fleet=fleet)
    state = retry.with_required(state).to(Phase.SUBMITTING, now)
    doing = "starting the job by torchrun" if state.goal.by_torchrun else "submitting the job"
    ready = Said(f"{nodes} ready: {doing}")
    again = (Said(retry.sentence(state)),) if attempt.number > 1 else ()
    state = parts.begin(state) if state.goal.by_torchrun else state
    return state, (*again, ready, h.Submit(attempt.id))


def _proceed_partially(state: HeadState, late: Wait, now: float) -> Decision | None:
    """Go on with fewer workers, where that was asked for and only workers are missing."""
    here, least = len(state.fleet.alive), state.goal.least_workers
    if late.key != planned.WORKERS or least >= state.required or here < least:
        return None
    missing = state.fleet.describe_missing(state.required, now)
    state = replace(state, required=here)
    said = Said(f"going on with {here} worker(s), as AGENT_PARTIAL=proceed; {missing}", "warning")
    after, actions = _awaiting(state, now)
    return after, (said, *actions)
