"""What known words in a log mean: tables of rows, and how they are looked for."""

from __future__ import annotations

from agent.base.value import dataclass
from agent.decisions.remedies.job import JOB
from agent.decisions.remedies.machine import MACHINE
from agent.decisions.remedies.network import NETWORK
from agent.decisions.remedies.noise import NOISE
from agent.decisions.remedies.ray import RAY

CAUSES = (*MACHINE, *NETWORK, *RAY, *JOB)
"""The telling ones first: of several in one log the first row is taken."""


@dataclass(frozen=True)
class Explained:
    """What was found in a log."""

    key: str
    log: str
    line: str
    sentence: str

    def remedy(self) -> str:
        """Say it as the remedy of an outcome."""
        return f"{self.log} tells why: {self.sentence}"


def explain(logs: tuple[tuple[str, str], ...]) -> Explained | None:
    """Find what the ends of some logs, each with its name, tell; an earlier one is asked first."""
    for name, text in logs:
        lines = [line for line in text.splitlines() if not is_noise(line)]
        for row in CAUSES:
            for line in reversed(lines):
                match = row.found_in(line)
                if match is not None:
                    return Explained(row.key, name, line.strip(), row.explain(match))
    return None


def is_noise(line: str) -> bool:
    """Say whether a line alarms and means nothing."""
    return any(row.found_in(line) for row in NOISE)
