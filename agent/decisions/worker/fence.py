"""A worker out of reach: what it runs ends before the head may begin another attempt without it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from agent.base.words import listed
from agent.decisions.items import Item, Step
from agent.decisions.shared import Said
from agent.decisions.worker.state import (
    Phase,
    RayStep,
    RunStep,
    StopPart,
    StopRay,
    StopServices,
    StopSteps,
    WorkerAction,
    WorkerState,
)
from agent.plan import waits as planned

if TYPE_CHECKING:
    Decision = tuple[WorkerState, tuple[WorkerAction, ...]]

_LATEST = 0.95
"""Of AGENT_NODE_GRACE since the last word, where it was noticed late that there is none."""
_LEAST = 3.0
"""What a head has to answer again in, however short that is."""


def deadline(state: WorkerState) -> float | None:
    """Return when all that runs here must end, unless the head or its GCS is reached before."""
    if state.unreached is None or not _runs(state):
        return None
    limit = state.goal.limits[planned.FENCE]
    latest = state.reached + limit / planned.FENCE_SHARE * _LATEST
    return min(state.unreached + limit, max(latest, state.unreached + _LEAST))


def heeded(decision: Decision, now: float) -> Decision:
    """Add to a decision that all here is stopped, where it is time for that; it waits on then.

    The head gives up a node that it does not reach for AGENT_NODE_GRACE. Whatever of the attempt
    still ran here would run beside the next.
    """
    state, actions = decision
    until = deadline(state)
    if state.phase is Phase.LEAVING or until is None or now < until:
        return decision
    limit = round(state.goal.limits[planned.FENCE])
    out = f"neither the head {state.goal.head} nor its GCS was reached for {limit} s"
    why = "another attempt may begin without this node"
    said = Said(f"{out} ({state.evidence}): stopping all that runs here, since {why}", "warning")
    stops: tuple[WorkerAction, ...] = (StopServices(),) if _serves(state) else ()
    if _has_part(state):
        stops = (*stops, StopPart())
    if _prepares(state):
        stops = (*stops, StopSteps())
        state = replace(state, halted=frozenset(state.under_way))
    if _has_ray(state):
        stops = (*stops, StopRay())
        state = replace(state, phase=Phase.JOINING, since=now, tries=0, retry_at=None)
        state = replace(state, ray=RayStep.STOPPING, ray_ready=False)
    state = replace(state, fenced=True, fenced_attempt=state.attempt)
    return state, (*actions, said, *stops)


def resumed(decision: Decision, now: float) -> Decision:
    """Run again what was stopped of the preparation, once the head or its GCS is reached.

    Each has its time anew.
    """
    state, actions = decision
    if state.fenced or not state.halted or state.phase is Phase.LEAVING:
        return decision
    again, steps = [], {**state.steps}
    for step in state.goal.steps:
        if step.name in state.halted:
            steps[step.name] = Item(deadline=now + step.within)
            again.append(step.name)
    said = Said(f"the head is reached again: running {listed(again)} from the beginning")
    state = replace(state, steps=steps, halted=frozenset())
    return state, (*actions, said, *(RunStep(name) for name in again))


def outdated(before: WorkerState, decision: Decision) -> Decision:
    """Stop this node's share of an attempt, where the head makes a later one already."""
    state, actions = decision
    own, theirs = state.attempt or 0, state.head_attempt
    if not before.head_attempt < theirs or not _has_part(state) or own >= theirs:
        return decision
    return (state, actions) if StopPart() in actions else (state, (*actions, StopPart()))


def _runs(state: WorkerState) -> bool:
    """Say whether something would be stopped; a head without an agent begins no other attempt."""
    if state.bare or state.fenced:
        return False
    return _has_ray(state) or _has_part(state) or _serves(state) or _prepares(state)


def _has_ray(state: WorkerState) -> bool:
    return state.ray in {RayStep.STARTING, RayStep.UP}


def _has_part(state: WorkerState) -> bool:
    return state.attempt is not None and state.part is None


def _prepares(state: WorkerState) -> bool:
    """Say whether a step runs here, of which a head knows: before its first word none does."""
    return bool(state.heard) and bool(state.under_way)


def _serves(state: WorkerState) -> bool:
    return any(item.step is not Step.LOST for item in state.services.values())
