"""`run.json`: the head's record of a run and its attempts."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from itertools import chain, takewhile
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from agent.base.errors import PreflightError
from agent.base.text import error_text
from agent.base.value import Value
from agent.decisions.attempts import (
    count_losses,
)
from agent.decisions.durable import Durable, on_clock
from agent.decisions.receipt import Meter
from agent.frameworks.recipe import JobBasis
from agent.record import files
from agent.record.files import FileLock, LockHolder, NoRecord, numbered_names, safe_name
from agent.record.log_dir import log_dir
from agent.record.node_record import NODE_FILE, Moment, NodeRecord, is_agent_running, read_pid_space

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

RUN_FILE = "run.json"
RUN_LOCK = ".head.lock"


class AttemptOutcome(Value):
    """An attempt as the status and outcome.json have it."""

    number: int
    start: str
    end: str | None
    reason: str
    exit_code: int | None
    plain: str = ""  # the reason without words of logs


def outcomes_of(durable: Durable) -> tuple[AttemptOutcome, ...]:
    """Return all attempts of a run for the status and outcome.json."""
    outcomes = [
        AttemptOutcome(one.number, one.start, one.end, one.reason, one.exit_code, one.plain)
        for one in durable.ended
    ]
    attempt = durable.open_attempt
    if attempt is not None:
        outcomes.append(AttemptOutcome(attempt.number, attempt.start, None, "", None))
    return (*outcomes,)


class SavedMeter(Value):
    """What the time of the run was spent on so far."""

    clock: Moment  # when the clock of its moments was 0
    meter: Meter
    price: float | None = None  # dollars an hour of all nodes, if known


class Submitter(Value):
    """The head that has submitted an attempt."""

    attempt: int
    head: str  # its node's name
    lock: int  # the inode of its lock; 0 without a lock


class Measured(Value):
    """What was measured, and is not decided on before the next agent starts."""

    used: float = 0.0  # seconds that agents have run
    paid: float = 0.0  # dollars of all nodes so far, by agents that knew a price
    paid_seconds: float = 0.0  # the part of `used` that these dollars paid
    price_source: str | None = None  # who says what a node costs; None if that is not known
    receipt: SavedMeter | None = None  # what the time was spent on so far
    ranks: tuple[str, ...] = ()  # the names of nodes with a rank from the head, from rank 1 on
    basis: JobBasis | None = None  # what its recipe is sized by, once it was submitted
    submitter: Submitter | None = None  # of the last attempt


class RunRecord(files.Record):
    """A run: what is durable in the state of its head, and what was measured beside it."""

    outlives_its_disk: ClassVar[bool] = True
    version: ClassVar[int] = 2
    of_another_release: ClassVar[str] = (
        "another release wrote it; let a run end before its pods get another release"
    )

    clock: Moment  # when the clock of the moments in `durable` was 0
    durable: Durable
    measured: Measured = Measured()

    @property
    def epoch(self) -> int:
        """Return the number of the run's Ray cluster."""
        return self.durable.epoch

    def durable_at(self, now: float) -> Durable:
        """Return what is durable on a clock that is at `now`.

        A changed wall clock does not move its moments.
        """
        return on_clock(self.durable, now - self.clock.age())


def proof_of(fingerprint: str, run_id: str, attempt: int, epoch: int) -> str:
    """Return a hash that proves the run's attempt and epoch to another head of the same job.

    Replies carry it instead of the fingerprint, so that a reader cannot forge other values.
    """
    return short_hash([fingerprint, run_id, attempt, epoch], 32)


# --- fingerprint ---------------------------------------------------------------------------------


def fingerprint(
    job_argv: tuple[str, ...] | None,
    launcher: str,
    recipe_settings: Mapping[str, str],
    clean: Callable[[str], str],
) -> str:
    """Return a hash that identifies the job and its settings, with secrets masked.

    A new token therefore does not change it, and secrets cannot be guessed from it.
    """
    argv = None if job_argv is None else [*map(clean, job_argv)]
    settings = {name: clean(text) for name, text in recipe_settings.items()}
    return short_hash([argv, launcher, settings])


