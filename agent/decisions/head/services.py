"""The head's decisions on services: who starts which, what is started again, what is lost."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from agent.base.outcome import Kind, Outcome
from agent.decisions.head import state as h
from agent.decisions.head.state import HeadAction, HeadEvent, HeadState, Phase
from agent.decisions.head.waits import service_deadline, service_title
from agent.decisions.items import Item, Step
from agent.decisions.shared import Said

if TYPE_CHECKING:
    from agent.decisions.head.state import Key


def order(
    state: HeadState, event: HeadEvent, now: float
) -> tuple[HeadState, tuple[HeadAction, ...]]:
    """Have a worker that reports start what shall run there, once."""
    if not isinstance(event, h.WorkerReported):
        return state, ()
    worker = event.worker
    if worker.gone or worker.refused:
        return state, ()
    missing = {
        (worker.key, spec.name): Item(deadline=now + spec.within)
        for spec in state.goal.services
        if spec.where.includes(worker.rank, is_head=False)
        and (worker.key, spec.name) not in state.services
        and (worker.key, spec.name) not in state.given_up
    }
    if not missing:
        return state, ()
    orders = tuple(h.StartService(name, node) for node, name in missing)
    return replace(state, services={**state.services, **missing}), orders


def watch(state: HeadState, now: float) -> tuple[HeadState, tuple[HeadAction, ...], Outcome | None]:
    """Restart what died, after a pause that grows; tell what is lost for good."""
    actions: list[HeadAction] = []
    for key, item in state.services.items():
        broken = _lost_for_good(state, key, item, now)
        if broken is not None and state.goal.service(key[1]).essential:
            return state, tuple(actions), broken
        if broken is not None:
            left = {at: one for at, one in state.services.items() if at != key}
            state = replace(state, services=left, given_up=state.given_up | {key})
            actions.append(Said(f"{broken.reason}; the run goes on without it", "warning"))
            continue
        if item.step is not Step.LOST:
            continue
        again_at = now + item.pause(now) if item.again_at is None else item.again_at
        if now < again_at:
            state = _with_service(state, key, replace(item, again_at=again_at))
            continue
        spec = state.goal.service(key[1])
        again = item.again(now, spec.restarted_within)
        state = _with_service(state, key, again)
        count = f"restart {again.restarts} of {spec.restarts}"
        title = service_title(state, key)
        actions.append(Said(f"{title} died ({item.evidence}): {count}", "warning"))
        actions.append(h.StartService(key[1], key[0], again.generation))
    return state, tuple(actions), None


def _lost_for_good(state: HeadState, key: Key, item: Item, now: float) -> Outcome | None:
    """Say that a service is beyond help: dead before it answered, or too often, or too late."""
    spec, title = state.goal.service(key[1]), service_title(state, key)
    if item.step is Step.LOST and not item.answered:
        reason = f"{title} ended before it was ready: {item.evidence}"
    elif item.step is Step.LOST and item.counted(now) >= spec.restarts:
        reason = f"{title} is lost for good: {item.evidence}"
    elif _answers_no_more(state, key, item, now):
        reason = f"{title} is lost for good: {item.evidence or 'it answers no more'}"
    else:
        return None
    return Outcome(Kind.UNAVAILABLE, 69, reason, culprit=key[1])


def _answers_no_more(state: HeadState, key: Key, item: Item, now: float) -> bool:
    """Say whether a restarted service is late; the first start is one of the boot's waits."""
    awaited = item.restarted is None and state.goal.service(key[1]).essential
    first = awaited and state.phase is Phase.BOOTING
    return item.step is Step.PENDING and not first and now >= service_deadline(state, key, item)


def _with_service(state: HeadState, key: Key, item: Item) -> HeadState:
    return replace(state, services={**state.services, key: item})
