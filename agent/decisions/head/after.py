"""The head's decisions on dependencies: what waits for what, and what starts once it may.

A service or step names what must be done or ready first: on its own node where that runs on every
one, else where it runs. What is given up is not waited for: the run goes on without it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from agent.base.words import listed
from agent.decisions.head import state as h
from agent.decisions.head.waits import service_title, with_service
from agent.decisions.items import HERE, Step
from agent.decisions.shared import Said

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agent.decisions.head.state import HeadAction, HeadEvent, HeadState, Key
    from agent.decisions.items import Item
    from agent.work.prepare import PrepareStep
    from agent.work.services import ServiceSpec


def first_actions(state: HeadState) -> tuple[HeadAction, ...]:
    """Return what the head starts as it begins, and sentences about what waits for others."""
    own = [*state.steps, *(key for key in state.services.items if key[0] == HERE)]
    return tuple(
        waits_for(state, key) if key in state.waiting else _start(state, key)
        for key in own
        if _item(state, key).step is Step.PENDING
    )


def waits_for(state: HeadState, key: Key) -> Said:
    """Say that something waits, and for what."""
    return Said(f"{service_title(state, key)} {_item(state, key).evidence}")


def held_back(state: HeadState, keys: Iterable[Key], now: float) -> HeadState:
    """Have those of these wait that depend on what is not done or ready yet."""
    for key in keys:
        missing = unmet(state, key[0], _spec(state, key).after)
        if missing:
            until = now + state.goal.longest_prepare
            evidence = f"waits for {listed(missing)}"
            item = replace(_item(state, key), evidence=evidence, deadline=until)
            state = _with(state, key, item)
            state = replace(state, waiting=state.waiting | {key})
    return state


def started(
    before: HeadState, state: HeadState, event: HeadEvent, now: float
) -> tuple[HeadState, tuple[HeadAction, ...]]:
    """Start what waited and need not wait any longer."""
    if not state.waiting:
        return state, ()
    keys: Iterable[Key] = state.waiting
    if isinstance(event, h.WorkerReported) and not is_news_for_others(before, state):
        own = event.worker.key  # at thousands of workers there is no time for all
        keys = state.waiting.intersection((own, spec.name) for spec in state.goal.services)
    actions: list[HeadAction] = []
    for key in sorted(keys):
        state, more = _started(state, key, now)
        actions += more
    return state, tuple(actions)


def is_news_for_others(before: HeadState, state: HeadState) -> bool:
    """Say whether something has changed for which other nodes than its own may wait."""
    if before.steps is not state.steps or before.required != state.required:
        return True
    was, now = before.services, state.services
    return was is not now and any(
        was.awaited.get(spec.name) is not now.awaited.get(spec.name)
        for spec in state.goal.services
        if spec.where.kind != "every"
    )


def unmet(state: HeadState, node: str, after: tuple[str, ...]) -> tuple[str, ...]:
    """Return what of these is not done or ready yet, for something on this node."""
    return tuple(name for name in after if not _is_met(state, node, name))


def _is_met(state: HeadState, node: str, name: str) -> bool:
    spec = next((one for one in state.goal.services if one.name == name), None)
    return _is_done(state, node, name) if spec is None else _is_ready(state, node, spec)


def _is_done(state: HeadState, node: str, name: str) -> bool:
    """Say whether a step is done; a node that does not have it waits for nothing."""
    own = state.steps.get((HERE, name))
    on_head = any(step.where.kind == "head" for step in state.goal.steps if step.name == name)
    if node == HERE or on_head:
        return own is None or own.step is Step.READY
    worker = state.fleet.workers.get(node)
    words = () if worker is None else worker.items
    return all(word.step is Step.READY for word in words if word.name == name)


def _is_ready(state: HeadState, node: str, spec: ServiceSpec) -> bool:
    worker = state.fleet.workers.get(node)
    rank = state.goal.rank if worker is None else worker.number
    if spec.where.includes(rank, is_head=node == HERE):
        return _answers(state, (node, spec.name))
    if spec.where.kind == "workers":
        there = {key for key in (*state.services.items, *state.given_up) if key[1] == spec.name}
        return len(there) >= state.required and all(_answers(state, key) for key in there)
    if any(name == spec.name for _, name in state.given_up):
        return True
    home = state.services.homes.get(spec.name)
    return home is not None and _answers(state, (home, spec.name))


def _answers(state: HeadState, key: Key) -> bool:
    item = state.services.get(key)
    return key in state.given_up or (item is not None and item.step is Step.READY)


def _started(state: HeadState, key: Key, now: float) -> tuple[HeadState, list[HeadAction]]:
    item = state.steps.get(key) or state.services.get(key)
    if item is None or item.step is not Step.PENDING:  # its node is gone, or it runs already
        return replace(state, waiting=state.waiting - {key}), []
    missing = unmet(state, key[0], _spec(state, key).after)
    if missing:
        evidence = f"waits for {listed(missing)}"
        changed = item.evidence != evidence
        return _with(state, key, replace(item, evidence=evidence)) if changed else state, []
    until = now + _within(state, key, item)
    state = _with(state, key, replace(item, evidence="", began=now, deadline=until))
    return replace(state, waiting=state.waiting - {key}), [_start(state, key)]


def _start(state: HeadState, key: Key) -> HeadAction:
    node, name = key
    if key in state.steps:
        return h.RunStep(name, node)
    return h.StartService(name, node, state.services.items[key].generation)


def _item(state: HeadState, key: Key) -> Item:
    return state.steps[key] if key in state.steps else state.services.items[key]


def _spec(state: HeadState, key: Key) -> PrepareStep | ServiceSpec:
    return state.goal.step(key[1]) if key in state.steps else state.goal.service(key[1])


def _within(state: HeadState, key: Key, item: Item) -> float:
    """Return the limit from its start to its end, or until it is ready."""
    if key in state.steps:
        return state.goal.step(key[1]).within
    spec = state.goal.service(key[1])
    return spec.within if item.restarted is None else spec.restarted_within


def _with(state: HeadState, key: Key, item: Item) -> HeadState:
    if key in state.steps:
        return replace(state, steps={**state.steps, key: item})
    return with_service(state, key, item)
