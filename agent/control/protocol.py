"""What travels between a worker's agent and the head's: small messages, read with care.

A worker says hello once, with all that is true for its whole life; then it sends beats, and at
its end a bye. The head's reply is news for all, and orders for this one.
"""

from __future__ import annotations

from dataclasses import asdict, fields, is_dataclass
from typing import TYPE_CHECKING, Any

from agent import __version__
from agent.base.addresses import is_ip
from agent.base.outcome import Outcome
from agent.base.value import dataclass
from agent.checks.finding import Finding, Level
from agent.control.aside import Aside, aside_of
from agent.control.fields import MOST_ITEMS, flag, number, tails, text
from agent.decisions.items import ItemWord, Step
from agent.decisions.probing import Answer
from agent.decisions.shared import Order, OrderKind
from agent.node.facts import Facts
from agent.record import codec
from agent.work.recipes.recipe import NodeSize
from agent.work.torchrun import PartEnd, PartOver, Seat

if TYPE_CHECKING:
    from collections.abc import Mapping

VERSION = 2
"""Of these messages; agents of different versions refuse each other by name."""
REPORT_PATH = "/report"
LONGEST_HOLD = 10.0
"""Longest that the head holds a report back while it has nothing new to say."""
LARGEST_REPORT = 1 << 18
"""A hello has all interfaces of its machine, which may be a thousand."""
MOST_ANSWERS = 16


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
    """The last attempt that was submitted, as far as it knows."""
    fingerprint: str = ""
    """That of the last reply: it proves run, attempt and epoch to a later head of the same job."""
    job: str = ""
    """A digest of the job's command, where every node starts its share of it by torchrun."""
    torch: str = ""
    """The version of torch that it would be started with."""
    gpus: int = 0
    """The GPUs that its share would have."""
    facts: Facts | None = None
    """What its machine is and allows."""
    clock: float | None = None
    """Its clock as this is said, in seconds since 1970."""
    findings: tuple[Finding, ...] = ()
    """What its own checks found as it was started."""


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
    memory: str = ""
    """What the kernel did on its node a moment before for want of memory."""
    items: tuple[ItemWord, ...] = ()
    part: PartOver | None = None
    """How its share of the job ended, where it has one."""
    aside: Aside | None = None
    logs: Mapping[str, str] | None = None
    """Ends of logs, by the names under which they are asked for; all of them with a bye."""
    answers: tuple[Answer, ...] = ()
    """How what the head wanted tried went."""
    obeyed: int = 0
    """The number of the last order that it took in, and the head's agent that gave it."""
    obeyed_by: str = ""
    news: int = -1
    """The number of the last reply that it has seen."""
    hold: float = 0.0
    hello: Hello | None = None
    bye: Bye | None = None
    alone: bool = False
    """True where its node is there for a service only, and joins no Ray."""
    runs: int = 0
    """The attempt of which something may run on its node; 0 where nothing does."""
    epoch: int = 0
    """The highest that it has heard of in its run; 0 before any."""
    sequence: int = 0
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
        hello, bye, part = data.get("hello"), data.get("bye"), data.get("part")
        aside = data.get("aside")
        return cls(
            id=text(data, "id", needed=True),
            ip=text(data, "ip"),
            phase=text(data, "phase", needed=True),
            detail=text(data, "detail"),
            joined=flag(data, "joined"),
            preparing=flag(data, "preparing"),
            error=text(data, "error"),
            memory=text(data, "memory"),
            items=_items(data.get("items")),
            part=None if part is None else _part(part),
            aside=None if aside is None else aside_of(aside),
            logs=tails(data, "logs"),
            answers=_answers(data.get("answers")),
            obeyed=int(number(data, "obeyed", 0)),
            obeyed_by=text(data, "obeyed_by"),
            news=int(number(data, "news", -1)),
            hold=min(LONGEST_HOLD, max(0.0, number(data, "hold", 0.0))),
            hello=None if hello is None else _hello(hello),
            bye=None if bye is None else _bye(bye),
            alone=flag(data, "alone"),
            runs=int(number(data, "runs", 0)),
            epoch=int(number(data, "epoch", 0)),
            sequence=int(number(data, "sequence", 0)),
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
    """A digest of the job, the run, the last submitted attempt and the epoch."""
    verdict: Outcome | None = None
    refusal: str = ""
    held: bool = False
    """True to an agent that never belonged to the run whose verdict is held here."""
    wants_hello: bool = False
    orders: tuple[Order, ...] = ()
    rank: int | None = None
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
            rank=None if data.get("rank") is None else int(data["rank"]),
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


# --- reading what others wrote ------------------------------------------------------------------


def _hello(data: object) -> Hello:
    if not isinstance(data, dict):
        raise ValueError("hello: expected an object")  # noqa: TRY004 - one error type for bad data
    rank, ray, facts = data.get("rank"), data.get("ray"), data.get("facts")
    if rank is not None and (not isinstance(rank, int) or isinstance(rank, bool)):
        raise ValueError("rank: expected a whole number or null")
    return Hello(
        name=text(data, "name", needed=True),
        rank=rank,
        ray=None if ray is None else text(data, "ray"),
        python=text(data, "python"),
        services=text(data, "services"),
        run_id=text(data, "run_id"),
        attempt=int(number(data, "attempt", 0)),
        fingerprint=text(data, "fingerprint"),
        job=text(data, "job"),
        torch=text(data, "torch"),
        gpus=int(number(data, "gpus", 0)),
        facts=None if facts is None else _facts(facts),
        clock=None if data.get("clock") is None else number(data, "clock", 0.0),
        findings=_findings(data.get("findings")),
    )


def _facts(data: object) -> Facts:
    try:
        found = codec.of_fields(Facts, data)
    except (codec.NotReadableError, RecursionError) as error:
        raise ValueError(f"facts: expected what a machine is and allows ({error})") from None
    assert isinstance(found, Facts)  # noqa: S101 - of_fields makes what it is asked for
    return found


def _answers(data: object) -> tuple[Answer, ...]:
    if data is None:
        return ()
    if not isinstance(data, list) or len(data) > MOST_ANSWERS:
        raise ValueError(f"answers: expected a list of at most {MOST_ANSWERS}")
    return tuple(_answer(one) for one in data)


def _answer(data: object) -> Answer:
    if not isinstance(data, dict):
        raise ValueError("answers: expected objects")  # noqa: TRY004 - one error type for bad data
    probe, at = text(data, "probe", needed=True), text(data, "at")
    seconds, size = number(data, "seconds", 0.0), int(number(data, "size", 0))
    return Answer(probe, at, text(data, "evidence"), seconds, max(0, size))


def _findings(data: object) -> tuple[Finding, ...]:
    if data is None:
        return ()
    if not isinstance(data, list) or len(data) > MOST_ITEMS:
        raise ValueError(f"findings: expected a list of at most {MOST_ITEMS}")
    return tuple(_finding(one) for one in data)


def _finding(data: object) -> Finding:
    if not isinstance(data, dict):
        raise ValueError("findings: expected objects")  # noqa: TRY004 - one error type for bad data
    try:
        level = Level(data.get("level"))
    except ValueError:
        raise ValueError("level: expected ok, warn or fail") from None
    check, what = text(data, "check", needed=True), text(data, "what")
    return Finding(check, level, what, text(data, "remedy"))


def _bye(data: object) -> Bye:
    if not isinstance(data, dict):
        raise ValueError("bye: expected an object")  # noqa: TRY004 - one error type for bad data
    return Bye(cause=text(data, "cause"), log=text(data, "log"))


def _items(data: object) -> tuple[ItemWord, ...]:
    if data is None:
        return ()
    if not isinstance(data, list) or len(data) > MOST_ITEMS:
        raise ValueError(f"items: expected a list of at most {MOST_ITEMS}")
    return tuple(_item(item) for item in data)


def _item(data: object) -> ItemWord:
    if not isinstance(data, dict):
        raise ValueError("items: expected objects")  # noqa: TRY004 - one error type for bad data
    try:
        step = Step(data.get("step"))
    except ValueError:
        raise ValueError("step: expected pending, ready or lost") from None
    generation = int(number(data, "generation", 1))
    return ItemWord(text(data, "name", needed=True), step, text(data, "evidence"), generation)


def _part(data: object) -> PartOver:
    if not isinstance(data, dict):
        raise ValueError("part: expected an object")  # noqa: TRY004 - one error type for bad data
    local_rank = data.get("local_rank")
    end = PartEnd(
        code=int(number(data, "code", 0)),
        local_rank=None if local_rank is None else int(number(data, "local_rank", 0)),
        words=text(data, "words"),
        ago=max(0.0, number(data, "ago", 0.0)),
        by_order=flag(data, "by_order"),
        lost=flag(data, "lost"),
    )
    return PartOver(int(number(data, "attempt", 0)), end)


def _order(data: Mapping[str, Any]) -> Order:
    kind = OrderKind(str(data["kind"]))
    number, generation = int(data["number"]), int(data["generation"])
    seat = data.get("seat")
    share, at = None if seat is None else _seat(seat), str(data.get("at", ""))
    return Order(str(data["by"]), number, kind, str(data["name"]), generation, share, at)


def _seat(data: Mapping[str, Any]) -> Seat:
    """Read which share of a job a node has; raises ValueError where it is none of them."""
    nodes = tuple(
        NodeSize(
            int(node["gpus"]),
            None if node["cpus"] is None else int(node["cpus"]),
            None if node["memory"] is None else int(node["memory"]),
        )
        for node in data["nodes"]
    )
    rank = int(data["rank"])
    reward_ip = str(data["reward_ip"])
    if not 0 <= rank < len(nodes) or any(node.gpus < 0 for node in nodes):
        raise ValueError(f"rank {rank} is none of {len(nodes)} nodes")
    if reward_ip and not is_ip(reward_ip):
        raise ValueError(f"{reward_ip!r} is no address")
    return Seat(rank, nodes, reward_ip)
