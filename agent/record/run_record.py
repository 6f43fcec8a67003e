"""`run.json`: the head's record of a run and its attempts."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from enum import Enum
from itertools import islice
from typing import TYPE_CHECKING, Any

from msgspec import field, to_builtins
from msgspec.structs import replace

from agent.base.outcome import Outcome
from agent.base.value import Value
from agent.decisions.attempts import AttemptSnapshot, LostAttempt
from agent.record.files import (
    NoRecord,
    read_record,
    record_from,
    seconds_between,
    write_atomically,
)
from agent.record.node_record import seconds_since, time_to_data
from agent.settings.redact import MASK, looks_secret
from agent.work.recipes.recipe import JobBasis

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


RUN_FILE = "run.json"
RUN_LOCK = ".head.lock"
_VERSION = 1
MOST_NODES = 20_000
"""Workers kept by name for an attempt; EXPECTED_WORKERS allows 10,000."""


class RunState(str, Enum):
    """The state of a run."""

    BOOTING = "booting"
    RUNNING = "running"
    ENDED = "ended"


class AttemptRecord(Value):
    """One submission of the job; times are UTC, ISO 8601."""

    number: int
    submission_id: str
    start: str
    end: str | None = None
    reason: str = ""
    exit_code: int | None = None
    checkpoint: int | None = None
    """The newest checkpoint's step at the start."""
    nodes: tuple[str, ...] = ()
    """The workers that took part, by name."""
    head: str = ""
    """The name of the head that submitted it; '' in an older record."""
    lock: int | None = None
    """The inode of the run's lock held by that head; 0 without a lock, None if unknown."""
    underway: Mapping[str, object] = field(default_factory=dict)
    """The snapshot for an agent that resumes the attempt (`snapshot_to_data`)."""

    @property
    def planned_end(self) -> Outcome | None:
        """Return the outcome decided for the attempt while its job was being stopped."""
        stopping = self.underway.get("stopping")
        as_what = stopping.get("as") if isinstance(stopping, dict) else None
        try:
            return Outcome.from_dict(as_what)
        except ValueError:
            return None

    @property
    def was_lost(self) -> bool:
        """Return whether it counts as lost; one that was stopped by a signal does not."""
        return self.end is not None and not (self.exit_code is not None and self.exit_code > 128)

    @property
    def tried(self) -> LostAttempt:
        """Return the attempt as the retry decisions count it."""
        seconds = seconds_between(self.start, self.end or self.start)
        return LostAttempt(seconds, self.reason, self.checkpoint)

    def to_outcome(self) -> dict[str, object]:
        """Return the attempt for outcome.json."""
        return {
            "number": self.number,
            "start": self.start,
            "end": self.end,
            "reason": self.reason,
            "exit_code": self.exit_code,
        }


