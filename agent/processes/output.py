"""Copy the job's output from Ray's driver log to stdout and job.log, byte for byte."""

from __future__ import annotations

import os
import re
import threading
import time
from contextlib import closing, suppress
from copy import copy as copy_of
from functools import partial
from typing import TYPE_CHECKING, BinaryIO

from agent.base import times
from agent.record.background import NO_THREAD, Background, Sink, in_thread
from agent.record.files import appending
from agent.record.log import disk_alarm, end_drawing, say, stream_trouble
from agent.record.log_dir import log_dir

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from typing_extensions import Self

    from agent.record.job_lines import JobLines

_OUTPUT_POLL = 0.05  # Between two reads of the job's output.
_CHUNK = 1 << 16
_MOST_RECENT = 8 << 20  # Bytes of torchrun's output for a slow reader of stdout
_MAX_FIRST_LINE = 4096  # Ray's first line is far shorter; a job may never end its first line
_BEFORE_WORDS = "; exec "  # In a job's shell command, between its exports and its words
_SETTING_UP = re.compile(rb"\S+ \S+\tINFO job_manager\.py:\d+ -- Runtime env is setting up\.\n")


class PreambleFilter:
    """Removes Ray's two lines from a driver's log: both write to that file, in any order (2.60)."""

    def __init__(self, job_id: str = "", entrypoint: str = "") -> None:
        """Without an entrypoint, everything is passed on: Ray has written nothing."""
        # What stands before the job's words may be another: an agent of another run folder, which
        # the paths there name, has submitted the job.
        exports, mark, words = entrypoint.partition(_BEFORE_WORDS)
        line_begins = f"Running entrypoint for job {job_id}: "
        self._begin = line_begins.encode() if mark else f"{line_begins}{exports}\n".encode()
        self._end = f"{mark}{words}\n".encode() if mark else b""
        self.held = b""  # Bytes that are held back, since they may be Ray's
        self._at_start = True
        self.found = not entrypoint

    def feed(self, chunk: bytes, *, last: bool = False) -> bytes:
        """Filter a chunk; return the job's output, all that is held with `last`."""
        if self.found:
            return chunk
        data = self.held + chunk
        self.held = b""

        # Ray's line about the environment comes first, if at all.
        if self._at_start:
            if b"\n" not in data and not last and len(data) < _MAX_FIRST_LINE:
                self.held = data
                return b""
            self._at_start = False
            match = _SETTING_UP.match(data)
            data = data[match.end() :] if match else data

        # Its line about the entrypoint may follow the job's first output.
        at = data.find(self._begin)
        while at >= 0:
            behind = at + len(self._begin)
            end = data.find(self._end, behind)
            if end >= 0 and b"\n" not in data[behind:end]:
                self.found = True
                return data[:at] + data[end + len(self._end) :]
            if end < 0 and not last and self._may_go_on(data[behind:]):
                self.held = data[at:]
                return data[:at]
            at = data.find(self._begin, behind)

        # Does the chunk end with the beginning of that line?
        held = 0 if last else _overlap(data, self._begin)
        self.held = data[len(data) - held :]
        return data[: len(data) - held]

    def _may_go_on(self, rest: bytes) -> bool:
        """Return whether the end of Ray's line may follow these bytes behind its begin."""
        words = rest[: len(rest) - _overlap(rest, self._end)]
        return b"\n" not in words and len(words) < _MAX_FIRST_LINE


def _overlap(data: bytes, text: bytes) -> int:
    """Return how many bytes at the end of data are the beginning of a text."""
    sizes = range(min(len(text), len(data)), 0, -1)
    return next((size for size in sizes if data.endswith(text[:size])), 0)


