"""The waits of a run with their limits, for `plan` and for the decisions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.base import times
from agent.base.text import duration_text, listed
from agent.job.job import is_sized_by_links, prints_steps
from agent.job.services import ON_EVERY, longest_waits
from agent.plan.plan import PlannedWait
from agent.settings.jobs import notice_signal, on_stall

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agent.job.job import Job
    from agent.job.services import PrepareStep
    from agent.plan.plan import Plan
    from agent.settings.model import Settings

SUBMISSION = 120.0  # For Ray to accept the job; an upload of a working_dir has more, by its size.
_RAY_JOINS = 120.0  # For `ray start` on a worker, per join.
_SHARE_REPORTS = 8.0  # With torchrun: for every node's report after the job failed on one.
JOINS_RAY = "Ray on this node to join"
HEAD = "head"  # on the head its Ray, on a worker the head
WORKERS = "workers"
MEMBERS = "members"  # for enough members of a group to serve
GROUP_NODES = "nodes of a group"  # for the addresses of all of them, which the job gets
PREPARE = "prepare"
BEFORE = "before"  # everything that a service or step waits for before it starts
SUBMIT = "submit"
JOB = "word of the job"
FIRST_STEP = "first step"
STALL = "stall"  # a job without progress: it is examined, and AGENT_ON_STALL follows
JOIN = "join"
NODE = "lost node"
SILENT_HEAD = "silent head"
FENCE = "fence"  # neither the head's agent nor GCS is reachable: the worker stops its processes
STOP = "stop"
SAVE = "save"  # for a new checkpoint before a stop; on a worker for the head to release it
FAILURE_REPORTS = "ask"  # for every node's report after a job has failed
PROBE = "probe"  # for each node's probe of the reward server
PREFLIGHT = "preflight"  # for the all-reduce before the job
LINKS = "links"  # for the bandwidth between nodes, by which a recipe is sized
# These six are not shown in the plan:
DEAD_NODES = "dead nodes"  # for Ray to drop nodes that do not count, before the job may use them
REPORTS = "first reports"  # of nodes that joined the Ray of a killed agent
PAUSE = "pause"  # between two attempts
CLEAR = "clear"  # for all reachable nodes to end an attempt before the next
UNREACHABLE = "away"  # for an unreachable node to end it by itself
HANG = "hang"  # for a stopped process of Ray to continue
_UPLOAD_RATE = 512 << 10  # bytes a second of the slowest upload for which a submission waits


def planned_waits(plan: Plan) -> Iterator[PlannedWait]:
    """Yield the waits of this node in the order of a run; its steps may wait for other nodes'."""
    settings = plan.settings
    topology = plan.topology
    if topology.is_idle:
        return
    before = longest_waits((*plan.all_steps, *plan.all_services))
    if topology.is_head:
        yield from _on_the_head(plan, before)
    else:
        head = f"the head {topology.head_host}"
        fence = times.FENCE_SHARE * settings.node_grace
        yield PlannedWait(HEAD, head, settings.wait_head, "AGENT_WAIT_HEAD")
        here = tuple(step for step in plan.all_steps if step.where.kind == ON_EVERY.kind)
        yield from _of_steps(settings, here, before)
        if plan.share_launcher is None and plan.joins_cluster:
            yield PlannedWait(JOIN, f"{JOINS_RAY}, per join", _RAY_JOINS)
        out_of_reach = "head and GCS out of reach, until all here is stopped"
        yield PlannedWait(FENCE, out_of_reach, fence, "AGENT_NODE_GRACE")
        if notice_signal(settings):
            saved = "the job to save before this node leaves"
            yield PlannedWait(SAVE, saved, plan.budget.job, "AGENT_STOP_GRACE")
        yield PlannedWait(SILENT_HEAD, "a silent head", settings.head_grace, "AGENT_HEAD_GRACE")
    yield PlannedWait(STOP, "a stop in total", settings.stop_grace, "AGENT_STOP_GRACE")


