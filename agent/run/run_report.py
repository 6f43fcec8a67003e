"""Write the report of a run into the head's folder, after its end.

It is the page as one file with its data inside, which needs no server and no other file. Its policy
allows only the script and the style in it, by their digests, so that text of the job in it is never
executed.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import to_builtins
from msgspec.structs import replace

from agent.base import times
from agent.base.ends import Kind
from agent.base.text import error_text, map_texts
from agent.port.glance import judged
from agent.port.page_files import ICONS, SCRIPTS, asset, icon_path
from agent.port.page_status import page_status
from agent.port.status_model import Reader
from agent.record.background import in_thread
from agent.record.log import disk_alarm
from agent.run.head_server import read_lines

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from agent.base.ends import Outcome
    from agent.run.head_server import RunStatus
    from agent.run.node_run import NodeRun

REPORT_FILE = "report.html"
REPORT_MADE = 10.0  # For report.html at the end of a run: masks over some MB, under load.
REPORT_AT_STOP = 2.0  # The same at a stop, whose grace is over then.


async def write_report(run: NodeRun, status: RunStatus, outcome: Outcome) -> Path:
    """Write the report; return its file, or the run folder where the disk does not take it."""
    full = replace(status.with_private(status.status(Reader.ALL)), verdict=outcome)
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


def report_page(
    status: Mapping[str, Any], series: Mapping[str, Any], logs: Mapping[str, str]
) -> str:
    """Return the report, by the brief status at the end and the ends of the head's logs."""
    script = "\n".join(asset(path).decode() for path in SCRIPTS)
    style = asset("/page.css").decode()
    policy = (
        f"default-src 'none'; script-src {_digest(script)}; style-src {_digest(style)}"
        "; img-src data:; base-uri 'none'; form-action 'none'"
        "; require-trusted-types-for 'script'; trusted-types 'none'"
    )
    # `<` would end the block of data; as \u003c it is the same text.
    data = json.dumps({"status": status, "series": series, "logs": logs}, separators=(",", ":"))
    data = data.replace("<", "\\u003c")

    # The links to files are replaced by what the files contain.
    page = asset("/page.html").decode()
    page = re.sub(r'<script src="[^"]*" defer></script>\n', "", page)
    page = page.replace('<link rel="stylesheet" href="/page.css">', f"<style>{style}</style>")
    for state in ICONS:
        page = page.replace(f'"{icon_path(state)}"', f'"{_data_url(icon_path(state))}"')
    meta = f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
    page = page.replace('<meta charset="utf-8">', f'<meta charset="utf-8">\n{meta}')
    block = f'<script type="application/json" id="data">{data}</script>\n<script>{script}</script>'
    return page.replace("</body>", f"{block}\n</body>")


def _digest(text: str) -> str:
    """Return the source of a policy that allows exactly this text."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _data_url(path: str) -> str:
    return f"data:image/svg+xml;base64,{base64.b64encode(asset(path)).decode()}"
