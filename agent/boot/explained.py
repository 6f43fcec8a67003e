"""Why a run failed, as its logs tell: an outcome is given the remedy that its own words lack."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from agent.base.outcome import Kind
from agent.plan.plan import BRIDGE, JOB_LOG, RAY_LOG
from agent.runtime.last_words import in_thread

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.base.outcome import Outcome
    from agent.boot.node_run import NodeRun

_MOST = 256 << 10
"""So many bytes of each log's end are looked at."""
_LIMIT = 2.0
_EXPLAINED = (Kind.JOB_FAILED, Kind.UNAVAILABLE, Kind.LOST)
_OF_RAY = (
    *("raylet.out", "raylet.err", "gcs_server.out", "gcs_server.err", "runtime_env_agent.log"),
    *("dashboard_agent.log", "dashboard.log"),
)


async def explained(run: NodeRun, outcome: Outcome) -> Outcome:
    """Return an outcome with the remedy that its logs tell of, where they do."""
    if outcome.kind not in _EXPLAINED:
        return outcome
    from agent.decisions.remedies import explain  # noqa: PLC0415 - only where a run has failed

    files = list(_logs(run, outcome))

    def look() -> str:
        found = explain(tuple((path.name, _end_of(path)) for path in files))
        return "" if found is None else found.remedy()

    told = run.redactor.clean(await in_thread(look, _LIMIT))
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
    if run.plan.own_ray is not None:
        logs = Path(run.plan.own_ray.session, "session_latest", "logs")
        yield from (logs / name for name in _OF_RAY)


def _end_of(path: Path) -> str:
    """Read the end of a log; one that is not there tells nothing."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _MOST))
            return file.read(_MOST).decode(errors="replace")
    except OSError:
        return ""
