"""A thread that writes what others leave for it, so that nobody waits for a disk that stalls."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Generic, TypeVar

from agent.record.log import say

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class DiskThread:
    """Waits for something to write, writes it, and says once that it cannot."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._changed = threading.Condition()
        self._over = False
        self._complained = False
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
                    self._changed.wait()
                    write = self._next()
            if write is None:
                return
            error = write()
            if error is not None and not self._complained:
                say(f"{self._name} cannot be written: {error.strerror or error}", "warning")
            self._complained = error is not None


class Latest(DiskThread, Generic[T]):
    """Has a value written whenever there is a newer one."""

    def __init__(self, name: str, write: Callable[[T], OSError | None]) -> None:
        super().__init__(name)
        self._write = write
        self._value: T | None = None

    def put(self, value: T) -> None:
        """Have a value written in place of the last."""
        with self._changed:
            self._value = value
            self._changed.notify()

    def _next(self) -> Callable[[], OSError | None] | None:
        value, self._value = self._value, None
        return None if value is None else lambda: self._write(value)
