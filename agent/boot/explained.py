"""Why a run failed, as its logs tell: an outcome is given the remedy that its own words lack."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from agent.base.outcome import Kind
from agent.node.disks import free_at
from agent.plan.plan import BRIDGE, JOB_LOG, RAY_LOG
from agent.record.files import end_of
from agent.runtime.last_words import in_thread

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.base.outcome import Outcome
    from agent.boot.node_run import NodeRun
    from agent.plan.plan import Plan

_MOST = 256 << 10
"""So many bytes of each log's end are looked at."""
_LIMIT = 2.0
_NO_ROOM = 1 << 20
_EXPLAINED = (Kind.JOB_FAILED, Kind.UNAVAILABLE, Kind.LOST)
OF_RAY = (
    *("raylet.out", "raylet.err", "gcs_server.out", "gcs_server.err", "runtime_env_agent.log"),
    *("dashboard_agent.log", "dashboard.log"),
)
"""Ray's own logs that may tell why it ended."""


async def explained(run: NodeRun, outcome: Outcome, elsewhere: str = "") -> Outcome:
    """Return an outcome with the remedy that its logs here tell of, or that was told elsewhere."""
    if outcome.kind not in _EXPLAINED:
        return outcome
    from agent.decisions.remedies import explain  # noqa: PLC0415 - only where a run has failed

    files = list(_logs(run, outcome))

    def look() -> str:
        ends = ((path.name, end_of(path, _MOST) or b"") for path in files)
        found = explain(tuple((name, end.decode(errors="replace")) for name, end in ends))
        told = "" if found is None else found.remedy()
        if found is not None and found.key != "disk full":
            return told
        return _full_disk(run.plan, outcome.kind, of_a_job=bool(told)) or told

    told = run.redactor.clean(await in_thread(look, _LIMIT))
    if not told and outcome.kind is Kind.JOB_FAILED:
        told = elsewhere
    if not told or told in outcome.remedy:
        return outcome
    return replace(outcome, remedy=". ".join(filter(None, (told, outcome.remedy))))


def _logs(run: NodeRun, outcome: Outcome) -> Iterator[Path]:
    """Yield the logs that may tell of it, the nearest first.

    Of a job that failed by itself only its own output counts: what Ray said besides may be old.
    """
    yield run.folder.file(JOB_LOG)
    if outcome.kind is Kind.JOB_FAILED:
        return
    for spec in run.plan.possible_services:
        yield run.folder.file(spec.log)
    for step in run.plan.steps:
        yield run.folder.file(step.log)
    yield run.folder.file(RAY_LOG)
    yield from (
        run.folder.file(process.log) for process in run.plan.processes if process.name == BRIDGE
    )
    logs = logs_of_ray(run)
    if logs is not None:
        yield from (logs / name for name in OF_RAY)


def logs_of_ray(run: NodeRun) -> Path | None:
    """Return the folder in which our own Ray keeps its logs; None where it is not ours."""
    ray = run.plan.own_ray
    return None if ray is None else Path(ray.session, "session_latest", "logs")


def _full_disk(plan: Plan, kind: Kind, *, of_a_job: bool) -> str:
    """Say which disk has no room at all: nobody could write there why it ended."""
    if kind is not Kind.JOB_FAILED and plan.own_ray is not None:
        place, what = plan.facts.temp, "where Ray keeps its sessions"
        moved = "move Ray's sessions (AGENT_RAY_ARGS=--temp-dir=/larger)"
    elif of_a_job and plan.job is not None and plan.job.checkpoints:
        place, what = plan.job.checkpoints, "where the checkpoints go"
        moved = "choose another folder (AGENT_CHECKPOINTS)"
    else:
        return ""
    free = free_at(place)
    if free is None or free >= _NO_ROOM:
        return ""
    return f"the disk of {place}, {what}, is full. Free some space there, or {moved}"
