"""Parts of a node's run for tests that need only these parts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from agent.decisions.shared import HERE
from agent.port.protocol import WorkerStats
from agent.processes.waiting import BestEffort
from agent.run.effects import REAL
from agent.run.head_server import RunStatus
from agent.run.questions import Prober

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agent.decisions.head.head_state import HeadState
    from agent.plan.plan import Plan
    from agent.record.summary import Timeline


def status_of(  # noqa: PLR0913 - all that a status shows
    state: HeadState,
    plan: Plan,
    timeline: Timeline | None = None,
    stats: Mapping[str, WorkerStats] | None = None,
    *,
    now: float = 9.0,
    clean: Callable[[str], str] = str,
    get_state: Callable[[], HeadState] | None = None,
    record: Callable[[object], None] | None = None,
) -> RunStatus:
    """Return the status of a run with only these parts; `get_state` for a state that changes."""
    by_agent = dict(stats or {})
    own = by_agent.pop(HERE, WorkerStats())
    run = run_of(plan, clean)
    run.now, run.utc = lambda: now, str
    run.stats = SimpleNamespace(snapshot=lambda: own)
    run.record = record
    store: Any = SimpleNamespace(former_meter=lambda _now: None, measure=lambda **_: None)
    status = RunStatus(run, store, get_state or (lambda: state))
    status.timeline = timeline or status.timeline
    status.worker_stats = by_agent
    return status


def run_of(plan: Plan, clean: Callable[[str], str] = str) -> Any:  # noqa: ANN401 - stands for a NodeRun
    """Return an object with the attributes of a node's run."""
    redactor = SimpleNamespace(clean=clean, clean_fields=lambda event: event)
    return SimpleNamespace(
        plan=plan,
        redactor=redactor,
        best_effort=BestEffort(),
        run_id="run-1",
        notifies=False,
        record_kill=lambda: None,
        started=0.0,
        effects=REAL,
        caches=SimpleNamespace(to_status=lambda: None),
    )


def prober_of(plan: Plan, clean: Callable[[str], str] = str) -> Prober:
    """Return a node's prober."""
    return Prober(run_of(plan, clean))
