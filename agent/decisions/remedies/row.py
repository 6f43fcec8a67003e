"""One row: known words in a log, the cause behind them, and what a person can do about it."""

from __future__ import annotations

import re
from functools import cache

from agent.base.value import dataclass


@dataclass(frozen=True)
class Remedy:
    """Words of Ray, a framework or the kernel, and what stands behind them."""

    key: str
    words: str
    """A regular expression, matched within one line; its named groups fill the cause."""
    cause: str
    what_to_do: str
    signs: tuple[str, ...] = ()
    """Where a line with one of these is told while the job runs: words that it cannot be without,
    and that no ordinary line has. Looking for them costs next to nothing."""

    def found_in(self, line: str) -> re.Match[str] | None:
        """Find its words in a line."""
        return _compiled(self.words).search(line)

    def told(self, match: re.Match[str]) -> tuple[str, str]:
        """Return cause and remedy of a line that was found."""
        named = {name: text or "?" for name, text in match.groupdict().items()}
        return self.cause.format(**named), self.what_to_do.format(**named)

    def explain(self, match: re.Match[str]) -> str:
        """Say cause and remedy of a line that was found."""
        return ". ".join(self.told(match))


@cache
def _compiled(words: str) -> re.Pattern[str]:
    return re.compile(words)
