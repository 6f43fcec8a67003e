"""What both stories share: waits as data, and the shape of a decision."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agent.base.outcome import Outcome


@dataclass(frozen=True)
class Wait:
    """Something waited for: what, until when, and the last that was heard of it."""

    what: str
    deadline: float
    evidence: str = ""

    def sentence(self, now: float) -> str:
        """Say what is missing, why as far as known, and how long there is."""
        left = max(0, round(self.deadline - now))
        why = f", {self.evidence}" if self.evidence else ""
        return f"waiting for {self.what}{why} ({left} s left)"

    def over(self, now: float) -> bool:
        """Say whether the deadline has passed."""
        return now >= self.deadline


@dataclass(frozen=True)
class Said:
    """A sentence for the log, as a decision's by-product."""

    sentence: str
    level: str = "info"


@dataclass(frozen=True)
class Tick:
    """Time has passed; nothing else happened."""


@dataclass(frozen=True)
class StopAsked:
    """A signal asks this node to stop."""

    signum: int


@dataclass(frozen=True)
class Unfit:
    """This node's own checks forbid the run."""

    outcome: Outcome


def listed(names: list[str] | tuple[str, ...]) -> str:
    """Join names as a person would."""
    return ", ".join(names[:-1]) + " and " + names[-1] if len(names) > 1 else "".join(names)
