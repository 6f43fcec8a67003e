"""What of a job's output is told while the job runs: what ends it, and what only alarms."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from agent.base.words import plain
from agent.decisions.known_line import Known
from agent.decisions.remedies import CAUSES, is_noise
from agent.decisions.remedies.noise import NOISE

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from agent.decisions.remedies.row import Remedy

LIVE: tuple[Remedy, ...] = (*NOISE, *(row for row in CAUSES if row.signs))
"""Noise first: what it explains is no cause."""
KEYS = frozenset(row.key for row in LIVE)
_MOST_LINES = 100
"""So many lines with a row's sign are looked at in one piece of output."""
_LONGEST = 2_000


def known_in(lines: Sequence[bytes], told: Iterable[str] = ()) -> list[Known]:
    """Return what is known of some lines, each row once; rows that were told are left out."""
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
    for _, raw in zip(range(_MOST_LINES), with_signs, strict=False):
        line = plain(raw[:_LONGEST].decode(errors="replace")).strip()
        match = row.found_in(line)
        if match is not None and (row in NOISE or not is_noise(line)):
            return Known(row.key, line, *row.told(match), row in NOISE)
    return None


@cache
def _signs(row: Remedy) -> tuple[bytes, ...]:
    return tuple(sign.encode() for sign in row.signs)
