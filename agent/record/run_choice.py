"""Choose the run that a head works on: one that can be resumed, or a new one."""

from __future__ import annotations

import time
from enum import Enum
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from agent.base.errors import PreflightError
from agent.record.files import (
    FileLock,
    LockHolder,
    error_text,
    numbered_names,
    safe_name,
)
from agent.record.node_record import NODE_FILE as NODE
from agent.record.node_record import (
    NodeRecord,
    read_pid_space,
    seems_active,
)
from agent.record.run_record import RUN_FILE, RUN_LOCK, NoRecord, RunRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


_TRIES = 100


class Resumable(NamedTuple):
    """Whether a run may be resumed, and why not."""

    yes: bool
    why: str = ""


def may_resume(
    record: RunRecord | None, fingerprint: str, node: str = "", retries: int | None = None
) -> Resumable:
    """Decide whether a run may be resumed: not ended, the same job, and the same head.

    `node` is the name of this head; '' if the platform's run id identifies the run. With `retries`,
    a run without attempts left is not resumed.
    """
    if record is None:
        return Resumable(yes=False, why="it has no record")
    if record.is_over:
        return Resumable(yes=False, why="it has ended")
    if record.fingerprint != fingerprint:
        return Resumable(yes=False, why="it is of another job, or other settings")
    if node and record.head and record.head != node:
        return Resumable(yes=False, why=f"its head is {record.head}")
    if retries is not None and len(record.tried) > retries:
        return Resumable(yes=False, why="its attempts are used up")
    return Resumable(yes=True)


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
    """A run on disk that may be resumed."""

    run_id: str
    record: RunRecord | NoRecord
    lock: LockHolder
    seems_active: bool = False
    """Whether its head seems to run, for disks without locks."""


class RunMatch(Enum):
    """How a run on disk matches a new head."""

    RESUME = "goes on"
    FREE = "free"
    TAKEN = "taken"


def match_run(
    found: FoundRun, fingerprint: str, node: str = "", retries: int | None = None
) -> tuple[RunMatch, str]:
    """Decide whether this head resumes or makes a run, and why not if it is taken."""
    if found.lock is LockHolder.THEIRS:
        return RunMatch.TAKEN, "another head has it"
    if isinstance(found.record, NoRecord):
        return (
            (RunMatch.FREE, "") if found.record.is_missing else (RunMatch.TAKEN, found.record.why)
        )
    verdict = may_resume(found.record, fingerprint, node, retries)
    if not verdict.yes:
        return RunMatch.TAKEN, verdict.why
    if found.lock is LockHolder.UNKNOWN and found.seems_active:
        return RunMatch.TAKEN, f"its head {found.record.head} is at work"
    return RunMatch.RESUME, ""


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
        fit, reason = match_run(found, fingerprint, node, retries)
        if fit is RunMatch.RESUME and isinstance(found.record, RunRecord):
            return _resume(root, latest, found.record, lock)
        lock.release()
        skipped += [f"run {latest} does not go on: {reason}"] if reason else []
    names = (
        _new_names(new_id)
        if platform_run_id is None
        else numbered_names(safe_name(platform_run_id))
    )
    for name in names:
        lock, found = _find_run(root, name)
        fit, reason = match_run(found, fingerprint)
        if fit is RunMatch.FREE:
            return ChosenRun(name, None, tuple(skipped), lock)
        if fit is RunMatch.RESUME and isinstance(found.record, RunRecord):
            return _resume(root, name, found.record, lock, *skipped)
        lock.release()
        skipped.append(f"run {name} does not go on: {reason}")
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
    records = [NodeRecord.read(one / NODE) for one in takewhile(Path.is_dir, folders)]
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
        return lock, FoundRun(
            name, NoRecord(error_text(error), is_missing=True), LockHolder.UNKNOWN
        )
    found = RunRecord.read(folder / RUN_FILE)
    now = lock.now_on_disk() or time.time()
    at_work = isinstance(found, RunRecord) and seems_active(folder / safe_name(found.head), now)
    return lock, FoundRun(name, found, claim, at_work)


def _latest(root: Path) -> str | None:
    """Return the run that `latest` points to, if it is in this folder."""
    try:
        target = (root / "latest").readlink()
    except OSError:
        return None
    name = str(target)
    return name if name == safe_name(name) and (root / name).is_dir() else None


def _new_names(new_id: Callable[[], str]) -> Iterator[str]:
    for _ in range(_TRIES):
        yield safe_name(new_id())