def _on_the_head(plan: Plan, before: Mapping[str, float]) -> Iterator[PlannedWait]:
    settings = plan.settings
    services = plan.all_services
    job = plan.job
    given = plan.topology.given_ray
    workers = plan.topology.expected_workers

    # Ray, prepare steps, services and workers.
    if plan.share_launcher is None:
        whose = "the head's Ray" if given is None else f"{given.owner}'s Ray"
        yield PlannedWait(HEAD, whose, settings.wait_head, "AGENT_WAIT_HEAD")
    yield from _of_steps(settings, plan.all_steps, before)
    for spec in services:
        where = "" if spec.where.kind == "head" else f" on {spec.where.sentence()}"
        yield PlannedWait(spec.name, f"the {spec.name}{where}", spec.within, spec.deadline_variable)
    if workers or any(spec.where.is_by_rank for spec in services):
        by_rank = [spec.name for spec in services if spec.where.is_by_rank]
        count = f"{workers} worker(s)" if workers else f"the nodes of {listed(by_rank)}"
        yield PlannedWait(WORKERS, count, settings.wait_workers, "AGENT_WAIT_WORKERS")

    # Checks before the job.
    if workers and given is None and any(spec.url for spec in services):
        yield PlannedWait(PROBE, "each node's probe of the reward server", times.NODE_PROBE)
    if settings.preflight is not None and given is None:
        yield PlannedWait(PREFLIGHT, "an all-reduce over all nodes", times.ALL_REDUCE)
    if workers and given is None and is_sized_by_links(job):
        links = "the bandwidth between the nodes, once per run: it decides how weights are sharded"
        yield PlannedWait(LINKS, links, times.BANDWIDTH_SAMPLE)

    # The job.
    if job is not None:
        limit = SUBMISSION + (job.upload.size / _UPLOAD_RATE if job.upload else 0)
        silence = times.NO_JOB_STATUS if plan.share_launcher is None else _SHARE_REPORTS
        yield PlannedWait(SUBMIT, "the job to be accepted, from the first try", limit)
        yield PlannedWait(JOB, "the job's status", silence)
    if job is not None and settings.stall:
        yield from _of_stalls(settings, job)

    yield PlannedWait(NODE, "a lost node", settings.node_grace, "AGENT_NODE_GRACE")


def _of_stalls(settings: Settings, job: Job) -> Iterator[PlannedWait]:
    """Yield after how long a job without progress is examined."""
    examined = f"then the job is examined{_after_stall(settings)}"
    if settings.first_step is not None or prints_steps(job):
        first = times.FIRST_STEP if settings.first_step is None else settings.first_step
        what = f"without a first step, {examined}"
        yield PlannedWait(FIRST_STEP, what, first, "AGENT_FIRST_STEP")
    if settings.stall == "auto":
        least = duration_text(times.STALL_LEAST)
        known = f"steps known: 3 usual steps, at least {least}"
        what = f"without a sign of work ({known}), {examined}"
        yield PlannedWait(STALL, what, times.STALL_QUIET, "AGENT_STALL")
    else:
        what = f"without a sign of work, or a step where they are known, {examined}"
        yield PlannedWait(STALL, what, settings.stall, "AGENT_STALL")


def _after_stall(settings: Settings) -> str:
    """Return what follows a stall, as a clause; '' if it is only logged."""
    action = on_stall(settings)
    if action == "stop":
        return "; if twice alike, the run ends with 75"
    if action == "log":
        return ""
    is_by_hand = settings.on_stall is not None
    last = "ends with 75" if is_by_hand else "is only logged"
    return f"; if twice alike, the attempt is lost (without a retry left, it {last})"


def _of_steps(
    settings: Settings, steps: tuple[PrepareStep, ...], before: Mapping[str, float]
) -> Iterator[PlannedWait]:
    """Yield the waits for steps, and for what they and services wait for, maybe on later nodes."""
    if steps:
        longest = max(step.within for step in steps)
        yield PlannedWait(PREPARE, "prepare steps", longest, steps[0].deadline_variable)
    if any(before.values()):
        longest = max(before.values()) + settings.wait_head + settings.wait_workers
        what = "all that a step or service waits for before it starts"
        yield PlannedWait(BEFORE, what, longest, "the sum of theirs")
