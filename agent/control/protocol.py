"""Messages between workers and the head: reports and replies, validated field by field.

A worker's first report carries a hello with its constant facts, its last one a bye. A reply has
the state of the head, which is the same for all workers, and orders for this worker.
"""

from __future__ import annotations

import json
import types
from collections import abc
from collections.abc import Mapping
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from msgspec import field, to_builtins
from msgspec.structs import asdict, replace

from agent import __version__
from agent.base import times
from agent.base.latency import Latency
from agent.base.outcome import Outcome
from agent.base.ranges import (
    ITEMS,
    TEXT,
    Attempt,
    Count,
    Epoch,
    Gpus,
    Line,
    MaxItems,
    Name,
    Port,
    Range,
    Rank,
    Required,
    Tail,
    Text,
    Timestamp,
)
from agent.base.text import escaped, is_ip, plain
from agent.base.value import Value
from agent.checks.finding import Finding
from agent.decisions.head.state import HeadPhase
from agent.decisions.values import Answer, ItemReport, Known, Order, Step
from agent.node.facts import Facts
from agent.record import codec
from agent.record.codec import hints_of
from agent.work.torchrun import ShareOver

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    Reader = Callable[[object], object]

    from agent.work.torchrun import ShareOrder


T = TypeVar("T")
VERSION = 2
"""The protocol's version; agents of different versions refuse each other."""
REPORT_PATH = "/report"
MAX_HOLD = times.REPLY_HELD
MAX_REPORT_BYTES = 1 << 18
"""A goodbye carries the ends of all logs."""
MAX_HELLO_CHARACTERS = 48 << 10
"""The head keeps each hello in memory."""
MAX_ANSWERS = 16
MAX_ORDERS = 1 << 16


class UnreadableError(ValueError):
    """A field does not have its type; names its path and what was expected."""

    def __init__(self, expected: str, path: str = "") -> None:
        super().__init__(f"{path or 'message'}: expected {expected}")
        self._expected = expected
        self._path = path

    def inside(self, name: str) -> UnreadableError:
        """Return the error with a field or item put before its path."""
        dot = "." if self._path and not self._path.startswith("[") else ""
        return UnreadableError(self._expected, f"{name}{dot}{self._path}")


def read(kind: type[T], data: object) -> T:
    """Read JSON data as a type; raises ValueError naming the wrong field."""
    hint: Any = kind
    value: T = _reader_of(hint)(data)  # type: ignore[assignment]  # a reader returns its own type
    return value


@cache
def _reader_of(hint: Any) -> Reader:  # noqa: ANN401, C901, PLR0911 - any type; one case, one return
    """Return the reader of a type, cached."""
    origin, marks = get_origin(hint), list[object]()
    if origin is Annotated:
        hint, *marks = get_args(hint)
        origin = get_origin(hint)
    args = get_args(hint)
    if origin in {Union, types.UnionType}:
        return _optional(hint)
    if origin is Literal:
        return _one_of({one: one for one in args})
    if origin is tuple:
        return _items(args, _first_mark(MaxItems, marks, ITEMS))
    if isinstance(origin, type) and issubclass(origin, abc.Mapping):
        return _mapping(args[0], args[1], _first_mark(MaxItems, marks, ITEMS))
    if hint in {int, float}:
        return _number(hint, _first_mark(Range, marks, None))
    if hint is str:
        return _text(_first_mark(Text, marks, TEXT))
    if hint is bool:
        return _read_flag
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _one_of({one.value: one for one in hint})
    if isinstance(hint, type) and issubclass(hint, Value):
        return _object(hint)
    raise TypeError(f"{hint} cannot be part of a message")


def _first_mark(kind: type[T], marks: Sequence[object], default: T | None) -> T:
    found = next((one for one in marks if isinstance(one, kind)), default)
    if found is None:
        raise TypeError(f"a field of a message has no {kind.__name__}")
    return found


def _read_flag(data: object) -> object:
    if not isinstance(data, bool):
        raise UnreadableError("true or false")
    return data


