"""Every wait of a run with its limit: what `plan` shows and what the decisions go by."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.base.value import dataclass
from agent.settings.jobs import launcher
from agent.work.after import longest_waits
from agent.work.where import ON_EVERY

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agent.settings import Settings
    from agent.topology.resolve import Topology
    from agent.work.prepare import PrepareStep
    from agent.work.services import ServiceSpec

HEAD = "head"
"""The head's Ray on the head itself, the head on a worker."""
WORKERS = "workers"
PREPARE = "prepare"
BEFORE = "before"
"""For all that a service or step waits for before it is started."""
SUBMIT = "submit"
JOB = "word of the job"
STALL = "stall"
"""Of a job that shows no sign of work: told with its stacks; ends it only after a lost node."""
JOIN = "join"
NODE = "lost node"
SILENT_HEAD = "silent head"
FENCE = "fence"
"""Neither the head's agent nor its GCS is reached: what runs on the worker must end."""
FENCE_SHARE = 0.8
"""Of AGENT_NODE_GRACE, after which the head may go on without the worker."""
STOP = "stop"
PAUSE = "pause"
"""Between two attempts; no wait of a plan's."""
ASK = "ask"
"""For every node's word, when a job has failed."""

CLEAR = "clear"
"""For an attempt to be gone from all nodes in reach, before the next; no wait of a plan's."""
AWAY = "away"
"""For a node out of reach to have ended it itself, likewise."""
CLEAR_LIMIT = 60.0
"""Beyond AGENT_NODE_GRACE."""
PROBE = "probe"
"""For each node's word of the reward server."""
PREFLIGHT = "preflight"
"""For the all-reduce before the job."""
HANG = "hang"
"""For a part of Ray that is stopped to go on; no wait of a plan's."""
NEVER_LATE = {PAUSE, PROBE}
"""When these are over, the run goes on."""
SUBMIT_LIMIT = 120.0
SILENCE_LIMIT = 120.0
JOIN_LIMIT = 120.0
ASK_LIMIT = 5.0
GCS_LIMIT = 75.0
"""GCS reports a node as dead 15 s after its Ray was killed, 65 s after its network was lost (2.60).
"""
PROBE_LIMIT = 10.0
SAMPLE_LIMIT = 10.0
PREFLIGHT_LIMIT = 120.0
HANG_LIMIT = 30.0
PREFLIGHT_SPARE = 10.0
"""For the word of it to come, where its own end came late."""
ALL_TOLD_LIMIT = 8.0
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
    """Return what this node will wait for, in the order in which a person thinks of it.

    `steps` and `services` are those of the whole run: what is here may wait for others.
    """
    if topology.is_idle:
        return ()
    return tuple(
        _on_the_head(settings, topology, steps, services, has_job=has_job)
        if topology.is_head
        else _on_a_worker(settings, topology, steps, services)
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
    by_torchrun = launcher(settings, None) == "torchrun"
    before = longest_waits((*steps, *services))
    whose = "the head's" if given is None else f"{given.owner}'s"
    if not by_torchrun:
        yield PlannedWait(HEAD, f"{whose} Ray", settings.wait_head, "AGENT_WAIT_HEAD")
    yield from _of_steps(settings, steps, before)
    for spec in services:
        where = "" if spec.where.kind == "head" else f" on {spec.where.sentence()}"
        own = ", from its own start" if before.get(spec.name) else ""
        what = f"the {spec.name}{where}{own}"
        yield PlannedWait(spec.name, what, spec.within, spec.deadline_variable)
    if topology.expected_workers or any(spec.where.kind == "rank" for spec in services):
        workers = f"{topology.expected_workers} worker(s)"
        yield PlannedWait(WORKERS, workers, settings.wait_workers, "AGENT_WAIT_WORKERS")
    if topology.expected_workers and given is None and any(spec.url for spec in services):
        yield PlannedWait(PROBE, "each node's word of the reward server", PROBE_LIMIT, FIXED)
    if settings.preflight is not None and given is None:
        yield PlannedWait(PREFLIGHT, "an all-reduce over all nodes", PREFLIGHT_LIMIT, FIXED)
    if has_job and by_torchrun:
        yield PlannedWait(SUBMIT, "torchrun to be started here", SUBMIT_LIMIT, FIXED)
        told = "all nodes to tell the end of a job that failed on one"
        yield PlannedWait(JOB, told, ALL_TOLD_LIMIT, FIXED)
    elif has_job:
        taken = "Ray to take the job, from the first try"
        yield PlannedWait(SUBMIT, taken, SUBMIT_LIMIT, FIXED)
        yield PlannedWait(JOB, "word of the running job from Ray", SILENCE_LIMIT, FIXED)
    if has_job and settings.stall:
        what = "a sign of work from the job, or its stacks are told"
        yield PlannedWait(STALL, what, settings.stall, "AGENT_STALL")
    yield PlannedWait(NODE, "a lost node", settings.node_grace, "AGENT_NODE_GRACE")
    yield _stop(settings)


def _on_a_worker(
    settings: Settings,
    topology: Topology,
    steps: tuple[PrepareStep, ...],
    services: tuple[ServiceSpec, ...],
) -> Iterator[PlannedWait]:
    here = tuple(step for step in steps if step.where.kind == ON_EVERY.kind)
    head = f"the head {topology.head_host}"
    yield PlannedWait(HEAD, head, settings.wait_head, "AGENT_WAIT_HEAD")
    yield from _of_steps(settings, here, longest_waits((*steps, *services)))
    if launcher(settings, None) != "torchrun":
        yield PlannedWait(JOIN, "Ray on this node to join, per join", JOIN_LIMIT, FIXED)
    out_of_reach = "head and GCS out of reach, until all here is stopped"
    yield PlannedWait(FENCE, out_of_reach, FENCE_SHARE * settings.node_grace, "AGENT_NODE_GRACE")
    grace = settings.head_grace
    yield PlannedWait(SILENT_HEAD, "a head that fell silent", grace, "AGENT_HEAD_GRACE")
    yield _stop(settings)


def _of_steps(
    settings: Settings, steps: tuple[PrepareStep, ...], before: Mapping[str, float]
) -> Iterator[PlannedWait]:
    """Wait for steps, and before that for all that steps and services wait for.

    It may run on a node that comes up later than this one.
    """
    own = ", each from its own start" if any(before.get(step.name) for step in steps) else ""
    if steps:
        longest = max(step.within for step in steps)
        yield PlannedWait(PREPARE, f"prepare steps{own}", longest, steps[0].deadline_variable)
    if any(before.values()):
        longest = max(before.values()) + settings.wait_head + settings.wait_workers
        what = "all that a step or service waits for before it starts"
        yield PlannedWait(BEFORE, what, longest, "the sum of theirs")


def _stop(settings: Settings) -> PlannedWait:
    return PlannedWait(STOP, "a stop, all in all", settings.stop_grace, "AGENT_STOP_GRACE")
