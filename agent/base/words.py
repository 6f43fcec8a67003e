"""Small words of sentences, put together as a person would; and text as a person can read it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

_CONTROLS = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~])"
    r"|[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f]"
)
"""Colours, titles and whatever else only a terminal understands; what parts lines stays."""
_ENDS_OF_LINES = re.compile("\r\n?|[\x0b\x0c\x85\u2028\u2029]")
_TURNS = re.compile("[\u202a-\u202e\u2066-\u2069]")
"""What turns the direction of text."""


def listed(names: Iterable[str]) -> str:
    """Join names as a person would."""
    *first, last = [*names] or [""]
    return f"{', '.join(first)} and {last}" if first else last


def mib(size: int) -> str:
    """Write bytes as a person would read them."""
    return f"{size / (1 << 20):.0f} MiB" if size >= 1 << 20 else f"{size / 1024:.0f} KiB"


def without_controls(text: str) -> str:
    """Return a text without what only a terminal understands."""
    return _CONTROLS.sub("", text)


def escaped(text: str) -> str:
    """Return a text of one line in which nothing steers a terminal, and which can be encoded."""
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text)


def all_escaped(data: Any) -> Any:  # noqa: ANN401 - whatever JSON has
    """Return JSON data of another node with every text in them escaped."""
    if isinstance(data, dict):
        return {escaped(name): all_escaped(one) for name, one in data.items()}
    if isinstance(data, list):
        return [all_escaped(one) for one in data]
    return escaped(data) if isinstance(data, str) else data


def plain(text: str) -> str:
    """Return a text of lines that are parted by newlines, with nothing that steers a reader."""
    return _TURNS.sub("", without_controls(_ENDS_OF_LINES.sub("\n", text)))
