"""`events.jsonl`: the events of a node, one per line, and the log of pending waits."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

import msgspec

from agent.base import times
from agent.base.ends import Outcome
from agent.base.text import duration_text
from agent.base.typed import convert
from agent.base.value import Value
from agent.record.background import Writer
from agent.record.files import reading, rotate
from agent.record.log import disk_alarm
from agent.record.log_dir import log_dir

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from agent.decisions.shared import Wait

_WAIT_REMINDER = 30.0  # An unchanged wait is recorded again after this.
_WAIT_DRAWN = 1.0  # On a terminal the line of a wait is drawn again after this.
EVENTS_FILE = "events.jsonl"
FORMER_EVENTS_FILE = "events.1.jsonl"
MOST_BYTES = 8 << 20
MOST_QUEUED = 4 << 20
_LOST = " were lost: the disk stalled"
V = TypeVar("V", bound=Value)
Role = Literal["head", "worker"]


# --- events that only the record has -------------------------------------------------------------


class Began(Value):
    """The first event of an agent in a file."""

    role: Role
    run_id: str = ""
    started_at: str = ""  # the time at which the clock of `at` was 0: UTC, ISO 8601
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


class GoodbyeReceived(Value):
    """A worker left: the cause and the end of its log."""

    node: str
    cause: str
    log: str


class AttemptOver(Value):
    """An attempt ended, and another one may follow."""

    number: int
    id: str
    reason: str
    exit_code: int | None


class NodeNoticed(Value):
    """A node's figures show that it is slow, or what will be full there."""

    node: str
    what: str


class SplitAdvised(Value):
    """The steps of an attempt show that another division of the nodes would be faster."""

    what: str
    remedy: str


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


class Unrecorded(Value):
    """An event that could not be recorded."""

    event: str
    why: str


class Dropped(Unrecorded):
    """An event of another node that raised an error; each error is recorded once."""


# --- one event -----------------------------------------------------------------------------------

TAG = "is"
"""The key of a nested value's class; no field collides with it, since it is a Python keyword."""


def to_json(at: float, event: object, clean: Callable[[str], str] = str) -> dict[str, object]:
    """Return an event as JSON data; `clean` masks the secrets in every text.

    They are masked before encoding, since JSON escapes quotes and backslashes in a secret.
    """
    return {"at": at, "event": type(event).__name__, "data": fields_of(event, clean)}


def fields_of(value: object, clean: Callable[[str], str]) -> dict[str, object]:
    """Return the fields of a value as JSON data."""
    if not isinstance(value, Value):
        raise TypeError(f"{type(value).__name__} cannot be recorded")
    return {name: to_data(getattr(value, name), clean) for name in value.__struct_fields__}


def to_data(value: object, clean: Callable[[str], str]) -> object:
    """Return a value as JSON data with every text cleaned; TypeError for an unexpected type."""
    if value is None or isinstance(value, Enum | int):  # they contain no secret
        return value.value if isinstance(value, Enum) else value
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, float):  # JSON has no infinity
        return value if math.isfinite(value) else {TAG: "float", "text": repr(value)}
    if isinstance(value, tuple):
        return [to_data(item, clean) for item in value]
    if isinstance(value, Mapping):
        pairs = [(to_data(key, clean), to_data(item, clean)) for key, item in value.items()]
        return dict(pairs) if all(isinstance(key, str) for key in value) else [*map(list, pairs)]
    return {TAG: type(value).__name__, **fields_of(value, clean)}


# --- the file ------------------------------------------------------------------------------------


