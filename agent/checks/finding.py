"""What a check says: fine, doubtful or impossible, and the remedy."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from agent.base.value import dataclass

if TYPE_CHECKING:
    from agent.base.ranges import Required


class Level(str, Enum):
    """How much a finding weighs."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True)
class Finding:
    """One check's word on this machine."""

    check: Required
    level: Level
    what: str
    remedy: str = ""

    def sentence(self) -> str:
        """Say the finding and its remedy in one line."""
        return f"{self.check}: {self.what}" + (f". {self.remedy}" if self.remedy else "")
