"""A line of a job's output that is known: its cause, and what a person can do about it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.base.value import dataclass

if TYPE_CHECKING:
    from agent.base.ranges import Required, Shown

_SHOWN = 160


@dataclass(frozen=True)
class Known:
    """A line that was met."""

    key: Required
    line: Shown
    cause: Shown
    what_to_do: Shown
    is_noise: bool = False

    def sentence(self, node: str = "") -> str:
        """Say it to a person; of another node's share with its name."""
        if self.is_noise:
            return f"noise in the job's output, to be looked past ({self.shown!r}): {self.cause}"
        where = f" on {node}" if node else ""
        return f"the job's output{where} tells: {self.cause} ({self.shown!r}). {self.what_to_do}"

    @property
    def shown(self) -> str:
        """Return the line, or its beginning."""
        return self.line if len(self.line) <= _SHOWN else f"{self.line[:_SHOWN]}…"
