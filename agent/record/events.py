"""`events.jsonl`: the events of a node, one per line, and the log of pending waits."""

from __future__ import annotations

import json
import math
import os
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

from agent.base import times
from agent.base.outcome import Outcome
from agent.base.value import Value
from agent.record import codec
from agent.record.background import ItemWriter
from agent.record.log import disk_alarm

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from agent.decisions.values import Wait


EVENTS_FILE = "events.jsonl"
FORMER_EVENTS_FILE = "events.1.jsonl"
MOST_BYTES = 8 << 20
Role = Literal["head", "worker"]


# --- events that only the record has -------------------------------------------------------------


class Began(Value):
    """The first event of an agent in a file."""

    role: Role
    run_id: str = ""
    started_at: str = ""
    """The time at which the clock of `at` was 0: UTC, ISO 8601."""
    version: str = ""


class PhaseEntered(Value):
    """The run entered a phase."""

    phase: str


class Waited(Value):
    """A pending wait was logged, with its deadline on the run's clock and its evidence."""

    what: str
    until: float
    evidence: str


class WaitsOver(Value):
    """Waits ended, successfully or not."""

    what: tuple[str, ...]


class NodesCounted(Value):
    """The size of GCS's node list, where the list is too long to record."""

    alive: int
    dead: int


class ByeHeard(Value):
    """A worker left: the cause and the end of its log."""

    node: str
    cause: str
    log: str


class AttemptOver(Value):
    """An attempt ended, and another one follows."""

    number: int
    id: str
    outcome: Outcome | None


class ProcessStarted(Value):
    """A child process was started."""

    name: str
    pid: int


class Decided(Value):
    """The outcome of the run was decided."""

    outcome: Outcome


class Ended(Value):
    """The agent ended in good order."""

    seconds: float


class Dropped(Value):
    """An event of another node that raised an error; each error is recorded once."""

    event: str
    why: str


class Unrecorded(Value):
    """An event that could not be recorded."""

    event: str
    why: str


# --- one event -----------------------------------------------------------------------------------


def to_json(at: float, event: object, clean: Callable[[str], str] = str) -> dict[str, object]:
    """Return an event as JSON data; `clean` masks the secrets in every text.

    They are masked before encoding, since JSON escapes quotes and backslashes in a secret.
    """
    return {"at": at, "event": codec.wire_name(type(event)), "data": codec.fields_of(event, clean)}


# --- the file ------------------------------------------------------------------------------------


