"""What travels between a worker's agent and the head's: small messages, read with care.

A worker says hello once, with all that is true for its whole life; then it sends beats, and at
its end a bye. The head's reply is news for all, and orders for this one.
"""

from __future__ import annotations

from dataclasses import asdict, fields, is_dataclass
from typing import TYPE_CHECKING, Any

from agent import __version__
from agent.base.outcome import Outcome
from agent.base.value import dataclass
from agent.decisions.items import ItemWord, Step
from agent.decisions.shared import Order, OrderKind
from agent.node.facts import Facts
from agent.record import codec

if TYPE_CHECKING:
    from collections.abc import Mapping

VERSION = 2
"""Of these messages; agents of different versions refuse each other by name."""
REPORT_PATH = "/report"
LONGEST_HOLD = 10.0
"""Longest that the head holds a report back while it has nothing new to say."""
LARGEST_REPORT = 1 << 18
"""A hello has all interfaces of its machine, which may be a thousand."""
LONGEST_TEXT = 2_000
_LONGEST_NAME = 253
"""What DNS allows."""
_MOST_ITEMS = 64


@dataclass(frozen=True)
class Hello:
    """What is true of a worker's agent for its whole life, said once."""

    name: str
    rank: int | None
    ray: str | None = None
    python: str = ""
    services: str = ""
    """A digest of what the head may have it run: both plans must know the same."""
    run_id: str = ""
    """The run to which it belonged before, where it comes back to a head that was restarted."""
    attempt: int = 0
    fingerprint: str = ""
    facts: Facts | None = None
    """What its machine is and allows."""


@dataclass(frozen=True)
class Bye:
    """A worker's last word: why it leaves, and the end of its log."""

    cause: str
    log: str = ""


@dataclass(frozen=True)
class Report:
    """One message of a worker's: a beat, with a hello or a bye where there is one to say."""

    id: str
    """The agent's own id: a later life of the same node has another."""
    ip: str
    phase: str
    detail: str = ""
    joined: bool = False
    preparing: bool = False
    error: str = ""
    items: tuple[ItemWord, ...] = ()
    logs: Mapping[str, str] | None = None
    """Ends of logs that the head asked for."""
    obeyed: int = 0
    """The number of the last order that it took in, and the head's agent that gave it."""
    obeyed_by: str = ""
    news: int = -1
    """The number of the last reply that it has seen."""
    hold: float = 0.0
    hello: Hello | None = None
    bye: Bye | None = None

    def to_dict(self) -> dict[str, object]:
        """Return what goes over the wire: little, where there is little to say."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        said = {name: value for name, value in values.items() if value not in (None, "", ())}
        return {"protocol": VERSION, "agent": __version__, **_plain(said)}

    @classmethod
    def from_dict(cls, data: object) -> Report:
        """Read a report; raises ValueError naming the field that is wrong."""
        if not isinstance(data, dict):
            raise ValueError("a report is a JSON object")  # noqa: TRY004 - one error type for bad data
        hello, bye = data.get("hello"), data.get("bye")
        return cls(
            id=_text(data, "id", needed=True),
            ip=_text(data, "ip"),
            phase=_text(data, "phase", needed=True),
            detail=_text(data, "detail"),
            joined=_flag(data, "joined"),
            preparing=_flag(data, "preparing"),
            error=_text(data, "error"),
            items=_items(data.get("items")),
            logs=_texts(data, "logs"),
            obeyed=int(_number(data, "obeyed", 0)),
            obeyed_by=_text(data, "obeyed_by"),
            news=int(_number(data, "news", -1)),
            hold=min(LONGEST_HOLD, max(0.0, _number(data, "hold", 0.0))),
            hello=None if hello is None else _hello(hello),
            bye=None if bye is None else _bye(bye),
        )


@dataclass(frozen=True)
class Reply:
    """The head's word: news for every worker alike; a refusal and orders for this one."""

    epoch: int
    run_id: str
    phase: str
    ray_ready: bool
    gcs_port: int
    news: int
    attempt: int = 1
    fingerprint: str = ""
    verdict: Outcome | None = None
    refusal: str = ""
    held: bool = False
    """True to an agent that never belonged to the run whose verdict is held here."""
    wants_hello: bool = False
    orders: tuple[Order, ...] = ()

    def to_dict(self) -> dict[str, object]:
        """Return what goes over the wire."""
        verdict = None if self.verdict is None else self.verdict.to_dict()
        return {"protocol": VERSION, "agent": __version__, **asdict(self), "verdict": verdict}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Reply:
        """Read a reply; raises KeyError, TypeError or ValueError where it is none."""
        verdict = data["verdict"]
        return cls(
            epoch=int(data["epoch"]),
            run_id=str(data["run_id"]),
            phase=str(data["phase"]),
            ray_ready=data["ray_ready"] is True,
            gcs_port=int(data["gcs_port"]),
            news=int(data["news"]),
            attempt=int(data["attempt"]),
            fingerprint=str(data["fingerprint"]),
            verdict=None if verdict is None else Outcome.from_dict(verdict),
            refusal=str(data.get("refusal", "")),
            held=data["held"] is True,
            wants_hello=data["wants_hello"] is True,
            orders=tuple(_order(order) for order in data["orders"]),
        )