def _number(kind: type, within: Range) -> Reader:
    least, greatest = within
    what = "a whole number" if kind is int else "a number"
    expected = f"{what} from {least:g} to {greatest:g}"

    def read_number(data: object) -> object:
        is_number = type(data) is int or (kind is float and type(data) is float)
        if not is_number or not least <= data <= greatest:  # type: ignore[operator]  # a number here
            raise UnreadableError(expected)
        return kind(data)

    return read_number


def _text(form: Text) -> Reader:
    longest = form.max_length

    def read_text(data: object) -> object:
        if not isinstance(data, str) or (form.required and not data):
            raise UnreadableError("text")
        return escaped(data[:longest])[:longest]

    def read_tail(data: object) -> object:
        if not isinstance(data, str):
            raise UnreadableError("text")
        return plain(data[-2 * longest :]).encode(errors="replace").decode()[-longest:]

    return read_tail if form.multiline else read_text


def _one_of(known: abc.Mapping[object, object]) -> Reader:
    expected = f"one of {', '.join(repr(one) for one in known)}"

    def read_one(data: object) -> object:
        if not isinstance(data, str) or data not in known:
            raise UnreadableError(expected)
        return known[data]

    return read_one


def _optional(hint: object) -> Reader:
    kinds = [one for one in get_args(hint) if one is not type(None)]
    if len(kinds) != 1:
        raise TypeError(f"{hint} cannot be part of a message")
    inner = _reader_of(kinds[0])
    return lambda data: None if data is None else inner(data)


def _items(hints: tuple[object, ...], most: MaxItems) -> Reader:
    is_open = hints[-1] is Ellipsis
    inner = [_reader_of(hint) for hint in hints if hint is not Ellipsis]
    least, greatest = (most.minimum, most.items) if is_open else (len(inner), len(inner))
    expected = f"a list of {f'{least} to ' if least != greatest else ''}{greatest}"

    def read_items(data: object) -> object:
        if not isinstance(data, list | tuple) or not least <= len(data) <= greatest:
            raise UnreadableError(expected)
        return tuple(
            _inside(f"[{at}]", inner[0 if is_open else at], one) for at, one in enumerate(data)
        )

    return read_items


def _mapping(key: object, value: object, most: MaxItems) -> Reader:
    """Read a mapping: an object, or a list of pairs where its keys are not strings."""
    read_key, read_value = _reader_of(key), _reader_of(value)
    by_text = key is str or get_args(key)[:1] == (str,)
    expected = f"at most {most.items} by name"

    def read_mapping(data: object) -> object:
        if not isinstance(data, dict | list) or len(data) > most.items:
            raise UnreadableError(expected)
        return {read_key(name): read_value(one) for name, one in _pairs(data, by_text, expected)}

    return read_mapping


def _pairs(
    data: dict[object, object] | list[object],
    by_text: bool,  # noqa: FBT001 - handed on from where it is known
    expected: str,
) -> Iterable[tuple[object, object]]:
    if isinstance(data, dict):
        if data and not by_text:
            raise UnreadableError(expected)
        return data.items()
    if by_text or not all(isinstance(one, list) and len(one) == 2 for one in data):
        raise UnreadableError(expected)
    return [(one[0], one[1]) for one in data if isinstance(one, list)]


def _object(kind: type[Value]) -> Reader:
    """Read a value: a missing string is '', unknown fields are ignored."""
    hints = hints_of(kind, with_ranges=True)
    inner = {name: _reader_of(hints[name]) for name in kind.__struct_fields__}
    optional = len(kind.__struct_defaults__)
    required = kind.__struct_fields__[: len(inner) - optional]
    absent = {name: "" if hints[name] is str else None for name in required}

    def read_object(data: object) -> object:
        if not isinstance(data, dict):
            raise UnreadableError("an object")
        given = {**absent, **data}
        return kind(**{n: _inside(n, inner[n], one) for n, one in given.items() if n in inner})

    return read_object


def _inside(name: str, reader: Reader, data: object) -> object:
    try:
        return reader(data)
    except UnreadableError as error:
        raise error.inside(name) from None


