"""How many agents a head keeps: all that take part, the last that departed, and no more.

What is kept of an agent is bounded (its facts, its last report, the ends of its logs), but nothing
else bounds how many of them say hello: pods that are replaced have other names, and without a token
anybody may make names up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

LEAST = 256
_DEPARTED = 8
"""Of so many agents one may be kept though it has departed."""
_LOOK_EVERY = 32
_LOOK_AGAIN = 1.0


def most_agents(expected_workers: int) -> int:
    """Return how many agents a head keeps: more than would ever take part."""
    return LEAST + 2 * expected_workers


class TooManyAgentsError(Exception):
    """As many agents are kept as may be, and none of them has departed."""


class Room:
    """Finds which agents are forgotten as others come; what the run needs is kept."""

    def __init__(
        self, most: int, clock: Callable[[], float], is_needed: Callable[[str], bool]
    ) -> None:
        self._most = most
        self._clock = clock
        self._is_needed = is_needed
        self._welcomed = 0
        self._full_since: float | None = None

    def made(self, count: int, departed: Callable[[], Mapping[str, float]]) -> list[str]:
        """Return whom to forget for another agent; raises TooManyAgentsError where that is nobody.

        `departed` tells which of so many are not there, and when each was heard last. It is asked
        now and then, and where there is no room once a second: it costs more the more there are.
        """
        self._welcomed += 1
        is_full, now = count >= self._most, self._clock()
        if not is_full and self._welcomed % _LOOK_EVERY:
            return []
        if is_full and self._full_since is not None and now < self._full_since + _LOOK_AGAIN:
            raise TooManyAgentsError
        heard = departed()
        may_go = sorted((key for key in heard if not self._is_needed(key)), key=heard.__getitem__)
        self._full_since = now if is_full and not may_go else None
        if self._full_since is not None:
            raise TooManyAgentsError
        return may_go[: max(len(may_go) - self._most // _DEPARTED, count + 1 - self._most, 0)]