class RunRecord(Value):
    """A run."""

    run_id: str
    fingerprint: str
    epoch: int
    """The number of the Ray cluster; a later cluster has a higher one."""
    head: str = ""
    """The name of the head's node."""
    state: RunState = RunState.BOOTING
    attempts: tuple[AttemptRecord, ...] = ()
    ranks: tuple[str, ...] = ()
    """The names of nodes with a rank from the head, from rank 1 on."""
    basis: JobBasis | None = None
    """What its recipe is sized by, once it was submitted."""
    ending: Outcome | None = None
    """The decided outcome; workers may not have received it yet."""

    def with_snapshot(self, number: int, underway: Mapping[str, object]) -> RunRecord:
        """Return the run with a snapshot of the open attempt of this number."""
        last = self.open_attempt
        if last is None or last.number != number:
            return self
        last = replace(last, underway=underway)
        return replace(self, attempts=(*self.attempts[:-1], last))

    def begin_attempt(  # noqa: PLR0913 - what a record has of an attempt
        self,
        number: int,
        submission_id: str,
        start: str,
        checkpoint: int | None = None,
        nodes: tuple[str, ...] = (),
        lock: int = 0,
    ) -> RunRecord:
        """Return the run with a new attempt, or with the open one of an earlier head."""
        if self.open_attempt is not None and self.open_attempt.number == number:
            return replace(self, state=RunState.RUNNING)
        attempt = AttemptRecord(
            *(number, submission_id, start),
            checkpoint=checkpoint,
            nodes=nodes,
            head=self.head,
            lock=lock,
        )
        return replace(self, state=RunState.RUNNING, attempts=(*self.attempts, attempt))

    def with_workers(self, nodes: tuple[str, ...]) -> RunRecord:
        """Return the run with these workers added to the open attempt."""
        last = self.open_attempt
        if last is None or set(nodes) <= set(last.nodes):
            return self
        new = dict.fromkeys((*last.nodes, *nodes))
        if len(new) > MOST_NODES:  # these workers and the latest others
            new = dict.fromkeys((*nodes, *reversed(last.nodes)))
        last = replace(last, nodes=(*islice(new, MOST_NODES),))
        return replace(self, attempts=(*self.attempts[:-1], last))

    @property
    def open_attempt(self) -> AttemptRecord | None:
        """Return the last attempt if it has no end."""
        last = self.attempts[-1] if self.attempts else None
        return last if last is not None and last.end is None else None

    @property
    def tried(self) -> tuple[LostAttempt, ...]:
        """Return the lost attempts as the retry decisions count them."""
        return tuple(attempt.tried for attempt in self.attempts if attempt.was_lost)

    def end_attempt(self, end: str, reason: str, exit_code: int | None) -> RunRecord:
        """Return the run with its open attempt ended."""
        if self.open_attempt is None:
            return self
        last = replace(self.open_attempt, end=end, reason=reason, exit_code=exit_code, underway={})
        return replace(self, attempts=(*self.attempts[:-1], last))

    @property
    def is_over(self) -> bool:
        """Return whether no later head may resume the run, though this one may not have exited yet.

        The job's own end, and a stop by hand, are final. After a loss, or a stop by a scheduler,
        the run may be resumed.
        """
        end = self.ending
        if self.state is RunState.ENDED or end is None:
            return self.state is RunState.ENDED
        return end.is_jobs_verdict or end.exit_code in {0, 130}

    def as_ended(self) -> RunRecord:
        """Return the run as ended: no later head resumes it."""
        return replace(self, state=RunState.ENDED)

    def to_dict(self) -> dict[str, object]:
        """Return the content of run.json."""
        data: dict[str, Any] = {"version": _VERSION, **to_builtins(self)}
        for attempt in data["attempts"]:
            if not attempt["underway"]:
                del attempt["underway"]
        return data

    @classmethod
    def from_dict(cls, data: object) -> RunRecord | NoRecord:
        """Convert the content of run.json; return NoRecord if it is invalid."""
        return record_from(data, cls, _VERSION, "run")

    def write(self, path: Path) -> OSError | None:
        """Replace the file as a whole; return the error on failure."""
        return write_atomically(path, json.dumps(self.to_dict(), indent=2) + "\n")

    @classmethod
    def read(cls, path: Path) -> RunRecord | NoRecord:
        """Read a record; return NoRecord if there is none or it is invalid."""
        return read_record(path, cls.from_dict)


def next_epoch(previous: int | None, now_ms: int) -> int:
    """Return the next epoch: higher than the previous one even if the clock went back."""
    return now_ms if previous is None else max(previous + 1, now_ms)


