"""Find known lines in logs and in the job's output."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from agent.base.text import plain
from agent.base.value import Value
from agent.decisions.remedies.tables import JOB, MACHINE, NETWORK, NOISE, RAY
from agent.decisions.values import Known

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from agent.decisions.remedies.tables import Remedy


CAUSES = (*MACHINE, *NETWORK, *RAY, *JOB)
"""The most specific tables first: of several rows in one log the first one counts."""


class Explained(Value):
    """A known line that was found in a log."""

    key: str
    log: str
    line: str
    sentence: str

    def remedy(self) -> str:
        """Return it as the remedy of an outcome."""
        return f"{self.log} tells why: {self.sentence}"


def explain(logs: tuple[tuple[str, str], ...]) -> Explained | None:
    """Explain the first known line in the ends of logs, given as (name, text) in order."""
    for name, text in logs:
        lines = [line for line in text.splitlines() if not is_noise(line)]
        for row in CAUSES:
            for line in reversed(lines):
                match = row.found_in(line)
                if match is not None:
                    return Explained(row.key, name, line.strip(), row.explain(match))
    return None


def is_noise(line: str) -> bool:
    """Return whether a line is a known false alarm."""
    return any(row.found_in(line) for row in NOISE)


LIVE: tuple[Remedy, ...] = (*NOISE, *(row for row in CAUSES if row.signs))
"""Noise first: a line that it explains is no cause."""
KEYS = frozenset(row.key for row in LIVE)
_MAX_LINES = 100
"""How many lines with a row's sign are checked in one piece of output."""
_LONGEST = 2_000


def find_known_lines(lines: Sequence[bytes], told: Iterable[str] = ()) -> list[Known]:
    """Return the known lines among these, each row once, without rows already reported."""
    piece, found, seen = b"\n".join(lines), [], {*told}
    for row in LIVE:
        if row.key in seen or not any(sign in piece for sign in _signs(row)):
            continue
        known = _first(row, lines)
        if known is not None:
            found.append(known)
    return found


def _first(row: Remedy, lines: Sequence[bytes]) -> Known | None:
    with_signs = (line for line in lines if any(sign in line for sign in _signs(row)))
    for _, raw in zip(range(_MAX_LINES), with_signs, strict=False):
        line = plain(raw[:_LONGEST].decode(errors="replace")).strip()
        match = row.found_in(line)
        if match is not None and (row in NOISE or not is_noise(line)):
            return Known(row.key, line, *row.cause_and_remedy(match), row in NOISE)
    return None


@cache
def _signs(row: Remedy) -> tuple[bytes, ...]:
    return tuple(sign.encode() for sign in row.signs)
