"""`run.json`: what the head knows of a run."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import field, replace
from enum import Enum
from itertools import islice
from typing import TYPE_CHECKING

from agent.base.outcome import Outcome
from agent.base.value import dataclass
from agent.decisions.attempts import Tried
from agent.record.files import read_small, seconds_between, why, write_atomically
from agent.settings.redact import MASK, looks_secret

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

FILE = "run.json"
LOCK = ".head.lock"
_VERSION = 1
MOST_NODES = 20_000
"""So many workers of an attempt are kept by name; EXPECTED_WORKERS allows 10,000."""


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
    checkpoint: int | None = None
    """The newest checkpoint's step when it began."""
    nodes: tuple[str, ...] = ()
    """The workers that were there while it ran, by name."""
    head: str = ""
    """The node of the head that submitted it, by name; '' in an older record."""
    lock: int | None = None
    """The inode of the run's lock as that head held it; 0 where it held none, None if unknown."""
    underway: Mapping[str, object] = field(default_factory=dict)
    """What another agent must know that goes on with it, as record/underway.py has it."""

    @property
    def end_in_sight(self) -> Outcome | None:
        """Return as what it was to end, where its job was being stopped."""
        stopping = self.underway.get("stopping")
        as_what = stopping.get("as") if isinstance(stopping, dict) else None
        try:
            return Outcome.from_dict(as_what) if isinstance(as_what, dict) else None
        except (KeyError, ValueError):
            return None

    @property
    def was_lost(self) -> bool:
        """Say whether it is over and counts as lost; one that was stopped by a signal does not."""
        return self.end is not None and not (self.exit_code is not None and self.exit_code > 128)

    @property
    def tried(self) -> Tried:
        """Return what it counts for once it was lost."""
        seconds = seconds_between(self.start, self.end or self.start)
        return Tried(seconds, self.reason, self.checkpoint)

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
    ranks: tuple[str, ...] = ()
    """The nodes to which the head gave ranks, from rank 1 on, by name."""
    ending: Outcome | None = None
    """As what the head leaves, once that is decided; its workers may not have heard it yet."""

    def at_head(self, head: str, epoch: int) -> RunRecord:
        """Return it with the head, and the Ray, that it goes on with."""
        return replace(self, head=head, epoch=epoch, state=State.BOOTING)

    def after_a_lost_head(self, now: str, end: Outcome | None = None) -> RunRecord:
        """Return it with the attempt over that a killed head left open.

        `end` is as what it was to end, where its job was being stopped.
        """
        if end is not None:
            return self.end_attempt(now, end.reason, end.exit_code)
        return self.end_attempt(now, "its head was lost", 75)

    def leaving(self, end: Outcome) -> RunRecord:
        """Return it with the head's end, which stands from now on."""
        return replace(self, ending=end)

    def knowing(self, number: int, underway: Mapping[str, object]) -> RunRecord:
        """Return it with what another agent must know of the attempt of this number."""
        last = self.open_attempt
        if last is None or last.number != number:
            return self
        last = replace(last, underway=underway)
        return replace(self, attempts=(*self.attempts[:-1], last))

    def begin(  # noqa: PLR0913 - what a record has of an attempt
        self,
        number: int,
        submission_id: str,
        start: str,
        checkpoint: int | None = None,
        nodes: tuple[str, ...] = (),
        lock: int = 0,
    ) -> RunRecord:
        """Return it with an attempt that begins, or that an earlier head began and left open."""
        if self.open_attempt is not None and self.open_attempt.number == number:
            return replace(self, state=State.RUNNING)
        attempt = Attempt(
            *(number, submission_id, start),
            checkpoint=checkpoint,
            nodes=nodes,
            head=self.head,
            lock=lock,
        )
        return replace(self, state=State.RUNNING, attempts=(*self.attempts, attempt))

    def served_by(self, nodes: tuple[str, ...]) -> RunRecord:
        """Return it with these among the workers of an attempt that runs."""
        last = self.open_attempt
        if last is None or set(nodes) <= set(last.nodes):
            return self
        new = dict.fromkeys((*last.nodes, *nodes))
        if len(new) > MOST_NODES:  # who is there now, and the latest of the others
            new = dict.fromkeys((*nodes, *reversed(last.nodes)))
        last = replace(last, nodes=(*islice(new, MOST_NODES),))
        return replace(self, attempts=(*self.attempts[:-1], last))

    @property
    def open_attempt(self) -> Attempt | None:
        """Return the last attempt where nobody wrote down its end."""
        last = self.attempts[-1] if self.attempts else None
        return last if last is not None and last.end is None else None

    @property
    def tried(self) -> tuple[Tried, ...]:
        """Return the attempts that were lost, as they count for those that may follow."""
        return tuple(attempt.tried for attempt in self.attempts if attempt.was_lost)

    def end_attempt(self, end: str, reason: str, exit_code: int | None) -> RunRecord:
        """Return it with its last attempt over; one that is over keeps its end."""
        if self.open_attempt is None:
            return self
        last = replace(self.open_attempt, end=end, reason=reason, exit_code=exit_code, underway={})
        return replace(self, attempts=(*self.attempts[:-1], last))

    @property
    def is_over(self) -> bool:
        """Say whether no later head goes on with it, though this one may not have left yet.

        A job's own end, and an end that was asked for by hand, are final. After a loss, or where a
        scheduler stopped the nodes, the same run may go on.
        """
        end = self.ending
        if self.state is State.ENDED or end is None:
            return self.state is State.ENDED
        return end.is_jobs_verdict or end.exit_code in {0, 130}

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
                {
                    **attempt.in_outcome(),
                    "submission_id": attempt.submission_id,
                    "checkpoint": attempt.checkpoint,
                    "nodes": [*attempt.nodes],
                    "head": attempt.head,
                    "lock": attempt.lock,
                    **({"underway": attempt.underway} if attempt.underway else {}),
                }
                for attempt in self.attempts
            ],
            "ranks": [*self.ranks],
            "ending": None if self.ending is None else self.ending.to_dict(),
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
                ranks=_names(data.get("ranks", [])),
                ending=None if data.get("ending") is None else Outcome.from_dict(data["ending"]),
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
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
    underway = data.get("underway", {})
    return Attempt(
        number=_whole(data, "number"),
        submission_id=_text(data, "submission_id"),
        start=_text(data, "start"),
        end=None if data["end"] is None else _text(data, "end"),
        reason=_text(data, "reason"),
        exit_code=None if data["exit_code"] is None else _whole(data, "exit_code"),
        checkpoint=None if data.get("checkpoint") is None else _whole(data, "checkpoint"),
        nodes=_names(data.get("nodes", [])),
        head=_text({"head": "", **data}, "head"),
        lock=None if data.get("lock") is None else _whole(data, "lock"),
        underway=underway if isinstance(underway, dict) else {},
    )


def _names(data: object) -> tuple[str, ...]:
    if not isinstance(data, list) or not all(isinstance(name, str) for name in data):
        raise ValueError("ranks or nodes are no list of names")
    return tuple(data)


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


def proof_of(fingerprint: str, run_id: str, attempt: int, epoch: int) -> str:
    """Return what proves to another head of the same job how far its run had come.

    Replies hold it instead of the fingerprint: whoever reads one can prove nothing else by it.
    """
    text = json.dumps([fingerprint, run_id, attempt, epoch])
    return hashlib.sha256(text.encode()).hexdigest()[:32]


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
