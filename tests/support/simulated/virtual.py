"""Virtual time: an event loop whose clock jumps to the next timer, and a clock per machine.

Product code runs in the context of a machine, and reads that machine's clocks.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from support.simulated.machines import Machine

EPOCH = 1_700_000_000.0
RUNS = Path("/dev/null/runs")
"""No folder can be made there: files are written to the simulated machine."""
HERE: ContextVar[Machine] = ContextVar("the machine on which this code runs")


class _Jump(selectors.SelectSelector):
    """A selector that waits for no file, and advances the time instead."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        """Jump to the next timer."""
        assert timeout is not None, "nothing is left that could ever happen"
        self.now += max(0.0, timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop without real time."""

    def __init__(self) -> None:
        self._jump = _Jump()
        super().__init__(self._jump)

    def time(self) -> float:
        """Return the true time of the world."""
        return self._jump.now


class Clock:
    """A machine's clocks: wrong by `skew` seconds, and by a rate of `drift`."""

    def __init__(self, skew: float, drift: float) -> None:
        self.skew = skew
        self.rate = 1.0 + drift

    def monotonic(self) -> float:
        """Return the seconds since a time before the machine's start."""
        return 1000.0 + asyncio.get_running_loop().time() * self.rate

    def wall(self) -> float:
        """Return the seconds since 1970 by this machine's clock."""
        return EPOCH + self.skew + asyncio.get_running_loop().time() * self.rate


class LocalTime:
    """Replaces the module `time` in product code by the clocks of the current machine."""

    def time(self) -> float:
        """Return the machine's wall clock."""
        return HERE.get().clock.wall()

    def time_ns(self) -> int:
        """Return the same in nanoseconds."""
        return int(self.time() * 1e9)

    def monotonic(self) -> float:
        """Return the machine's monotonic clock."""
        return HERE.get().clock.monotonic()

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the module has
        return getattr(time, name)