class EventLog:
    """Appends events to a rotated file of limited size; used by one thread, which may block.

    `where` yields the file's path and keeps the run folder from moving meanwhile.
    """

    def __init__(
        self,
        where: Callable[[], AbstractContextManager[Path]],
        clean: Callable[[str], str],
        began: Began,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self._where = where
        self._clean = clean
        self._began = began
        self._most_bytes = most_bytes
        self._has_begun = False

    def append(self, at: float, event: object) -> OSError | None:
        """Write one event; return the error instead of raising it."""
        line = self._line(at, event)
        try:
            with self._where() as path:
                if not self._has_begun:
                    _end_torn_line(path)
                    line = self._line(at, self._began) + line
                elif _size(path) + len(line) > self._most_bytes:
                    path.replace(path.with_name(FORMER_EVENTS_FILE))
                    line = self._line(at, self._began) + line
                append_whole(path, line)
        except OSError as error:
            return error
        self._has_begun = True
        return None

    def _line(self, at: float, event: object) -> bytes:
        """Return the line of an event, or of an `Unrecorded` in its place."""
        at = round(at, 3) if math.isfinite(at) else 0.0
        try:
            line = _dumped(to_json(at, event, self._clean))
        except (TypeError, ValueError, RecursionError) as error:
            return self._instead(at, event, f"{type(error).__name__}: {error}")
        if len(line) > self._most_bytes // 2:
            return self._instead(at, event, f"it has {len(line)} bytes")
        return line

    def _instead(self, at: float, event: object, why: str) -> bytes:
        unrecorded = Unrecorded(codec.wire_name(type(event)), why[:200])
        return _dumped(to_json(at, unrecorded, self._clean))


def _dumped(data: object) -> bytes:
    """Return a line in ASCII, so that no text in it breaks the line."""
    return json.dumps(data, allow_nan=False).encode("ascii") + b"\n"


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def append_whole(path: Path, line: bytes) -> None:
    """Append a whole line, or nothing."""
    with path.open("ab", buffering=0) as file:
        before = file.seek(0, os.SEEK_END)
        try:
            left = line
            while left:
                left = left[file.write(left) :]
        except OSError:
            with suppress(OSError):
                file.truncate(before)
            raise


def _end_torn_line(path: Path) -> None:
    """End a line that a killed agent left incomplete."""
    with suppress(FileNotFoundError), path.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        if size:
            file.seek(size - 1)
            if file.read(1) != b"\n":
                file.write(b"\n")


class RecordedEvent(NamedTuple):
    """One line of the file, as plain JSON data: its time, the name of its kind, and its fields."""

    at: float
    kind: str
    data: dict[str, Any]


def read_events(folder: Path) -> Iterator[RecordedEvent]:
    """Yield the events of a node in order, without lines that a killed agent left incomplete."""
    for name in (FORMER_EVENTS_FILE, EVENTS_FILE):
        yield from filter(None, map(_event_of, _lines(folder / name)))


def _event_of(line: bytes) -> RecordedEvent | None:
    try:
        event = json.loads(line)
        return RecordedEvent(float(event["at"]), str(event["event"]), {**event["data"]})
    except (KeyError, TypeError, ValueError, RecursionError):
        return None


def _lines(path: Path) -> Iterator[bytes]:
    with suppress(FileNotFoundError), path.open("rb") as file:
        yield from file


_MAX_QUEUED = 5_000
"""Events queued for a stalled disk; beyond that, the oldest are dropped and counted."""


class EventRecorder:
    """Queues events from any thread, with their times, and writes them in the background."""

    def __init__(self, log: EventLog, clock: Callable[[], float]) -> None:
        self._log = log
        self._clock = clock
        self._writer = ItemWriter(EVENTS_FILE, self._write, disk_alarm, most=_MAX_QUEUED)
        self._writer.start()

    def add(self, event: object) -> None:
        """Queue an event."""
        self._writer.put((self._clock(), event))

    def finish(self) -> None:
        """Write the rest, for at most a second."""
        self._writer.finish()

    def _write(self, item: tuple[float, object]) -> OSError | None:
        at, event = item
        lost, self._writer.lost = self._writer.lost, 0
        if lost:
            self._log.append(at, Unrecorded("events", f"{lost} were lost here: the disk stalled"))
        return self._log.append(at, event)


class _LoggedWait(msgspec.Struct):
    """The last log line about a wait."""

    kind: str
    """The evidence without its numbers."""
    evidence: str
    logged_at: float
    checked_at: float


class WaitLog:
    """Logs pending waits when they change, and every half minute."""

    def __init__(
        self, record: Callable[[Waited | WaitsOver], None], say: Callable[[str], None]
    ) -> None:
        self._record = record
        self._say = say
        self._logged: dict[str, _LoggedWait] = {}
        self._due: float | None = None

    def update(self, waits: tuple[Wait, ...], now: float) -> None:
        """Log the waits that are new, changed or due for a reminder."""
        own = [wait for wait in waits if not wait.is_following]
        self._due = min((self._log_if_due(wait, now) for wait in own), default=None)
        over = sorted(self._logged.keys() - {wait.what for wait in waits})
        for what in over:
            del self._logged[what]
        if over:
            self._record(WaitsOver(tuple(over)))

    def next_due(self, deadline: float | None, now: float) -> float | None:
        """Return the seconds until the deadline or the next log line; None without either."""
        due = [time for time in (deadline, self._due) if time is not None]
        return max(0.0, min(due) - now) if due else None

    def _log_if_due(self, wait: Wait, now: float) -> float:
        """Log a wait if it is due; return when to check it again.

        Evidence computed over all workers is computed at most every `times.WAIT_QUIET` seconds.
        """
        last = self._logged.get(wait.what)
        if last is not None:
            is_cheap = isinstance(wait.source, str)
            again = times.WAIT_QUIET + (
                last.logged_at if is_cheap else max(last.logged_at, last.checked_at)
            )
            if now < again:
                return again
        evidence = wait.evidence
        kind = re.sub(r"\d+", "", evidence)
        if last is not None:
            last.checked_at = now
            again = last.logged_at + times.WAIT_REMINDER
            if kind == last.kind and now < again:
                return again
        self._logged[wait.what] = _LoggedWait(kind, evidence, now, now)
        self._record(Waited(wait.what, wait.deadline, evidence))
        self._say(wait.sentence(now, evidence))
        return now + times.WAIT_REMINDER
