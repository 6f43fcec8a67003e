"""The job's output: from Ray's file of it to our stdout and job.log, byte for byte."""

from __future__ import annotations

import os
import re
import threading
import time
from contextlib import closing
from copy import copy as copy_of
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol

from agent.record.log import disk, say
from agent.record.writer import Place, appending
from agent.runtime.beats import beats

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_CHUNK = 1 << 16
_STEP = 0.05
_COPY_STEP = 0.2
_LONGEST_FIRST_LINE = 4096
"""Ray's own first line is far shorter; a job may write on for ever without ending one."""
_SETTING_UP = re.compile(rb"\S+ \S+\tINFO job_manager\.py:\d+ -- Runtime env is setting up\.\n")


class WithoutPreamble:
    """Takes Ray's two lines out of a driver's log, wherever in its beginning they stand.

    Ray writes them into the same file as the driver, and not always first (seen on 2.60). What
    does not look as expected is passed on.
    """

    def __init__(self, job_id: str, entrypoint: str) -> None:
        self._line = f"Running entrypoint for job {job_id}: {entrypoint}\n".encode()
        self._kept = b""
        self._at_start = True
        self.found = False

    @classmethod
    def nothing(cls) -> WithoutPreamble:
        """Return one for a text in which Ray has written nothing: all of it is the job's own."""
        made = cls("", "")
        made.found = True
        return made

    @property
    def held(self) -> int:
        """How many bytes were taken in and not given out, since they may be Ray's."""
        return len(self._kept)

    def twin(self) -> WithoutPreamble:
        """Return another, for the same text on another way."""
        return copy_of(self)

    def let_go(self) -> None:
        """Give up what is held: it was given out in an earlier life."""
        self._kept = b""

    def feed(self, chunk: bytes, *, last: bool = False) -> bytes:
        """Take a chunk in; return what is the job's own, all of it at the `last`."""
        if self.found:
            return chunk
        data, self._kept = self._kept + chunk, b""
        if self._at_start:
            if b"\n" not in data and not last and len(data) < _LONGEST_FIRST_LINE:
                self._kept = data
                return b""
            self._at_start = False
            match = _SETTING_UP.match(data)
            data = data[match.end() :] if match else data
        at = data.find(self._line)
        if at >= 0:
            self.found = True
            return data[:at] + data[at + len(self._line) :]
        held = 0 if last else self._held(data)
        self._kept = data[len(data) - held :]
        return data[: len(data) - held]

    def _held(self, data: bytes) -> int:
        """Return how much of the end may be the beginning of Ray's line."""
        at = data.find(self._line[:1], max(0, len(data) - len(self._line) + 1))
        while at >= 0:
            if self._line.startswith(data[at:]):
                return len(data) - at
            at = data.find(self._line[:1], at + 1)
        return 0


class Taker(Protocol):
    """Where the bytes go: a descriptor, or somebody here who looks at them."""

    def write(self, data: bytes, may_try_again: Callable[[float], bool], /) -> bool:
        """Take all of it; false where it was given up, since no further try was allowed."""

    def close(self) -> None:
        """Hear that this was the last."""


def driver_log(sessions: str, job_id: str) -> Path:
    """Return the file into which this machine's Ray writes the output of a job's driver."""
    return Path(sessions, "session_latest").resolve() / "logs" / f"job-driver-{job_id}.log"


class _Way:
    """One way of the source's bytes, in a thread of its own: a place that blocks blocks only it."""

    def __init__(  # noqa: PLR0913 - all of it is one way's own
        self,
        source: Path,
        own: WithoutPreamble,
        place: Taker,
        skip: int,
        step: float,
        complain: Callable[[str], None],
        on_passed: Callable[[int], None] | None = None,
    ) -> None:
        self.on_passed = on_passed
        self._source = source
        self._own = own
        self._place = place
        self._skip = skip
        self._step = step
        self._complain = complain
        self._over = threading.Event()
        self.passed_on = skip

    def begin(self, name: str, former: threading.Thread | None) -> threading.Thread:
        """Start the thread; it waits for the one that writes to the same place."""
        thread = threading.Thread(target=self._run, args=(former,), name=name, daemon=True)
        thread.start()
        return thread

    def end(self) -> None:
        """Ask for the end: what is in the source by now is the last."""
        self._over.set()

    def _run(self, former: threading.Thread | None) -> None:
        if former is not None:
            former.join()
        try:
            self._copy_all()
        except OSError as error:  # what a disk may do to an open file, or to a look at a folder
            self._complain_of(error)

    def _copy_all(self) -> None:
        source = self._opened()
        if source is None:
            return
        with source, closing(self._place):
            read = self._pass_over(source)
            for chunk in self._chunks(source):
                read += len(chunk)
                if not self._hand_on(self._own.feed(chunk)):
                    return
                self._passed(read - self._own.held)
            if self._hand_on(self._own.feed(b"", last=True)):
                self._passed(read)

    def _passed(self, count: int) -> None:
        self.passed_on, on_passed = count, self.on_passed
        if on_passed is not None:
            on_passed(count)

    def _opened(self) -> BinaryIO | None:
        """Wait for the source to be there; None where it never was."""
        for _ in beats(self._over, self._step):
            if source := self._open():
                return source
        source = self._open()
        if source is None and not self._source.parent.is_dir():
            self._complain(f"the job's output cannot be read: {self._source.parent} is not there")
        return source

    def _open(self) -> BinaryIO | None:
        try:
            return self._source.open("rb", buffering=0)
        except (FileNotFoundError, NotADirectoryError):
            return None  # Ray has not made it yet
        except OSError as error:
            self._complain_of(error)
            return None

    def _pass_over(self, source: BinaryIO) -> int:
        """Go to where this begins; Ray's lines before it are found as they were the first time."""
        left = self._skip
        while left and not self._own.found:
            chunk = self._read(source, min(_CHUNK, left))
            left -= len(chunk)
            self._own.feed(chunk)
            if not chunk and self._over.wait(self._step):  # the bridge may be writing it anew
                break
        self._own.let_go()
        return source.seek(self._skip)

    def _chunks(self, source: BinaryIO) -> Iterator[bytes]:
        """Read what comes until the end is asked for, and then what was there by then."""
        for _ in beats(self._over, self._step):
            while not self._over.is_set() and (chunk := self._read(source, _CHUNK)):
                yield chunk
        left = os.fstat(source.fileno()).st_size - source.tell()
        while left > 0 and (chunk := self._read(source, min(_CHUNK, left))):
            left -= len(chunk)
            yield chunk

    def _read(self, source: BinaryIO, most: int) -> bytes:
        try:
            return source.read(most)
        except OSError as error:
            self._complain_of(error)
            return b""

    def _complain_of(self, error: OSError) -> None:
        self._complain(f"the job's output cannot be read: {error.strerror} ({self._source})")

    def _hand_on(self, chunk: bytes) -> bool:
        return not chunk or self._place.write(chunk, self._may_try_again)

    def _may_try_again(self, pause: float) -> bool:
        if self._over.is_set():
            return False
        self._over.wait(pause)
        return True


