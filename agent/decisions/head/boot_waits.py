"""The head's waits in each phase with their deadlines."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.base import times
from agent.base.text import first_names, listed
from agent.decisions.attempts import may_be_retried
from agent.decisions.head import losses, own_ray
from agent.decisions.head.head_state import HeadPhase, HeadState, Uncounted
from agent.decisions.head.members import group_waits
from agent.decisions.head.preflight import preflight_waits
from agent.decisions.head.probes import probe_waits
from agent.decisions.shared import Step, Wait
from agent.plan import waits as wait_keys

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.decisions.head.head_state import Key

_PREPARE_STALE = 60.0  # A running prepare step extends the workers' deadline while it is reported.
# After the job's grace, until Ray reports it killed; only if an attempt follows.
_JOB_KILLED = 10.0


_WORKERS_REMEDY = (
    "Do as many pods run as EXPECTED_WORKERS says, and does each reach the head (see its log)? "
    "AGENT_WAIT_WORKERS waits longer"
)
_MAX_NAMED = 8  # how many nodes with a service that is not ready are named; the rest are counted


def pending_waits(state: HeadState) -> tuple[Wait, ...]:
    """Return all waits of the current phase, with deadline and evidence."""
    return tuple(_WAITS[state.phase](state)) if state.phase in _WAITS else ()


def service_title(state: HeadState, key: Key) -> str:
    """Return the name of a service, and of the worker that runs it, for messages."""
    node, name = key
    worker = state.fleet.workers.get(node)
    return name if worker is None else f"{name} on {worker.label}"


def needs_service(state: HeadState, key: Key) -> bool:
    """Return whether the run relies on a service on a node.

    A lost worker in whose place another one is there delays and ends nothing by its services.
    """
    node, name = key
    if not state.relies_on(node):
        return False
    worker = state.fleet.workers.get(node)
    if worker is None:  # the head itself
        return True
    is_of_one_rank = state.goal.service(name).where.kind == "rank" or worker.service_only
    is_replaced = worker.lost and len(state.fleet.alive) >= state.required
    return is_of_one_rank or not is_replaced


def _boot_waits(state: HeadState) -> Iterator[Wait]:
    needed = tuple(_required_waits(state))
    yield from needed
    attempt = state.attempt
    yield from preflight_waits(state)
    if needed:
        return
    yield from probe_waits(state)
    if state.not_before > state.began:
        what = f"attempt {attempt.number} to begin"
        yield Wait(wait_keys.PAUSE, what, state.not_before, "a pause after the loss")


def _required_waits(state: HeadState) -> Iterator[Wait]:
    goal = state.goal

    # Ray, and the jobs that a given Ray lists.
    ray = state.ray.item
    is_ending = losses.left_here(state) is not None  # the last attempt's: it is waited for below
    if ray.step is Step.PENDING and not is_ending:
        until = own_ray.deadline(state)
        yield Wait(wait_keys.HEAD, goal.ray, until, ray.evidence, output=ray.output)
    elif goal.asks_for_jobs and not state.ray.jobs_known:
        what = f"the list of jobs of {goal.ray}"
        until = state.deadline_of(wait_keys.HEAD)
        yield Wait(wait_keys.HEAD, what, until, ray.evidence, output=ray.output)
    yield from own_ray.doubt_waits(state)

    # Services, prepare steps, and the end of the last attempt.
    yield from _service_waits(state)
    yield from group_waits(state)
    yield from _rank_waits(state)
    yield from _step_waits(state)
    yield from losses.clearing_waits(state)

    # The workers; longer while a worker that prepares still reports.
    if len(state.fleet.alive) < state.required:
        longest = state.began + state.goal.max_prepare_seconds
        prepares_until = min(longest, state.fleet.last_preparing_at + _PREPARE_STALE)
        until = max(state.deadline_of(wait_keys.WORKERS), prepares_until)
        missing = partial(state.fleet.describe_missing, state.required)
        yield Wait(wait_keys.WORKERS, "workers", until, missing, remedy=_WORKERS_REMEDY)

    # Nodes in Ray whose agents may still report, and those that Ray is to drop.
    unreported = state.unreported_nodes
    if state.reports_due is not None and unreported:
        what = f"a report from {first_names(unreported, _MAX_NAMED)}"
        evidence = "Ray lists it; a node without an agent counts after this"
        yield Wait(wait_keys.REPORTS, what, state.reports_due, evidence)
    yield from _dead_node_waits(state)


def recount_uncounted(state: HeadState, now: float) -> HeadState:
    """Find the nodes that Ray lists though they do not count; give up those that it keeps.

    Only once enough workers have joined: all before is waited for anyway.
    """
    fleet = state.fleet
    checked = state.uncounted.fleet
    known = state.uncounted.since
    if not state.goal.has_job or len(fleet.alive) < state.required:
        return state
    late = {key for key, since in known.items() if now >= since + times.GCS_REPORTS_LOSS}
    if not late and checked is not None and fleet.has_nodes_of(checked):
        return state

    uncounted = {node.node_id: known.get(node.node_id, now) for node in fleet.uncounted()}
    uncounted |= dict.fromkeys(late & uncounted.keys(), -math.inf)
    return replace(state, uncounted=Uncounted(uncounted, fleet))


def _dead_node_waits(state: HeadState) -> Iterator[Wait]:
    """Yield the wait for Ray to drop dead nodes: it would start parts of the job there."""
    awaited = {key: at for key, at in state.uncounted.since.items() if math.isfinite(at)}
    if not awaited or not state.goal.has_job:
        return

    dead = (node for node in state.fleet.uncounted() if node.node_id in awaited)
    names = dict.fromkeys(state.fleet.label_at(node.ip) for node in dead)
    until = min(awaited.values()) + times.GCS_REPORTS_LOSS
    what = f"Ray to drop {first_names(names, _MAX_NAMED)}"
    yield Wait(wait_keys.DEAD_NODES, what, until, "Ray lists it, and it has not joined or was lost")


def _service_waits(state: HeadState) -> Iterator[Wait]:
    """Yield a wait per service that is not ready, one for all of its nodes."""
    for name, pending in state.services.pending.items():
        spec = state.goal.service(name)
        if spec.where.kind == "group":
            continue  # they wait together: members.py
        remedy = spec.remedy
        if not spec.is_front:  # its limit is no user's
            remedy = f"{remedy}, or raise {spec.deadline_variable}"
        nodes = {
            node: until for node, until in pending.items() if needs_service(state, (node, name))
        }
        if len(nodes) == 1:
            key = (next(iter(nodes)), name)
            title = service_title(state, key)
            item = state.services.by_key[key]
            is_blocked = key in state.services.blocked
            last = f"not started, {item.evidence}" if is_blocked else item.evidence
            yield Wait(name, title, item.deadline, last, remedy=remedy, output=item.output)
        elif nodes:
            what = f"{name} on {spec.where.sentence()}"
            evidence = partial(_evidence_of_nodes, state, name)
            yield Wait(name, what, min(nodes.values()), evidence, remedy=remedy)


def _evidence_of_nodes(state: HeadState, name: str) -> str:
    keys = [
        (node, name) for node in state.services.pending[name] if needs_service(state, (node, name))
    ]
    named = [
        f"{service_title(state, key)}: {state.services.by_key[key].evidence or 'no report yet'}"
        for key in keys[:_MAX_NAMED]
    ]
    more = len(keys) - len(named)
    return "; ".join([f"{len(keys)} not ready", *named, *([f"{more} more"] if more else [])])


def _rank_waits(state: HeadState) -> Iterator[Wait]:
    """Yield a wait per service with a fixed rank whose node has not reported."""
    for spec in state.goal.services:
        if spec.where.kind == "rank" and spec.essential and state.service_home(spec.name) is None:
            what = f"{spec.where.sentence()}, which is to run {spec.name}"
            key = f"{spec.name} {spec.where.sentence()}"
            until = state.deadline_of(wait_keys.WORKERS)
            yield Wait(key, what, until, partial(_last_detail, state, spec.where.rank))


def _last_detail(state: HeadState, rank: int | None) -> str:
    """Return the last detail from the node of a rank, if it ever reported."""
    workers = state.fleet.workers.values()
    details = (worker.detail for worker in workers if worker.effective_rank == rank)
    return next(filter(None, details), "no report yet")


def _step_waits(state: HeadState) -> Iterator[Wait]:
    """Yield the waits for prepare steps; those with the same deadline share one."""
    running: dict[float, list[str]] = {}
    for key, item in state.steps.by_key.items():
        name = key[1]
        if key in state.services.blocked:
            yield Wait(name, name, item.deadline, f"not started, {item.evidence}")
        elif item.step is Step.PENDING:
            running.setdefault(item.deadline, []).append(name)
    for until, names in running.items():
        yield Wait(names[0], listed(names), until)


def _running_waits(state: HeadState) -> Iterator[Wait]:
    if state.goal.has_job and not state.goal.by_shares:
        report = state.job.report
        status = report.status.lower() if report else "submitted"
        until = state.job.last_status_at + state.goal.limits[wait_keys.JOB]
        yield Wait(
            key=wait_keys.JOB,
            what="the job's status from Ray",
            deadline=until,
            source=f"last: {status}",
            is_following=True,
        )
    yield from own_ray.doubt_waits(state)
    yield from _service_waits(state)


def _resuming_waits(state: HeadState) -> Iterator[Wait]:
    stop = state.durable.stop
    ray = state.ray.item
    if stop is not None:
        yield Wait(wait_keys.STOP, "the job to stop", stop.began_at + _stop_limit(state))
    elif state.job.want is None:
        until = state.deadline_of(wait_keys.HEAD)
        yield Wait(wait_keys.HEAD, state.goal.ray, until, ray.evidence, output=ray.output)
    else:
        until = state.job.last_status_at + state.goal.limits[wait_keys.JOB]
        what = f"the status of attempt {state.attempt.number} from Ray"
        yield Wait(wait_keys.JOB, what, until, ray.evidence, output=ray.output)


def submit_wait(state: HeadState) -> Wait:
    """Return the wait for a submission."""
    until = state.phase_since + state.goal.limits[wait_keys.SUBMIT]
    who = "the job to start on every node" if state.goal.by_shares else "Ray to take the job"
    job = state.job.item
    last = state.ray.item if job is None or not job.evidence else job
    return Wait(wait_keys.SUBMIT, who, until, last.evidence, output=last.output)


def _judging_waits(state: HeadState) -> Iterator[Wait]:
    doubt = state.job.unreachable_nodes
    if doubt:
        what = "GCS to report a lost node"
        until = state.phase_since + times.GCS_REPORTS_LOSS
    else:
        what = "a report from every node"
        until = state.phase_since + times.NODES_ASKED
    yield Wait(wait_keys.FAILURE_REPORTS, what, until, doubt)


def stop_deadline(state: HeadState) -> float:
    """Return the time by which a job must have stopped; later if another attempt follows."""
    saving = state.ending.saving
    if saving is None or saving.is_of_grace:
        return state.phase_since + _stop_limit(state)
    return saving.until + _stop_limit(state)


def _stop_limit(state: HeadState) -> float:
    grace = state.goal.job_stop_grace
    verdict = state.outcome
    if verdict is not None and may_be_retried(verdict) and state.another_follows:
        return grace + _JOB_KILLED
    return grace


def _stopping_waits(state: HeadState) -> tuple[Wait]:
    saving = state.ending.saving
    if saving is not None:
        return (Wait(wait_keys.SAVE, "the job to save", saving.until),)
    return (Wait(wait_keys.STOP, "the job to stop", stop_deadline(state)),)


_WAITS = {
    HeadPhase.RESUMING: _resuming_waits,
    HeadPhase.BOOTING: _boot_waits,
    HeadPhase.SUBMITTING: lambda state: (submit_wait(state),),
    HeadPhase.RUNNING: _running_waits,
    HeadPhase.JUDGING: _judging_waits,
    HeadPhase.STOPPING: _stopping_waits,
}
