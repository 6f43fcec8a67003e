"""What the head waits for in each phase, with deadline and evidence."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from agent.base.words import listed
from agent.decisions.attempts import is_loss
from agent.decisions.head import clearing, hangs
from agent.decisions.head.preflight import waits as preflight_waits
from agent.decisions.head.probes import score_waits
from agent.decisions.head.state import HeadState, Phase
from agent.decisions.items import HERE, Step
from agent.decisions.shared import Wait
from agent.plan import waits as planned

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from agent.decisions.head.state import Key
    from agent.decisions.items import Item
    from agent.work.services import ServiceSpec

_MOST_NAMED = 8
"""So many nodes on which a service is awaited are named one by one; the rest are counted."""
_STALE = 60.0
"""A worker reports every few seconds; unheard for this long, it prepares nothing any more."""
_TAKEN = "Ray to take the job"
_KILLED_WITHIN = 10.0
"""Ray kills a job at the end of its grace; that it is gone is heard a little later."""


def waits(state: HeadState) -> tuple[Wait, ...]:
    """Return everything that the head waits for in its phase, with deadline and evidence."""
    return tuple(_WAITS[state.phase](state)) if state.phase in _WAITS else ()


def service_title(state: HeadState, key: Key) -> str:
    """Name a service, and the worker on which it lives where that is one."""
    node, name = key
    if node == HERE:
        return name
    worker = state.fleet.workers.get(node)
    return f"{name} on {worker.place}" if worker is not None else name


def with_service(state: HeadState, key: Key, item: Item) -> HeadState:
    """Note how a service stands."""
    until = service_deadline(state, key, item)
    return replace(state, services=state.services.with_item(key, item, until))


def service_deadline(state: HeadState, key: Key, item: Item) -> float:
    """Return by when a service that is awaited must answer."""
    if item.deadline is not None:
        return item.deadline
    return state.attempt.began + state.goal.service(key[1]).within


def _boot_waits(state: HeadState) -> Iterator[Wait]:
    needed = tuple(_needed(state))
    yield from needed
    attempt = state.attempt
    yield from preflight_waits(state)
    if not needed:
        yield from score_waits(state)
    if not needed and attempt.not_before > attempt.began:
        what = f"attempt {attempt.number} to begin"
        yield Wait(planned.PAUSE, what, attempt.not_before, "a pause after the loss")


def _needed(state: HeadState) -> Iterator[Wait]:
    goal = state.goal
    if state.ray.step is Step.PENDING:
        before = f"the last one: {state.last_ray}" if state.last_ray else ""
        evidence = "; ".join(filter(None, (state.ray.evidence, before)))
        yield Wait(planned.HEAD, goal.ray, state.until(planned.HEAD), evidence)
    yield from hangs.waits(state)
    yield from _service_waits(state)
    yield from _rank_waits(state)
    yield from _step_waits(state)
    yield from clearing.waits(state)
    if len(state.fleet.alive) < state.required:
        fleet, required = state.fleet, state.required
        yield Wait(
            planned.WORKERS,
            "workers",
            _workers_deadline(state),
            lambda: fleet.describe_missing(required, None),
        )


def _workers_deadline(state: HeadState) -> float:
    """Return the workers' deadline; one that prepares has longer, for as long as it is heard of."""
    until, heard = state.until(planned.WORKERS), state.fleet.prepared_heard
    if not state.fleet.preparing or heard is None:
        return until
    return max(until, min(state.attempt.began + state.goal.longest_prepare, heard + _STALE))


def _service_waits(state: HeadState) -> Iterator[Wait]:
    """Wait for services; one that is awaited on many nodes is told once, for all of them."""
    for name, nodes, until in state.services.pending():
        if len(nodes) == 1:
            (key,) = ((node, name) for node in nodes)
            evidence = state.services.items[key].evidence
            known = f"not started, {evidence}" if key in state.waiting else evidence
            yield Wait(name, service_title(state, key), until, known)
        else:
            what = f"{name} on {state.goal.service(name).where.sentence()}"
            yield Wait(name, what, until, partial(_of_many, state, name, nodes))


def _of_many(state: HeadState, name: str, nodes: Iterable[str]) -> str:
    keys = [(node, name) for node in nodes]
    words = []
    for key in keys[:_MOST_NAMED]:
        evidence = state.services.items[key].evidence
        words.append(f"{service_title(state, key)}: {evidence or 'no word yet'}")
    more = len(keys) - len(words)
    return "; ".join([f"{len(keys)} not ready", *words, *([f"{more} more"] if more else [])])


