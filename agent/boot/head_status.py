"""The head's state as the status that `/status`, the page and the metrics show."""

from __future__ import annotations

from dataclasses import asdict
from types import MappingProxyType
from typing import TYPE_CHECKING

from agent.decisions import head
from agent.decisions.head.waits import service_title
from agent.decisions.head.workers import NodeState
from agent.decisions.items import HERE
from agent.record.outcome_file import Outage

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from agent.control.aside import Aside
    from agent.decisions.head.roster import Key
    from agent.decisions.head.state import HeadState, Worker
    from agent.decisions.items import Item
    from agent.plan.plan import Plan
    from agent.record.timeline import Span, Timeline


def outages_of(state: HeadState, node: str, utc: Callable[[float], str]) -> tuple[Outage, ...]:
    """Return when services did not answer, as records have it; `node` is the head's own name."""
    return tuple(
        Outage(
            one.service,
            node if one.node == HERE else one.node,
            utc(one.since),
            None if one.until is None else utc(one.until),
        )
        for one in state.outages
    )


def status_of(  # noqa: PLR0913 - all that a status tells of
    state: HeadState,
    plan: Plan,
    run_id: str,
    epoch: int,
    now: float,
    timeline: Timeline,
    outages: Sequence[Outage] = (),
    asides: Mapping[str, Aside] = MappingProxyType({}),
) -> dict[str, object]:
    """Render the head's state as data, without a secret in it."""
    job, report = None, state.attempt.report
    if plan.job is not None:
        status = report.status.lower() if report else "not submitted"
        job = {"name": plan.job.name, "status": status, "attempt": state.attempt.number}
    return {
        "run_id": run_id,
        "epoch": epoch,
        "role": "head",
        "platform": plan.topology.claim.platform,
        "name": plan.topology.node_name,
        "phase": state.phase.value,
        "seconds": round(now, 1),
        "seconds_in_phase": round(now - state.since, 1),
        "phases": _spans(timeline.phases),
        "waits": [wait.to_dict(now) for wait in head.waits(state)],
        "ray": {"state": state.ray.step.value, "detail": state.ray.evidence},
        "nodes": _nodes(state, now, timeline, asides),
        "services": [
            _service(state, key, item, now, asides.get(key[0]))
            for key, item in state.services.items.items()
        ],
        "prepare": [
            {"name": name, "state": item.step.value, "detail": item.evidence}
            for (_, name), item in state.steps.items()
        ],
        "outages": [outage.in_outcome() for outage in outages],
        "job": job,
        "verdict": None if state.verdict is None else state.verdict.to_dict(),
    }


def _service(
    state: HeadState, key: Key, item: Item, now: float, aside: Aside | None
) -> dict[str, object]:
    node, name = key
    worker = state.fleet.workers.get(node)
    where = HERE if worker is None else worker.name
    outages = [one for one in state.outages if (one.service, one.node) == (name, where)]
    since = next((one.since for one in outages if one.until is None), None)
    seconds = sum((now if one.until is None else one.until) - one.since for one in outages)
    latency = None if aside is None else aside.latencies.get(name)
    return {
        "name": service_title(state, key),
        "state": item.step.value,
        "detail": item.evidence,
        "restarts": item.generation - 1,
        "outages": len(outages),
        "outage_seconds": round(seconds, 1),
        "outage_since": None if since is None else round(since, 1),
        "latency": None if latency is None else asdict(latency),
    }


def _spans(spans: Sequence[Span]) -> list[list[object]]:
    return [[span.phase, round(span.start, 1)] for span in spans]


def _nodes(
    state: HeadState, now: float, timeline: Timeline, asides: Mapping[str, Aside]
) -> list[dict[str, object]]:
    alive, workers = state.fleet.alive, state.fleet.workers.values()
    ordered = sorted(workers, key=lambda worker: (worker.rank or 0, worker.name))
    known = {worker.ip for worker in workers}
    return [
        *(_with_agent(one, alive, now, timeline, asides.get(one.key)) for one in ordered),
        *(_without_agent(ip) for ip in alive if ip not in known),
    ]


def _with_agent(
    worker: Worker,
    alive: Mapping[str, str],
    now: float,
    timeline: Timeline,
    aside: Aside | None,
) -> dict[str, object]:
    steps = {} if aside is None else aside.steps
    return {
        "name": worker.name,
        "ip": worker.ip,
        "rank": worker.number,
        "state": worker.state(counts=worker.ip in alive).value,
        "phase": worker.phase,
        "detail": worker.refused or worker.detail,
        "last_error": worker.refused or worker.error,
        "heard_seconds_ago": round(now - worker.heard, 1),
        "joined": worker.ip in alive,
        "phases": _spans(timeline.nodes.get(worker.key, ())),
        "steps": [{"name": name, "state": step.value} for name, step in steps.items()],
    }


def _without_agent(ip: str) -> dict[str, object]:
    return {
        "name": ip,
        "ip": ip,
        "rank": None,
        "state": NodeState.JOINED.value,
        "phase": "in Ray, without an agent",
        "detail": "",
        "last_error": "",
        "heard_seconds_ago": None,
        "joined": True,
        "phases": [],
        "steps": [],
    }
