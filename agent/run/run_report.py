"""Write the report of a run into the head's folder, after its end."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import to_builtins

from agent.base import times
from agent.base.text import error_text, map_texts
from agent.port.page_status import page_status
from agent.port.report_page import REPORT_FILE, report_page
from agent.record.background import in_thread
from agent.record.log import disk_alarm
from agent.run.head_server import judged, read_lines

if TYPE_CHECKING:
    from agent.base.ends import Outcome
    from agent.run.head_server import RunStatus
    from agent.run.node_run import NodeRun


async def write_report(run: NodeRun, status: RunStatus, outcome: Outcome) -> None:
    """Write the report; a disk that cannot take it ends nothing."""
    verdict = {"verdict": to_builtins(outcome)}
    full = judged({**status.status(), **status.private_details(), **verdict})
    data = {"status": page_status(full), "series": status.series()}
    failure = await in_thread(partial(_write, run, data), times.REPORT_WRITTEN)
    disk_alarm.report(REPORT_FILE, "a write does not end" if failure is None else failure)


def _write(run: NodeRun, data: dict[str, Any]) -> str:
    """Write the report, with every text masked; return why it could not be written, or ''."""
    clean = run.redactor.clean
    logs = {
        name: clean(read_lines(run.folder.file(file))[0].decode(errors="replace"))
        for name, file in run.plan.logs().items()
    }
    masked = map_texts(data, clean)
    page = report_page(masked["status"], masked["series"], logs)
    failure = run.effects.disk.write(run.folder.file(REPORT_FILE), page)
    return "" if failure is None else error_text(failure)
