"""The job's output: from Ray's file of it to our stdout and job.log, byte for byte."""

from __future__ import annotations

import re
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from agent.node.process_limits import starting
from agent.runtime.beats import beats

if TYPE_CHECKING:
    from collections.abc import Iterator

_CHUNK = 1 << 16
_STEP = 0.05
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
        self._found = False

    def feed(self, chunk: bytes, *, last: bool = False) -> bytes:
        """Take a chunk in; return what is the job's own, all of it at the `last`."""
        if self._found:
            return chunk
        data, self._kept = self._kept + chunk, b""
        if self._at_start:
            if b"\n" not in data and not last:
                self._kept = data
                return b""
            self._at_start = False
            match = _SETTING_UP.match(data)
            data = data[match.end() :] if match else data
        at = data.find(self._line)
        if at >= 0:
            self._found = True
            return data[:at] + data[at + len(self._line) :]
        held = 0 if last else self._held(data)
        self._kept = data[len(data) - held :]
        return data[: len(data) - held]

    def _held(self, data: bytes) -> int:
        """Return how much of the end may be the beginning of Ray's line."""
        longest = min(len(data), len(self._line) - 1)
        lengths = range(longest, 0, -1)
        return next((n for n in lengths if data.endswith(self._line[:n])), 0)


def driver_log(sessions: str, job_id: str) -> Path:
    """Return the file into which this machine's Ray writes the output of a job's driver."""
    return Path(sessions, "session_latest").resolve() / "logs" / f"job-driver-{job_id}.log"


class JobOutput:
    """Copies the driver's log while the job runs, in a thread: a slow reader blocks only it.

    Ray writes the driver's output to a file on the node where the driver runs, which is the
    head; reading the file loses nothing when the dashboard's log stream drops. Where the head is
    another machine, the bridge writes such a file here.
    """

    def __init__(self, source: Path, own: WithoutPreamble, copy: Path) -> None:
        self._source = source
        self._own = own
        self._copy = copy
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="job output", daemon=True)

    def start(self) -> None:
        """Begin to copy."""
        with starting("the copy of the job's output"):
            self._thread.start()

    def finish(self, limit: float) -> None:
        """Copy what is left, for at most `limit` seconds."""
        self._over.set()
        self._thread.join(limit)

    def _run(self) -> None:
        for _ in beats(self._over, _STEP):
            if self._source.exists():
                break
        if not self._source.exists():
            return
        with self._source.open("rb") as source, self._copy.open("ab") as copy:
            for chunk in self._chunks(source):
                self._pass_on(self._own.feed(chunk), copy)
            self._pass_on(self._own.feed(b"", last=True), copy)

    def _chunks(self, source: BinaryIO) -> Iterator[bytes]:
        for _ in beats(self._over, _STEP):
            while chunk := source.read(_CHUNK):
                yield chunk
        while chunk := source.read(_CHUNK):
            yield chunk

    @staticmethod
    def _pass_on(chunk: bytes, copy: BinaryIO) -> None:
        if not chunk:
            return
        with suppress(OSError):  # a full disk costs the copy, not the output
            copy.write(chunk)
            copy.flush()
        with suppress(OSError, ValueError):  # the reader left; the job goes on
            sys.stdout.buffer.write(chunk)
            sys.stdout.flush()
