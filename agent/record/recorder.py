"""One recorder of a run: events go to their file by a thread, and nobody waits for the disk."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from agent.record.disk_thread import DiskThread
from agent.record.events import FILE, Unrecorded

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.record.events import EventLog

_MOST = 5_000
"""So many events wait for a disk that takes none; of more the oldest are lost, and counted."""


class Recorder(DiskThread):
    """Takes events at any time from any thread, each with the time at which it happened."""

    def __init__(self, log: EventLog, clock: Callable[[], float]) -> None:
        super().__init__(FILE)
        self._log = log
        self._clock = clock
        self._events: deque[tuple[float, object]] = deque()
        self._lost = 0

    def note(self, event: object) -> None:
        """Keep an event."""
        with self._changed:
            self._events.append((self._clock(), event))
            if len(self._events) > _MOST:
                self._events.popleft()
                self._lost += 1
            self._changed.notify()

    def _next(self) -> Callable[[], OSError | None] | None:
        if not self._events:
            return None
        if self._lost:
            told = Unrecorded("events", f"{self._lost} were lost here: the disk stalled")
            self._lost = 0
            self._events.appendleft((self._events[0][0], told))
        at, event = self._events.popleft()
        return lambda: self._log.append(at, event)
