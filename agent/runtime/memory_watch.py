"""The kernel's OOM killer: whom it ended is told by nobody but a counter, which is watched here."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from agent.node import cgroups

if TYPE_CHECKING:
    from collections.abc import Callable

RECENT = 60.0
"""What ends so soon after the kernel ended something for want of memory ended because of it."""


class MemoryWatch:
    """Counts what the kernel has ended here for want of memory since the agent's start."""

    def __init__(
        self,
        count: Callable[[], cgroups.OomKills] = cgroups.oom_kills,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._count = count
        self._clock = clock
        self.kills = count()
        self._grew_at: float | None = None
        self._told = ""

    def look(self) -> str:
        """Return a sentence where the kernel has ended something since the last look, else ''."""
        now = self._count()
        more = now.number - self.kills.number
        self.kills = now
        if more <= 0:
            return ""
        self._grew_at, self._told = self._clock(), sentence(now, more)
        return self._told

    def recent(self) -> str:
        """Return that sentence for a minute; on a machine that others share it may be of theirs."""
        self.look()
        if (
            self._grew_at is None
            or not self.kills.of_container
            or self._clock() - self._grew_at > RECENT
        ):
            return ""
        return self._told


def sentence(kills: cgroups.OomKills, more: int) -> str:
    """Say who ran out of memory, and what the kernel did about it."""
    where = "this container" if kills.of_container else "this machine"
    what = "a process" if more == 1 else f"{more} processes"
    return f"{where} ran out of memory: the kernel's OOM killer ended {what} of it"
