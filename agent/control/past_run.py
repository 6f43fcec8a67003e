"""What `status` and `logs` show where no head answers: the newest run folder."""

from __future__ import annotations

import json
import os
from datetime import datetime, timezone
from typing import TYPE_CHECKING, NamedTuple

from agent.base.text import escaped, first_names
from agent.plan.plan import AGENT_LOG, JOB_LOG, RAY_LOG
from agent.record.files import read_small
from agent.record.run_folder import OUTCOME_FILE, newest_run, node_folders, read_outcome
from agent.record.run_record import RUN_FILE, RunRecord

if TYPE_CHECKING:
    from pathlib import Path

    from agent.control.log_filter import LogFilter

_LOGS = {"agent": AGENT_LOG, "ray": RAY_LOG, "job": JOB_LOG}
_MOST_READ = 64 << 20
"""Bytes of a log that are read, from its end."""
HEAD = "head"


class PastRun(NamedTuple):
    """A run folder, and the folders of its nodes, the head's first."""

    path: Path
    run_id: str
    nodes: list[Path]

    def sentence(self) -> str:
        """Say where the output comes from."""
        return f"from the newest run folder, {escaped(str(self.path))}"


def find_past_run(log_root: Path) -> PastRun | None:
    """Return the newest run in a log folder, or None."""
    path = newest_run(log_root)
    if path is None:
        return None
    record = RunRecord.read(path / RUN_FILE)
    run_id, head = path.name, ""
    if isinstance(record, RunRecord):
        run_id, head = record.run_id, record.head
    nodes = sorted(node_folders(path), key=lambda node: (node.name != head, node.name))
    return PastRun(path, run_id, nodes)


def past_status(run: PastRun, *, as_json: bool) -> str:
    """Return how a run ended, by the outcome of its head, else of its first node."""
    node = run.nodes[0]
    outcome = read_outcome(node)
    if as_json:
        found = {} if outcome is None else json.loads(read_small(node / OUTCOME_FILE))
        source = {"run_id": run.run_id, "node": node.name, "folder": str(run.path)}
        return json.dumps({**source, "is_over": outcome is not None, "outcome": found or None})
    if outcome is None:
        return f"run {run.run_id}: no {OUTCOME_FILE}: the agent was killed, or still runs"
    end = f"{outcome.kind.value}: {outcome.reason} (exit code {outcome.exit_code})"
    more = f"`pod-agent explain {run.path}` shows what took long"
    lines = (f"run {run.run_id} is over: {end}", outcome.remedy, more)
    return "\n".join(escaped(line) for line in lines if line)


def past_log(run: PastRun, words: list[str], chosen: LogFilter) -> tuple[str, str]:
    """Return the selected lines of a log, and why there are none."""
    names = {node.name: node for node in run.nodes}
    if len(words) == 2:
        node, name = words
    elif words and words[0] in names:
        node, name = words[0], "agent" if names[words[0]] != run.nodes[0] else "job"
    else:
        node, name = HEAD, words[0] if words and words[0] != HEAD else "job"
    folder = run.nodes[0] if node == HEAD else names.get(node)
    if folder is None:
        return "", f"it has no node {node!r}: {first_names(names)}"
    files = {path.name: path for path in folder.glob("*.log")}
    file = files.get(_LOGS.get(name, f"{name}.log"))
    if file is None:
        return "", f"{folder.name} has no log {name!r}: it has {first_names(_log_names(files), 8)}"
    try:
        text, end = _read_end(file)
    except OSError as error:
        return "", f"{file}: {error.strerror}"
    selected, has_times = chosen.apply(text, end)
    return selected, "" if has_times else f"no line of {file.name} has a time: all are shown"


def _log_names(files: dict[str, Path]) -> list[str]:
    by_file = {file: name for name, file in _LOGS.items()}
    return [by_file.get(name, name.removesuffix(".log")) for name in sorted(files)]


def _read_end(file: Path) -> tuple[str, datetime]:
    """Return the end of a log in whole lines, and when it was last written."""
    with file.open("rb") as opened:
        size = opened.seek(0, os.SEEK_END)
        opened.seek(max(0, size - _MOST_READ))
        data = opened.read(_MOST_READ)
        written = os.fstat(opened.fileno()).st_mtime
    if size > _MOST_READ:
        data = data.partition(b"\n")[2]
    return data.decode(errors="replace"), datetime.fromtimestamp(written, timezone.utc)
