"""What travels between a worker's agent and the head's: small messages, read with care.

A worker says hello once, with all that is true for its whole life; then it sends beats, and at
its end a bye. The head's reply is news for all, and orders for this one.
"""

from __future__ import annotations

import json
from dataclasses import asdict, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Annotated

from agent import __version__
from agent.base.addresses import is_ip
from agent.base.value import dataclass
from agent.base.words import escaped
from agent.control.aside import Aside
from agent.control.fields import UnreadableError, read
from agent.node.facts import Facts
from agent.record import codec
from agent.work.torchrun import PartOver

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.base.outcome import Outcome
    from agent.base.ranges import (
        Attempt,
        Count,
        Epoch,
        Gpus,
        Moment,
        Most,
        Name,
        Port,
        Range,
        Rank,
        Required,
        Tail,
    )
    from agent.checks.finding import Finding
    from agent.decisions.items import ItemWord
    from agent.decisions.probing import Answer
    from agent.decisions.shared import Order
    from agent.work.torchrun import Seat

VERSION = 2
"""Of these messages; agents of different versions refuse each other by name."""
REPORT_PATH = "/report"
LONGEST_HOLD = 10.0
"""Longest that the head holds a report back while it has nothing new to say."""
LARGEST_REPORT = 1 << 18
"""In bytes; a goodbye has the ends of all logs."""
LARGEST_HELLO = 48 << 10
"""In characters; it is kept for as long as its agent is."""
MOST_ANSWERS = 16
MOST_ORDERS = 1 << 16


@dataclass(frozen=True)
class Hello:
    """What is true of a worker's agent for its whole life, said once."""

    name: Name
    rank: Rank | None
    ray: str | None = None
    python: str = ""
    services: str = ""
    """A digest of what the head may have it run: both plans must know the same."""
    run_id: str = ""
    """The run to which it belonged before, where it comes back to a head that was restarted."""
    attempt: Attempt = 0
    """The last attempt that was submitted, as far as it knows."""
    fingerprint: str = ""
    """That of the last reply: it proves run, attempt and epoch to a later head of the same job."""
    job: str = ""
    """A digest of the job's command, where every node starts its share of it by torchrun."""
    torch: str = ""
    """The version of torch that it would be started with."""
    gpus: Gpus = 0
    """The GPUs that its share would have."""
    facts: Facts | None = None
    """What its machine is and allows."""
    clock: Moment | None = None
    """Its clock as this is said, in seconds since 1970."""
    findings: tuple[Finding, ...] = ()
    """What its own checks found as it was started."""

    def arrived(self, now: float) -> Hello:
        """Return it with how far its clock is ahead of this node's, the way here included."""
        if self.clock is None or self.facts is None:
            return self
        outfit = replace(self.facts.outfit, clock_ahead=self.clock - now)
        return replace(self, facts=replace(self.facts, outfit=outfit))


@dataclass(frozen=True)
class Bye:
    """A worker's last word: why it leaves, and the end of its log."""

    cause: str
    log: str = ""


@dataclass(frozen=True)
class Report:
    """One message of a worker's: a beat, with a hello or a bye where there is one to say."""

    id: Name
    """The agent's own id: a later life of the same node has another."""
    ip: str
    phase: Required
    detail: str = ""
    joined: bool = False
    preparing: bool = False
    error: str = ""
    memory: str = ""
    """What the kernel did on its node a moment before for want of memory."""
    items: tuple[ItemWord, ...] = ()
    part: PartOver | None = None
    """How its share of the job ended, where it has one."""
    aside: Aside | None = None
    logs: Mapping[str, Tail] | None = None
    """Ends of logs, by the names under which they are asked for; all of them with a bye."""
    answers: Annotated[tuple[Answer, ...], Most(MOST_ANSWERS)] = ()
    """How what the head wanted tried went."""
    obeyed: Count = 0
    """The number of the last order that it took in, and the head's agent that gave it."""
    obeyed_by: str = ""
    news: Annotated[int, Range(-1, 2**53)] = -1
    """The number of the last reply that it has seen."""
    hold: Annotated[float, Range(0, LONGEST_HOLD)] = 0.0
    hello: Hello | None = None
    bye: Bye | None = None
    alone: bool = False
    """True where its node is there for a service only, and joins no Ray."""
    runs: Attempt = 0
    """The attempt of which something may run on its node; 0 where nothing does."""
    epoch: Epoch = 0
    """The highest that it has heard of in its run; 0 before any."""
    sequence: Count = 0
    """Its number among all of the agent's reports, from 1 on; 0 where they have none."""

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
        hello, part = data.get("hello"), data.get("part")
        if hello is not None and len(json.dumps(hello)) > LARGEST_HELLO:
            raise ValueError(f"hello: expected at most {LARGEST_HELLO} characters of JSON")
        if isinstance(part, dict):  # on the wire its end lies beside the attempt's number
            data = {**data, "part": {"end": part, **part}}
        return read(cls, data)


@dataclass(frozen=True)
class Reply:
    """The head's word: news for every worker alike; a refusal and orders for this one."""

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
    """True to an agent that never belonged to the run whose verdict is held here."""
    wants_hello: bool = False
    orders: Annotated[tuple[Order, ...], Most(MOST_ORDERS)] = ()
    rank: Rank | None = None
    """The rank that this agent's node was given, where no platform told one."""

    @property
    def submitted(self) -> int:
        """Return the last attempt that had been submitted when this was said."""
        from agent.decisions.head.state import Phase  # noqa: PLC0415 - only when a head comes back

        return self.attempt - (self.phase == Phase.BOOTING.value)

    def to_dict(self) -> dict[str, object]:
        """Return what goes over the wire."""
        verdict = None if self.verdict is None else self.verdict.to_dict()
        return {"protocol": VERSION, "agent": __version__, **asdict(self), "verdict": verdict}

    @classmethod
    def from_dict(cls, data: object) -> Reply:
        """Read a reply; raises ValueError naming the field that is wrong."""
        reply = read(cls, data)
        for at, order in enumerate(reply.orders):
            if order.seat is not None:
                _check(order.seat, f"orders[{at}].seat")
        return reply


def skew(data: object, whose: str) -> str:
    """Say why messages of another version of the agent cannot be read, or ''."""
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
"""Of Ray, Python and torch: None or '' where a node does not tell, or it does not matter."""


def disagreement(head: Versions, worker: Versions) -> str:
    """Say why two nodes cannot form one cluster by their versions, or ''."""
    for what, ours, theirs in zip(("Ray", "Python", "torch"), head, worker, strict=True):
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
    if isinstance(value, Aside):
        return value.to_dict()
    if isinstance(value, Facts):
        return codec.fields_of(value, str)
    if isinstance(value, PartOver):
        return {"attempt": value.attempt, **_plain(asdict(value.end))}
    if is_dataclass(value) and not isinstance(value, type):
        return _plain({field.name: getattr(value, field.name) for field in fields(value)})
    return [_as_json(item) for item in value] if isinstance(value, tuple) else value


def _check(seat: Seat, field: str) -> None:
    """Refuse a seat that is none of its nodes'."""
    if not seat.rank < len(seat.nodes):
        raise UnreadableError("a rank below the number of its nodes", field)
    if seat.reward_ip and not is_ip(seat.reward_ip):
        raise UnreadableError("an address", f"{field}.reward_ip")
