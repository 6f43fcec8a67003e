"""A worker's own prepare steps that wait for others of this node; the head orders the rest."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from agent.base.words import listed
from agent.decisions.items import Item, Step
from agent.decisions.shared import Said, Wait
from agent.decisions.worker.state import Phase, RunStep, WorkerAction, WorkerState

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.work.prepare import PrepareStep

    Decision = tuple[WorkerState, tuple[WorkerAction, ...]]


def held_back(state: WorkerState, names: frozenset[str]) -> WorkerState:
    """Have those of these wait that depend on steps of this node which are not done."""
    waiting = {step.name for step in state.goal.steps if step.name in names and _unmet(state, step)}
    return replace(state, waiting=state.waiting | waiting)


def started(decision: Decision, now: float) -> Decision:
    """Start what waited and need not wait any longer; each has its time from then on."""
    state, actions = decision
    if not state.waiting or state.fenced or state.phase is Phase.LEAVING:
        return decision
    steps = [step for step in state.goal.steps if step.name in state.waiting]
    ready = [step for step in steps if not _unmet(state, step)]
    items = {step.name: Item(deadline=now + step.within) for step in ready}
    left = state.waiting - items.keys()
    state = replace(state, steps={**state.steps, **items}, waiting=left)
    return state, (*actions, *(RunStep(step.name) for step in ready))


def first_words(state: WorkerState) -> Iterator[Said]:
    """Say what waits here as the agent begins, and for what."""
    for step in state.goal.steps:
        if step.name in state.waiting:
            yield Said(f"{step.name} waits for {listed(_unmet(state, step))}")


def waits(state: WorkerState, until: float) -> Iterator[Wait]:
    """Return a wait for each that is not started; `until` is by when it must have been."""
    for step in state.goal.steps:
        if step.name in state.waiting:
            missing = listed(_unmet(state, step))
            yield Wait(step.name, step.name, until, f"not started, waits for {missing}")


def needed(state: WorkerState) -> str:
    """Say what those steps wait for that the head orders; '' where that is only their turn."""
    steps = [step for step in state.goal.steps if step.name in state.awaiting and step.after]
    told = "; ".join(f"{step.name} waits for {listed(step.after)}" for step in steps)
    return f"{told}; {state.evidence}" if told else ""


def _unmet(state: WorkerState, step: PrepareStep) -> list[str]:
    found = (name for name in step.after if name in state.steps)
    return [name for name in found if state.steps[name].step is not Step.READY]
