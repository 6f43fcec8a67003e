"""The job's output: from Ray's file of it to our stdout and job.log, byte for byte."""

from __future__ import annotations

import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, BinaryIO

from agent.runtime.waiting import beats

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_CHUNK = 1 << 16
_STEP = 0.05
_LONGEST_PREAMBLE = 1 << 16


class JobOutput:
    """Copies the driver's log while the job runs, in a thread: a slow reader blocks only it.

    Ray writes the driver's output to a file on the node where the driver runs, which is the
    head; reading the file loses nothing when the dashboard's log stream drops.
    """

    def __init__(self, session: Path, job_id: str, entrypoint: str, copy: Path) -> None:
        self._source = session.resolve() / "logs" / f"job-driver-{job_id}.log"
        self._preamble = f"Running entrypoint for job {job_id}: {entrypoint}\n".encode()
        self._copy = copy
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="job output", daemon=True)

    def start(self) -> None:
        """Begin to copy."""
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
            self._skip_preamble(source)
            stdout = sys.stdout.buffer
            for chunk in self._chunks(source):
                copy.write(chunk)
                copy.flush()
                with suppress(BrokenPipeError, ValueError):  # the reader left; the job goes on
                    stdout.write(chunk)
                    stdout.flush()

    def _chunks(self, source: BinaryIO) -> Iterator[bytes]:
        for _ in beats(self._over, _STEP):
            while chunk := source.read(_CHUNK):
                yield chunk
        while chunk := source.read(_CHUNK):
            yield chunk

    def _skip_preamble(self, source: BinaryIO) -> None:
        """Leave out the lines that Ray puts before the job's own (seen on 2.60).

        Where they do not look as expected, everything is passed on.
        """
        for _ in beats(self._over, _STEP):
            source.seek(0)
            head = source.read(_LONGEST_PREAMBLE)
            at = head.find(self._preamble)
            if at >= 0:
                source.seek(at + len(self._preamble))
                return
            if len(head) == _LONGEST_PREAMBLE:
                break
        source.seek(0)
        head = source.read(_LONGEST_PREAMBLE)
        at = head.find(self._preamble)
        source.seek(max(0, at + len(self._preamble) if at >= 0 else 0))
