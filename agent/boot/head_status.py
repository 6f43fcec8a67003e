"""The head's state as the status that `/status`, the page and the metrics show."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.decisions.head import story as head
from agent.decisions.head.workers import alive_workers

if TYPE_CHECKING:
    from agent.decisions.head.state import HeadState
    from agent.decisions.shared import Wait
    from agent.plan.plan import Plan


def waits_of(waits: tuple[Wait, ...], now: float) -> list[dict[str, object]]:
    """Render waits as data."""
    return [
        {"what": w.what, "evidence": w.evidence, "seconds_left": round(w.deadline - now, 1)}
        for w in waits
    ]


def status_of(
    state: HeadState, plan: Plan, run_id: str, epoch: str, now: float
) -> dict[str, object]:
    """Render the head's state as data, without a secret in it."""
    alive = alive_workers(state)
    job = None
    if plan.job is not None:
        status = state.job.status.lower() if state.job else "not submitted"
        job = {"name": plan.job.name, "status": status}
    return {
        "run_id": run_id,
        "epoch": epoch,
        "role": "head",
        "platform": plan.topology.platform,
        "name": plan.topology.node_name,
        "phase": state.phase.value,
        "seconds": round(now, 1),
        "seconds_in_phase": round(now - state.since, 1),
        "waits": waits_of(head.waits(state), now),
        "ray": {"state": state.ray.step.value, "detail": state.ray.evidence},
        "nodes": _nodes(state, alive, now),
        "services": [
            {"name": name, "state": item.step.value, "detail": item.evidence}
            for name, item in state.services.items()
        ],
        "prepare": state.prepare.step.value if state.goal.steps else None,
        "job": job,
        "verdict": None if state.verdict is None else state.verdict.to_dict(),
    }


def _nodes(state: HeadState, alive: dict[str, str], now: float) -> list[dict[str, object]]:
    found: list[dict[str, object]] = [
        {
            "name": worker.name,
            "ip": worker.ip,
            "rank": worker.rank,
            "phase": worker.phase,
            "detail": worker.refused or worker.detail,
            "last_error": worker.refused or worker.error,
            "heard_seconds_ago": round(now - worker.heard, 1),
            "joined": worker.ip in alive,
        }
        for worker in sorted(state.workers.values(), key=lambda w: (w.rank or 0, w.name))
    ]
    known = {worker.ip for worker in state.workers.values()}
    found += [
        {
            "name": ip,
            "ip": ip,
            "rank": None,
            "phase": "in Ray, without an agent",
            "detail": "",
            "last_error": "",
            "heard_seconds_ago": None,
            "joined": True,
        }
        for ip in alive
        if ip not in known
    ]
    return found
