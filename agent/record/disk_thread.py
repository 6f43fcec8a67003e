"""A thread that writes what others leave for it, so that nobody waits for a disk that stalls."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Generic, TypeVar

from agent.record.files import why
from agent.record.log import disk, say

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
_PATIENCE = 15.0
"""What could not be written is tried again as often."""


class DiskThread:
    """Waits for something to write, writes it, and tells where it cannot."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._changed = threading.Condition()
        self._over = False
        self._busy_since: float | None = None
        disk.watch(name, lambda: self._busy_since)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin to write; where no thread can be had, nothing is kept."""
        try:
            self._thread.start()
        except RuntimeError as error:  # pids.max
            say(f"{self._name} is not written: {error}", "warning")

    def close(self, limit: float = 1.0) -> None:
        """Write what waits; a disk that stalls is left to itself."""
        with self._changed:
            self._over = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(limit)

    def _next(self) -> Callable[[], OSError | None] | None:
        """Take what is to be written, and return what writes it; called under the lock."""
        raise NotImplementedError

    def _run(self) -> None:
        while True:
            with self._changed:
                write = self._next()
                while write is None and not self._over:
                    self._changed.wait(_PATIENCE)
                    write = self._next()
            if write is None:
                return
            self._busy_since = time.monotonic()
            error = write()
            self._busy_since = None
            disk.tell(self._name, "" if error is None else why(error))


class Latest(DiskThread, Generic[T]):
    """Has a value written whenever there is a newer one."""

    def __init__(self, name: str, write: Callable[[T], OSError | None]) -> None:
        super().__init__(name)
        self._write = write
        self._value: T | None = None
        self._is_new = False
        self._failed_at = -_PATIENCE
        self._put = self._tried = 0
        """How many values came, and up to which of them the writing was tried."""

    def put(self, value: T) -> None:
        """Have a value written in place of the last."""
        with self._changed:
            self._value, self._is_new = value, True
            self._put += 1
            self._changed.notify_all()

    def settle(self, limit: float = 0.5) -> None:
        """Wait until what came so far was written, or tried to be; not for a disk that stalls."""
        with self._changed:
            wanted = self._put
            if self._thread.is_alive():
                self._changed.wait_for(lambda: self._tried >= wanted, limit)

    def _next(self) -> Callable[[], OSError | None] | None:
        is_early = time.monotonic() < self._failed_at + _PATIENCE and not self._is_new
        if self._value is None or is_early:
            return None
        value, self._value, self._is_new = self._value, None, False
        count = self._put
        return lambda: self._written(value, count)

    def _written(self, value: T, count: int) -> OSError | None:
        """Write a value; one that could not be is kept for later, unless there is a newer one."""
        error = self._write(value)
        with self._changed:
            self._tried = count
            if error is not None:
                self._failed_at = time.monotonic()
                self._value = value if self._value is None else self._value
            self._changed.notify_all()
        return error
