"""What the head waits for in each phase, with deadline and evidence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.decisions.head.state import HeadState, Phase
from agent.decisions.items import HERE, Step
from agent.decisions.shared import Wait, listed
from agent.plan import waits as planned

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.decisions.head.state import Key
    from agent.decisions.items import Item

_STALE = 60.0
"""A worker reports every few seconds; unheard for this long, it prepares nothing any more."""


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


def service_deadline(state: HeadState, key: Key, item: Item) -> float:
    """Return by when a service that is awaited must answer."""
    if item.deadline is not None:
        return item.deadline
    return state.attempt.began + state.goal.service(key[1]).within


def _boot_waits(state: HeadState) -> Iterator[Wait]:
    goal = state.goal
    if state.ray.step is Step.PENDING:
        before = f"the last one: {state.last_ray}" if state.last_ray else ""
        evidence = "; ".join(filter(None, (state.ray.evidence, before)))
        yield Wait(planned.HEAD, goal.ray, state.until(planned.HEAD), evidence)
    yield from _service_waits(state)
    yield from _step_waits(state)
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
    for key, item in state.services.items():
        if item.step is Step.PENDING:
            until = service_deadline(state, key, item)
            yield Wait(key[1], service_title(state, key), until, item.evidence)


def _step_waits(state: HeadState) -> Iterator[Wait]:
    """Wait for steps; those with one deadline are told together, as they run one by one."""
    pending: dict[float, list[str]] = {}
    for (_, name), item in state.steps.items():
        if item.step is Step.PENDING:
            until = state.attempt.began + state.goal.step(name).within
            pending.setdefault(until, []).append(name)
    for until, names in pending.items():
        yield Wait(names[0], listed(names), until)


def _running_waits(state: HeadState) -> Iterator[Wait]:
    if state.goal.wants_job:
        report = state.attempt.report
        status = report.status.lower() if report else "submitted"
        until = state.attempt.heard + state.goal.limits[planned.JOB]
        yield Wait(planned.JOB, "word of the job from Ray", until, f"last: {status}", True)  # noqa: FBT003 - is_following
    yield from _service_waits(state)


def _submitting_waits(state: HeadState) -> Iterator[Wait]:
    until = state.since + state.goal.limits[planned.SUBMIT]
    yield Wait(planned.SUBMIT, "Ray to take the job", until, state.ray.evidence)


def _stopping_waits(state: HeadState) -> Iterator[Wait]:
    yield Wait(planned.STOP, "the job to stop", state.since + state.goal.job_stop_grace)


_WAITS = {
    Phase.BOOTING: _boot_waits,
    Phase.SUBMITTING: _submitting_waits,
    Phase.RUNNING: _running_waits,
    Phase.STOPPING: _stopping_waits,
}
