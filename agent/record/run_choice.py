"""Which run a head lives in: one that is found and goes on, or a new one."""

from __future__ import annotations

import time
from enum import Enum
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from agent.base.errors import PreflightError
from agent.record.files import Claim, FileLock, numbered, safe, why
from agent.record.node_record import FILE as NODE
from agent.record.node_record import NodeRecord, is_at_work, read_place
from agent.record.run_record import FILE, LOCK, NoRecord, RunRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_TRIES = 100


class GoesOn(NamedTuple):
    """Whether a run that was found goes on, and why not."""

    yes: bool
    why: str = ""


def goes_on(
    record: RunRecord | None, fingerprint: str, node: str = "", retries: int | None = None
) -> GoesOn:
    """Decide whether a run goes on: not ended, the same job, and not another node's.

    `node` is the head's own name where only a name ties it to the run; a platform's id needs none.
    With `retries`, a run whose attempts are used up does not go on: whoever starts it begins anew.
    """
    if record is None:
        return GoesOn(yes=False, why="it has no record")
    if record.is_over:
        return GoesOn(yes=False, why="it has ended")
    if record.fingerprint != fingerprint:
        return GoesOn(yes=False, why="it is of another job, or other settings")
    if node and record.head and record.head != node:
        return GoesOn(yes=False, why=f"its head is {record.head}")
    if retries is not None and len(record.tried) > retries:
        return GoesOn(yes=False, why="its attempts are used up")
    return GoesOn(yes=True)


class Chosen(NamedTuple):
    """The run that this head lives in."""

    run_id: str
    before: RunRecord | None = None
    """Its record where it goes on."""
    notes: tuple[str, ...] = ()
    """Which runs were passed by, and why."""
    lock: FileLock | None = None
    """Held as long as this head lives: no other takes the run meanwhile."""
    former_head: str = ""
    """The node of the head before, where the last attempt may still run; '' where it cannot."""


class Candidate(NamedTuple):
    """A run that this one may be, as found on the disk."""

    run_id: str
    found: RunRecord | NoRecord
    claim: Claim
    head_at_work: bool = False
    """Whether its head seems to live, for a disk that has no locks."""


class Fit(Enum):
    """What a candidate is to a new head."""

    GOES_ON = "goes on"
    FREE = "free"
    TAKEN = "taken"


def judge(
    candidate: Candidate, fingerprint: str, node: str = "", retries: int | None = None
) -> tuple[Fit, str]:
    """Decide what a candidate is to this head, and say why where it is taken."""
    if candidate.claim is Claim.THEIRS:
        return Fit.TAKEN, "another head has it"
    if isinstance(candidate.found, NoRecord):
        return (Fit.FREE, "") if candidate.found.free else (Fit.TAKEN, candidate.found.why)
    verdict = goes_on(candidate.found, fingerprint, node, retries)
    if not verdict.yes:
        return Fit.TAKEN, verdict.why
    if candidate.claim is Claim.UNKNOWN and candidate.head_at_work:
        return Fit.TAKEN, f"its head {candidate.found.head} is at work"
    return Fit.GOES_ON, ""


def choose_run(  # noqa: PLR0913 - what ties a head to a run
    root: Path,
    platform_run_id: str | None,
    fingerprint: str,
    new_id: Callable[[], str],
    *,
    node: str = "",
    retries: int | None = None,
    resumed: str = "",
) -> Chosen:
    """Find the run that goes on, or name a new one; the lock is held from then on.

    `resumed` is the one in which the agent was killed that this one replaces: it goes on, however
    far it had come.
    The platform's id where it names one, numbered where that run is over or another's; else the
    run that `latest` points to, if its head was this `node` and, with `retries`, an attempt is
    left; else a new id. Two heads that choose at the same time never come to the same run where
    the disk has locks.
    """
    notes: list[str] = []
    if resumed:
        lock, candidate = _look(root, resumed)
        if candidate.claim is not Claim.THEIRS and isinstance(candidate.found, RunRecord):
            return _going_on(root, resumed, candidate.found, lock)
        lock.release()
    latest = _latest(root) if platform_run_id is None else None
    if latest is not None:
        lock, candidate = _look(root, latest)
        fit, reason = judge(candidate, fingerprint, node, retries)
        if fit is Fit.GOES_ON and isinstance(candidate.found, RunRecord):
            return _going_on(root, latest, candidate.found, lock)
        lock.release()
        notes += [f"run {latest} does not go on: {reason}"] if reason else []
    names = _new_names(new_id) if platform_run_id is None else numbered(safe(platform_run_id))
    for name in names:
        lock, candidate = _look(root, name)
        fit, reason = judge(candidate, fingerprint)
        if fit is Fit.FREE:
            return Chosen(name, None, tuple(notes), lock)
        if fit is Fit.GOES_ON and isinstance(candidate.found, RunRecord):
            return _going_on(root, name, candidate.found, lock, *notes)
        lock.release()
        notes.append(f"run {name} does not go on: {reason}")
    raise PreflightError(
        f"no run in {root} is free",
        why=notes[-1],
        remedy="Choose another folder in AGENT_LOG_DIR",
        culprit="AGENT_LOG_DIR",
    )


def _going_on(root: Path, name: str, before: RunRecord, lock: FileLock, *notes: str) -> Chosen:
    """Go on with a run; name the head that submitted its last attempt, where that may still run.

    A head holds the run's lock for as long as it is there: it is gone for certain where that very
    lock was taken. A lock file that was made anew, by a disk that forgets locks, proves nothing.
    """
    last = before.attempts[-1] if before.attempts else None
    if last is None or (lock.inode and last.lock in {None, lock.inode}):
        return Chosen(name, before, notes, lock)
    head = last.head or before.head
    return Chosen(name, before, notes, lock, head if _may_run_elsewhere(root / name, head) else "")


def _may_run_elsewhere(run: Path, node: str) -> bool:
    """Say whether what a node's agents started in a run may still run, and is not visible here.

    It cannot where the agents exited in good order, nor where their processes would be visible.
    """
    here, folders = read_place(), (run / name for name in numbered(safe(node)))
    records = [NodeRecord.read(one / NODE) for one in takewhile(Path.is_dir, folders)]
    return not records or not all(
        isinstance(one, NodeRecord) and (one.ended or here.sees(one.place)) for one in records
    )


def _look(root: Path, name: str) -> tuple[FileLock, Candidate]:
    """Read what a candidate is, with its lock taken where it can be."""
    folder = root / name
    lock = FileLock(folder / LOCK)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        claim = lock.take()
    except OSError as error:  # the run folder is made next, and says it with a remedy
        return lock, Candidate(name, NoRecord(why(error), free=True), Claim.UNKNOWN)
    found = RunRecord.read(folder / FILE)
    now = lock.now_on_disk() or time.time()
    at_work = isinstance(found, RunRecord) and is_at_work(folder / safe(found.head), now)
    return lock, Candidate(name, found, claim, at_work)


def _latest(root: Path) -> str | None:
    """Return the run that `latest` points to, if it is one of this folder's."""
    try:
        target = (root / "latest").readlink()
    except OSError:
        return None
    name = str(target)
    return name if name == safe(name) and (root / name).is_dir() else None


def _new_names(new_id: Callable[[], str]) -> Iterator[str]:
    for _ in range(_TRIES):
        yield safe(new_id())