class EventRecorder(Writer):
    """Appends events from any thread, with their times, to a rotated file of limited size.

    `where` yields the file's path and keeps the run folder from moving meanwhile.
    """

    def __init__(
        self,
        where: Callable[[], AbstractContextManager[Path]],
        clean: Callable[[str], str],
        began: Began,
        clock: Callable[[], float],
    ) -> None:
        self._where = where
        self._clean = clean
        self._clock = clock
        self._began = self._line(began)
        super().__init__(EVENTS_FILE, most=MOST_QUEUED, lost=self._lost_events)
        disk_alarm.follow(self).open(self._open, MOST_BYTES)

    def add(self, event: object) -> None:
        """Queue an event."""
        self.put(self._line(event))

    def _lost_events(self, count: int) -> str:
        return self._line(Unrecorded("events", f"{count}{_LOST}"))

    def _open(self) -> int:
        """Open the file, rotated where it is full, with the agent's first event at its end."""
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT
        with self._where() as path:
            rotate(path, MOST_BYTES)
            file = log_dir.open(path, flags)
        size = os.fstat(file).st_size
        is_torn = size > 0 and os.pread(file, 1, size - 1) != b"\n"  # by an agent that was killed
        try:
            os.write(file, b"\n" * is_torn + f"{self._began}\n".encode())
        except OSError:
            os.close(file)
            raise
        return file

    def _line(self, event: object) -> str:
        """Return an event, or an `Unrecorded` in its place, in ASCII: no text breaks the line."""
        at = round(self._clock(), 3)
        name = type(event).__name__
        try:
            return json.dumps(to_json(at, event, self._clean), allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            why = f"{type(error).__name__}: {error}"
        return json.dumps(to_json(at, Unrecorded(name, why[:200]), self._clean))


class RecordedEvent(NamedTuple):
    """One line of the file: its time, the name of its kind, and its fields as plain JSON data."""

    at: float
    kind: str
    data: dict[str, Any]

    def read(self, form: type[V], of: type[Value] | None = None) -> V | None:
        """Return its fields in a form, where it is an event of that class, or of the class `of`."""
        if self.kind != (of or form).__name__:
            return None
        try:
            return convert(self.data, form)
        except msgspec.ValidationError:  # of an agent of another version
            return None


def read_events(folder: Path) -> Iterator[RecordedEvent]:
    """Yield the events of a node in order, without lines that a killed agent left incomplete."""
    for name in (FORMER_EVENTS_FILE, EVENTS_FILE):
        with suppress(FileNotFoundError, ValueError), reading(folder / name) as file:
            for line in file:
                with suppress(KeyError, TypeError, ValueError, RecursionError):
                    event = json.loads(line)
                    yield RecordedEvent(float(event["at"]), str(event["event"]), {**event["data"]})


# --- pending waits -------------------------------------------------------------------------------


class _LoggedWait(msgspec.Struct):
    """A pending wait, as far as it is recorded and logged."""

    since: float
    kind: str  # the evidence of the last record, without its numbers
    recorded_at: float
    checked_at: float
    evidence: str
    said_kind: str = ""  # the same of the last line on stderr
    said_at: float | None = None

    def due(self) -> float:
        """Return when the next line is due, if the evidence stays."""
        if self.said_at is None:
            return self.since + times.WAIT_SAID
        if self.said_at < self.since + times.WAIT_SAID_AGAIN:
            return self.since + times.WAIT_SAID_AGAIN
        return self.said_at + times.WAIT_REPEATED


class WaitLog:
    """Records pending waits when they change, and logs those that go on.

    Each is logged after 15 s, after one minute and then every five, and when its evidence is
    another. On a terminal, where `draw` is given and returns True, one line says it all instead.
    The log's file has them from their start.
    """

    def __init__(
        self,
        record: Callable[[Waited | WaitsOver], None],
        say: Callable[[str, str], None],
        draw: Callable[[str], bool] = lambda _sentence: False,
    ) -> None:
        self._record = record
        self._say = say
        self._draw = draw
        self._logged: dict[str, _LoggedWait] = {}
        self._due: float | None = None

    def update(self, waits: tuple[Wait, ...], now: float) -> None:
        """Record and log the waits that are new, changed or due."""
        own = [wait for wait in waits if not wait.is_following]
        checks = [self._check(wait, now) for wait in own]
        over = sorted(self._logged.keys() - {wait.what for wait in waits})
        for what in over:
            del self._logged[what]
        if over:
            self._record(WaitsOver(tuple(over)))

        # What is logged? Without a terminal that is drawn on, each wait by itself.
        if self._draw(self._drawn_sentence(own, now)):
            if own:
                checks.append(now + _WAIT_DRAWN)
        else:
            checks += [self._say_if_due(wait, now) for wait in own]
        self._due = min(checks, default=None)

    def next_due(self, deadline: float | None, now: float) -> float | None:
        """Return the seconds until the deadline or the next look; None without either."""
        due = [time for time in (deadline, self._due) if time is not None]
        return max(0.0, min(due) - now) if due else None

    def _check(self, wait: Wait, now: float) -> float:
        """Record a wait if it is due; return when to check it again.

        Its evidence may be computed over all workers: at most every `times.WAIT_QUIET` seconds.
        """
        last = self._logged.get(wait.what)
        if last is not None and now < last.checked_at + times.WAIT_QUIET:
            return last.checked_at + times.WAIT_QUIET
        evidence = wait.in_full
        kind = re.sub(r"\d+", "", evidence)
        if last is None:
            last = _LoggedWait(now, kind, now, now, evidence)
            self._logged[wait.what] = last
        else:
            last.checked_at = now
            last.evidence = evidence
            if kind == last.kind and now < last.recorded_at + _WAIT_REMINDER:
                return last.recorded_at + _WAIT_REMINDER
            last.kind = kind
            last.recorded_at = now
        self._record(Waited(wait.what, wait.deadline, evidence))
        self._say(wait.sentence(now, evidence), "debug")
        return now + _WAIT_REMINDER

    def _say_if_due(self, wait: Wait, now: float) -> float:
        """Log a wait that goes on, or whose evidence is another; return when the next line is due.

        Lines about changes are no closer to each other than the first one is to the start.
        """
        last = self._logged[wait.what]
        due = last.due()
        if last.said_at is not None and last.kind != last.said_kind:
            due = min(due, last.said_at + times.WAIT_SAID)
        if now < due:
            return due
        last.said_at = now
        last.said_kind = last.kind
        self._say(wait.sentence(now, last.evidence), "info")
        return last.due()

    def _drawn_sentence(self, waits: list[Wait], now: float) -> str:
        """Return one line about all waits: what for, since when, and the evidence; '' for none."""
        if not waits:
            return ""
        known = {wait.what: self._logged[wait.what] for wait in waits}
        longest = max(now - wait.since for wait in known.values())
        whats = [
            f"{what}, {wait.evidence}" if wait.evidence else what for what, wait in known.items()
        ]
        return f"waiting {duration_text(longest)} for {'; '.join(whats)}"
