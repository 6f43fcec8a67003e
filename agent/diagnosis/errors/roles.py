"""Roles of lines by their words, which rows.toml has."""

from __future__ import annotations

import re
from functools import cache
from typing import Literal, NamedTuple

from agent.diagnosis.rows_file import read_rows

RoleName = Literal[
    "wrapper",
    "consequence",
    "report",
    "end",
    "end of a step",
    "no end of a step",
    "another try",
]
_EARLY = 200  # characters before a part of a line


def patterns(role: RoleName) -> dict[str, re.Pattern[str]]:
    """Return the expressions of a role by the method that applies them."""
    words = _words_of(role)
    found = {"match": words.beginning, "search": words.part}
    return {method: pattern for method, pattern in found.items() if pattern is not None}


class _Words(NamedTuple):
    beginning: re.Pattern[str] | None
    part: re.Pattern[str] | None


def has_role(role: RoleName, text: str) -> bool:
    """Return whether a text has words of a role."""
    words = _words_of(role)
    if words.beginning is not None and words.beginning.match(text) is not None:
        return True
    return words.part is not None and words.part.search(text) is not None


def without_role(role: RoleName, text: str) -> str:
    """Return a text without the words of a role."""
    part = _words_of(role).part
    return text if part is None else part.sub("", text)


@cache
def _words_of(role: RoleName) -> _Words:
    row = next(row for row in read_rows()["role"] if row["is"] == role)
    flags = re.IGNORECASE if row.get("ignores_case", False) else re.RegexFlag(0)
    beginnings = [*row.get("begins", ())]
    if "early" in row:
        beginnings.append(f".{{0,{_EARLY}}}(?:{'|'.join(row['early'])})")
    parts = row.get("has", ())
    return _Words(
        re.compile("|".join(beginnings), flags) if beginnings else None,
        re.compile("|".join(parts), flags) if parts else None,
    )
