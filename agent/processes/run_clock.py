"""The clock of a run: it stands still while the agent does not run."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

from agent.base import times

if TYPE_CHECKING:
    from collections.abc import Callable


CLOCK_LATE = 3.0  # A sign of life so late shows a stop of the agent; a busy machine is faster.
WAKE_READS = 5.0
"""No deadline passes for so long after a stop: replies to new reports arrive, and what the bridge
wrote is read.
"""


class RunClock:
    """Seconds since the agent's start, without the time in which it did not run.

    An agent that was stopped (SIGSTOP, a frozen container, a suspended machine) wakes when all its
    deadlines are over, while what it waits for lies unread in its pipes and sockets. So this clock
    stands still for that time, and for `WAKE_READS` more, in which all that is read.
    """

    def __init__(self, started: float, read: Callable[[], float] = time.monotonic) -> None:
        """Start at `started` on the machine's monotonic clock, which `read` returns."""
        self.started = started
        self._read = read
        self._next_sign: float | None = None  # of life, at the latest; None while nothing beats
        self._stands_until = -math.inf
        self._missed = 0.0  # since the last `beat`

    def now(self) -> float:
        """Return the time on this clock."""
        moment = self._read()
        self._find_stop(moment)
        return max(moment, self._stands_until) - self.started

    def beat(self) -> float:
        """Show that the agent runs; return by how much this clock stood still since the last call.

        It must be called every `times.CLOCK_BEAT` seconds; a call that is late shows a stop.
        """
        moment = self._read()
        self._find_stop(moment)
        self._next_sign = moment + times.CLOCK_BEAT
        missed = self._missed
        self._missed = 0.0
        return missed

    def end(self) -> None:
        """Stop watching for missed beats."""
        self._next_sign = None

    def _find_stop(self, moment: float) -> None:
        """Stand still if the agent did not run until now; a look at the clock shows that it did."""
        if self._next_sign is None:
            return

        # By how much is the sign of life late? A little is a busy machine.
        late = moment - self._next_sign
        self._next_sign = max(self._next_sign, moment)
        if late <= CLOCK_LATE:
            return

        # The clock stands still for that time and a pause; what is left of an earlier pause is part
        # of the new one.
        pause = WAKE_READS - max(0.0, self._stands_until - (moment - late))
        self._stands_until = moment + WAKE_READS
        self.started += late + pause
        self._missed += late + pause
