"""Prepare steps on workers by the head's order: each after what it needs, one node after another.

Nodes that may share the disk on which a step's marker lies take turns, so that the first makes the
data and the others find it. No file is a lock: whoever dies or falls silent has had its turn.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from agent.decisions.head import after
from agent.decisions.head import state as h
from agent.decisions.head.state import Turns
from agent.decisions.items import HERE, Step
from agent.decisions.shared import Tick
from agent.work.prepare import by_order

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.decisions.head.state import Group, HeadEvent, HeadState, Worker
    from agent.work.prepare import PrepareStep

SILENT = 60.0
"""A worker reports every few seconds; one that is unheard for this long has had its turn."""
_UNKNOWN = "?"
"""The disk of a node of which nothing is known: it may be anybody's."""

Orders = tuple[h.RunStep, ...]


def first_turns(goal: h.Goal) -> Turns:
    """Return the turns as a run begins: the head's own steps run already."""
    steps = [step for step in by_order(goal.steps) if step.once and step.name not in goal.done]
    disks = {step.name: goal.disks.get(step.once or "", _UNKNOWN) for step in steps}
    return Turns(queues=dict.fromkeys(disks.items(), (HERE,)))


def order(state: HeadState, event: HeadEvent, now: float) -> tuple[HeadState, Orders]:
    """Have workers run what is their turn."""
    steps = by_order(state.goal.steps)
    if not steps:
        return state, ()
    if isinstance(event, h.WorkerReported):
        is_away = event.worker.gone or event.worker.refused
        return _gone(state, event.worker.key) if is_away else _heard(state, event.worker, steps)
    if isinstance(event, h.WorkerReplaced):
        return _gone(state, event.key)
    if isinstance(event, h.StepOver) and event.node == HERE and not event.failure:
        return _left(state, HERE, event.name)
    if isinstance(event, Tick | h.RayNodes):
        return _without_silent(state, now)
    return state, ()


def resumed(before: HeadState, state: HeadState) -> tuple[HeadState, Orders]:
    """Have workers run what waited for something that is done or ready now on another node."""
    steps = by_order(state.goal.steps) if state.goal.steps else ()
    orders: Orders = ()
    if any(step.after for step in steps) and after.is_news_for_others(before, state):
        for worker in state.fleet.workers.values():
            if worker.key in state.turns.done:  # else it is away
                state, more = _heard(state, worker, steps)
                orders += more
    return state, orders


def _heard(
    state: HeadState, worker: Worker, steps: tuple[PrepareStep, ...]
) -> tuple[HeadState, Orders]:
    key, names = worker.key, {step.name for step in steps}
    known, asked = state.turns.done.get(key), state.turns.asked.get(key, frozenset())
    before = known or frozenset()
    done = before | names.intersection(w.name for w in worker.items if w.step is Step.READY)
    orders: Orders = ()
    for name in sorted(done - before):
        state, more = _left(state, key, name)
        orders += more
    new = [
        step
        for step in steps
        if step.name not in done | asked and not after.unmet(state, key, step.after)
    ]
    for step in new:
        if step.once is None:
            orders += (h.RunStep(step.name, key),)
            continue
        group = (step.name, _disk(state, key, step.once))
        queue = (*state.turns.queues.get(group, ()), key)
        state = _with(state, queues={**state.turns.queues, group: queue})
        orders += _next(group, queue) if len(queue) == 1 else ()
    if new or done != known:
        asked |= {step.name for step in new}
        turns = state.turns
        state = _with(state, {**turns.done, key: done}, {**turns.asked, key: asked})
    return state, orders


def _left(state: HeadState, node: str, name: str) -> tuple[HeadState, Orders]:
    """Take a node out of the queue for a step; whoever is the first then has its turn."""
    for group, queue in state.turns.queues.items():
        if group[0] == name and node in queue:
            left = tuple(one for one in queue if one != node)
            queues = {at: q for at, q in state.turns.queues.items() if at != group}
            state = _with(state, queues={**queues, group: left} if left else queues)
            return state, _next(group, left) if queue[0] == node else ()
    return state, ()


def _gone(state: HeadState, key: str) -> tuple[HeadState, Orders]:
    if key not in state.turns.done:
        return state, ()
    orders: Orders = ()
    for step in by_order(state.goal.steps):
        state, more = _left(state, key, step.name)
        orders += more
    done = {worker: names for worker, names in state.turns.done.items() if worker != key}
    asked = {worker: names for worker, names in state.turns.asked.items() if worker != key}
    return _with(state, done, asked), orders


def _without_silent(state: HeadState, now: float) -> tuple[HeadState, Orders]:
    orders: Orders = ()
    for queue in [*state.turns.queues.values()]:
        holder = state.fleet.workers.get(queue[0])
        if len(queue) > 1 and holder is not None and now >= holder.heard + SILENT:
            state, more = _gone(state, holder.key)
            orders += more
    return state, orders


def _next(group: Group, queue: tuple[str, ...]) -> Orders:
    return (h.RunStep(group[0], queue[0]),) if queue and queue[0] != HERE else ()


def _disk(state: HeadState, key: str, once: str) -> str:
    facts = state.fleet.facts.get(key)
    return _UNKNOWN if facts is None else facts.disks.get(once, _UNKNOWN)


def _with(
    state: HeadState,
    done: Mapping[str, frozenset[str]] | None = None,
    asked: Mapping[str, frozenset[str]] | None = None,
    queues: Mapping[Group, tuple[str, ...]] | None = None,
) -> HeadState:
    turns = state.turns
    new = Turns(
        turns.done if done is None else done,
        turns.asked if asked is None else asked,
        turns.queues if queues is None else queues,
    )
    return replace(state, turns=new)
