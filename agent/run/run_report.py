"""Write the report of a run into the head's folder, after its end."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import to_builtins
from msgspec.structs import replace

from agent.base import times
from agent.base.ends import Kind
from agent.base.text import error_text, map_texts
from agent.port.glance import judged
from agent.port.page_status import page_status
from agent.port.report_page import REPORT_FILE, report_page
from agent.record.background import in_thread
from agent.record.log import disk_alarm
from agent.run.head_server import read_lines

if TYPE_CHECKING:
    from pathlib import Path

    from agent.base.ends import Outcome
    from agent.run.head_server import RunStatus
    from agent.run.node_run import NodeRun


REPORT_MADE = 10.0  # For report.html at the end of a run: masks over some MB, under load.
REPORT_AT_STOP = 2.0  # The same at a stop, whose grace is over then.


async def write_report(run: NodeRun, status: RunStatus, outcome: Outcome) -> Path:
    """Write the report; return its file, or the run folder where the disk does not take it."""
    full = replace(status.with_private(status.status()), verdict=outcome)
    data = to_builtins({"status": page_status(judged(full)), "series": status.series()})

    # Reading and writing have limits of their own, so that a stalled disk delays the end little.
    logs = await in_thread(partial(_read_logs, run), times.STALLED_DISK) or {}
    is_stopped = outcome.kind is Kind.STOPPED  # the platform's grace may be nearly over
    limit = REPORT_AT_STOP if is_stopped else REPORT_MADE
    page = await in_thread(partial(_page, run, data, logs), limit)
    if page is None:
        return run.folder.path
    limit = disk_alarm.patience(times.STALLED_DISK)
    failure = await in_thread(partial(_write, run, page), limit)
    if failure is None:
        disk_alarm.report_hang(REPORT_FILE)
        return run.folder.path
    disk_alarm.report(REPORT_FILE, failure)
    return run.folder.path if failure else run.folder.file(REPORT_FILE)


def _read_logs(run: NodeRun) -> dict[str, str]:
    """Return the end of each log of this node."""
    return {
        name: read_lines(run.folder.file(file))[0].decode(errors="replace")
        for name, file in run.plan.logs().items()
    }


def _page(run: NodeRun, data: dict[str, Any], logs: dict[str, str]) -> str:
    """Return the page, with every text masked."""
    clean = run.redactor.clean
    masked = map_texts(data, clean)
    return report_page(masked["status"], masked["series"], map_texts(logs, clean))


def _write(run: NodeRun, page: str) -> str:
    """Write the page; return why it could not be written, or ''."""
    failure = run.effects.disk.write(run.folder.file(REPORT_FILE), page)
    return "" if failure is None else error_text(failure)
