"""The search for runs, and for the folders of their nodes, in AGENT_LOG_DIR."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from agent.record import node_record
from agent.record.events import EVENTS_FILE
from agent.record.files import safe_name
from agent.record.log_dir import owner_of_runs
from agent.record.node_record import NodeRecord
from agent.record.outcome_file import OUTCOME_FILE
from agent.record.run_record import RUN_FILE, RunRecord

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

_NODE_MARKS = {OUTCOME_FILE, node_record.NODE_FILE, EVENTS_FILE}
"""A node's folder has at least one of these files."""
_DEEPEST_RUN = 4
_CHECKPOINTS = "checkpoints"  # the folder of recipes' checkpoints in AGENT_LOG_DIR


def node_folders(run: Path) -> list[Path]:
    """Return the folders of the nodes in a run's folder, the head's first."""
    record = RunRecord.read(run / RUN_FILE)
    head = safe_name(record.durable.head) if isinstance(record, RunRecord) else ""
    nodes = (path for path in nodes_below(run) if path.parent == run)
    return sorted(nodes, key=lambda node: (node.name != head, node.name))


def newest_run(folder: Path) -> Path | None:
    """Return the run in or below a folder that was written last, whoever made it."""
    return newest_of(nodes_below(folder.resolve()))


class ChosenFolder(NamedTuple):
    """The run chosen in AGENT_LOG_DIR, and what was left out."""

    run: Path | None
    nodes: tuple[Path, ...] = ()  # the folders of its nodes, the head's first
    left_out: tuple[str, ...] = ()  # runs of other users


def choose_newest_run(root: Path) -> ChosenFolder:
    """Choose the newest run in AGENT_LOG_DIR; where others may write, none that others made.

    What the owner of AGENT_LOG_DIR made is used, too.
    """
    # Whose runs are used?
    root = root.resolve()
    own = owner_of_runs(root)
    owners: set[int] | None = None
    if own is not None:
        owners = {own, root.stat().st_uid}

    # Which is the newest?
    left_out: list[str] = []
    known = {*nodes_below(root, owners, left_out)}
    run = newest_of(known)
    nodes = [] if run is None else node_folders(run)
    nodes = [node for node in nodes if node in known]
    return ChosenFolder(run, tuple(nodes), tuple(sorted(left_out)))


def newest_of(nodes: Iterable[Path]) -> Path | None:
    """Return the run of the node's folder that was written last."""
    written: list[tuple[float, Path]] = []
    for node in nodes:
        for name in _NODE_MARKS:
            with suppress(OSError):
                written.append(((node / name).stat().st_mtime, node.parent))
    return max(written, default=(0.0, None))[1]


def nodes_below(
    folder: Path, owners: Collection[int] | None = None, left_out: list[str] | None = None
) -> Iterator[Path]:
    """Yield the folders of nodes in or below a folder.

    With `owners` none that others made; the names of their runs are added to `left_out`.
    """
    for path, folders, names in os.walk(folder):
        place = Path(path)
        if owners is not None:
            others = [name for name in folders if not belongs_to(owners, place / name)]
            folders[:] = [name for name in folders if name not in others]
            if left_out is not None:
                runs = filter(_holds_run, map(place.joinpath, others))
                left_out += [str(run.relative_to(folder)) for run in runs]
        if _NODE_MARKS & {*names}:
            yield place
        if _NODE_MARKS & {*names} or len(place.relative_to(folder).parts) >= _DEEPEST_RUN:
            folders.clear()
        elif _CHECKPOINTS in folders:  # they may hold very many others
            folders.remove(_CHECKPOINTS)


def belongs_to(owners: Collection[int], folder: Path) -> bool:
    """Return whether one of these users made a folder."""
    with suppress(OSError):  # removed meanwhile
        return folder.lstat().st_uid in owners
    return False


def _holds_run(folder: Path) -> bool:
    """Return whether a folder is a run's, as far as this user can read it."""
    if folder.is_symlink():  # `latest`
        return False
    with suppress(OSError):
        names = {path.name for path in folder.glob("*/*")}
        return (folder / RUN_FILE).exists() or bool(_NODE_MARKS & names)
    return False


def agent_runs(node: Path) -> bool | None:
    """Return whether the agent of a node's folder runs; None where its pid is not valid here."""
    record = NodeRecord.read(node / node_record.NODE_FILE)
    if not isinstance(record, NodeRecord) or not node_record.read_pid_space().sees(record.place):
        return None
    return node_record.is_agent_running(record)


def why_no_outcome(node: Path) -> str:
    """Return why a node's folder has no outcome.json."""
    runs = agent_runs(node)
    if runs is None:
        return f"no {OUTCOME_FILE}: the agent still runs, or was killed"
    if runs:
        return "no end yet: the agent runs"
    return f"no {OUTCOME_FILE}: the agent was killed, or could not write it"
