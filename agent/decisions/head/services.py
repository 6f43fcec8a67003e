"""The head's decisions on services: who starts which, what is started again, what is lost."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from agent.base.outcome import Kind, Outcome
from agent.decisions.head import after
from agent.decisions.head import state as h
from agent.decisions.head.state import HeadAction, HeadEvent, HeadState, Phase
from agent.decisions.head.waits import service_deadline, service_title, with_service
from agent.decisions.items import HERE, Item, Step
from agent.decisions.shared import Said
from agent.plan import waits as planned

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.decisions.head.state import Key, Worker
    from agent.work.services import ServiceSpec


def begun(goal: h.Goal) -> Item:
    """Return a service as it is at first; under a job that lives it was ready before."""
    return Item(answered=goal.underway is not None)


def order(
    state: HeadState, event: HeadEvent, now: float
) -> tuple[HeadState, tuple[HeadAction, ...]]:
    """Have a worker that reports start what shall run there, once, and when it may."""
    if not isinstance(event, h.WorkerReported):
        return state, ()
    worker = event.worker
    if worker.gone or worker.refused:
        return state, ()
    missing = {
        (worker.key, spec.name): replace(begun(state.goal), deadline=now + spec.within)
        for spec in state.goal.services
        if spec.where.includes(worker.number, is_head=False)
        and state.services.get((worker.key, spec.name)) is None
        and (worker.key, spec.name) not in state.given_up
    }
    for key, item in missing.items():
        state = with_service(state, key, item)
    state = after.held_back(state, missing, now)
    return state, tuple(
        after.waits_for(state, key) if key in state.waiting else h.StartService(key[1], key[0])
        for key in missing
    )


def watch(state: HeadState, now: float) -> tuple[HeadState, tuple[HeadAction, ...], Outcome | None]:
    """Restart what died, after a pause that grows; tell what is lost for good."""
    actions: list[HeadAction] = []
    candidates = (*state.services.dead, *state.services.late(now))
    for key in dict.fromkeys(candidates):
        item = state.services.items[key]
        broken = _lost_for_good(state, key, item, now)
        if broken is not None and state.goal.service(key[1]).essential:
            return state, tuple(actions), broken
        if broken is not None:
            left, given_up = state.services.without(key), state.given_up | {key}
            state = replace(state, services=left, given_up=given_up)
            actions.append(Said(f"{broken.reason}; the run goes on without it", "warning"))
            continue
        if item.step is not Step.LOST:
            continue
        spec, title = state.goal.service(key[1]), service_title(state, key)
        if spec.argv is None:
            state = with_service(state, key, item.again(now, spec.within))
            borne = f"it is asked for {round(spec.within)} s more"
            actions.append(Said(f"{title} answers no more ({item.evidence}): {borne}", "warning"))
            actions.append(h.StartService(key[1], key[0], item.generation + 1))
            continue
        again_at = now + item.pause(now) if item.again_at is None else item.again_at
        if now < again_at:
            state = with_service(state, key, replace(item, again_at=again_at))
            continue
        again = item.again(now, spec.restarted_within)
        state = with_service(state, key, again)
        count = f"restart {again.restarts} of {spec.restarts}"
        actions.append(Said(f"{title} died ({item.evidence}): {count}", "warning"))
        state = after.held_back(state, (key,), now)
        start = h.StartService(key[1], key[0], again.generation)
        actions.append(after.waits_for(state, key) if key in state.waiting else start)
    return state, tuple(actions), None


def lost_alone(state: HeadState, now: float) -> Outcome | None:
    """Say which node that is there for a needed service only is lost: Ray knows nothing of it."""
    for spec, worker in _alone(state):
        if now >= worker.heard + state.goal.limits[planned.NODE]:  # as the deadline is reckoned
            why = f"lost a needed node ({worker.place}, which runs {spec.name})"
            reason = f"{why}, longer than AGENT_NODE_GRACE"
            return Outcome(Kind.LOST, 75, reason, culprit="node")
    return None


def alone_deadline(state: HeadState) -> float | None:
    """Return by when such nodes must be heard of again."""
    grace = state.goal.limits[planned.NODE]
    return min((worker.heard + grace for _, worker in _alone(state)), default=None)


def address_of(state: HeadState, name: str) -> str | None:
    """Return the address of the worker on which a service lives; None where that is the head."""
    worker = state.fleet.workers.get(state.services.homes.get(name, HERE))
    return None if worker is None else worker.ip


def _alone(state: HeadState) -> Iterator[tuple[ServiceSpec, Worker]]:
    for spec in state.goal.services:
        if spec.alone and spec.essential:
            worker = state.fleet.workers.get(state.services.homes.get(spec.name, HERE))
            if worker is not None:
                yield spec, worker


def _lost_for_good(state: HeadState, key: Key, item: Item, now: float) -> Outcome | None:
    """Say that a service is beyond help: dead before it answered, or too often, or too late."""
    spec, title = state.goal.service(key[1]), service_title(state, key)
    if item.step is Step.LOST and not item.answered:
        reason = f"{title} ended before it was ready: {item.evidence}"
    elif item.step is Step.LOST and spec.argv and item.counted(now) >= spec.restarts:
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
