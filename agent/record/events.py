"""`events.jsonl`: what happened on a node, one event a line, read back as the same events."""

from __future__ import annotations

import json
import math
import os
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Literal, get_args

from agent.base.value import dataclass
from agent.record import codec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    from agent.base.outcome import Outcome

FILE = "events.jsonl"
FORMER = "events.1.jsonl"
MOST_BYTES = 8 << 20
Role = Literal["head", "worker"]


# --- events of the record's own ----------------------------------------------------------------


@dataclass(frozen=True)
class Began:
    """An agent begins here, or goes on in a new file: whose events follow, since when."""

    role: Role
    run_id: str = ""
    started_at: str = ""
    """When the clock of `at` stood at 0: UTC, ISO 8601."""
    version: str = ""


@dataclass(frozen=True)
class PhaseEntered:
    """The story entered a phase."""

    phase: str


@dataclass(frozen=True)
class Waited:
    """A wait was told: what for, until when on the run's clock, and the last that was heard."""

    what: str
    until: float
    evidence: str


@dataclass(frozen=True)
class WaitsOver:
    """What was waited for is there, or is waited for no more."""

    what: tuple[str, ...]


@dataclass(frozen=True)
class NodesCounted:
    """GCS's list of nodes, where it is too long to be kept whole."""

    alive: int
    dead: int


@dataclass(frozen=True)
class ByeHeard:
    """A worker left: why, and the end of its log."""

    node: str
    cause: str
    log: str


@dataclass(frozen=True)
class AttemptOver:
    """An attempt at the job has ended, and another follows."""

    number: int
    id: str
    outcome: Outcome | None


@dataclass(frozen=True)
class ProcessStarted:
    """A child was started."""

    name: str
    pid: int


@dataclass(frozen=True)
class Decided:
    """How the run ends is known; what is left is to take everything down."""

    outcome: Outcome


@dataclass(frozen=True)
class Ended:
    """The story is over."""

    seconds: float


@dataclass(frozen=True)
class Dropped:
    """An event of another node on which the decisions failed; each way to fail is kept once."""

    event: str
    why: str


@dataclass(frozen=True)
class Unrecorded:
    """An event that could not be recorded, and why."""

    event: str
    why: str


RecordEvent = (
    Began
    | PhaseEntered
    | Waited
    | WaitsOver
    | NodesCounted
    | ByeHeard
    | AttemptOver
    | ProcessStarted
    | Decided
    | Ended
    | Dropped
    | Unrecorded
)
Kinds = dict[str, type]


def kinds_of(*unions: object) -> Kinds:
    """Return the members of unions by their names; two of one name are a mistake."""
    found: Kinds = {}
    for union in unions:
        for kind in get_args(union) or (union,):
            if found.setdefault(kind.__name__, kind) is not kind:
                raise ValueError(f"two kinds of events are called {kind.__name__}")
    return found


@cache
def kinds_on(role: Role) -> Mapping[str, type]:
    """Return all kinds of events that a head's, or a worker's, record may have."""
    if role == "head":
        from agent.decisions.head.state import HeadEvent  # noqa: PLC0415 - a worker needs it not

        return kinds_of(HeadEvent, RecordEvent)
    from agent.decisions.worker.state import WorkerEvent  # noqa: PLC0415 - a head needs it not

    return kinds_of(WorkerEvent, RecordEvent)


# --- one event ---------------------------------------------------------------------------------


def to_json(at: float, event: object, clean: Callable[[str], str] = str) -> dict[str, object]:
    """Return an event as JSON has it; `clean` masks the secrets in every text of it.

    They are masked here, not in the line: there a quote or a backslash in a secret is escaped,
    and nothing would find it.
    """
    return {"at": at, "event": type(event).__name__, "data": codec.fields_of(event, clean)}


def from_json(data: object, kinds: Mapping[str, type]) -> tuple[float, object]:
    """Return the event that was written so; raises NotReadableError for what was not."""
    if not isinstance(data, dict):
        raise codec.NotReadableError("it is no JSON object")
    at, kind = data.get("at"), kinds.get(str(data.get("event")))
    if isinstance(at, bool) or not isinstance(at, int | float):
        raise codec.NotReadableError(f"at is {at!r:.40}, no time")
    if kind is None:
        raise codec.NotReadableError(f"nothing is known of {data.get('event')!r:.60}")
    return at, codec.of_fields(kind, data.get("data"))


# --- the file ----------------------------------------------------------------------------------


class EventLog:
    """Appends events to a file that stays within bounds; for one thread, which may be held up.

    `where` yields the file's path and holds the run folder still while it is written.
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
        """Write one event; return why it could not be, which ends no run."""
        line = self._line(at, event)
        try:
            with self._where() as path:
                if not self._has_begun:
                    _end_torn_line(path)
                    line = self._line(at, self._began) + line
                elif _size(path) + len(line) > self._most_bytes:
                    path.replace(path.with_name(FORMER))
                    line = self._line(at, self._began) + line
                append_whole(path, line)
        except OSError as error:
            return error
        self._has_begun = True
        return None

    def _line(self, at: float, event: object) -> bytes:
        """Return the line of an event, or of the fact that it makes none."""
        at = round(at, 3) if math.isfinite(at) else 0.0
        try:
            line = _dumped(to_json(at, event, self._clean))
        except (TypeError, ValueError, RecursionError) as error:
            return self._instead(at, event, f"{type(error).__name__}: {error}")
        if len(line) > self._most_bytes // 2:
            return self._instead(at, event, f"it has {len(line)} bytes")
        return line

    def _instead(self, at: float, event: object, why: str) -> bytes:
        told = Unrecorded(type(event).__name__, why[:200])
        return _dumped(to_json(at, told, self._clean))


def _dumped(data: object) -> bytes:
    """Return a line in ASCII: whatever is in it, it is one line for every reader."""
    return json.dumps(data, allow_nan=False).encode("ascii") + b"\n"


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def append_whole(path: Path, line: bytes) -> None:
    """Append a whole line, or nothing of it."""
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
    """End the line in the midst of which an agent was killed."""
    with suppress(FileNotFoundError), path.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        if size:
            file.seek(size - 1)
            if file.read(1) != b"\n":
                file.write(b"\n")


def read_events(
    folder: Path, on_unread: Callable[[str], None] | None = None
) -> Iterator[tuple[float, object]]:
    """Yield a node's events in their order; lines that are none are told and skipped.

    Such are a line that a killed agent left half written, and events of a newer agent.
    """
    kinds: Mapping[str, type] = kinds_on("head")
    for name in (FORMER, FILE):
        for number, line in enumerate(_lines(folder / name), 1):
            try:
                at, event = from_json(json.loads(line), kinds)
            except (ValueError, RecursionError) as error:
                if on_unread is not None:
                    on_unread(f"{name}, line {number}: {error}")
                continue
            if isinstance(event, Began):
                kinds = kinds_on(event.role)
            yield at, event


def _lines(path: Path) -> Iterator[bytes]:
    with suppress(FileNotFoundError), path.open("rb") as file:
        yield from file
