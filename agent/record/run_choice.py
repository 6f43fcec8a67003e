"""Choose the run that a head works on: one that can be resumed, or a new one."""

from __future__ import annotations

import time
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from agent.base.errors import PreflightError
from agent.record.files import (
    FileLock,
    LockHolder,
    NoRecord,
    error_text,
    numbered_names,
    safe_name,
)
from agent.record.node_record import NODE_FILE, NodeRecord, read_pid_space, seems_active
from agent.record.run_record import RUN_FILE, RUN_LOCK, RunRecord

if TYPE_CHECKING:
    from collections.abc import Callable


_TRIES = 100


def why_not_resumed(
    record: RunRecord, fingerprint: str, node: str = "", retries: int | None = None
) -> str:
    """Return why a run may not be resumed, or ''.

    `node` is the name of this head; '' if the platform's run id identifies the run. With `retries`,
    a run without attempts left is not resumed.
    """
    if record.is_over:
        return "it has ended"
    if record.fingerprint != fingerprint:
        return "it is of another job, or other settings"
    if node and record.head and record.head != node:
        return f"its head is {record.head}"
    if retries is not None and len(record.tried) > retries:
        return "its attempts are used up"
    return ""


class ChosenRun(NamedTuple):
    """The run that this head uses."""

    run_id: str
    before: RunRecord | None = None
    """Its record, if it is resumed."""
    skipped: tuple[str, ...] = ()
    """Sentences about runs that were skipped, and why."""
    lock: FileLock | None = None
    """Held until this process exits, so that no other head takes the run."""
    former_head: str = ""
    """The previous head's node if the last attempt may still run there, else ''."""


class FoundRun(NamedTuple):
    """A run on disk."""

    record: RunRecord | NoRecord
    lock: LockHolder
    seems_active: bool = False
    """Whether its head seems to run, for disks without locks."""

    def why_taken(self, fingerprint: str, node: str = "", retries: int | None = None) -> str:
        """Return why this head can neither resume nor make the run, or ''."""
        record = self.record
        if self.lock is LockHolder.THEIRS:
            return "another head has it"
        if isinstance(record, NoRecord):
            return "" if record.is_missing else record.why
        why = why_not_resumed(record, fingerprint, node, retries)
        if not why and self.lock is LockHolder.UNKNOWN and self.seems_active:
            return f"its head {record.head} is active"
        return why


def choose_run(  # noqa: PLR0913 - what ties a head to a run
    root: Path,
    platform_run_id: str | None,
    fingerprint: str,
    new_id: Callable[[], str],
    *,
    node: str = "",
    retries: int | None = None,
    resumed: str = "",
) -> ChosenRun:
    """Resume a run or name a new one, and hold its lock.

    In this order:

    1. `resumed`, the run of the killed agent that this one replaces, in any state.
    2. The platform's run id, with a number if that run is over or another job's.
    3. The run that `latest` points to, if its head was this `node` and `retries` are left.
    4. A new id.

    Where the disk has locks, two heads never choose the same run.
    """
    skipped: list[str] = []
    if resumed:
        lock, found = _find_run(root, resumed)
        if found.lock is not LockHolder.THEIRS and isinstance(found.record, RunRecord):
            return _resume(root, resumed, found.record, lock)
        lock.release()
    latest = _latest(root) if platform_run_id is None else None
    if latest is not None:
        lock, found = _find_run(root, latest)
        why = found.why_taken(fingerprint, node, retries)
        if not why and isinstance(found.record, RunRecord):
            return _resume(root, latest, found.record, lock)
        lock.release()
        skipped += [f"run {latest} is not resumed: {why}"] if why else []
    names = (
        (safe_name(new_id()) for _ in range(_TRIES))
        if platform_run_id is None
        else numbered_names(safe_name(platform_run_id))
    )
    for name in names:
        lock, found = _find_run(root, name)
        why = found.why_taken(fingerprint)
        if not why and isinstance(found.record, RunRecord):
            return _resume(root, name, found.record, lock, *skipped)
        if not why:
            return ChosenRun(name, None, tuple(skipped), lock)
        lock.release()
        skipped.append(f"run {name} is not resumed: {why}")
    raise PreflightError(
        f"no run in {root} is free",
        why=skipped[-1],
        remedy="Choose another folder in AGENT_LOG_DIR",
        culprit="AGENT_LOG_DIR",
    )


def _resume(root: Path, name: str, before: RunRecord, lock: FileLock, *skipped: str) -> ChosenRun:
    """Resume a run; name the head of its last attempt if the attempt may still run there.

    A head holds the run's lock until it exits, so taking the same lock proves that it is gone. A
    lock file with another inode proves nothing.
    """
    last = before.attempts[-1] if before.attempts else None
    if last is None or (lock.inode and last.lock in {None, lock.inode}):
        return ChosenRun(name, before, skipped, lock)
    head = last.head or before.head
    return ChosenRun(
        name, before, skipped, lock, head if _may_run_elsewhere(root / name, head) else ""
    )


def _may_run_elsewhere(run: Path, node: str) -> bool:
    """Return whether processes of a node's agents may still run where this node cannot see them.

    They cannot if the agents ended in good order, or if their pids are valid here.
    """
    here, folders = read_pid_space(), (run / name for name in numbered_names(safe_name(node)))
    records = [NodeRecord.read(one / NODE_FILE) for one in takewhile(Path.is_dir, folders)]
    return not records or not all(
        isinstance(one, NodeRecord) and (one.ended or here.sees(one.place)) for one in records
    )


def _find_run(root: Path, name: str) -> tuple[FileLock, FoundRun]:
    """Read a run on disk and try to take its lock."""
    folder = root / name
    lock = FileLock(folder / RUN_LOCK)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        claim = lock.take()
    except OSError as error:  # making the run folder reports it
        return lock, FoundRun(NoRecord(error_text(error), is_missing=True), LockHolder.UNKNOWN)
    found = RunRecord.read(folder / RUN_FILE)
    now = lock.now_on_disk() or time.time()
    is_active = isinstance(found, RunRecord) and seems_active(folder / safe_name(found.head), now)
    return lock, FoundRun(found, claim, is_active)


def _latest(root: Path) -> str | None:
    """Return the run that `latest` points to, if it is in this folder."""
    try:
        target = (root / "latest").readlink()
    except OSError:
        return None
    name = str(target)
    return name if name == safe_name(name) and (root / name).is_dir() else None
