"""A run whose head no longer answers: its status and logs, from the newest run folder."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from agent.base.errors import UnavailableError
from agent.base.text import escaped, first_names
from agent.cli.printing import warn
from agent.cli.running_head import HEAD, reader_settings
from agent.plan.plan import log_files, log_root
from agent.record import outcome_file, run_search
from agent.record.files import NoRecord, read_end, read_small

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from agent.port.log_filter import LogFilter

_MOST_READ = 64 << 20  # bytes of a log that are read, from its end


def newest_run(environ: Mapping[str, str], no_head: str) -> list[Path]:
    """Return the folders of the newest run's nodes, the head's first; raises if there are none.

    A warning says why no head answers, and which folder takes its place.
    """
    root = log_root(reader_settings(environ))
    why = f"no head's agent answers: {no_head}"
    chosen = run_search.choose_newest_run(root)
    warn_left_out(root, chosen)
    if chosen.run is None:
        raise UnavailableError(f"{why}; {no_run_in(root, chosen)}")
    warn(f"{why}; from the newest run folder, {escaped(str(chosen.run))}:")
    return [*chosen.nodes]


def warn_left_out(root: Path, chosen: run_search.ChosenFolder) -> None:
    """Warn of the runs that were not chosen, since other users made them."""
    if not chosen.left_out:
        return
    why = "is left out: another user made it"
    if len(chosen.left_out) > 1:
        why = "are left out: other users made them"
    names = first_names(chosen.left_out)
    warn(f"{escaped(names)} in {root} {why}; `pod-agent explain FOLDER` reads any that you name")


def no_run_in(root: Path, chosen: run_search.ChosenFolder) -> str:
    """Return that no run was found in AGENT_LOG_DIR."""
    whose = " of this user" if chosen.left_out else ""
    return f"{root} (AGENT_LOG_DIR) holds no run{whose}"


def past_status(head: Path, *, as_json: bool) -> str:
    """Return how a run ended, by the outcome in the folder of its head, else of a node."""
    run = head.parent
    file = outcome_file.OUTCOME_FILE
    outcome = outcome_file.read_outcome(head)

    # An outcome that cannot be read is none that was not written.
    if isinstance(outcome, NoRecord) and not outcome.is_missing:
        raise UnavailableError(f"run {run.name}: {file} cannot be read: {outcome.why}")

    is_over = not isinstance(outcome, NoRecord)
    if as_json:
        data = json.loads(read_small(head / file)) if is_over else None
        source = {"run_id": run.name, "node": head.name, "folder": str(run)}
        return json.dumps({**source, "is_over": is_over, "outcome": data})

    if isinstance(outcome, NoRecord):
        return f"run {run.name}: {run_search.why_no_outcome(head)}"
    end = f"{outcome.headline} (exit code {outcome.exit_code})"
    more = f"`pod-agent explain {run}` shows what took long"
    lines = (f"run {run.name} is over: {end}", outcome.remedy, more)
    return "\n".join(escaped(line) for line in lines if line)


def past_log(nodes: list[Path], words: list[str], chosen: LogFilter) -> str:
    """Return the selected lines of a log; raises if there is no such log."""
    folders = {node.name: node for node in nodes}
    node, name = node_and_log(words, folders, nodes[0].name)
    folder = nodes[0] if node == HEAD else folders.get(node)
    nodes_are = f"nodes are {first_names(folders)}"
    if folder is None:
        raise UnavailableError(f"no node is named {node!r}: {nodes_are}")

    files = {path.name: path for path in folder.glob("*.log")}
    file = next((files[file_name] for file_name in log_files(name) if file_name in files), None)
    data = None if file is None else read_end(file, _MOST_READ)
    if file is None or data is None:
        its_logs = first_names(sorted(files), 8) or "none"
        where = f"node {folder.name!r} has no log {name!r}"
        raise UnavailableError(f"{where}: {nodes_are}; its logs are {its_logs}")

    written = datetime.fromtimestamp(file.stat().st_mtime, timezone.utc)
    return chosen.apply(data.decode(errors="replace"), written)


def node_and_log(words: list[str], workers: Iterable[str], head: str = HEAD) -> tuple[str, str]:
    """Return node and log from the arguments: one that is no node's name is a log's."""
    if len(words) == 2:
        return words[0], words[1]
    if not words or words[0] in {HEAD, head}:
        return HEAD, "job"
    if words[0] in workers:
        return words[0], "agent"
    return HEAD, words[0]