def _rank_waits(state: HeadState) -> Iterator[Wait]:
    """Wait for the node that is to run a service by its rank, until it has reported."""
    for spec in state.goal.services:
        if spec.where.kind == "rank" and spec.essential and spec.name not in state.services.homes:
            what = f"{spec.where.sentence()}, which is to run {spec.name}"
            key, known = f"{spec.name} {spec.where.sentence()}", partial(_last_of, state, spec)
            yield Wait(key, what, _node_until(state), known)


def _last_of(state: HeadState, spec: ServiceSpec) -> str:
    """Return what the node of a service's rank said as it left, where it was there at all."""
    workers = state.fleet.workers.values()
    said = (worker.detail for worker in workers if worker.number == spec.where.rank)
    return next(filter(None, said), "no word")


def _node_until(state: HeadState) -> float:
    limits = state.goal.limits
    return state.attempt.began + limits.get(planned.WORKERS, limits[planned.HEAD])


def _step_waits(state: HeadState) -> Iterator[Wait]:
    """Wait for steps; those that run and have one deadline are told together."""
    running: dict[float, list[str]] = {}
    for key, item in state.steps.items():
        name, until = key[1], item.deadline
        if item.step is not Step.PENDING:
            continue
        if until is None:
            until = state.attempt.began + state.goal.step(name).within
        if key in state.waiting:
            yield Wait(name, name, until, f"not started, {item.evidence}")
        else:
            running.setdefault(until, []).append(name)
    for until, names in running.items():
        yield Wait(names[0], listed(names), until)


def _running_waits(state: HeadState) -> Iterator[Wait]:
    if state.goal.wants_job and not state.goal.by_torchrun:
        report = state.attempt.report
        status = report.status.lower() if report else "submitted"
        until = state.attempt.heard + state.goal.limits[planned.JOB]
        yield Wait(planned.JOB, "word of the job from Ray", until, f"last: {status}", True)  # noqa: FBT003 - is_following
    yield from hangs.waits(state)
    yield from _service_waits(state)


def _resuming_waits(state: HeadState) -> Iterator[Wait]:
    known, attempt = state.goal.underway, state.attempt
    if state.verdict is not None and known is not None:
        yield Wait(planned.STOP, "the job to stop", known.stopped_at + _stop_limit(state))
    elif attempt.submitted is None:
        yield Wait(planned.HEAD, state.goal.ray, state.until(planned.HEAD), state.ray.evidence)
    else:
        until = attempt.heard + state.goal.limits[planned.JOB]
        what = f"the status of attempt {attempt.number} from Ray"
        yield Wait(planned.JOB, what, until, state.ray.evidence)


def submit_wait(state: HeadState) -> Wait:
    """Return what a submission waits for; an upload that moves has longer."""
    upload, limit = state.upload, state.goal.limits[planned.SUBMIT]
    if upload is None or upload.last.id != state.attempt.id:
        who = "torchrun to start" if state.goal.by_torchrun else _TAKEN
        return Wait(planned.SUBMIT, who, state.since + limit, state.ray.evidence)
    until = max(state.since, upload.moved) + limit
    if not upload.is_under_way:
        return Wait(planned.SUBMIT, _TAKEN, until, state.ray.evidence)
    return Wait(planned.SUBMIT, _TAKEN, until, upload.evidence, share=upload.share)


def _submitting_waits(state: HeadState) -> Iterator[Wait]:
    yield submit_wait(state)


def _judging_waits(state: HeadState) -> Iterator[Wait]:
    doubt = state.attempt.doubt
    if doubt:
        what, until = "GCS to report a lost node", state.since + planned.GCS_LIMIT
        yield Wait(planned.ASK, what, until, doubt)
    else:
        yield Wait(planned.ASK, "word from every node", state.since + planned.ASK_LIMIT)


def stop_deadline(state: HeadState) -> float:
    """Return by when a job must have stopped; longer, where another attempt waits for that."""
    return state.since + _stop_limit(state)


def _stop_limit(state: HeadState) -> float:
    goal, verdict = state.goal, state.verdict
    follows = verdict is not None and is_loss(verdict) and state.losses < goal.retries
    return goal.job_stop_grace + (_KILLED_WITHIN if follows else 0.0)


def _stopping_waits(state: HeadState) -> Iterator[Wait]:
    yield Wait(planned.STOP, "the job to stop", stop_deadline(state))


_WAITS = {
    Phase.RESUMING: _resuming_waits,
    Phase.BOOTING: _boot_waits,
    Phase.SUBMITTING: _submitting_waits,
    Phase.RUNNING: _running_waits,
    Phase.JUDGING: _judging_waits,
    Phase.STOPPING: _stopping_waits,
}
