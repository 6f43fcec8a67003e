"""Reading the fields of what others wrote: each raises ValueError that names the field."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.base.words import plain

if TYPE_CHECKING:
    from collections.abc import Mapping

LONGEST_TEXT = 2_000
LONGEST_TAIL = 16 << 10
"""Of the end of a log, which keeps its lines."""
MOST_ITEMS = 64
"""Of a list, or of texts by name."""
_LONGEST_NAME = 253
"""What DNS allows."""


def texts(data: Mapping[str, object], field: str) -> dict[str, str] | None:
    """Return texts by name; None where there are none."""
    given = _by_name(data, field)
    return None if given is None else {name: text({name: t}, name) for name, t in given.items()}


def tails(data: Mapping[str, object], field: str) -> dict[str, str] | None:
    """Return ends of logs by name, without what steers a terminal; None where there are none."""
    given = _by_name(data, field)
    if given is None:
        return None
    if not all(isinstance(tail, str) for tail in given.values()):
        raise ValueError(f"{field}: expected texts")
    return {name: plain(str(tail))[-LONGEST_TAIL:] for name, tail in given.items()}


def _by_name(data: Mapping[str, object], field: str) -> dict[str, object] | None:
    value = data.get(field)
    if value is None:
        return None
    if not isinstance(value, dict) or len(value) > MOST_ITEMS:
        raise ValueError(f"{field}: expected at most {MOST_ITEMS} texts by name")
    return {text({"": str(name)}, ""): given for name, given in value.items()}


def text(data: Mapping[str, object], field: str, *, needed: bool = False) -> str:
    """Return a text, made printable and cut."""
    value = data.get(field, "")
    if not isinstance(value, str) or (needed and not value):
        raise ValueError(f"{field}: expected text")
    # what others send must not steer a terminal, forge a line of the log or fail to encode
    longest = _LONGEST_NAME if field == "name" else LONGEST_TEXT
    escaped = (c if c.isprintable() else ascii(c)[1:-1] for c in value[:longest])
    return "".join(escaped)[:longest]


def flag(data: Mapping[str, object], field: str) -> bool:
    """Return true or false; false where nothing is said."""
    value = data.get(field, False)
    if not isinstance(value, bool):
        raise ValueError(f"{field}: expected true or false")  # noqa: TRY004 - one error type for bad data
    return value


def number(data: Mapping[str, object], field: str, default: float) -> float:
    """Return a number within reason."""
    value = data.get(field, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= 1e15:
        raise ValueError(f"{field}: expected a number")
    return float(value)
