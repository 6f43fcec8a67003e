"""Things that must come up, and how far each has come."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Step(str, Enum):
    """How far something that must come up has come."""

    PENDING = "pending"
    READY = "ready"
    LOST = "lost"


@dataclass(frozen=True)
class Item:
    """One thing that must come up: Ray, a service, a prepare step."""

    step: Step = Step.PENDING
    evidence: str = ""
    restarts: int = 0
    answered: bool = False
    """True once it was ready, whatever came after."""
    deadline: float | None = None
