"""`run.json`: what the head knows of a run, and whether a run that is found there goes on."""

from __future__ import annotations

import hashlib
import json
import re
import time
from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from agent.base.errors import PreflightError
from agent.base.value import dataclass
from agent.record.files import (
    Claim,
    FileLock,
    numbered,
    read_small,
    safe,
    why,
    write_atomically,
)
from agent.record.node_record import is_at_work
from agent.settings.redact import MASK, looks_secret

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

FILE = "run.json"
LOCK = ".head.lock"
_VERSION = 1
_TRIES = 100


class State(str, Enum):
    """How far a run has come."""

    BOOTING = "booting"
    RUNNING = "running"
    ENDED = "ended"


@dataclass(frozen=True)
class Attempt:
    """One submission of the job; times are UTC, ISO 8601."""

    number: int
    submission_id: str
    start: str
    end: str | None = None
    reason: str = ""
    exit_code: int | None = None

    def in_outcome(self) -> dict[str, object]:
        """Return it as outcome.json has it."""
        return {
            "number": self.number,
            "start": self.start,
            "end": self.end,
            "reason": self.reason,
            "exit_code": self.exit_code,
        }


@dataclass(frozen=True)
class NoRecord:
    """There is no record of ours, and why; `free` where there is no file at all."""

    why: str
    free: bool = False


@dataclass(frozen=True)
class RunRecord:
    """A run as its head knows it."""

    run_id: str
    fingerprint: str
    epoch: int
    """Names the Ray cluster, not the agent's process; a later cluster's is higher."""
    head: str = ""
    """The head's node, by name."""
    state: State = State.BOOTING
    attempts: tuple[Attempt, ...] = ()

    def at_head(self, head: str, epoch: int) -> RunRecord:
        """Return it with the head, and the Ray, that it goes on with."""
        return replace(self, head=head, epoch=epoch, state=State.BOOTING)

    def after_a_lost_head(self, now: str) -> RunRecord:
        """Return it with the attempt over that a killed head left open."""
        return self.end_attempt(now, "its head was lost", 75)

    def begin(self, number: int, submission_id: str, start: str) -> RunRecord:
        """Return it with an attempt that begins, or that an earlier head began and left open."""
        if self.open_attempt is not None and self.open_attempt.number == number:
            return replace(self, state=State.RUNNING)
        attempt = Attempt(number, submission_id, start)
        return replace(self, state=State.RUNNING, attempts=(*self.attempts, attempt))

    @property
    def open_attempt(self) -> Attempt | None:
        """Return the last attempt where nobody wrote down its end."""
        last = self.attempts[-1] if self.attempts else None
        return last if last is not None and last.end is None else None

    def end_attempt(self, end: str, reason: str, exit_code: int | None) -> RunRecord:
        """Return it with its last attempt over; one that is over keeps its end."""
        if self.open_attempt is None:
            return self
        last = replace(self.open_attempt, end=end, reason=reason, exit_code=exit_code)
        return replace(self, attempts=(*self.attempts[:-1], last))

    def ended(self) -> RunRecord:
        """Return it over: no later head goes on with it."""
        return replace(self, state=State.ENDED)

    def to_dict(self) -> dict[str, object]:
        """Return what goes into run.json."""
        return {
            "version": _VERSION,
            "run_id": self.run_id,
            "fingerprint": self.fingerprint,
            "epoch": self.epoch,
            "head": self.head,
            "state": self.state.value,
            "attempts": [
                {**attempt.in_outcome(), "submission_id": attempt.submission_id}
                for attempt in self.attempts
            ],
        }

    @classmethod
    def from_dict(cls, data: object) -> RunRecord | NoRecord:
        """Read what `to_dict` wrote; anything else is no record."""
        if not isinstance(data, dict):
            return NoRecord("it is no JSON object")
        version = data.get("version")
        if version != _VERSION or isinstance(version, bool):
            return NoRecord(f"its version is {version!r}, not {_VERSION}")
        try:
            attempts = data["attempts"]
            if not isinstance(attempts, list):
                return NoRecord("its attempts are no list")
            return cls(
                run_id=_text(data, "run_id"),
                fingerprint=_text(data, "fingerprint"),
                epoch=_whole(data, "epoch"),
                head=_text(data, "head"),
                state=State(_text(data, "state")),
                attempts=tuple(map(_attempt, attempts)),
            )
        except (KeyError, ValueError) as error:
            return NoRecord(f"it is no record of a run: {error}")

    def write(self, path: Path) -> OSError | None:
        """Put it in its place whole; return why it could not be, which ends no run."""
        return write_atomically(path, json.dumps(self.to_dict(), indent=2) + "\n")

    @classmethod
    def read(cls, path: Path) -> RunRecord | NoRecord:
        """Read a record; whatever else is there is said to be none."""
        try:
            data = json.loads(read_small(path))
        except FileNotFoundError:
            return NoRecord("there is none", free=True)
        except OSError as error:
            return NoRecord(why(error))
        except (ValueError, RecursionError) as error:
            return NoRecord(f"it is broken: {error}")
        return cls.from_dict(data)


