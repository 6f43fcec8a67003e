"""How fast a service answers: the last answer, and a histogram of all."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from agent.base.ranges import Count, Seconds
from agent.base.value import Value

LATENCY_BOUNDS = (0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Upper bounds in seconds; slower answers are counted in one more bucket."""
_BUCKETS = len(LATENCY_BOUNDS) + 1
_LENGTH = Meta(min_length=_BUCKETS, max_length=_BUCKETS)


class Latency(Value):
    """Answer times of one service since its node's agent started."""

    last: Seconds = 0.0
    total: Seconds = 0.0
    counts: Annotated[tuple[Count, ...], _LENGTH] = (0,) * _BUCKETS
    """Answers per bucket, not cumulative."""

    @property
    def count(self) -> int:
        """Return the number of answers."""
        return sum(self.counts)

    def with_answer(self, seconds: float) -> Latency:
        """Return a copy that counts one more answer."""
        bucket = sum(seconds > bound for bound in LATENCY_BOUNDS)
        counts = [*self.counts]
        counts[bucket] += 1
        return Latency(round(seconds, 4), round(self.total + seconds, 4), tuple(counts))
