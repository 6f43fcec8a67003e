"""The nodes' shares of an attempt that torchrun starts, and what follows from them, kept counted.

At thousands of workers a report must not cost a look at all shares, so what decisions need changes
as a share ends, or as a node comes or goes.
"""

from __future__ import annotations

from dataclasses import field, replace
from typing import TYPE_CHECKING

from agent.base.value import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.work.recipes.recipe import NodeSize
    from agent.work.torchrun import PartEnd


@dataclass(frozen=True)
class Part:
    """One node's share of an attempt."""

    node: str
    """The node by its name."""
    size: NodeSize
    end: PartEnd | None = None
    failed_at: float = 0.0
    """When its first rank failed, on the head's clock, however the node's own is set."""


@dataclass(frozen=True)
class Parts:
    """All shares of an attempt, by node, in the order of ranks."""

    of: Mapping[str, Part] = field(default_factory=dict)
    running: frozenset[str] = frozenset()
    """Those that have not ended, as far as anybody knows; one that its node lost told no end."""
    absent: frozenset[str] = frozenset()
    """Of these, the ones whose nodes are not there, or lost them."""
    succeeded: int = 0
    """How many ended with 0."""
    first: str = ""
    """The one that failed before all others that did."""
    mute_are_out: bool = False
    """True once those were counted out who said nothing of an order to stop."""

    @classmethod
    def begun(cls, of: Mapping[str, Part]) -> Parts:
        """Begin an attempt: all run, and all nodes are there."""
        return cls(of, frozenset(of))

    def ended(self, key: str, end: PartEnd, failed_at: float) -> Parts:
        """Take in the end of a share that ran."""
        over = replace(self.of[key], end=end, failed_at=failed_at)
        is_first = end.failed and (not self.first or failed_at < self.of[self.first].failed_at)
        return replace(
            self,
            of={**self.of, key: over},
            running=self.running if end.lost else self.running - {key},
            absent=self.absent | {key} if end.lost else self.absent - {key},
            succeeded=self.succeeded + (end.code == 0),
            first=key if is_first else self.first,
        )

    @property
    def settled(self) -> bool:
        """Say whether nothing more is to be heard: all have ended, or are not there."""
        return len(self.running) == len(self.absent)

    @property
    def sizes(self) -> tuple[NodeSize, ...]:
        """Return every node's size, in the order of ranks."""
        return tuple(part.size for part in self.of.values())
