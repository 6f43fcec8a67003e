"""What the head wants each node to run: Ray, services, prepare steps, the job or its share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.decisions.head.head_state import HeadPhase, HeadState, WorkerReported
from agent.decisions.head.members import lacks_weights
from agent.decisions.head.service_order import disk_of
from agent.decisions.shared import (
    ALL_REDUCE,
    CHECK,
    HERE,
    JOB,
    RAY,
    SAVE,
    SHARE,
    JobWant,
    Step,
    Want,
    kept_or_next,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agent.decisions.head.head_state import HeadEvent


def wanted_of(state: HeadState, node: str) -> Mapping[str, Want]:
    """Return what a node is to run, by name: HERE, or the node of a worker's agent.

    A service that has ended is wanted again, as its next generation, once its pause is over.
    """
    blocked = state.services.blocked
    wants = dict(_steps_of(state, node))
    for key, step in state.steps.by_key.items():
        if key[0] == node and step.step is Step.PENDING and key not in blocked:
            wants[key[1]] = Want(step.generation)
    for name in state.service_names(node):
        key = (node, name)
        service = state.services.by_key.get(key)
        if service is not None and service.step is not Step.LOST and key not in blocked:
            wants[name] = Want(service.generation, is_stale=lacks_weights(state, key, service))
    shares = state.shares.wanted
    if node in shares:
        wants[SHARE] = Want(state.attempt.number, shares[node], is_over=shares[node] is None)
    preflight = state.preflight
    if preflight is not None and node in preflight.wanted:
        kind = JobWant if node == HERE else Want
        wants[ALL_REDUCE] = kind(preflight.generation, preflight.wanted[node])
    if node == HERE and state.check.generation:
        wants[CHECK] = JobWant(state.check.generation)
    if node == HERE and state.job.want is not None:
        wants[JOB] = state.job.want
    if node == HERE and state.ending.saving is not None:
        wants[SAVE] = JobWant(state.attempt.number, id=state.attempt.id)
    ray = _ray_of(state, node)
    if ray is not None:
        wants[RAY] = ray
    return wants


def _steps_of(state: HeadState, node: str) -> Iterator[tuple[str, Want]]:
    """Yield the prepare steps that a worker was wanted to run, which stay wanted there.

    One that its fence has ended is wanted again once it is its turn: meanwhile another node may
    have got the step on their disk.
    """
    names = state.steps.wanted.get(node, frozenset())
    worker = state.fleet.workers.get(node)
    for step in state.goal.steps:
        if step.name not in names or worker is None:
            continue
        item = worker.item(step.name)
        generation = 1 if item is None else item.generation
        is_ended = item is not None and item.is_stopped
        if is_ended and step.once is not None:
            holder = state.steps.holders.get((step.name, disk_of(state, node, step)))
            if holder != node:
                continue
        yield step.name, Want(generation + 1 if is_ended else generation)


def _ray_of(state: HeadState, node: str) -> Want | None:
    """Return what a node is to run of Ray: a worker what runs in this epoch, or else the next.

    There the first generation of an epoch is its number, so that each is higher than those before.
    None starts before the head's Ray is there to be joined.
    """
    if state.goal.by_shares:
        return None
    if node == HERE:  # no decision leaves it lost, or given up
        return Want(state.ray.item.generation)
    worker = state.fleet.workers.get(node)
    if worker is None or worker.service_only or worker.has_left or worker.refused:
        return None
    epoch = state.durable.epoch
    ray = worker.item(RAY)
    generation = kept_or_next(ray, epoch)
    if ray is not None and ray.generation == generation:
        return Want(generation)
    return Want(generation) if state.ray.gcs_answers else None


def changed_nodes(before: HeadState, after: HeadState, event: HeadEvent) -> tuple[str, ...]:
    """Return the nodes of which something else is wanted now, new agents included."""
    if after.phase is HeadPhase.LEAVING:
        return ()
    nodes = dict.fromkeys(_touched(before, after, event))
    return tuple(
        node
        for node in nodes
        if _is_new(before, after, node) or _decided(before, node) != _decided(after, node)
    )


def _decided(state: HeadState, node: str) -> tuple[Mapping[str, Want], bool]:
    """Return what is decided of a node: what it is to run, and whether it may leave."""
    return wanted_of(state, node), node in state.notices.released


def _is_new(before: HeadState, after: HeadState, node: str) -> bool:
    """Return whether nothing was decided for a node before: it keeps what runs until then."""
    workers = after.fleet.workers
    return node not in before.fleet.workers and node in workers and not workers[node].refused


def _touched(before: HeadState, after: HeadState, event: HeadEvent) -> Iterator[str]:
    """Yield the nodes of all that differs."""
    if len(after.fleet.workers) > len(before.fleet.workers):  # most events only replace one
        yield from (node for node in after.fleet.workers if node not in before.fleet.workers)
    if before.services.by_key is not after.services.by_key:
        yield from _changed_keys(before.services.by_key, after.services.by_key)
    if before.services.blocked is not after.services.blocked:
        yield from (node for node, _ in sorted(before.services.blocked ^ after.services.blocked))
    if before.attempt.engines is not after.attempt.engines:  # who has lacked weights since
        yield from dict.fromkeys(node for node, _ in after.services.by_key)
    if any(was is not now for was, now in zip(_here(before), _here(after), strict=True)):
        yield HERE
    if before.preflight is not after.preflight:
        were = {} if before.preflight is None else before.preflight.wanted
        yield from (were or ({} if after.preflight is None else after.preflight.wanted))
    yield from sorted(before.notices.released ^ after.notices.released)
    if before.shares.wanted is not after.shares.wanted:
        yield from {**before.shares.wanted, **after.shares.wanted}
    if isinstance(event, WorkerReported) and event.worker.key in before.fleet.workers:
        yield event.worker.key  # its Ray may have ended
    if _heads_ray(before) != _heads_ray(after):
        yield from after.fleet.workers
    if before.steps.holders != after.steps.holders:
        yield from {**before.steps.holders, **after.steps.holders}.values()
    if before.steps.wanted is not after.steps.wanted:
        was = before.steps.wanted
        yield from (node for node, names in after.steps.wanted.items() if was.get(node) != names)


def _here(state: HeadState) -> tuple[object, ...]:
    """Return what only the head's own node is wanted to run by."""
    return state.steps.by_key, state.ending, state.ray, state.job.want, state.check


def _heads_ray(state: HeadState) -> tuple[int, bool]:
    """Return what workers join."""
    return state.durable.epoch, state.ray.gcs_answers


def _changed_keys(
    before: Mapping[tuple[str, str], object], after: Mapping[tuple[str, str], object]
) -> Iterator[str]:
    """Yield the nodes of the entries that are there, and are others than before."""
    yield from (key[0] for key, item in after.items() if before.get(key) is not item)
    yield from (key[0] for key in before if key not in after)
