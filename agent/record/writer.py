"""Non-blocking writing: one thread and one bounded queue for each destination."""

from __future__ import annotations

import atexit
import errno
import os
import select
import threading
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

MAX_QUEUED = 1 << 20
"""Bytes queued for a blocked destination."""
FLUSH_LIMIT = 1.0
"""Longest time the process waits for all writers at its exit, in seconds."""
_PIECE = 1 << 16
_STUCK_AFTER = 2.0
"""A write that takes longer, in seconds, counts as stuck."""
_SURE = 4096
"""Bytes that a ready pipe accepts without blocking (PIPE_BUF)."""
_PAUSES = (1.0, 2.0, 5.0)
"""Seconds between retries; the last one repeats."""
_NOBODY_READS = {errno.EPIPE, errno.EBADF}
_open_writers: list[Writer] = []


def appending(path: Path | Callable[[], Path]) -> Callable[[], int]:
    """Return an opener that appends to a file; a path that may change is a function."""

    def opened() -> int:
        place = path() if callable(path) else path
        return os.open(place, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)

    return opened


class Sink:
    """A lazily opened descriptor, used by one thread, which it may block forever.

    A failed write is retried, so that writing resumes once a disk has room. `trouble` is called
    with the error at the first failure and with '' after recovery. A closed pipe is no failure.
    """

    def __init__(self, opener: Callable[[], int], trouble: Callable[[str], None]) -> None:
        self._opener = opener
        self._trouble = trouble
        self._fd: int | None = None
        self._left = False
        self._failures = 0
        self.busy_since: float | None = None
        """Start of the current write on the monotonic clock; None without one."""

    def write(self, data: bytes, may_try_again: Callable[[float], bool]) -> bool:
        """Write all data; return False if `may_try_again` stopped the retries."""
        rest = memoryview(data)
        while rest and not self._left:
            written = self._write_some(rest)
            rest = rest[written or 0 :]
            if written is None and not self._left and not may_try_again(self._pause()):
                return False
        if self._failures and not self._left:
            self._failures = 0
            self._trouble("")
        return True

    @property
    def is_failing(self) -> bool:
        """Return whether the last write failed."""
        return self._failures > 0

    def is_ready(self) -> bool:
        """Return whether a few bytes can be written without blocking."""
        if self._fd is None:
            self._fd = self._opener()
        return self._poll(0)

    def close(self) -> None:
        """Close the descriptor."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _pause(self) -> float:
        return _PAUSES[min(self._failures, len(_PAUSES)) - 1]

    def _write_some(self, data: memoryview) -> int | None:
        """Write some bytes; return how many, or None on failure."""
        self.busy_since = time.monotonic()
        try:
            if self._fd is None:
                self._fd = self._opener()
            return os.write(self._fd, data)
        except BlockingIOError:  # another process made the pipe non-blocking
            self._poll(None)
            return 0
        except OSError as error:
            self._record_failure(error)
            return None
        finally:
            self.busy_since = None

    def _poll(self, limit: float | None) -> bool:
        assert self._fd is not None  # noqa: S101 - it was opened
        poll = select.poll()
        poll.register(self._fd, select.POLLOUT)
        return bool(poll.poll(limit))

    def _record_failure(self, error: OSError) -> None:
        if error.errno in _NOBODY_READS:
            self._left = True
            return
        if error.errno == errno.ESTALE:  # a network disk that came back as another
            self.close()
        self._failures += 1
        if self._failures == 1:
            self._trouble(error.strerror or str(error))


class Writer:
    """Writes lines to one destination, in order, from its own thread.

    While the destination is blocked, the oldest queued lines are dropped; one line in their place
    says how many.
    """

    def __init__(
        self,
        name: str,
        opener: Callable[[], int] | None = None,
        *,
        most: int = MAX_QUEUED,
        lost: Callable[[int], str] = "({} lines were lost here)".format,
        trouble: Callable[[str], None] = lambda _why: None,
    ) -> None:
        self.name = name
        self.encoding = "utf-8"
        self._most = most
        self._lost_line = lost
        self._trouble = trouble
        self._place: Sink | None = None
        # A re-entrant lock: a signal handler may log while its thread holds it.
        self._changed = threading.Condition()
        self._lines: deque[bytes] = deque()
        self._waiting = 0
        self._in_hand = 0
        self._lost = 0
        self._closing = False
        self._thread: threading.Thread | None = None
        if opener is not None:
            self.open(opener)

    def busy_since(self) -> float | None:
        """Return when the current write began; None without one."""
        return None if self._place is None else self._place.busy_since

    @property
    def is_idle(self) -> bool:
        """Return whether everything queued is written."""
        with self._changed:
            return not self._waiting and not self._in_hand

    @property
    def is_behind(self) -> bool:
        """Return whether the destination is too slow, but neither stuck nor failing."""
        since = self.busy_since()
        is_stuck = since is not None and time.monotonic() - since > _STUCK_AFTER
        return self._waiting > self._most // 2 and not is_stuck and not self.is_failing

    @property
    def is_failing(self) -> bool:
        """Return whether the last write failed."""
        return self._place is not None and self._place.is_failing

    @property
    def is_open(self) -> bool:
        """Return whether the writer has a destination."""
        return self._place is not None

    def open(self, opener: Callable[[], int]) -> None:
        """Set the destination, for lines queued before too; the thread opens it."""
        self._place = Sink(opener, self._tell)
        _open_writers.append(self)
        if self._lines:
            self._start()

    def put(self, line: str) -> None:
        """Queue one line, without its line end; return at once."""
        self.put_bytes(self._encoded(line))

    def put_bytes(self, data: bytes) -> None:
        """Queue bytes as they are; return at once."""
        with self._changed:
            self._lines.append(data)
            self._waiting += len(data)
            while self._waiting > self._most:
                dropped = self._lines.popleft()
                self._waiting -= len(dropped)
                self._lost += dropped.count(b"\n") or 1
            self._changed.notify()
        if self._thread is None:
            self._start()

    def close(self) -> None:
        """Make the thread write the queue and end, without retries."""
        with self._changed:
            self._closing = True
            self._changed.notify()
            is_unused = self._thread is None and not self._lines
        if is_unused:
            self._forget()

    def finish(self, limit: float) -> None:
        """Write the queue, for at most `limit` seconds."""
        self.close()
        if self._thread is None and self._lines:
            self._start()
        if self._thread is not None:
            self._thread.join(max(0.0, limit))

    def _tell(self, why: str) -> None:
        """Report a failure, except while closing: nothing is logged after the last line."""
        if not self._closing:
            self._trouble(why)

    def _encoded(self, line: str) -> bytes:
        return f"{line}\n".encode(self.encoding, errors="backslashreplace")

    def _start(self) -> None:
        with self._changed:
            place = self._place
            if place is None or self._thread is not None:
                return
            thread: threading.Thread | None
            thread = threading.Thread(target=self._run, name=self.name, daemon=True)
            try:
                thread.start()
            except RuntimeError:  # no thread can be had (pids.max)
                thread = None
            self._thread = thread
        if thread is None:
            self._write_here(place)  # without a thread

    def _run(self) -> None:
        assert self._place is not None  # noqa: S101 - no thread is started before
        while data := self._take(_PIECE, wait=True):
            if not self._place.write(data, self._may_try_again):
                break
            self._in_hand = 0
        self._place.close()
        self._forget()

    def _forget(self) -> None:
        """Remove this writer from those that the process waits for at its exit."""
        with suppress(ValueError):
            _open_writers.remove(self)

    def _write_here(self, place: Sink) -> None:
        """Write without a thread, as far as the destination does not block."""
        try:
            while place.is_ready() and (data := self._take(_SURE, wait=False)):
                place.write(data, lambda _pause: False)
                self._in_hand = 0
        except OSError:
            return  # the rest stays queued

    def _take(self, most: int, *, wait: bool) -> bytes:
        """Take lines out of the queue; return nothing once the writer is closed."""
        taken = []
        with self._changed:
            while wait and not self._lines and not self._lost and not self._closing:
                self._changed.wait()
            lost, self._lost = self._lost, 0
            while self._lines and most > 0:
                taken.append(self._lines.popleft())
                most -= len(taken[-1])
            self._in_hand = sum(map(len, taken))
            self._waiting -= self._in_hand
        if lost:
            taken.insert(0, self._encoded(self._lost_line(lost)))
        return b"".join(taken)

    def _may_try_again(self, pause: float) -> bool:
        with self._changed:
            if self._closing:
                return False
            self._changed.wait_for(lambda: self._closing, pause)
        return True


def finish_all(limit: float = FLUSH_LIMIT) -> None:
    """Flush all writers, for at most `limit` seconds in total."""
    until = time.monotonic() + limit
    writers: Sequence[Writer] = tuple(_open_writers)
    for writer in writers:
        writer.close()
    for writer in writers:
        writer.finish(until - time.monotonic())


atexit.register(finish_all)