def short_hash(data: object, digits: int = 16) -> str:
    """Return the first hexadecimal digits of a hash of plain data."""
    text = json.dumps(data, sort_keys=True)
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:digits]


# --- the run to work on --------------------------------------------------------------------------

_TRIES = 100


def why_not_resumed(
    record: RunRecord, fingerprint: str, node: str = "", retries: int | None = None
) -> str:
    """Return why a run may not be resumed, or ''.

    `node` is the name of this head; '' if the platform's run id identifies the run.
    """
    durable = record.durable
    if durable.is_over:
        return "it has ended"
    if durable.fingerprint != fingerprint:
        return "it is of another job, or other settings"
    if node and durable.head and durable.head != node:
        return f"its head is {durable.head}"
    if retries is not None and count_losses(durable.tried) > retries:
        return "its attempts are used up"
    return ""


class ChosenRun(NamedTuple):
    """The run that this head uses."""

    run_id: str
    before: RunRecord | None = None  # its record, if it is resumed
    lock: FileLock | None = None  # held until this process exits: no other head takes the run
    former_head: str = ""  # the previous head's node if the last attempt may still run there
    skipped: str = ""  # the last run that was skipped, and why
    is_unread: bool = False  # whether that is since its record cannot be read
    lost_record: str = ""  # why the record of this run, which goes on, cannot be read


def choose_run(  # noqa: PLR0913 - what ties a head to a run
    root: Path,
    platform_run_id: str | None,
    fingerprint: str,
    new_id: Callable[[], str],
    *,
    node: str = "",
    retries: int | None = None,
    resumed: str = "",
    job_outlives_agents: bool = False,
) -> ChosenRun:
    """Resume a run or name a new one, and hold its lock.

    In this order:

    1. `resumed`, the run of the killed agent that this one replaces, in any state; without its
       record if the job outlives its agents: another run's job would run beside it.
    2. The platform's run id, with a number if that run is over or another job's; without its
       record, too, if the job outlives its agents.
    3. The run that `latest` points to, if its head was this `node` and `retries` are left.
    4. A new id.

    Where the disk has locks, two heads never choose the same run.
    """
    # Is this the successor of a killed agent?
    if resumed:
        lock, record, taken = _find_run(root, resumed)
        if not taken and isinstance(record, RunRecord):
            return _resume(root, resumed, record, lock)
        if not taken and isinstance(record, NoRecord) and job_outlives_agents:
            return ChosenRun(resumed, None, lock, lost_record=record.why)
        lock.release()

    # Which names may the run have?
    if platform_run_id is not None:
        latest = None
        names = numbered_names(safe_name(platform_run_id))
    else:
        latest = _latest(root)
        new = (safe_name(new_id()) for _ in range(_TRIES))
        names = chain([latest] if latest else [], new)

    # The first that is free, or that this head may resume. The record of `latest` must be there.
    skipped = ""
    is_unread = False
    for name in names:
        lock, record, why = _find_run(root, name)
        if isinstance(record, RunRecord):
            if not why and name == latest:
                why = why_not_resumed(record, fingerprint, node, retries)
            elif not why:
                why = why_not_resumed(record, fingerprint)
            if not why:
                resumed_run = _resume(root, name, record, lock)
                return resumed_run._replace(skipped=skipped, is_unread=is_unread)
        elif not why and record.is_missing and name != latest:
            return ChosenRun(name, None, lock, skipped=skipped, is_unread=is_unread)
        elif not why and not record.is_missing and job_outlives_agents and platform_run_id:
            return ChosenRun(name, None, lock, lost_record=record.why)
        elif not why and not record.is_missing:
            why = record.why
        lock.release()
        if why:
            skipped = f"run {name} is not resumed: {why}"
            is_unread = isinstance(record, NoRecord)

    raise PreflightError(
        f"no run in {root} is free",
        why=skipped,
        remedy="Choose another folder in AGENT_LOG_DIR",
        culprit="AGENT_LOG_DIR",
    )


