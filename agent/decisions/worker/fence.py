"""The fence: an unreachable worker stops its own work before another attempt can begin."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.base import times
from agent.base.text import listed
from agent.decisions.values import Item, LogLine, Step
from agent.decisions.worker.state import (
    RayStep,
    RunOwnStep,
    StopRay,
    StopServices,
    StopShare,
    StopSteps,
    WorkerAction,
    WorkerPhase,
    WorkerState,
)
from agent.plan import waits as planned

if TYPE_CHECKING:
    Decision = tuple[WorkerState, tuple[WorkerAction, ...]]


def deadline(state: WorkerState) -> float | None:
    """Return when everything here must stop, unless the head or its GCS is reached before."""
    if state.unreached_since is None or not _has_work(state):
        return None
    limit = state.goal.limits[planned.FENCE]
    latest = state.last_reached_at + limit / times.FENCE_SHARE * times.FENCE_LATEST_SHARE
    return min(
        state.unreached_since + limit, max(latest, state.unreached_since + times.FENCE_LEAST)
    )


def apply_fence(decision: Decision, now: float) -> Decision:
    """Add to a decision, once the deadline has passed, that everything here stops.

    The head gives up a node that it does not reach for AGENT_NODE_GRACE. Processes of the old
    attempt would then run beside the next one. The worker itself keeps waiting for the head.
    """
    state, actions = decision
    until = deadline(state)
    if state.phase is WorkerPhase.LEAVING or until is None or now < until:
        return decision
    limit = round(state.goal.limits[planned.FENCE])
    out = f"neither the head {state.goal.head} nor its GCS was reached for {limit} s"
    why = "another attempt may begin without this node"
    log = LogLine(f"{out} ({state.evidence}): stopping all that runs here, since {why}", "warning")
    stops: tuple[WorkerAction, ...] = (StopServices(),) if _has_services(state) else ()
    if _has_share(state):
        stops = (*stops, StopShare())
    if _has_steps(state):
        stops = (*stops, StopSteps())
        state = replace(state, interrupted_steps=frozenset(state.running_steps))
    if _has_ray(state):
        stops = (*stops, StopRay())
        state = replace(state, phase=WorkerPhase.JOINING, phase_since=now, tries=0, retry_at=None)
        state = replace(state, ray=RayStep.STOPPING, ray_ready=False)
    state = replace(state, fenced=True, fenced_attempt=state.share_attempt)
    return state, (*actions, log, *stops)


def rerun_interrupted_steps(decision: Decision, now: float) -> Decision:
    """Rerun the prepare steps that the fence stopped, once the head or its GCS is reached.

    Each gets its full time again.
    """
    state, actions = decision
    if state.fenced or not state.interrupted_steps or state.phase is WorkerPhase.LEAVING:
        return decision
    again, steps = [], {**state.steps}
    for step in state.goal.steps:
        if step.name in state.interrupted_steps:
            steps[step.name] = Item(deadline=now + step.within)
            again.append(step.name)
    log = LogLine(f"the head is reached again: running {listed(again)} from the beginning")
    state = replace(state, steps=steps, interrupted_steps=frozenset())
    return state, (*actions, log, *(RunOwnStep(name) for name in again))


def stop_outdated_share(before: WorkerState, decision: Decision) -> Decision:
    """Stop this node's share of an attempt if the head has begun a later one."""
    state, actions = decision
    own, theirs = state.share_attempt or 0, state.head_attempt
    if not before.head_attempt < theirs or not _has_share(state) or own >= theirs:
        return decision
    return (state, actions) if StopShare() in actions else (state, (*actions, StopShare()))


def _has_work(state: WorkerState) -> bool:
    """Return whether there is anything to stop; a plain Ray head begins no further attempt."""
    if state.is_plain_head or state.fenced:
        return False
    return _has_ray(state) or _has_share(state) or _has_services(state) or _has_steps(state)


def _has_ray(state: WorkerState) -> bool:
    return state.ray in {RayStep.STARTING, RayStep.UP}


def _has_share(state: WorkerState) -> bool:
    return state.share_attempt is not None and state.share_over is None


def _has_steps(state: WorkerState) -> bool:
    """Return whether a step runs here that a head may have ordered."""
    return bool(state.last_reply_at) and bool(state.running_steps)


def _has_services(state: WorkerState) -> bool:
    return any(item.step is not Step.LOST for item in state.services.values())
