"""Messages between workers and the head: reports and replies, validated field by field.

A worker's first report carries a hello with its constant facts, its last one a bye. A reply has
the state of the head, which is the same for all workers, and what it wants of this one.
"""

from __future__ import annotations

import json
from typing import Annotated, Literal, TypeVar

from msgspec import Meta, ValidationError, field, to_builtins
from msgspec.structs import replace

from agent import __version__
from agent.base import times
from agent.base.ends import Outcome
from agent.base.fields import says
from agent.base.text import escaped, map_texts, plain
from agent.base.typed import convert
from agent.base.value import (
    LONGEST_TAIL,
    LONGEST_TEXT,
    Address,
    Attempt,
    ByName,
    Count,
    Epoch,
    Gpus,
    Items,
    OptionalAddress,
    Rank,
    Required,
    Seconds,
    Timestamp,
    Value,
)
from agent.checks.finding import Finding
from agent.decisions.head.head_state import HeadPhase
from agent.decisions.shared import Answer, ItemReport, Known, NodeWanted
from agent.job.services import JudgeCost, Latency
from agent.node.facts import Facts
from agent.node.figures import Figures

V = TypeVar("V", bound=Value)
Name = Annotated[str, Meta(min_length=1, max_length=255)]  # Of a host or pod
Release = Annotated[str, Meta(max_length=80)]  # Of a program, for example 3.11.7
VERSION = 13  # The protocol's version; agents of different versions refuse each other
REPORT_PATH = "/report"
SAMPLE_PATH = "/sample"
SAMPLE_RUN = "run"
"""Paths on the agent's port, and the parameter with the run that a measurement belongs to."""
BUSY = "how busy"
STACKS = "process stacks"
"""What a worker sends like a log; no service has such a name."""
MAX_SAMPLE_BYTES = 8 << 20  # The most bytes sent in one measurement of a link
MAX_REPORT_BYTES = 1 << 18  # A goodbye carries the ends of all logs
MAX_REPORT_VALUES = 1 << 14  # Of its JSON; one whose lists are all full has 9,000
MAX_HELLO_CHARACTERS = 48 << 10  # The head keeps each hello in memory
MAX_ANSWERS = 16


def read(kind: type[V], data: object, tails: str = "") -> V:
    """Read JSON data; raises ValueError naming the wrong field. Texts in `tails` keep line ends."""
    try:
        cut = map_texts(data, _cut)
        if isinstance(data, dict) and isinstance(cut, dict) and isinstance(data.get(tails), dict):
            cut[tails] = {_cut(name): _cut_tail(text) for name, text in data[tails].items()}
        return convert(cut, kind, str_keys=True)
    except RecursionError:
        raise ValueError("message: expected less nested data") from None
    except ValidationError as error:  # "Expected `int`, got `str` - at `$.hello.rank`"
        fault, _, path = str(error).partition(" - at ")
        if "matching regex" in fault:  # only addresses have a pattern
            fault = "Expected an IP address, without a scope id"
        fault = escaped(fault)[:100]
        path = path.rpartition("`$")[2].strip(".`")
        raise ValueError(f"{path or 'message'}: {fault[0].lower()}{fault[1:]}") from None


def _cut(text: str) -> str:
    """Return a text escaped and cut: msgspec refuses half a surrogate pair."""
    if len(text) <= LONGEST_TEXT and text.isprintable():
        return text
    return escaped(text[:LONGEST_TEXT])[:LONGEST_TEXT]


def _cut_tail(data: object) -> object:
    if not isinstance(data, str):
        return data
    return plain(data[-2 * LONGEST_TAIL :]).encode(errors="replace").decode()[-LONGEST_TAIL:]


class NodeValues(Value, kw_only=True):
    """What a node reports of itself and is shown as it is."""

    caches: Annotated[
        Literal["", "seeded", "cold"], says("its compile caches, once they are seeded")
    ] = ""


class WorkerStats(NodeValues):
    """A worker's statistics: services, prepare steps, its share of the job, its machine."""

    latencies: ByName[Latency] = field(default_factory=dict)  # Per service
    progress: ByName[str] = field(default_factory=dict)  # Last line of each running step's log
    known: Items[Known] = ()  # Known lines in the output of its share of the job, each cause once
    attempt: Attempt = 0  # The attempt of that share; 0 without one
    figures: Figures | None = None  # Of its machine, in every third report or so
    judge: JudgeCost | None = None  # What the judge of its reward server was asked

    def after(self, former: WorkerStats | None) -> WorkerStats:
        """Return them with the former figures where they have none."""
        if self.figures is not None or former is None or former.figures is None:
            return self
        return replace(self, figures=former.figures)


