"""Every wait of a run with its limit: what `plan` shows and what the decisions go by."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.base.value import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.settings import Settings
    from agent.topology.resolve import Topology
    from agent.work.prepare import PrepareStep
    from agent.work.services import ServiceSpec

HEAD = "head"
"""The head's Ray on the head itself, the head on a worker."""
WORKERS = "workers"
PREPARE = "prepare"
SUBMIT = "submit"
JOB = "word of the job"
JOIN = "join"
NODE = "lost node"
STOP = "stop"

SUBMIT_LIMIT = 120.0
SILENCE_LIMIT = 120.0
JOIN_LIMIT = 120.0
FIXED = "fixed"


@dataclass(frozen=True)
class PlannedWait:
    """Something that will be waited for, at most this long."""

    key: str
    """Names it for the decisions; a service's is its name."""
    what: str
    seconds: float
    variable: str


def planned_waits(
    settings: Settings,
    topology: Topology,
    steps: tuple[PrepareStep, ...],
    services: tuple[ServiceSpec, ...],
    *,
    has_job: bool,
) -> tuple[PlannedWait, ...]:
    """Return what this node will wait for, in the order in which a person thinks of it."""
    if topology.is_idle:
        return ()
    return tuple(
        _on_the_head(settings, topology, steps, services, has_job=has_job)
        if topology.is_head
        else _on_a_worker(settings, topology, steps)
    )


def _on_the_head(
    settings: Settings,
    topology: Topology,
    steps: tuple[PrepareStep, ...],
    services: tuple[ServiceSpec, ...],
    *,
    has_job: bool,
) -> Iterator[PlannedWait]:
    given = topology.given_ray
    whose = "the head's" if given is None else f"{given.owner}'s"
    yield PlannedWait(HEAD, f"{whose} Ray", settings.wait_head, "AGENT_WAIT_HEAD")
    yield from _of_steps(steps)
    for spec in services:
        yield PlannedWait(spec.name, f"the {spec.name}", spec.within, spec.deadline_variable)
    if topology.expected_workers:
        workers = f"{topology.expected_workers} worker(s)"
        yield PlannedWait(WORKERS, workers, settings.wait_workers, "AGENT_WAIT_WORKERS")
    if has_job:
        taken = "Ray to take the job, from the first try"
        yield PlannedWait(SUBMIT, taken, SUBMIT_LIMIT, FIXED)
        yield PlannedWait(JOB, "word of the running job from Ray", SILENCE_LIMIT, FIXED)
    yield from _at_any_time(settings)


def _on_a_worker(
    settings: Settings, topology: Topology, steps: tuple[PrepareStep, ...]
) -> Iterator[PlannedWait]:
    head = f"the head {topology.head_host}"
    yield PlannedWait(HEAD, head, settings.wait_head, "AGENT_WAIT_HEAD")
    yield from _of_steps(steps)
    yield PlannedWait(JOIN, "Ray on this node to join, per join", JOIN_LIMIT, FIXED)
    yield from _at_any_time(settings)


def _of_steps(steps: tuple[PrepareStep, ...]) -> Iterator[PlannedWait]:
    if steps:
        longest = max(step.within for step in steps)
        yield PlannedWait(PREPARE, "prepare steps", longest, steps[0].deadline_variable)


def _at_any_time(settings: Settings) -> Iterator[PlannedWait]:
    yield PlannedWait(NODE, "a lost node", settings.node_grace, "AGENT_NODE_GRACE")
    yield PlannedWait(STOP, "a stop, all in all", settings.stop_grace, "AGENT_STOP_GRACE")
