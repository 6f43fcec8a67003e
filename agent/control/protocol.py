"""What travels between a worker's agent and the head's: two small messages."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from agent.base.outcome import Outcome

if TYPE_CHECKING:
    from collections.abc import Mapping

REPORT_PATH = "/report"
LONGEST_HOLD = 10.0
"""Longest that the head holds a report back while it has nothing new to say."""
LARGEST_REPORT = 65_536
_LONGEST_TEXT = 2_000
_LONGEST_NAME = 253
"""What DNS allows."""


@dataclass(frozen=True)
class Report:
    """A worker's word: who it is, what it does, and how long it will wait for news."""

    name: str
    ip: str
    rank: int | None
    phase: str
    detail: str = ""
    joined: bool = False
    preparing: bool = False
    leaving: bool = False
    error: str = ""
    ray: str | None = None
    python: str = ""
    news: int = -1
    """The number of the last reply it has seen."""
    hold: float = 0.0

    def to_dict(self) -> dict[str, object]:
        """Return what goes over the wire."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: object) -> Report:
        """Read a report; raises ValueError naming the field that is wrong."""
        if not isinstance(data, dict):
            raise ValueError("a report is a JSON object")  # noqa: TRY004 - one error type for bad data
        rank = data.get("rank")
        if rank is not None and (not isinstance(rank, int) or isinstance(rank, bool)):
            raise ValueError("rank: expected a whole number or null")
        ray = data.get("ray")
        return cls(
            name=_text(data, "name", needed=True),
            ip=_text(data, "ip"),
            rank=rank,
            phase=_text(data, "phase", needed=True),
            detail=_text(data, "detail"),
            joined=_flag(data, "joined"),
            preparing=_flag(data, "preparing"),
            leaving=_flag(data, "leaving"),
            error=_text(data, "error"),
            ray=None if ray is None else _text(data, "ray"),
            python=_text(data, "python"),
            news=int(_number(data, "news", -1)),
            hold=min(LONGEST_HOLD, max(0.0, _number(data, "hold", 0.0))),
        )


@dataclass(frozen=True)
class Reply:
    """The head's word to every worker alike, but for a refusal."""

    epoch: str
    run_id: str
    phase: str
    ray_ready: bool
    gcs_port: int
    news: int
    verdict: Outcome | None = None
    refusal: str = ""

    def to_dict(self) -> dict[str, object]:
        """Return what goes over the wire."""
        verdict = None if self.verdict is None else self.verdict.to_dict()
        return {**asdict(self), "verdict": verdict}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Reply:
        """Read a reply; raises KeyError, TypeError or ValueError where it is none."""
        verdict = data["verdict"]
        return cls(
            epoch=str(data["epoch"]),
            run_id=str(data["run_id"]),
            phase=str(data["phase"]),
            ray_ready=data["ray_ready"] is True,
            gcs_port=int(data["gcs_port"]),
            news=int(data["news"]),
            verdict=None if verdict is None else Outcome.from_dict(verdict),
            refusal=str(data.get("refusal", "")),
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


def _text(data: Mapping[str, object], field: str, *, needed: bool = False) -> str:
    value = data.get(field, "")
    if not isinstance(value, str) or (needed and not value):
        raise ValueError(f"{field}: expected text")
    # what others send must not steer a terminal, forge a line of the log or fail to encode
    longest = _LONGEST_NAME if field == "name" else _LONGEST_TEXT
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