def proof_of(fingerprint: str, run_id: str, attempt: int, epoch: int) -> str:
    """Return a hash that proves the run's attempt and epoch to another head of the same job.

    Replies carry it instead of the fingerprint, so that a reader cannot forge other values.
    """
    text = json.dumps([fingerprint, run_id, attempt, epoch])
    return hashlib.sha256(text.encode()).hexdigest()[:32]


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
    argv = None if job_argv is None else _without_secrets([clean(word) for word in job_argv])
    settings = {
        name: MASK if looks_secret(name) else clean(text) for name, text in recipe_settings.items()
    }
    text = json.dumps([_VERSION, argv, launcher, settings], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _without_secrets(argv: list[str]) -> list[str]:
    """Mask the value of a name that looks secret: `--api-key X`, `HF_TOKEN=X`."""
    found, after_secret = [], False
    for word in argv:
        name, equals, _ = word.partition("=")
        is_secret = looks_secret(re.sub(r"[-.+]", "_", name))
        if after_secret and not word.startswith("-"):
            found.append(MASK)
        else:
            found.append(f"{name}={MASK}" if is_secret and equals else word)
        after_secret = is_secret and not equals and word.startswith("-")
    return found


def snapshot_to_data(known: AttemptSnapshot, now: float) -> dict[str, object]:
    """Return a snapshot for run.json; `now` is the time on the run's clock."""

    def at(then: float | None) -> dict[str, object] | None:
        return None if then is None else time_to_data(now - then)

    stopping = None
    if known.end is not None:
        stopping = {"as": known.end.to_dict(), "at": at(known.stop_ordered_at)}
    return {
        "began": at(known.submitted),
        "required": known.required,
        "gone": [*known.lost_nodes],
        "places": {**known.workers},
        "missed": {**known.lost_workers},
        "dead": sorted(known.dead_node_ids),
        "loss": None
        if known.last_loss_at is None
        else {"what": known.last_loss, "at": at(known.last_loss_at)},
        "short": at(known.below_required_since),
        "stopping": stopping,
        "signaled": known.signaled,
    }


def snapshot_from_data(attempt: AttemptRecord, now: float, needed: int) -> AttemptSnapshot:
    """Return the snapshot of an attempt that was left open, on the clock of this run.

    A record of an older agent has no `required`: then it is `needed`, or the workers it had.
    """
    data = attempt.underway
    began = _ago(data, "began")
    began = _by_utc(attempt) if began is None else began
    required, gone, dead = data.get("required"), data.get("gone"), data.get("dead")
    loss, stopping = data.get("loss"), data.get("stopping")
    lost = _ago(loss, "at") if isinstance(loss, dict) else None
    short = _ago(data, "short")
    stopped = _ago(stopping, "at") if isinstance(stopping, dict) else None
    return AttemptSnapshot(
        number=attempt.number,
        submitted=now - began,
        required=required if isinstance(required, int) else min(needed, len(attempt.nodes)),
        checkpoint=attempt.checkpoint,
        former_workers=attempt.nodes,
        lost_nodes=_name_list(gone),
        workers=_places(data.get("places")),
        lost_workers=_places(data.get("missed")),
        dead_node_ids=frozenset(_name_list(dead)),
        last_loss=str(loss.get("what", "")) if isinstance(loss, dict) else "",
        last_loss_at=None if lost is None else now - lost,
        below_required_since=None if short is None else now - short,
        end=attempt.planned_end,
        stop_ordered_at=now - (stopped or 0.0),
        signaled=data.get("signaled") is True,
        id=attempt.submission_id,
    )


def _by_utc(attempt: AttemptRecord) -> float:
    return seconds_since({"utc": attempt.start})


def _ago(data: Mapping[str, object], name: str) -> float | None:
    found = data.get(name)
    try:
        return seconds_since(found) if isinstance(found, dict) else None
    except ValueError:
        return None


def _places(data: object) -> dict[str, str]:
    """Convert names by address; an older record has addresses only."""
    if not isinstance(data, dict):
        return {name: name for name in _name_list(data)}
    return {ip: str(name) for ip, name in data.items()}


def _name_list(data: object) -> tuple[str, ...]:
    return tuple(str(one) for one in data) if isinstance(data, list) else ()