class WorkerStats(Value):
    """A worker's statistics: service latencies, prepare steps, output of its share of the job."""

    latencies: Mapping[str, Latency] = field(default_factory=dict)
    """Per service."""
    steps: Mapping[str, Step] = field(default_factory=dict)
    progress: Mapping[str, Line] = field(default_factory=dict)
    """The last line of each running step's log, with secrets removed."""
    known: tuple[Known, ...] = ()
    """Known lines in the output of its share of the job, each cause once."""
    attempt: Attempt = 0
    """The attempt of that share; 0 without one."""

    def to_dict(self) -> dict[str, object]:
        """Return the wire format."""
        return {
            "latencies": to_builtins(self.latencies),
            "steps": {name: step.value for name, step in self.steps.items()},
            "progress": dict(self.progress),
            "known": to_builtins(self.known),
            "attempt": self.attempt,
        }


class Hello(Value):
    """The constant facts of a worker's agent, sent in its first report."""

    name: Name
    rank: Rank | None
    ray: str | None = None
    python: str = ""
    services: str = ""
    """A digest of the services and prepare steps; it must equal the head's."""
    run_id: str = ""
    """The run that it followed before, where the head was restarted."""
    attempt: Attempt = 0
    """The last submitted attempt that it was sent."""
    fingerprint: str = ""
    """The last reply's fingerprint, which proves run, attempt and epoch to a later head."""
    job: str = ""
    """A digest of the job's command, for a torchrun job."""
    torch: str = ""
    """The version of torch of that job."""
    gpus: Gpus = 0
    """The GPUs of its share of that job."""
    facts: Facts | None = None
    """Facts about its machine."""
    clock: Timestamp | None = None
    """Its clock when the hello was sent, in seconds since 1970."""
    findings: tuple[Finding, ...] = ()
    """The findings of its own checks at its start."""

    def with_clock_offset(self, now: float) -> Hello:
        """Return a copy with the offset of its clock from this node's, transfer time included."""
        if self.clock is None or self.facts is None:
            return self
        outfit = replace(self.facts.outfit, clock_ahead=self.clock - now)
        return replace(self, facts=replace(self.facts, outfit=outfit))


class Bye(Value):
    """A worker's goodbye: why it leaves, and the end of its log."""

    cause: str
    log: str = ""


class Report(Value):
    """One message of a worker; the first has a hello, the last a bye."""

    id: Name
    """The agent's id; an agent restarted on the same node has another."""
    ip: str
    phase: Required
    detail: str = ""
    joined: bool = False
    preparing: bool = False
    error: str = ""
    memory: str = ""
    """A recent kill by the kernel's OOM killer on its node, as a sentence."""
    items: tuple[ItemReport, ...] = ()
    part: ShareOver | None = None
    """How its share of the job ended."""
    aside: WorkerStats | None = None
    logs: Mapping[str, Tail] | None = None
    """Ends of the requested logs by name; of all logs with a bye."""
    answers: Annotated[tuple[Answer, ...], MaxItems(MAX_ANSWERS)] = ()
    """Results of the probes that the head ordered."""
    obeyed: Count = 0
    """The number of the last order received; `obeyed_by` is the id of the agent that sent it."""
    obeyed_by: str = ""
    news: Annotated[int, Range(-1, 2**53)] = -1
    """The number of the last reply received."""
    hold: Annotated[float, Range(0, MAX_HOLD)] = 0.0
    hello: Hello | None = None
    bye: Bye | None = None
    alone: bool = False
    """True where its node runs services only and does not join Ray."""
    runs: Attempt = 0
    """The attempt of which processes may run on its node; 0 for none."""
    epoch: Epoch = 0
    """The highest epoch received in its run; 0 before any."""
    sequence: Count = 0
    """The report's number, from 1 on; 0 from agents that do not number them."""

    def to_dict(self) -> dict[str, object]:
        """Return the wire format, without empty fields."""
        sent = {name: value for name, value in asdict(self).items() if value not in (None, "", ())}
        return {"protocol": VERSION, "agent": __version__, **_json_values(sent)}

    @classmethod
    def from_dict(cls, data: object) -> Report:
        """Read a report; raises ValueError naming the wrong field."""
        if not isinstance(data, dict):
            raise ValueError("a report is a JSON object")  # noqa: TRY004 - one error type for bad data
        hello, part = data.get("hello"), data.get("part")
        if hello is not None and len(json.dumps(hello)) > MAX_HELLO_CHARACTERS:
            raise ValueError(f"hello: expected at most {MAX_HELLO_CHARACTERS} characters of JSON")
        if isinstance(part, dict):  # on the wire the end is not nested
            data = {**data, "part": {"end": part, **part}}
        return read(cls, data)


