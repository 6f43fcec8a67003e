"""A thread that writes to disk, so that no caller waits for a stalled disk."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Generic, TypeVar

from agent.record.files import error_text
from agent.record.log import disk_alarm, say

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
_RETRY_AFTER = 15.0
"""Seconds until a failed write is retried."""


class DiskThread:
    """Writes values from a queue and reports failures to the disk alarm."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._changed = threading.Condition()
        self._over = False
        self._busy_since: float | None = None
        disk_alarm.watch(name, lambda: self._busy_since)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread; without one, nothing is written."""
        try:
            self._thread.start()
        except RuntimeError as error:  # pids.max
            say(f"{self._name} is not written: {error}", "warning")

    def close(self, limit: float = 1.0) -> None:
        """Write the rest, for at most `limit` seconds."""
        with self._changed:
            self._over = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(limit)

    def _next(self) -> Callable[[], OSError | None] | None:
        """Return a function that writes the next value, or None; called under the lock."""
        raise NotImplementedError

    def _run(self) -> None:
        while True:
            with self._changed:
                write = self._next()
                while write is None and not self._over:
                    self._changed.wait(_RETRY_AFTER)
                    write = self._next()
            if write is None:
                return
            self._busy_since = time.monotonic()
            error = write()
            self._busy_since = None
            disk_alarm.report(self._name, "" if error is None else error_text(error))


class LatestWriter(DiskThread, Generic[T]):
    """Writes the newest value; values in between are skipped."""

    def __init__(self, name: str, write: Callable[[T], OSError | None]) -> None:
        super().__init__(name)
        self._write = write
        self._value: T | None = None
        self._is_new = False
        self._failed_at = -_RETRY_AFTER
        self._put = self._tried = 0
        """Count of values put, and the count up to which a write was tried."""

    def put(self, value: T) -> None:
        """Write a value in place of the last one; return at once."""
        with self._changed:
            self._value, self._is_new = value, True
            self._put += 1
            self._changed.notify_all()

    def settle(self, limit: float = 0.5) -> None:
        """Wait until a write of the newest value was tried, for at most `limit` seconds."""
        with self._changed:
            wanted = self._put
            if self._thread.is_alive():
                self._changed.wait_for(lambda: self._tried >= wanted, limit)

    def _next(self) -> Callable[[], OSError | None] | None:
        is_early = time.monotonic() < self._failed_at + _RETRY_AFTER and not self._is_new
        if self._value is None or is_early:
            return None
        value, self._value, self._is_new = self._value, None, False
        count = self._put
        return lambda: self._written(value, count)

    def _written(self, value: T, count: int) -> OSError | None:
        """Write a value; keep it for a retry on failure, unless there is a newer one."""
        error = self._write(value)
        with self._changed:
            self._tried = count
            if error is not None:
                self._failed_at = time.monotonic()
                self._value = value if self._value is None else self._value
            self._changed.notify_all()
        return error
