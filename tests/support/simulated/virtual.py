"""Virtual time: an event loop whose clock jumps to the next timer, and a clock per machine.

Product code runs in the context of a machine, and reads that machine's clocks; and in that of one
life of an agent. A killed agent takes no further step, as after SIGKILL: no `finally` runs. A
paused one goes on later, as after SIGSTOP and SIGCONT.
"""

from __future__ import annotations

import asyncio
import heapq
import selectors
import time
from contextvars import Context, ContextVar, copy_context
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.simulated.agents import Agent
    from support.simulated.machines import Machine

EPOCH = 1_700_000_000.0
_STEP = 1e-6  # seconds that a clock goes on at least until a later time
HERE: ContextVar[Machine | None] = ContextVar("the machine on which this code runs", default=None)
LIFE: ContextVar[Life | None] = ContextVar("the agent that runs this code", default=None)
_monotonic = time.monotonic
_wall = time.time
_gmtime = time.gmtime


def here() -> Machine:
    """Return the machine on which this code runs."""
    machine = HERE.get()
    assert machine is not None, "this code runs on a machine"
    return machine


class Life:
    """One agent's process, from its start to its end."""

    def __init__(self, machine: Machine, agent: Agent) -> None:
        self.machine = machine
        self.agent = agent
        self.is_over = False
        """True from its end or its kill on: it has no effect any more."""
        self.is_paused = False
        self._held: list[asyncio.Handle] = []
        self.context = copy_context()
        self.context.run(HERE.set, machine)
        self.context.run(LIFE.set, self)

    @property
    def runs(self) -> bool:
        """Return whether it takes steps."""
        return not (self.is_over or self.is_paused)

    def hold(self, handle: asyncio.Handle) -> None:
        """Keep a step for later."""
        self._held.append(handle)

    def resume(self) -> None:
        """Take the steps that were held, in their order."""
        self.is_paused = False
        self.release()

    def release(self) -> None:
        """Let the held steps run; of an agent that is over, only to clear it away."""
        held, self._held = self._held, []
        for handle in held:
            if not handle.cancelled():
                loop = asyncio.get_event_loop()
                assert isinstance(loop, VirtualLoop)
                loop.take(handle)


def is_over() -> bool:
    """Return whether this code belongs to an agent that has ended: it must have no effect."""
    life = LIFE.get()
    return life is not None and life.is_over


class _Handle(asyncio.Handle):
    """A step of an agent, or of the world."""

    _context: Context

    def _run(self) -> None:
        _take_step(self, super()._run)


class _Timer(asyncio.TimerHandle):
    """The same at a time."""

    _context: Context

    def _run(self) -> None:
        _take_step(self, super()._run)


def _take_step(handle: _Handle | _Timer, run: Callable[[], None]) -> None:
    life = handle._context.get(LIFE)  # noqa: SLF001 - asyncio shows it nowhere else
    if life is None or life.runs or life.machine.world.is_over:
        run()
    else:
        life.hold(handle)


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

    _ready: Any
    _scheduled: Any

    def __init__(self) -> None:
        self._jump = _Jump()
        super().__init__(self._jump)

    def time(self) -> float:
        """Return the true time of the world."""
        return self._jump.now

    def take(self, handle: asyncio.Handle) -> None:
        """Run a handle with the next steps."""
        self._ready.append(handle)

    def call_soon(
        self, callback: Callable[..., object], *args: object, context: Context | None = None
    ) -> asyncio.Handle:
        """Run a step next, if its agent runs."""
        handle = _Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # all threads run in this one

    def call_at(
        self,
        when: float,
        callback: Callable[..., object],
        *args: object,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Run a step at a time, if its agent runs then."""
        if when > self.time():  # a real clock goes on between two steps
            when = max(when, self.time() + _STEP)
        timer = _Timer(when, callback, args, self, context)
        heapq.heappush(self._scheduled, timer)
        timer._scheduled = True  # type: ignore[attr-defined]  # noqa: SLF001 - asyncio's own
        return timer


class Clock:
    """A machine's clocks: wrong by `skew` seconds, and by a rate of `drift`."""

    def __init__(self, loop: VirtualLoop, skew: float, drift: float) -> None:
        self._loop = loop
        self.skew = skew
        self.rate = 1.0 + drift

    def monotonic(self) -> float:
        """Return the seconds since a time before the machine's start."""
        return 1000.0 + self._loop.time() * self.rate

    def wall(self) -> float:
        """Return the seconds since 1970 by this machine's clock."""
        return EPOCH + self.skew + self._loop.time() * self.rate


# --- replacements for the functions of the module `time` ------------------------------------------


def monotonic() -> float:
    """Return the machine's monotonic clock; outside of worlds the real one."""
    machine = HERE.get()
    return _monotonic() if machine is None else machine.clock.monotonic()


def wall() -> float:
    """Return the machine's wall clock; outside of worlds the real one."""
    machine = HERE.get()
    return _wall() if machine is None else machine.clock.wall()


def wall_ns() -> int:
    """Return the same in nanoseconds."""
    return int(wall() * 1e9)


def gmtime(seconds: float | None = None) -> time.struct_time:
    """Return a time in UTC, by default that of the machine's wall clock."""
    return _gmtime(wall() if seconds is None else seconds)
