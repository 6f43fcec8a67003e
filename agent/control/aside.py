"""What a worker tells beside its word: for those who look at a run, and for no decision."""

from __future__ import annotations

from dataclasses import asdict, field
from typing import TYPE_CHECKING

from agent.base.latency import BOUNDS, Latency
from agent.base.value import dataclass
from agent.control.fields import MOST_ITEMS, number, text, texts
from agent.decisions.items import Step

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.decisions.known_line import Known


@dataclass(frozen=True)
class Aside:
    """How its services answer, its prepare steps stand, and what its share of the job says."""

    latencies: Mapping[str, Latency] = field(default_factory=dict)
    """By service."""
    steps: Mapping[str, Step] = field(default_factory=dict)
    progress: Mapping[str, str] = field(default_factory=dict)
    """The last line of each step that runs, without a secret: text of a log."""
    known: tuple[Known, ...] = ()
    """Lines of its share of the job whose cause is known, each cause once."""
    attempt: int = 0
    """The attempt that this share is of; 0 where it has none."""

    def to_dict(self) -> dict[str, object]:
        """Return what goes over the wire."""
        return {
            "latencies": {name: asdict(one) for name, one in self.latencies.items()},
            "steps": {name: step.value for name, step in self.steps.items()},
            "progress": dict(self.progress),
            "known": [asdict(one) for one in self.known],
            "attempt": self.attempt,
        }


def aside_of(data: object) -> Aside:
    """Read one; raises ValueError naming the field that is wrong."""
    if not isinstance(data, dict):
        raise ValueError("aside: expected an object")  # noqa: TRY004 - one error type for bad data
    steps = texts(data, "steps") or {}
    if not {*steps.values()} <= {step.value for step in Step}:
        raise ValueError("steps: expected pending, ready or lost")
    return Aside(
        latencies=_latencies(data.get("latencies")),
        steps={name: Step(step) for name, step in steps.items()},
        progress=texts(data, "progress") or {},
        known=_known(data.get("known")),
        attempt=int(number(data, "attempt", 0)),
    )


def _known(data: object) -> tuple[Known, ...]:
    if data is None:
        return ()
    if not isinstance(data, list) or len(data) > MOST_ITEMS:
        raise ValueError(f"known: expected a list of at most {MOST_ITEMS}")
    return tuple(_known_line(one) for one in data)


def _known_line(data: object) -> Known:
    from agent.decisions.known_line import Known  # noqa: PLC0415 - once a job runs

    if not isinstance(data, dict):
        raise ValueError("known: expected objects")  # noqa: TRY004 - one error type for bad data
    key, line = text(data, "key", needed=True), text(data, "line")
    return Known(key, line, text(data, "cause"), text(data, "what_to_do"))


def _latencies(data: object) -> dict[str, Latency]:
    if data is None:
        return {}
    if not isinstance(data, dict) or len(data) > MOST_ITEMS:
        raise ValueError(f"latencies: expected at most {MOST_ITEMS} by name")
    return {text({"": name}, ""): _latency(one) for name, one in data.items()}


def _latency(data: object) -> Latency:
    counts = data.get("counts") if isinstance(data, dict) else None
    if not isinstance(data, dict) or not isinstance(counts, list | tuple):
        raise ValueError("latencies: expected objects with counts")  # noqa: TRY004 - same
    if len(counts) != len(BOUNDS) + 1:
        raise ValueError(f"counts: expected {len(BOUNDS) + 1} numbers")
    whole = tuple(int(number({"counts": one}, "counts", 0)) for one in counts)
    if min(whole) < 0:
        raise ValueError("counts: expected no number below 0")
    return Latency(number(data, "last", 0.0), number(data, "total", 0.0), whole)