class RecentOutput:
    """The end of an output in memory, for readers in threads: no disk can hold them up."""

    def __init__(self, path: Path, most: int = _MOST_RECENT) -> None:
        """Keep at least the last `most` bytes; all is written to `path`, if it can be."""
        self.path = path
        self._most = most
        self._lock = threading.Lock()
        self._kept = bytearray()
        self._begins = 0  # the offset of the first byte kept

    def add(self, data: bytes) -> None:
        """Add output."""
        with self._lock:
            self._kept += data
            if len(self._kept) > 2 * self._most:
                surplus = len(self._kept) - self._most
                del self._kept[:surplus]
                self._begins += surplus

    def end(self, most: int) -> bytes:
        """Return the last bytes, at most so many of those kept."""
        with self._lock:
            return bytes(self._kept[-most:])

    def read(self, offset: int, most: int) -> tuple[int, bytes]:
        """Return the first offset from this one on that is kept, and the bytes from there."""
        with self._lock:
            offset = max(offset, self._begins)
            start = offset - self._begins
            return offset, bytes(self._kept[start : start + most])

    @property
    def size(self) -> int:
        """Return the number of bytes added so far."""
        with self._lock:
            return self._begins + len(self._kept)


class _OutputFile:
    """A file with output, as a source of copies."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Close the file."""
        self._file.close()

    def read(self, most: int) -> bytes:
        """Read some bytes; none at the present end."""
        return self._file.read(most)

    def seek(self, offset: int) -> int:
        """Read on from an offset; return it."""
        return self._file.seek(offset)

    def unread(self) -> int:
        """Return how many bytes there are to read now."""
        return os.fstat(self._file.fileno()).st_size - self._file.tell()


class _RecentReader:
    """A reader of recent output, as a source of copies; a line stands for what it missed."""

    def __init__(self, recent: RecentOutput) -> None:
        self._recent = recent
        self._offset = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Close nothing."""

    def read(self, most: int) -> bytes:
        """Read some bytes; none at the present end."""
        begins, data = self._recent.read(self._offset, most)
        lost = begins - self._offset
        self._offset = begins + len(data)
        notice = f"\n({lost} bytes were lost here)\n".encode() if lost else b""
        return notice + data

    def seek(self, offset: int) -> int:
        """Read on from an offset; return it."""
        self._offset = offset
        return offset

    def unread(self) -> int:
        """Return how many bytes there are to read now."""
        return self._recent.size - self._offset


class OutputCopy(Background):
    """Copies the source to one sink, in a thread: a blocked sink stalls only its own copy."""

    def __init__(
        self,
        copies: OutputCopies,
        name: str,
        sink: Sink | JobLines,
        skip: int,
        on_passed: Callable[[int], None],
    ) -> None:
        super().__init__(name)
        self._source = copies.source
        self._warn = copies.warn
        self._filter = copy_of(copies.preamble)
        self._sink = sink
        self._skip = skip
        self.on_passed = on_passed
        self._former: threading.Thread | None = None

    def start(self) -> bool:
        """Start the thread; it first waits for the former one of the same sink."""
        self._former = _copying.get(self.name)
        super().start()
        if self._thread is not None:
            _copying[self.name] = self._thread
        return self._thread is not None

    def _run(self) -> None:
        if self._former is not None:
            self._former.join()
        try:
            source = self._wait_for_source()
            if source is None:
                return
            with source, closing(self._sink):
                read = self._skip_copied(source)
                for chunk in self._chunks(source):
                    read += len(chunk)
                    if not self._write(self._filter.feed(chunk)):
                        return
                    self.on_passed(read - len(self._filter.held))
                if self._write(self._filter.feed(b"", last=True)):
                    self.on_passed(read)
        except OSError as error:  # a disk error
            self._warn_of(error)

    def _wait_for_source(self) -> _OutputFile | _RecentReader | None:
        """Wait until the source exists; None if it never did."""
        if isinstance(self._source, RecentOutput):
            return _RecentReader(self._source)
        while True:
            try:
                descriptor = log_dir.open_as_is(self._source, os.O_RDONLY)
                return _OutputFile(os.fdopen(descriptor, "rb", buffering=0))
            except (FileNotFoundError, NotADirectoryError):
                pass  # Ray has not made it yet
            except OSError as error:
                self._warn_of(error)
            if not self._pause(_OUTPUT_POLL):
                break
        if not self._source.parent.is_dir():
            self._warn(f"the job's output cannot be read: {self._source.parent} is not there")
        return None

    def _skip_copied(self, source: _OutputFile | _RecentReader) -> int:
        """Seek past what is copied already; find Ray's lines before it again."""
        remaining = self._skip
        while remaining and not self._filter.found:
            chunk = self._read(source, min(_CHUNK, remaining))
            remaining -= len(chunk)
            self._filter.feed(chunk)
            # the bridge may be writing it again
            if not chunk and not self._pause(_OUTPUT_POLL):
                break
        self._filter.held = b""  # the former agent has passed it on
        return source.seek(self._skip)

    def _chunks(self, source: _OutputFile | _RecentReader) -> Iterator[bytes]:
        """Yield chunks until the end is requested, then what the source had at that time."""
        while not self._closing:
            while not self._closing and (chunk := self._read(source, _CHUNK)):
                yield chunk
            self._pause(_OUTPUT_POLL)

        remaining = source.unread()
        while remaining > 0 and (chunk := self._read(source, min(_CHUNK, remaining))):
            remaining -= len(chunk)
            yield chunk

    def _read(self, source: _OutputFile | _RecentReader, most: int) -> bytes:
        try:
            return source.read(most)
        except OSError as error:
            self._warn_of(error)
            return b""

    def _warn_of(self, error: OSError) -> None:
        self._warn(f"the job's output cannot be read: {error.strerror} ({self._source})")

    def _write(self, chunk: bytes) -> bool:
        return not chunk or self._sink.write(chunk, self._pause)


