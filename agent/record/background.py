"""Threads for what a stalled disk, a full pipe or a silent server may block.

Lines and records are written in the background, one thread and one bounded queue per destination:
callers never wait, and a blocked destination stalls only its own thread.
"""

from __future__ import annotations

import asyncio
import atexit
import errno
import math
import os
import select
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections import deque
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

from agent.base import times
from agent.base.text import error_text

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

T = TypeVar("T")

HANGING_DISK = 0.2  # Each further write is awaited so long, once one has not ended in time.
LINES_RETRY = 2.0  # Until lines that could not be written are tried again.
MAX_QUEUED = 1 << 20  # bytes queued for a blocked destination
_PIECE = 1 << 16
_SURE = 4096  # bytes that a ready pipe accepts without blocking (PIPE_BUF)
NO_THREAD = "can't start new thread"  # as Python reports it
_FOLLOWS = (
    "Logs and records of this node are not kept; the job goes on, and its output here. "
    "Free or mend that disk, or choose another in AGENT_LOG_DIR"
)
_open_writers: weakref.WeakSet[Writer] = weakref.WeakSet()


def start_thread(act: Callable[[], object], name: str | None = None) -> threading.Thread | None:
    """Start a thread that cannot delay the exit; None where `pids.max` allows no more."""
    thread = threading.Thread(target=act, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError:
        return None
    return thread


def run_within(limit: float, act: Callable[[], T]) -> T | None:
    """Return a result from a thread, or from this one without threads; None after `limit` s."""
    results: list[T] = []
    thread = start_thread(lambda: results.append(act()))
    if thread is None:
        return act()
    thread.join(limit)
    return results[0] if results else None


def in_background(read: Callable[[], T]) -> asyncio.Future[T] | None:
    """Return the future result of a thread; None if no thread can be started."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def work() -> None:
        with suppress(RuntimeError):  # the loop has ended
            try:
                loop.call_soon_threadsafe(future.set_result, read())
            except Exception as error:
                loop.call_soon_threadsafe(future.set_exception, error)
                raise

    if start_thread(work) is None:
        return None
    return future


async def in_thread(read: Callable[[], T], limit: float = times.WAIT_READ) -> T | None:
    """Return a result from a thread; None if it takes longer than `limit` seconds, or fails."""
    future = in_background(read)
    if future is None:
        return None
    await asyncio.wait([future], timeout=limit)
    if not future.done() or future.exception():
        return None
    return future.result()


async def result_in_thread(read: Callable[[], T], limit: float | None = None) -> T:
    """Return a result from a thread, or raise its error; TimeoutError after `limit` seconds.

    A thread that a stalled disk holds is left behind: it holds no caller, and takes no thread of a
    pool from others.
    """
    results: list[T] = []
    errors: list[Exception] = []

    def act() -> bool:
        try:
            results.append(read())
        except Exception as error:  # noqa: BLE001 - raised in the caller
            errors.append(error)
        return True

    future = in_background(act)
    if future is None:
        raise RuntimeError(NO_THREAD)
    await asyncio.wait([future], timeout=limit)
    if not future.done():
        raise TimeoutError(f"no answer within {limit:g} s")
    if errors:
        raise errors[0]
    return results[0]


class Sink:
    """A lazily opened descriptor, used by one thread, which it may block forever.

    A failed write is retried, so that writing resumes once a disk has room. `trouble` is called
    with the error at the first failure and with '' after recovery. A closed pipe is no failure.
    """

    def __init__(
        self, opener: Callable[[], int], trouble: Callable[[str], None], most: int | None = None
    ) -> None:
        """Close a file of more than `most` bytes: the opener is called again, to rotate it."""
        self._opener = opener
        self._trouble = trouble
        self._most = most
        self._fd: int | None = None
        self._left = False
        self.is_failing = False
        self.busy_since: float | None = None  # start of the current write, on the monotonic clock

    def write(self, data: bytes, may_try_again: Callable[[float], bool]) -> bool:
        """Write all data; return False if `may_try_again` stopped the retries."""
        rest = memoryview(data)
        while rest and not self._left:
            written = self._write_some(rest)
            rest = rest[written:]
            if self.is_failing and not written and not may_try_again(LINES_RETRY):
                return False
        if self.is_failing:
            self.is_failing = False
            self._trouble("")
        if self._most and self._fd is not None and os.fstat(self._fd).st_size > self._most:
            self.close()
        return True

    def is_ready(self, limit: float | None = 0) -> bool:
        """Return whether a few bytes can be written without blocking, within `limit`."""
        if self._fd is None:
            self._fd = self._opener()
        poll = select.poll()
        poll.register(self._fd, select.POLLOUT)
        return bool(poll.poll(limit))

    def close(self) -> None:
        """Close the descriptor."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _write_some(self, data: memoryview) -> int:
        """Write some bytes; return how many: 0 on failure."""
        self.busy_since = time.monotonic()
        try:
            if self._fd is None:
                self._fd = self._opener()
            return os.write(self._fd, data)
        except BlockingIOError:  # another process made the pipe non-blocking
            self.is_ready(None)
        except OSError as error:
            self._left = error.errno in {errno.EPIPE, errno.EBADF}  # nothing reads it any more
            if error.errno == errno.ESTALE:  # a network disk that came back as another
                self.close()
            if not self._left and not self.is_failing:
                self.is_failing = True
                self._trouble(error_text(error))
        finally:
            self.busy_since = None
        return 0


class Background(ABC):
    """A daemon thread that writes until it is closed."""

    def __init__(self, name: str) -> None:
        self.name = name
        # A re-entrant lock: a signal handler may log while its thread holds it.
        self._changed = threading.Condition()
        self._closing = False
        self._thread: threading.Thread | None = None

    @abstractmethod
    def _run(self) -> None:
        """Write until `_closing` is set and nothing is left; runs in the thread."""

    def start(self) -> bool:
        """Start the thread; return False if `pids.max` allows none."""
        with self._changed:
            self._thread = self._thread or start_thread(self._run, self.name)
        return self._thread is not None

    def close(self) -> None:
        """Make the thread write the rest and end, without retries."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    def finish(self, limit: float = times.FLUSH) -> None:
        """Write the rest, for at most `limit` seconds."""
        self.close()
        if self._thread is not None:
            self._thread.join(max(0.0, limit))

    def _pause(self, seconds: float) -> bool:
        """Wait, at most until `close`; return False if it was closed before."""
        with self._changed:
            if self._closing:
                return False
            self._changed.wait_for(lambda: self._closing, seconds)
        return True


class Writer(Background):
    """Writes lines to one destination, in order.

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
        super().__init__(name)
        self._most = most
        self._lost_line = lost
        self.trouble = trouble
        self._sink: Sink | None = None
        self._lines: deque[bytes] = deque()
        self._waiting = 0  # bytes in the queue
        self._in_hand = 0  # bytes that the thread is writing
        self._lost = 0
        if opener is not None:
            self.open(opener)

    def busy_since(self) -> float | None:
        """Return when the current write began; None without one."""
        return None if self._sink is None else self._sink.busy_since

    @property
    def is_idle(self) -> bool:
        """Return whether everything queued is written, or given up."""
        with self._changed:
            is_over = self._closing and (self._thread is None or not self._thread.is_alive())
            return is_over or (not self._waiting and not self._in_hand)

    @property
    def is_behind(self) -> bool:
        """Return whether the destination is too slow, but neither stuck nor failing."""
        since = self.busy_since()
        is_stuck = since is not None and time.monotonic() - since > times.WRITE_STUCK
        return self._waiting > self._most // 2 and not is_stuck and not self.is_failing

    @property
    def is_failing(self) -> bool:
        """Return whether the last write failed."""
        return self._sink is not None and self._sink.is_failing

    def open(self, opener: Callable[[], int], most_of_file: int | None = None) -> None:
        """Set the destination, for lines queued before too; the thread opens it."""

        def report(why: str) -> None:
            if not self._closing:  # nothing is logged after the last line
                self.trouble(why)

        self._sink = Sink(opener, report, most_of_file)
        _open_writers.add(self)
        if self._lines:
            self._write_queue()

    def put(self, line: str) -> None:
        """Queue one line, without its line end; return at once."""
        self.put_bytes(_encoded(line))

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
            self._write_queue()

    def finish(self, limit: float = times.FLUSH) -> None:
        """Write the queue, for at most `limit` seconds."""
        self.close()
        if self._thread is None and self._lines:
            self._write_queue()
        super().finish(limit)

    def _write_queue(self) -> None:
        """Start the thread; without one, write here as far as the destination does not block."""
        sink = self._sink
        if sink is None or self.start():
            return
        try:
            while sink.is_ready() and (data := self._take(_SURE, wait=False)):
                sink.write(data, lambda _pause: False)
                self._in_hand = 0
        except OSError:
            return  # the rest stays queued

    def _run(self) -> None:
        assert self._sink is not None  # noqa: S101 - no thread is started before
        while data := self._take(_PIECE, wait=True):
            if not self._sink.write(data, self._pause):
                break
            self._in_hand = 0
        self._sink.close()

    def _take(self, most: int, *, wait: bool) -> bytes:
        """Take lines out of the queue; return nothing once the writer is closed."""
        taken = []
        with self._changed:
            while wait and not self._lines and not self._lost and not self._closing:
                self._changed.wait()
            lost = self._lost
            self._lost = 0
            while self._lines and most > 0:
                taken.append(self._lines.popleft())
                most -= len(taken[-1])
            self._in_hand = sum(map(len, taken))
            self._waiting -= self._in_hand
        if lost:
            taken.insert(0, _encoded(self._lost_line(lost)))
        return b"".join(taken)


def _encoded(line: str) -> bytes:
    return f"{line}\n".encode(errors="backslashreplace")


class ItemWriter(Background, Generic[T]):
    """Writes the newest item; one that could not be written is tried again.

    `write` returns an error instead of raising it; the disk alarm reports it.
    """

    def __init__(
        self, name: str, write: Callable[[T], OSError | None], disk: DiskAlarm, step: float = 0.0
    ) -> None:
        """Write an item that is not urgent `step` seconds after the one before."""
        super().__init__(name)
        self._write = write
        self._disk = disk
        self._step = step
        self._item: T | None = None
        self._due = math.inf  # when the item is to be written, on the monotonic clock
        self._last = -step  # when the last write ended
        self._busy_since: float | None = None
        disk.watch(name, lambda: self._busy_since)

    def put(self, item: T, *, urgent: bool = True) -> None:
        """Replace the item to write; return at once."""
        with self._changed:
            self._item = item
            due = 0.0 if urgent else self._last + self._step
            self._due = min(self._due, due)
            self._changed.notify_all()

    def settle(self, limit: float = 0.5) -> None:
        """Wait until the newest item is written, for at most `limit` seconds."""
        with self._changed:
            if self._thread is not None:
                self._changed.wait_for(lambda: self.is_settled, limit)

    async def until_settled(self) -> None:
        """Do the same in a thread; without one nothing is waited for."""
        await in_thread(self.settle)

    @property
    def is_settled(self) -> bool:
        """Return whether the newest item is written, or given up."""
        return self._due == math.inf and self._busy_since is None

    def due_in(self) -> float:
        """Return the seconds until an item is to be written; infinite without one."""
        return max(0.0, self._due - time.monotonic())

    def _run(self) -> None:
        while True:
            # Wait until the item is due; a close writes it at once.
            with self._changed:
                while not self._closing and (pause := self.due_in()) > 0:
                    self._changed.wait(None if pause == math.inf else pause)
                item = self.begin_write()
            if item is None:
                return
            self.end_write(item)

    def begin_write(self) -> T | None:
        """Return the item that is to be written now; None without one."""
        with self._changed:
            if self._due == math.inf:
                return None
            self._due = math.inf
            self._busy_since = time.monotonic()
            return self._item

    def end_write(self, item: T) -> None:
        """Write an item; if that fails, it is due again later."""
        # The disk may block here: callers go on.
        error = self._write(item)

        with self._changed:
            self._last = time.monotonic()
            self._busy_since = None
            if error is not None and not self._closing:
                self._due = min(self._due, self._last + times.WRITE_RETRY)
            self._changed.notify_all()
        self._disk.report(self.name, "" if error is None else error_text(error))


class DiskAlarm:
    """Logs one line when the first of several writers fails and one when all recovered."""

    def __init__(self, say: Callable[[str, str], None]) -> None:
        self._say = say
        self._changed = threading.Lock()
        self.folder: Callable[[], Path] | None = None  # to name in log lines; it may move
        self._failing: set[str] = set()
        self._hanging: set[str] = set()  # files of which a write has not ended
        self._watched: dict[str, Callable[[], float | None]] = {}

    def watch(self, name: str, busy_since: Callable[[], float | None]) -> None:
        """Check a writer for stalled writes by the start of its current write."""
        self._watched[name] = busy_since

    def follow(self, writer: Writer) -> Writer:
        """Report failures and stalled writes of a writer of lines."""
        writer.trouble = partial(self.report, writer.name)
        self.watch(writer.name, writer.busy_since)
        return writer

    def report_hang(self, name: str) -> None:
        """Record that a write of a file does not end."""
        self._hanging.add(name)
        self.report(name, "a write does not end")

    def patience(self, limit: float) -> float:
        """Return how long to wait for a write: not long again where one did not end before."""
        return min(limit, HANGING_DISK) if self._hanging else limit

    def report(self, name: str, why: str) -> None:
        """Record why a file cannot be written, or its recovery by ''."""
        if not why:
            self._hanging.discard(name)
        with self._changed:
            before = bool(self._failing)
            if why:
                self._failing = self._failing | {name}
            else:
                self._failing = self._failing - {name}
            after = bool(self._failing)
        if before == after:
            return

        place = name if self.folder is None else self.folder()
        if not why:
            self._say(f"{place} can be written again", "warning")
            return
        file = "" if self.folder is None else f" ({name})"
        self._say(f"{place} cannot be written: {why}{file}. {_FOLLOWS}", "warning")

    def check(self, now: float | None = None) -> None:
        """Report writes that stall, and stalled writes that ended."""
        if now is None:
            now = time.monotonic()
        for name, busy_since in [*self._watched.items()]:
            since = busy_since()
            why = ""
            if since is not None and now - since > times.WRITE_STALLED:
                why = f"a write takes longer than {times.WRITE_STALLED:g} s"
            self.report(f"{name}, stalled", why)


def all_idle() -> bool:
    """Return whether all writers of lines have written what was queued."""
    return all(writer.is_idle for writer in _open_writers)


def finish_all(limit: float = times.FLUSH) -> None:
    """Flush all writers of lines, for at most `limit` seconds in total."""
    until = time.monotonic() + limit
    writers = tuple(_open_writers)
    for writer in writers:
        writer.close()
    for writer in writers:
        writer.finish(until - time.monotonic())


atexit.register(finish_all)
