"""Slurm's compressed lists of hosts, `a[01-03,07],b2`, spelled out.

The grammar is that of `scontrol show hostnames`, which a container seldom has: names, each with
any number of brackets, each bracket a list of numbers and ranges whose padding is kept; the
first bracket of a name turns slowest. Beyond scontrol, text may follow the last bracket.
"""

from __future__ import annotations

import re
from itertools import product
from math import prod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

LARGEST = 65_536
"""The most hosts that a list may name: beyond it a range is a mistake, not a cluster."""

_TEXT = re.compile(r"[A-Za-z0-9._-]+")
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")


class NodelistError(ValueError):
    """A list that names no hosts: what is wrong with it, and where."""

    def __init__(self, text: str, at: int, what: str) -> None:
        super().__init__(f"{what} at character {at + 1} of {text!r}")
        self.text = text
        self.at = at
        self.what = what


def expand(text: str) -> tuple[str, ...]:
    """Return the hosts of a list, in its order."""
    entries = [_parts(text, at, entry) for at, entry in _split(text)]
    count = sum(prod(_size(part) for part in parts) for parts in entries)
    if count > LARGEST:
        raise NodelistError(text, 0, f"{count} hosts, more than {LARGEST},")
    return tuple(
        "".join(words)
        for parts in entries
        for words in product(*(tuple(_words(part)) for part in parts))
    )


_Ranges = tuple[tuple[str, str], ...]
_Part = str | _Ranges  # fixed text, or a bracket's ranges by their first and last number


def _split(text: str) -> Iterator[tuple[int, str]]:
    """Part a list at the commas outside its brackets."""
    begin, depth = 0, 0
    for at, letter in enumerate(text):
        if letter == "[":
            depth += 1
            if depth > 1:
                raise NodelistError(text, at, "a bracket within a bracket")
        elif letter == "]":
            depth -= 1
            if depth < 0:
                raise NodelistError(text, at, "a ] without its [")
        elif letter == "," and depth == 0:
            yield begin, text[begin:at]
            begin = at + 1
    if depth:
        raise NodelistError(text, text.rindex("["), "a [ without its ]")
    yield begin, text[begin:]


def _parts(text: str, begin: int, entry: str) -> list[_Part]:
    """Read one entry, fixed text and brackets in turn."""
    if not entry:
        raise NodelistError(text, begin, "no name")
    parts: list[_Part] = []
    for match in re.finditer(r"\[([^\]]*)\]|[^\[]+", entry):
        at = begin + match.start()
        if match[1] is not None:
            parts.append(_ranges(text, at + 1, match[1]))
        elif _TEXT.fullmatch(match[0]):
            parts.append(match[0])
        else:
            raise NodelistError(text, at, f"{match[0]!r}, which is no host name,")
    return parts


def _ranges(text: str, begin: int, inside: str) -> _Ranges:
    found = []
    at = begin
    for word in inside.split(","):
        match = _RANGE.fullmatch(word)
        if match is None:
            raise NodelistError(text, at, f"{word!r} instead of a number or a range")
        low, high = match[1], match[2] or match[1]
        if int(high) < int(low):
            raise NodelistError(text, at, f"the range {word}, which runs backwards,")
        found.append((low, high))
        at += len(word) + 1
    return tuple(found)


def _size(part: _Part) -> int:
    return 1 if isinstance(part, str) else sum(int(high) - int(low) + 1 for low, high in part)


def _words(part: _Part) -> Iterator[str]:
    if isinstance(part, str):
        yield part
        return
    for low, high in part:
        for number in range(int(low), int(high) + 1):
            yield f"{number:0{len(low)}d}"