class Reply(Value):
    """The head's answer: its state, the same for all workers; a refusal and orders for one."""

    epoch: Epoch
    run_id: str
    phase: str
    ray_ready: bool
    gcs_port: Port
    news: Count
    attempt: Attempt = 1
    fingerprint: str = ""
    """A digest of the job, the run, the last submitted attempt and the epoch."""
    verdict: Outcome | None = None
    refusal: str = ""
    held: bool = False
    """True where the head only holds the verdict of a run that this agent was never part of."""
    wants_hello: bool = False
    orders: Annotated[tuple[Order, ...], MaxItems(MAX_ORDERS)] = ()
    rank: Rank | None = None
    """The rank that the head assigned, where the platform sets none."""

    @property
    def submitted(self) -> int:
        """Return the last attempt that was submitted before this reply."""
        return self.attempt - (self.phase == HeadPhase.BOOTING.value)

    def to_dict(self) -> dict[str, object]:
        """Return the wire format."""
        verdict = None if self.verdict is None else self.verdict.to_dict()
        return {"protocol": VERSION, "agent": __version__, **to_builtins(self), "verdict": verdict}

    @classmethod
    def from_dict(cls, data: object) -> Reply:
        """Read a reply; raises ValueError naming the wrong field."""
        reply = read(cls, data)
        for at, order in enumerate(reply.orders):
            if order.seat is not None:
                _check_share_order(order.seat, f"orders[{at}].seat")
        return reply


def protocol_mismatch(data: object, whose: str) -> str:
    """Return why messages of another protocol version cannot be read, or ''."""
    theirs = data.get("protocol") if isinstance(data, dict) else None
    if theirs == VERSION or not isinstance(data, dict):
        return ""
    agent = data.get("agent")
    named = f"pod-agent {escaped(str(agent)[:40])}" if agent else "an earlier pod-agent"
    return (
        f"version mismatch: {whose} runs {named}, this one {__version__}, and they speak "
        "differently; use one image on all nodes"
    )


Versions = tuple[str | None, str, str]
"""Versions of Ray, Python and torch; None or '' where unknown or irrelevant."""


def version_disagreement(head: Versions, worker: Versions) -> str:
    """Return why the versions of two nodes cannot form one cluster, or ''."""
    for what, ours, theirs in zip(("Ray", "Python", "torch"), head, worker, strict=True):
        if ours and theirs and ours != theirs:
            return (
                f"version mismatch: {what} {theirs} here, {ours} on the head; "
                "use one image on all nodes"
            )
    return ""


def _json_values(values: Mapping[str, object]) -> dict[str, object]:
    """Return values as JSON types."""
    return {name: _as_json(value) for name, value in values.items()}


def _as_json(value: object) -> object:
    if isinstance(value, WorkerStats):
        return value.to_dict()
    if isinstance(value, Facts):
        return codec.fields_of(value, str)
    if isinstance(value, ShareOver):
        return {"attempt": value.attempt, **to_builtins(value.end)}
    if isinstance(value, Value):
        return _json_values(asdict(value))
    return [_as_json(item) for item in value] if isinstance(value, tuple) else value


def _check_share_order(order: ShareOrder, field: str) -> None:
    if not order.rank < len(order.nodes):
        raise UnreadableError("a rank below the number of its nodes", field)
    if order.reward_ip and not is_ip(order.reward_ip):
        raise UnreadableError("an address", f"{field}.reward_ip")
