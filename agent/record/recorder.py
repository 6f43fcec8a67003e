"""One recorder of a run: events go to their file by a thread, and nobody waits for the disk."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Generic, TypeVar

from agent.record.events import Unrecorded
from agent.record.log import say

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.record.events import EventLog

T = TypeVar("T")
_MOST = 5_000
"""So many events wait for a disk that takes none; of more the oldest are lost, and counted."""


class Recorder:
    """Takes events at any time from any thread, and sentences for the log."""

    def __init__(self, log: EventLog, clock: Callable[[], float]) -> None:
        self._log = log
        self._clock = clock
        self._changed = threading.Condition()
        self._events: deque[tuple[float, object]] = deque()
        self._lost = 0
        self._over = False
        self._complained = False
        self._thread = threading.Thread(target=self._run, name="events", daemon=True)

    def start(self) -> None:
        """Begin to write; where no thread can be had, events are not kept."""
        try:
            self._thread.start()
        except RuntimeError as error:  # pids.max
            say(f"events.jsonl is not written: {error}", "warning")

    def note(self, event: object) -> None:
        """Keep an event with the time at which it happened."""
        with self._changed:
            self._events.append((self._clock(), event))
            if len(self._events) > _MOST:
                self._events.popleft()
                self._lost += 1
            self._changed.notify()

    def close(self, limit: float = 1.0) -> None:
        """Write what waits; a disk that stalls is left to itself."""
        with self._changed:
            self._over = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(limit)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._events and not self._over:
                    self._changed.wait()
                if not self._events:
                    return
                at, event = self._events.popleft()
                lost, self._lost = self._lost, 0
            if lost:
                self._append(at, Unrecorded("events", f"{lost} were lost here: the disk stalled"))
            self._append(at, event)

    def _append(self, at: float, event: object) -> None:
        error = self._log.append(at, event)
        if error is not None and not self._complained:
            say(f"events.jsonl cannot be written: {error.strerror or error}", "warning")
        self._complained = error is not None


class Latest(Generic[T]):
    """Has a value written by a thread whenever there is a newer one, and nobody waits for it."""

    def __init__(self, name: str, write: Callable[[T], OSError | None]) -> None:
        self._name = name
        self._write = write
        self._changed = threading.Condition()
        self._value: T | None = None
        self._over = False
        self._complained = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin to write; where no thread can be had, nothing is kept."""
        try:
            self._thread.start()
        except RuntimeError as error:  # pids.max
            say(f"{self._name} is not written: {error}", "warning")

    def put(self, value: T) -> None:
        """Have a value written in place of the last."""
        with self._changed:
            self._value = value
            self._changed.notify()

    def close(self, limit: float = 1.0) -> None:
        """Write what waits; a disk that stalls is left to itself."""
        with self._changed:
            self._over = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(limit)

    def _run(self) -> None:
        while True:
            with self._changed:
                while self._value is None and not self._over:
                    self._changed.wait()
                value, self._value = self._value, None
            if value is None:
                return
            error = self._write(value)
            if error is not None and not self._complained:
                say(f"{self._name} cannot be written: {error.strerror or error}", "warning")
            self._complained = error is not None
