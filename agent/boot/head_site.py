"""What the head's port serves: its status, the workers' reports, and what only some may ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.boot.head_logs import HeadLogs
from agent.control.server import Control, Site
from agent.record import control_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from agent.boot.node_run import NodeRun
    from agent.boot.watched import Watched
    from agent.control.reports import Reports
    from agent.decisions.head.workers import Worker


def site_of(
    run: NodeRun,
    reports: Reports,
    stop: Callable[[], None],
    watched: Watched,
    workers: Callable[[], Iterable[Worker]],
) -> Site:
    """Return the head's site; where there is no token, a key is left for this node's users."""
    plan = run.plan
    key = control_key.make(run.folder.path) if plan.token is None else None
    logs = HeadLogs(run, reports, workers, watched.is_over)
    return Site(
        token=plan.token,
        ready=lambda: True,
        status=watched.status,
        reports=reports,
        run_id=lambda: run.run_id,
        names=(plan.topology.node_name, plan.topology.head_host, *plan.topology.claim.own_names),
        control=Control(
            *(stop, plan.settings.stop_grace, key, watched.findings, logs.part, watched.more)
        ),
    )
