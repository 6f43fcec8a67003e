"""Out-of-memory kills on this node, as the kernel counts them."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

from agent.node.limits import oom_kills

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.node.limits import OomKills

_OOM_RECENT = 60.0  # An end this soon after an OOM kill is attributed to it.


class MemoryWatch:
    """Counts OOM kills since the agent's start."""

    def __init__(
        self, count: Callable[[], OomKills] = oom_kills, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._count = count
        self._clock = clock
        self.kills = count()
        self._grew_at = -math.inf
        self._last_sentence = ""

    def poll(self) -> str:
        """Return a sentence if there were OOM kills since the last poll, else ''."""
        now = self._count()
        more = now.number - self.kills.number
        self.kills = now
        if more <= 0:
            return ""
        self._grew_at = self._clock()
        self._last_sentence = oom_sentence(now, more)
        return self._last_sentence

    def recent(self) -> str:
        """Return that sentence for a minute, unless another container's process may be meant."""
        self.poll()
        is_recent = self._clock() - self._grew_at <= _OOM_RECENT
        return self._last_sentence if is_recent and self.kills.of_container else ""


def oom_sentence(kills: OomKills, more: int) -> str:
    """Return a sentence with what ran out of memory and what was killed."""
    where = "this container" if kills.of_container else "this machine"
    what = "a process" if more == 1 else f"{more} processes"
    return f"{where} ran out of memory: the kernel's OOM killer ended {what} of it"
