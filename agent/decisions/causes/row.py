"""A row of rows.toml: a cause of failures, its remedy, and the messages that show it."""

from __future__ import annotations

import re
from enum import Enum, IntEnum
from functools import cache

from agent.base.value import Value

ANY = "…"
"""Stands for any text in the words of a message; `^` at their start, for the start of a line."""

LONGEST = 1_000
"""Characters of a line that expressions search."""
_ERROR = r"\W{0,6}(?:[A-Za-z_][\w.]{0,120})?(?:[Ee]rror|Exception|Timeout\w*|Disconnected|ERROR)\b"


class Weight(IntEnum):
    """How much a row explains; in one log the greatest weight wins."""

    LAST = 0
    """How a process ended. It counts only where the log has nothing else."""
    WEAK = 1
    """A service that does not answer, or a process that was killed. Most causes lead to these."""
    CAUSE = 2
    ROOT = 3
    """A fault of hardware, kernel or scheduler. It is often printed last, and explains the rest."""


class Again(Enum):
    """Whether another try may help."""

    YES = "yes"
    NO = "no"
    EITHER = "either"
    """The log alone does not show it."""


class Words(Value, forbid_unknown_fields=True):
    """One message, as some version of a program prints it; rows.toml explains the fields."""

    text: str
    example: str
    error: bool = False
    near: str = ""
    only: str = ""
    unless: str = ""
    mild: bool = False

    @property
    def sign(self) -> str:
        """Return the longest part that each matching line contains."""
        return max(self.text.removeprefix("^").split(ANY), key=len)

    def match(self, line: str, body: str, before: str) -> bool:
        """Return whether a line matches; `body` is the line without the prefixes of a launcher."""
        return (
            _contains(self.text, line, body)
            and (not self.error or compiled(_ERROR).match(body) is not None)
            and (not self.only or compiled(self.only).search(line, 0, LONGEST) is not None)
            and (not self.unless or compiled(self.unless).search(line, 0, LONGEST) is None)
            and (not self.near or compiled(self.near).search(f"{before}\n{line}") is not None)
        )


class Cause(Value, forbid_unknown_fields=True):
    """A row of rows.toml: a cause, its remedy, and the messages that show it."""

    key: str
    cause: str
    """May name groups of `reads` in braces."""
    what_to_do: str
    words: tuple[Words, ...]
    sources: tuple[str, ...]
    labels: tuple[str, ...] = ()
    weight: Weight = Weight.CAUSE
    again: Again = Again.EITHER
    after_loss: bool = False
    reads: str = ""
    """A regular expression whose named groups fill `cause` and `what_to_do`."""
    is_live: bool = True
    of_ray: bool = False

    def match(self, line: str, body: str, before: str = "") -> bool:
        """Return whether a line shows this cause."""
        return any(words.match(line, body, before) for words in self.words)

    def filled(self, line: str) -> tuple[str, str]:
        """Return the cause and the remedy with the names in a line."""
        if not self.reads:
            return self.cause, self.what_to_do
        found = compiled(self.reads).search(line)
        names = compiled(self.reads).groupindex
        values = {name: (found and found[name]) or "?" for name in names}
        return self.cause.format(**values), self.what_to_do.format(**values)


def _contains(text: str, line: str, body: str) -> bool:
    """Return whether the parts of a text stand in a line in their order."""
    at, (first, *others) = 0, _parts(text)
    if first.startswith("^"):
        if not body.startswith(first[1:]):
            return False
        at, line = len(first) - 1, body
        parts = others
    else:
        parts = [first, *others]
    for part in parts:
        found = line.find(part, at)
        if found < 0:
            return False
        at = found + len(part)
    return True


@cache
def _parts(text: str) -> tuple[str, ...]:
    return tuple(text.split(ANY))


@cache
def compiled(pattern: str) -> re.Pattern[str]:
    """Compile an expression at its first use: most rows never need theirs."""
    return re.compile(pattern)
