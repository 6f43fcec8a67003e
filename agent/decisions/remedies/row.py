"""One row: known words in a log, the cause behind them, and what a person can do about it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.base.value import dataclass

if TYPE_CHECKING:
    import re


@dataclass(frozen=True)
class Remedy:
    """Words of Ray, a framework or the kernel, and what stands behind them."""

    key: str
    words: str
    """A regular expression, matched within one line; its named groups fill the cause."""
    cause: str
    what_to_do: str

    def explain(self, match: re.Match[str]) -> str:
        """Say cause and remedy of a line that was found."""
        named = {name: text or "?" for name, text in match.groupdict().items()}
        return f"{self.cause.format(**named)}. {self.what_to_do.format(**named)}"