def _attempt(data: object) -> Attempt:
    if not isinstance(data, dict):
        raise ValueError("an attempt is no JSON object")  # noqa: TRY004 - one error type for bad data
    return Attempt(
        number=_whole(data, "number"),
        submission_id=_text(data, "submission_id"),
        start=_text(data, "start"),
        end=None if data["end"] is None else _text(data, "end"),
        reason=_text(data, "reason"),
        exit_code=None if data["exit_code"] is None else _whole(data, "exit_code"),
    )


def _text(data: Mapping[str, object], field: str) -> str:
    value = data[field]
    if not isinstance(value, str):
        raise ValueError(f"{field} is no text")  # noqa: TRY004 - one error type for bad data
    return value


def _whole(data: Mapping[str, object], field: str) -> int:
    value = data[field]
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{field} is no whole number")  # noqa: TRY004 - one error type for bad data
    return value


def next_epoch(previous: int | None, now_ms: int) -> int:
    """Name the next Ray cluster: always higher than the one before, whatever the clock did."""
    return now_ms if previous is None else max(previous + 1, now_ms)


# --- what a run is, without its secrets --------------------------------------------------------


def fingerprint(
    job_argv: tuple[str, ...] | None,
    launcher: str,
    recipe_settings: Mapping[str, str],
    clean: Callable[[str], str],
) -> str:
    """Hash what makes this run this run and no other; secrets are masked before.

    So a new token makes no new run, and nobody can try out secrets against the hash.
    """
    argv = None if job_argv is None else _without_secrets([clean(word) for word in job_argv])
    settings = {
        name: MASK if looks_secret(name) else clean(text) for name, text in recipe_settings.items()
    }
    text = json.dumps([_VERSION, argv, launcher, settings], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _without_secrets(argv: list[str]) -> list[str]:
    """Mask what stands behind a name that tells of a secret: `--api-key X`, `HF_TOKEN=X`."""
    found, after_secret = [], False
    for word in argv:
        name, equals, _ = word.partition("=")
        tells = looks_secret(re.sub(r"[-.+]", "_", name))
        if after_secret and not word.startswith("-"):
            found.append(MASK)
        else:
            found.append(f"{name}={MASK}" if tells and equals else word)
        after_secret = tells and not equals and word.startswith("-")
    return found


# --- which run this is -------------------------------------------------------------------------


class GoesOn(NamedTuple):
    """Whether a run that was found goes on, and why not."""

    yes: bool
    why: str = ""


def goes_on(record: RunRecord | None, fingerprint: str, node: str = "") -> GoesOn:
    """Decide whether a run goes on: not ended, the same job, and not another node's.

    `node` is the head's own name where only a name ties it to the run; a platform's id needs none.
    """
    if record is None:
        return GoesOn(yes=False, why="it has no record")
    if record.state is State.ENDED:
        return GoesOn(yes=False, why="it has ended")
    if record.fingerprint != fingerprint:
        return GoesOn(yes=False, why="it is of another job, or other settings")
    if node and record.head and record.head != node:
        return GoesOn(yes=False, why=f"its head is {record.head}")
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


def judge(candidate: Candidate, fingerprint: str, node: str = "") -> tuple[Fit, str]:
    """Decide what a candidate is to this head, and say why where it is taken."""
    if candidate.claim is Claim.THEIRS:
        return Fit.TAKEN, "another head has it"
    if isinstance(candidate.found, NoRecord):
        return (Fit.FREE, "") if candidate.found.free else (Fit.TAKEN, candidate.found.why)
    verdict = goes_on(candidate.found, fingerprint, node)
    if not verdict.yes:
        return Fit.TAKEN, verdict.why
    if candidate.claim is Claim.UNKNOWN and candidate.head_at_work:
        return Fit.TAKEN, f"its head {candidate.found.head} is at work"
    return Fit.GOES_ON, ""


def choose_run(
    root: Path,
    platform_run_id: str | None,
    fingerprint: str,
    new_id: Callable[[], str],
    *,
    node: str = "",
) -> Chosen:
    """Find the run that goes on, or name a new one; the lock is held from then on.

    The platform's id where it names one, numbered where that run is over or another's; else the
    run that `latest` points to, if its head was this `node`; else a new id. Two heads that choose
    at the same time never come to the same run where the disk has locks.
    """
    notes: list[str] = []
    latest = _latest(root) if platform_run_id is None else None
    if latest is not None:
        lock, candidate = _look(root, latest)
        fit, reason = judge(candidate, fingerprint, node)
        if fit is Fit.GOES_ON and isinstance(candidate.found, RunRecord):
            return Chosen(latest, candidate.found, (), lock)
        lock.release()
        notes += [f"run {latest} does not go on: {reason}"] if reason else []
    names = _new_names(new_id) if platform_run_id is None else numbered(safe(platform_run_id))
    for name in names:
        lock, candidate = _look(root, name)
        fit, reason = judge(candidate, fingerprint)
        if fit is Fit.FREE:
            return Chosen(name, None, tuple(notes), lock)
        if fit is Fit.GOES_ON and isinstance(candidate.found, RunRecord):
            return Chosen(name, candidate.found, tuple(notes), lock)
        lock.release()
        notes.append(f"run {name} does not go on: {reason}")
    raise PreflightError(
        f"no run in {root} is free",
        why=notes[-1],
        remedy="Choose another folder in AGENT_LOG_DIR",
        culprit="AGENT_LOG_DIR",
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