class Hello(Value):
    """The constant facts of a worker's agent, sent in its first report."""

    name: Name
    rank: Rank | None = None
    ray: Release | None = None
    python: Release = ""
    services: str = ""  # A digest of the services and prepare steps; it must equal the head's
    run_id: str = ""  # The run that it followed before, where the head was restarted
    attempt: Attempt = 0  # The last submitted attempt that it was sent
    fingerprint: str = ""  # The last reply's, which proves run, attempt and epoch to a later head
    job: str = ""  # A digest of the job's command, where a launcher starts it on each node
    torch: Release = ""  # The version of torch of that job
    gpus: Gpus = 0  # The GPUs of its share of that job
    group: str = ""  # Its group, where that is set on its node
    members: ByName[Count] = field(default_factory=dict)
    """By service of a group: how many members a node like this one has."""
    left: ByName[Count] = field(default_factory=dict)
    """The generations of services that a killed agent has left running, and none has adopted."""
    facts: Facts | None = None  # Facts about its machine
    clock: Timestamp | None = None  # Its clock when the hello was sent, in seconds since 1970
    findings: Items[Finding] = ()  # The findings of its own checks at its start

    def with_clock_offset(self, now: float) -> Hello:
        """Return a copy with the offset of its clock from this node's, transfer time included."""
        if self.clock is None or self.facts is None:
            return self
        versions = replace(self.facts.node_versions, clock_ahead=self.clock - now)
        return replace(self, facts=replace(self.facts, node_versions=versions))


class Applied(Value):
    """The last that a worker has received of what the head wants of its node."""

    by: str = ""  # the id of the head's agent
    revision: Count = 0


class Bye(Value):
    """A worker's goodbye: why it leaves, and the end of its log."""

    cause: str
    log: str = ""


class Report(Value, omit_defaults=True):
    """One message of a worker; the first has a hello, the last a bye."""

    id: Required  # The agent's id; an agent restarted on the same node has another
    ip: OptionalAddress
    phase: Required
    detail: str = ""
    memory: str = ""  # A recent kill by the kernel's OOM killer on its node, as a sentence
    items: Items[ItemReport] = ()
    stats: WorkerStats | None = None
    logs: ByName[str] | None = None  # Ends of the requested logs by name; of all logs with a bye
    answers: Annotated[
        tuple[Answer, ...], Meta(max_length=MAX_ANSWERS)
    ] = ()  # Of the probes that were asked for
    applied: Applied = Applied()
    news: Annotated[int, Meta(ge=-1, le=2**53)] = -1  # The number of the last reply received
    hold: Annotated[float, Meta(ge=0, le=times.REPLY_HELD)] = 0.0
    hello: Hello | None = None
    bye: Bye | None = None
    epoch: Epoch = 0  # The highest epoch received in its run; 0 before any
    notice: Seconds | None = None  # Seconds until it leaves, where its platform takes its node away
    sequence: Count = 0  # The report's number, from 1 on

    def to_dict(self) -> dict[str, object]:
        """Return the wire format, without fields that have their default."""
        return {"protocol": VERSION, "agent": __version__, **to_builtins(self)}

    @classmethod
    def from_dict(cls, data: object) -> Report:
        """Read a report; raises ValueError naming the wrong field."""
        if not isinstance(data, dict):
            raise ValueError("a report is a JSON object")  # noqa: TRY004 - one error type for bad data
        hello = data.get("hello")
        if hello is not None and len(json.dumps(hello)) > MAX_HELLO_CHARACTERS:
            raise ValueError(f"hello: expected at most {MAX_HELLO_CHARACTERS} characters of JSON")
        return read(cls, {"ip": "", **data}, tails="logs")


class Reply(Value):
    """The head's answer: its state, the same for all workers, and what it wants of this one."""

    epoch: Epoch
    run_id: str
    phase: str
    ray_ready: bool
    head_ip: Address  # The address of the head's node, where its Ray listens
    news: Count
    attempt: Attempt = 1
    fingerprint: str = ""  # A digest of the job, the run, the last submitted attempt and the epoch
    verdict: Outcome | None = None
    refusal: str = ""
    held: bool = False  # The head only holds the verdict of a run that this agent was never part of
    wants_hello: bool = False
    wanted: NodeWanted | None = None  # None: nothing new
    rank: Rank | None = None  # The rank that the head assigned, where the platform sets none

    @property
    def submitted(self) -> int:
        """Return the last attempt that was submitted before this reply."""
        return self.attempt - (self.phase == HeadPhase.BOOTING.value)

    def to_dict(self) -> dict[str, object]:
        """Return the wire format."""
        return {"protocol": VERSION, "agent": __version__, **to_builtins(self)}

    @classmethod
    def from_dict(cls, data: object) -> Reply:
        """Read a reply; raises ValueError naming the wrong field."""
        reply = read(cls, data)
        shares = [] if reply.wanted is None else reply.wanted.shares
        if any(share.rank >= len(share.nodes) for share in shares):
            raise ValueError("wanted: expected ranks below the number of nodes")
        return reply


def protocol_mismatch(data: object, whose: str) -> str:
    """Return why messages of another protocol version cannot be read, or ''."""
    if not isinstance(data, dict) or data.get("protocol") == VERSION:
        return ""
    agent = escaped(str(data.get("agent") or "of an earlier version")[:40])
    return (
        f"version mismatch: {whose} runs pod-agent {agent}, this one {__version__}, and they speak "
        "differently; use one image on all nodes"
    )