def finished_run(
    root: Path, platform_run_id: str | None, fingerprint: str, node: str
) -> RunRecord | None:
    """Return the run that this head would resume, if its job ended by itself."""
    name = _latest(root)
    if platform_run_id is not None:
        name = _last(root, platform_run_id, has=RUN_FILE)
    if name is None:
        return None
    record = RunRecord.read_patiently(root / name / RUN_FILE)
    if not isinstance(record, RunRecord):
        return None
    durable = record.durable
    if durable.fingerprint != fingerprint or durable.head != node:
        return None
    if durable.verdict is None or not durable.verdict.is_jobs_verdict:
        return None
    return record


def run_to_return_to(root: Path, platform_run_id: str | None, node: str) -> str:
    """Return the platform's run in which this worker has a folder, if it is not over, or ''."""
    if platform_run_id is None:
        return ""
    name = _last(root, platform_run_id, has=safe_name(node))
    if name is None:
        return ""
    record = RunRecord.read_patiently(root / name / RUN_FILE)
    if isinstance(record, RunRecord) and record.durable.is_over:
        return ""
    return name


def _last(root: Path, platform_run_id: str, has: str) -> str | None:
    """Return the last of a platform's numbered runs, each of which has a file or folder."""
    names = numbered_names(safe_name(platform_run_id))
    existing = [*takewhile(lambda name: log_dir.exists(root / name / has), names)]
    return existing[-1] if existing else None


def _resume(root: Path, name: str, before: RunRecord, lock: FileLock) -> ChosenRun:
    """Resume a run; name the head of its last attempt if the attempt may still run there.

    It does not if this head has taken the very lock (by its inode) that the former one held until
    its exit, or if the agents of its node ended in good order, or their pids are valid here.
    """
    # Does this head hold the lock that the former one held?
    durable = before.durable
    if not durable.ended and durable.open_attempt is None:
        return ChosenRun(name, before, lock)
    last = before.measured.submitter
    if lock.inode and (last is None or last.lock == lock.inode):
        return ChosenRun(name, before, lock)

    # Have all agents of the former head's node ended, or would they be seen here?
    head = durable.head if last is None else last.head or durable.head
    here = read_pid_space()
    paths = map((root / name).joinpath, numbered_names(safe_name(head)))
    folders = takewhile(log_dir.is_folder, paths)
    agents = [NodeRecord.read(folder / NODE_FILE) for folder in folders]
    is_over = bool(agents) and all(
        isinstance(agent, NodeRecord) and (agent.ended or here.sees(agent.place))
        for agent in agents
    )
    return ChosenRun(name, before, lock, former_head="" if is_over else head)


def _find_run(root: Path, name: str) -> tuple[FileLock, RunRecord | NoRecord, str]:
    """Read a run on disk and try to take its lock; return also why another head has it, or ''."""
    folder = root / name
    lock = FileLock(folder / RUN_LOCK)

    # Does another head hold the lock?
    try:
        log_dir.guard(root)
        log_dir.make_folder(folder)
        claim = lock.take()
    except OSError as error:  # making the run folder reports it
        return lock, NoRecord(error_text(error), is_missing=True), ""
    record = RunRecord.read_patiently(folder / RUN_FILE)
    if claim is LockHolder.THEIRS:
        return lock, record, "another head has it"

    # On a disk without locks: is the head of its record active?
    if claim is LockHolder.UNKNOWN and isinstance(record, RunRecord):
        name = record.durable.head
        head = NodeRecord.read(folder / safe_name(name) / NODE_FILE)
        if isinstance(head, NodeRecord) and not head.ended and is_agent_running(head):
            return lock, record, f"its head {name} is active"
    return lock, record, ""


def _latest(root: Path) -> str | None:
    """Return the run that `latest` points to, if it is in this folder and of this user."""
    with suppress(OSError):
        name = str((root / "latest").readlink())
        if name == safe_name(name) and log_dir.is_folder(root / name):
            return name
    return None
