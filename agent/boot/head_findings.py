"""The findings of all nodes as `/findings` tells them: each node's own, and those between nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.checks.folding import folded

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.checks.finding import Finding
    from agent.decisions.head.state import HeadState
    from agent.plan.plan import Plan


def findings_of(state: HeadState, plan: Plan, clean: Callable[[str], str]) -> dict[str, object]:
    """Render what the checks found: of each node as it was started, of all since they joined."""
    fleet = state.fleet
    workers = sorted(
        (worker for worker in fleet.workers.values() if not worker.gone),
        key=lambda worker: (worker.number or 0, worker.name),
    )
    told = [
        (worker.name, fleet.findings[worker.key])
        for worker in workers
        if worker.key in fleet.findings
    ]
    found = [(plan.topology.node_name, plan.findings), *told]
    known = {worker.ip for worker in workers if worker.key in fleet.findings}
    return {
        "nodes": [name for name, _ in found],
        "unknown": [name for ip, name in fleet.alive.items() if ip not in known],
        "findings": [
            {**_row(row.finding, clean), "nodes": list(row.nodes)} for row in folded(found)
        ],
        "between": [_row(one, clean) for one in (*state.differences, *state.probes.findings)],
    }


def _row(one: Finding, clean: Callable[[str], str]) -> dict[str, object]:
    return {
        "check": one.check,
        "level": one.level.value,
        "what": clean(one.what),
        "remedy": clean(one.remedy),
    }
