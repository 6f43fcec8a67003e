"""How fast a service answers: the last answer, and how many came within which time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from agent.base.value import dataclass

if TYPE_CHECKING:
    from agent.base.ranges import Count, Most, Seconds

BOUNDS = (0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Seconds, from below; what takes longer is counted beyond the last."""
_PLACES = len(BOUNDS) + 1


@dataclass(frozen=True)
class Latency:
    """Of one service, since its node's agent began."""

    last: Seconds = 0.0
    total: Seconds = 0.0
    counts: Annotated[tuple[Count, ...], Most(_PLACES, least=_PLACES)] = (0,) * _PLACES
    """Answers by bound: each counts once, at the first bound that it kept."""

    @property
    def count(self) -> int:
        """Return how many answers came."""
        return sum(self.counts)

    def with_answer(self, seconds: float) -> Latency:
        """Return it with one more answer."""
        place = sum(seconds > bound for bound in BOUNDS)
        counts = [*self.counts]
        counts[place] += 1
        return Latency(round(seconds, 4), round(self.total + seconds, 4), tuple(counts))