class Ways:
    """The ways of the job's output while it grows, each in a thread of its own."""

    def __init__(self) -> None:
        self._said: set[str] = set()
        self._saying = threading.Lock()
        self._ways: dict[str, _Way] = {}
        self._threads: list[threading.Thread] = []

    def look(self, source: Path, own: WithoutPreamble, watcher: Taker, begins: int) -> None:
        """Have a watcher see it from a place on."""
        way = _Way(source, own, watcher, begins, _COPY_STEP, self._complain)
        self._ways["job watcher"] = way

    def start(self) -> None:
        """Begin to copy."""
        for name, way in self._ways.items():
            try:
                _latest[name] = way.begin(name, _latest.get(name))
            except RuntimeError as error:  # pids.max
                say(f"the job's output cannot be passed on: {error}", "warning")
                return
            self._threads.append(_latest[name])

    def finish(self, limit: float) -> None:
        """Copy what is left, for at most `limit` seconds."""
        until = time.monotonic() + limit
        for way in self._ways.values():
            way.end()
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        for way in self._ways.values():
            way.on_passed = None  # the offsets are those of the next attempt from now on

    def _complain(self, sentence: str) -> None:
        """Say what is wrong with the source, once for all ways."""
        with self._saying:
            is_new = sentence not in self._said
            self._said.add(sentence)
        if is_new:
            say(sentence, "warning")


class JobOutput(Ways):
    """Copies the driver's log while the job runs: to stdout, and beside it to a file if given.

    Ray writes the driver's output to a file on the node where the driver runs, which is the
    head; reading the file loses nothing when the dashboard's log stream drops, and holds nothing
    in memory for a reader that is slow. Where the head is another machine, the bridge writes such
    a file here. An agent that takes over from a killed one begins at `skip` bytes of the source for
    stdout, and at `copied` for the file, which may be behind or ahead; a `watcher` sees it from
    `begins` on, whatever was passed on in an earlier life. The output of a further attempt waits
    until the former attempt's has been written.
    """

    def __init__(  # noqa: PLR0913 - whence, whereto, and who looks on
        self,
        source: Path,
        own: WithoutPreamble,
        copy: Path | None,
        *,
        skip: int = 0,
        on_passed: Callable[[int], None] | None = None,
        copied: int = 0,
        on_copied: Callable[[int], None] | None = None,
        watcher: Taker | None = None,
        begins: int = 0,
    ) -> None:
        super().__init__()
        stdout = Place(partial(os.dup, 1), partial(self._on_trouble, "stdout"))
        self._to_stdout = _Way(source, own, stdout, skip, _STEP, self._complain, on_passed)
        self._ways["job output"] = self._to_stdout
        if copy is not None:
            kept = Place(appending(copy), partial(disk.tell, copy.name))
            disk.watch_place(copy.name, kept)
            way = _Way(source, own.twin(), kept, copied, _COPY_STEP, self._complain, on_copied)
            self._ways["job.log"] = way
        if watcher is not None:
            self.look(source, own.twin(), watcher, begins)

    @property
    def passed_on(self) -> int:
        """How many bytes of the source have been handed on to stdout."""
        return self._to_stdout.passed_on

    def _on_trouble(self, name: str, why: str) -> None:
        say(f"{name} {f'cannot be written: {why}' if why else 'can be written again'}", "warning")


_latest: dict[str, threading.Thread] = {}
"""Who writes to each place now, or did so last."""