def skew(data: object, whose: str) -> str:
    """Say why messages of another version of the agent cannot be read, or ''."""
    theirs = data.get("protocol") if isinstance(data, dict) else None
    if theirs == VERSION or not isinstance(data, dict):
        return ""
    agent = data.get("agent")
    named = f"pod-agent {str(agent)[:40]}" if agent else "an earlier pod-agent"
    return (
        f"version mismatch: {whose} runs {named}, this one {__version__}, and they speak "
        "differently; use one image on all nodes"
    )


def disagreement(head: tuple[str | None, str], worker: tuple[str | None, str]) -> str:
    """Say why two nodes (Ray's version, Python's version) cannot form one cluster, or ''."""
    for what, ours, theirs in zip(("Ray", "Python"), head, worker, strict=True):
        if ours and theirs and ours != theirs:
            return (
                f"version mismatch: {what} {theirs} here, {ours} on the head; "
                "use one image on all nodes"
            )
    return ""


def _plain(values: Mapping[str, object]) -> dict[str, object]:
    """Return values as JSON has them."""
    return {name: _as_json(value) for name, value in values.items()}


def _as_json(value: object) -> object:
    if isinstance(value, Facts):
        return codec.fields_of(value, str)
    if is_dataclass(value) and not isinstance(value, type):
        return _plain({field.name: getattr(value, field.name) for field in fields(value)})
    return [_as_json(item) for item in value] if isinstance(value, tuple) else value


# --- reading what others wrote ------------------------------------------------------------------


def _hello(data: object) -> Hello:
    if not isinstance(data, dict):
        raise ValueError("hello: expected an object")  # noqa: TRY004 - one error type for bad data
    rank, ray, facts = data.get("rank"), data.get("ray"), data.get("facts")
    if rank is not None and (not isinstance(rank, int) or isinstance(rank, bool)):
        raise ValueError("rank: expected a whole number or null")
    return Hello(
        name=_text(data, "name", needed=True),
        rank=rank,
        ray=None if ray is None else _text(data, "ray"),
        python=_text(data, "python"),
        services=_text(data, "services"),
        run_id=_text(data, "run_id"),
        attempt=int(_number(data, "attempt", 0)),
        fingerprint=_text(data, "fingerprint"),
        facts=None if facts is None else _facts(facts),
    )


def _facts(data: object) -> Facts:
    try:
        found = codec.of_fields(Facts, data)
    except (codec.NotReadableError, RecursionError) as error:
        raise ValueError(f"facts: expected what a machine is and allows ({error})") from None
    assert isinstance(found, Facts)  # noqa: S101 - of_fields makes what it is asked for
    return found


def _bye(data: object) -> Bye:
    if not isinstance(data, dict):
        raise ValueError("bye: expected an object")  # noqa: TRY004 - one error type for bad data
    return Bye(cause=_text(data, "cause"), log=_text(data, "log"))


def _items(data: object) -> tuple[ItemWord, ...]:
    if data is None:
        return ()
    if not isinstance(data, list) or len(data) > _MOST_ITEMS:
        raise ValueError(f"items: expected a list of at most {_MOST_ITEMS}")
    return tuple(_item(item) for item in data)


def _item(data: object) -> ItemWord:
    if not isinstance(data, dict):
        raise ValueError("items: expected objects")  # noqa: TRY004 - one error type for bad data
    try:
        step = Step(data.get("step"))
    except ValueError:
        raise ValueError("step: expected pending, ready or lost") from None
    generation = int(_number(data, "generation", 1))
    return ItemWord(_text(data, "name", needed=True), step, _text(data, "evidence"), generation)


def _order(data: Mapping[str, Any]) -> Order:
    kind = OrderKind(str(data["kind"]))
    number, generation = int(data["number"]), int(data["generation"])
    return Order(str(data["by"]), number, kind, str(data["name"]), generation)


def _texts(data: Mapping[str, object], field: str) -> dict[str, str] | None:
    value = data.get(field)
    if value is None:
        return None
    if not isinstance(value, dict) or len(value) > _MOST_ITEMS:
        raise ValueError(f"{field}: expected at most {_MOST_ITEMS} texts by name")
    return {str(name)[:LONGEST_TEXT]: _text(value, name) for name in value}


def _text(data: Mapping[str, object], field: str, *, needed: bool = False) -> str:
    value = data.get(field, "")
    if not isinstance(value, str) or (needed and not value):
        raise ValueError(f"{field}: expected text")
    # what others send must not steer a terminal, forge a line of the log or fail to encode
    longest = _LONGEST_NAME if field == "name" else LONGEST_TEXT
    escaped = (c if c.isprintable() else ascii(c)[1:-1] for c in value[:longest])
    return "".join(escaped)[:longest]


def _flag(data: Mapping[str, object], field: str) -> bool:
    value = data.get(field, False)
    if not isinstance(value, bool):
        raise ValueError(f"{field}: expected true or false")  # noqa: TRY004 - one error type for bad data
    return value


def _number(data: Mapping[str, object], field: str, default: float) -> float:
    value = data.get(field, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= 1e15:
        raise ValueError(f"{field}: expected a number")
    return float(value)
