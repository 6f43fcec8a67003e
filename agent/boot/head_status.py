"""The head's state as the status that `/status`, the page and the metrics show."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.decisions import head
from agent.decisions.head.waits import service_title

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.decisions.head.state import HeadState, Worker
    from agent.plan.plan import Plan


def status_of(
    state: HeadState, plan: Plan, run_id: str, epoch: int, now: float
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
        "waits": [wait.to_dict(now) for wait in head.waits(state)],
        "ray": {"state": state.ray.step.value, "detail": state.ray.evidence},
        "nodes": _nodes(state, now),
        "services": [
            {
                "name": service_title(state, key),
                "state": item.step.value,
                "detail": item.evidence,
                "restarts": item.restarts,
            }
            for key, item in state.services.items()
        ],
        "prepare": [
            {"name": name, "state": item.step.value, "detail": item.evidence}
            for (_, name), item in state.steps.items()
        ],
        "job": job,
        "verdict": None if state.verdict is None else state.verdict.to_dict(),
    }


def _nodes(state: HeadState, now: float) -> list[dict[str, object]]:
    alive, workers = state.fleet.alive, state.fleet.workers.values()
    ordered = sorted(workers, key=lambda worker: (worker.rank or 0, worker.name))
    known = {worker.ip for worker in workers}
    return [
        *(_with_agent(worker, alive, now) for worker in ordered),
        *(_without_agent(ip) for ip in alive if ip not in known),
    ]


def _with_agent(worker: Worker, alive: Mapping[str, str], now: float) -> dict[str, object]:
    return {
        "name": worker.name,
        "ip": worker.ip,
        "rank": worker.rank,
        "phase": worker.phase,
        "detail": worker.refused or worker.detail,
        "last_error": worker.refused or worker.error,
        "heard_seconds_ago": round(now - worker.heard, 1),
        "joined": worker.ip in alive,
    }


def _without_agent(ip: str) -> dict[str, object]:
    return {
        "name": ip,
        "ip": ip,
        "rank": None,
        "phase": "in Ray, without an agent",
        "detail": "",
        "last_error": "",
        "heard_seconds_ago": None,
        "joined": True,
    }