class OutputCopies:
    """Copies of the job's output while it grows, each in its own thread.

    Ray writes the driver's output to a file on the head. Reading that file loses nothing when the
    dashboard's log stream drops, and buffers nothing for a slow reader. Where the driver runs on
    another machine, the bridge writes such a file here. The agent itself reads torchrun's output,
    and keeps its end in memory. The output of an attempt waits until that of the former is written.
    """

    def __init__(self, source: Path | RecentOutput, preamble: PreambleFilter) -> None:
        self.source = source
        self.preamble = preamble
        self._warned: set[str] = set()
        self._lock = threading.Lock()
        self._copies: list[OutputCopy] = []

    def to_stdout(self, begins: int, on_passed: Callable[[int], None]) -> None:
        """Copy to stdout, from an offset on; `on_passed` gets the bytes that it accepted."""
        end_drawing()
        sink = Sink(partial(os.dup, 1), partial(stream_trouble, "stdout"))
        self._copies.append(OutputCopy(self, "job output", sink, begins, on_passed))

    def to_file(self, path: Path, begins: int, on_passed: Callable[[int], None]) -> None:
        """Copy to a file, in the same way."""
        sink = Sink(appending(path), partial(disk_alarm.report, path.name))
        disk_alarm.watch(path.name, lambda: sink.busy_since)
        self._copies.append(OutputCopy(self, "job.log", sink, begins, on_passed))

    def to_watcher(self, watcher: JobLines, begins: int = 0) -> None:
        """Copy to a reader in this process, from an offset on."""
        self._copies.append(OutputCopy(self, "job watcher", watcher, begins, lambda _count: None))

    @property
    def path(self) -> Path:
        """Return the file that holds the output."""
        return self.source.path if isinstance(self.source, RecentOutput) else self.source

    def start(self) -> None:
        """Start copying."""
        for copier in self._copies:
            if not copier.start():
                say(f"the job's output cannot be passed on: {NO_THREAD}", "warning")
                return

    def finish(self, limit: float) -> None:
        """Copy the rest, for at most `limit` seconds."""
        until = time.monotonic() + limit
        for copier in self._copies:
            copier.close()
        for copier in self._copies:
            copier.finish(until - time.monotonic())
            copier.on_passed = lambda _count: None  # the offsets belong to the next attempt now

    def warn(self, sentence: str) -> None:
        """Log a warning once for all copies."""
        with self._lock:
            is_new = sentence not in self._warned
            self._warned.add(sentence)
        if is_new:
            say(sentence, "warning")


_copying: dict[str, threading.Thread] = {}  # The current or last thread of each sink, by name


async def size_at_start(log: Path) -> int:
    """Return a log's size as an attempt begins.

    On a stalled disk this takes 2 s, and earlier output may be passed on again.
    """

    def read_size() -> int:
        with suppress(OSError):
            return log_dir.stat(log).st_size
        return 0

    size = await in_thread(read_size, times.STALLED_DISK)
    if size is None:
        problem = f"{log.parent} does not answer within {times.STALLED_DISK:g} s"
        say(f"{problem}. Output of an earlier attempt may be repeated", "warning")
    return size or 0
