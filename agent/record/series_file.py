"""`series.jsonl`: the job's steps and metrics, for the agent that continues after this one.

Each line has what a line of the job's output showed, and up to where the output was read by then. A
file that is too long begins anew with one line that has everything so far.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from agent.base.typed import decode
from agent.base.value import Attempt, Count, Value
from agent.job.progress import PauseSeen, Progress, StepSeen, ValuesSeen
from agent.job.series import Series, SeriesState
from agent.record.background import Writer
from agent.record.files import reading, write_atomically
from agent.record.log import disk_alarm
from agent.record.log_dir import log_dir

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from pathlib import Path

    from agent.job.progress import Reading

SERIES_FILE = "series.jsonl"
MOST_BYTES = 12 << 20  # of the file; a line with everything takes a quarter of it at most
_MOST_READ = 4 * MOST_BYTES
_LONGEST_LINE = MOST_BYTES
Time = Annotated[float, Meta(ge=0, le=1e12)]  # seconds since 1970


class SavedLine(Value):
    """A line of the file."""

    number: Count  # counts the lines of a run
    kind: Literal["attempt", "step", "values", "evaluation", "checkpoint", "all"]
    at: Time
    attempt: Attempt
    step: Count | None = None
    of: Count | None = None
    metrics: Mapping[str, float] = {}
    not_finite: tuple[str, ...] = ()
    by_bar: bool = False  # of `step`
    read: Count = 0  # bytes of the attempt's output that were read up to here
    file_read: Count = 0  # the same of AGENT_PROGRESS_FILE
    progress: Progress | None = None  # of `all`, with times in seconds since 1970
    series: SeriesState | None = None  # of `all`

    @classmethod
    def of_reading(cls, seen: Reading | None, attempt: int, at: float) -> SavedLine:
        """Return the line for what a line of output showed; None: for an attempt that begins."""
        line = cls(0, "attempt", at, attempt)
        if isinstance(seen, PauseSeen):
            return replace(line, kind=seen.kind)
        if isinstance(seen, StepSeen | ValuesSeen):
            line = replace(line, step=seen.step, metrics=seen.metrics, not_finite=seen.not_finite)
        if isinstance(seen, StepSeen):
            return replace(line, kind="step", of=seen.of, by_bar=seen.by_bar)
        return line if seen is None else replace(line, kind="values")

    def reading(self, at: float) -> Reading | None:
        """Return what the line of output showed, with its time on another clock."""
        if self.kind == "step" and self.step is not None:
            return StepSeen(self.step, self.of, self.metrics, at, self.not_finite, self.by_bar)
        if self.kind == "values":
            return ValuesSeen(self.step, self.metrics, at, self.not_finite)
        if self.kind in {"evaluation", "checkpoint"}:
            return PauseSeen("evaluation" if self.kind == "evaluation" else "checkpoint", at)
        return None


class SavedSteps(NamedTuple):
    """What the file has: the progress of the last attempt, and the series of the run."""

    progress: Progress | None
    series: Series
    read: int = 0  # bytes of that attempt's output that are in it
    file_read: int = 0
    number: int = 0  # of the last line


def add_reading(progress: Progress, series: Series, seen: Reading) -> Progress:
    """Add what a line showed to the series; return the progress after it."""
    if isinstance(seen, StepSeen):
        series.add(progress.attempt, seen.step, seen.metrics, seen.of)
    elif isinstance(seen, ValuesSeen):
        step = progress.last if seen.step is None else seen.step
        if step is not None:
            series.add_values(step, seen.metrics)
    return progress.with_reading(seen)


def shifted(progress: Progress, by: float) -> Progress:
    """Return a progress with its times on another clock."""
    last_at = None if progress.last_at is None else progress.last_at + by
    pause_at = None if progress.pause_at is None else progress.pause_at + by
    return replace(progress, began_at=progress.began_at + by, last_at=last_at, pause_at=pause_at)


def read_steps(path: Path, zero: float = 0.0) -> SavedSteps | None:
    """Read the file; None if there is none. `zero` is the time that is 0 on the caller's clock."""
    saved: SavedSteps | None = None
    with suppress(OSError, ValueError), reading(path) as file:
        for raw in iter(lambda: file.readline(_LONGEST_LINE), b""):
            if file.tell() > _MOST_READ:
                break
            try:
                line = decode(raw, SavedLine)
            except (ValueError, RecursionError):  # incomplete, since an agent was killed, or broken
                continue
            saved = _with_line(saved or SavedSteps(None, Series()), line, line.at - zero)
    return saved


def _with_line(saved: SavedSteps, line: SavedLine, at: float) -> SavedSteps:
    if line.kind == "all":
        progress = None if line.progress is None else shifted(line.progress, at - line.at)
        series = Series() if line.series is None else Series.from_state(line.series)
        return SavedSteps(progress, series, line.read, line.file_read, line.number)
    if line.number <= saved.number:  # the line with everything has it already
        return saved

    progress = saved.progress
    if progress is None:
        progress = Progress(line.attempt, at)
    elif progress.attempt != line.attempt:
        progress = progress.next_attempt(line.attempt, at)
    seen = line.reading(at)
    if seen is not None:
        progress = add_reading(progress, saved.series, seen)
    return SavedSteps(progress, saved.series, line.read, line.file_read, line.number)


class SeriesFile(Writer):
    """Appends lines to the file; `everything` makes the one that replaces all others."""

    def __init__(
        self,
        where: Callable[[], AbstractContextManager[Path]],
        everything: Callable[[], SavedLine],
    ) -> None:
        super().__init__(SERIES_FILE, lost="".format)
        self._where = where
        self._everything = everything
        self._begins_anew = False
        disk_alarm.follow(self).open(self._open, MOST_BYTES)

    def add(self, line: SavedLine) -> None:
        """Queue a line."""
        self.put_bytes(msgspec.json.encode(line) + b"\n")

    def begin_anew(self) -> None:
        """Replace the file by one that has everything, with the first line that is written."""
        self._begins_anew = True

    def _open(self) -> int:
        """Open the file, which begins anew if it is too long.

        The line with everything is too long for the queue of lines.
        """
        with self._where() as path:
            is_too_long = log_dir.exists(path) and log_dir.stat(path).st_size > MOST_BYTES
            if self._begins_anew or is_too_long:
                text = msgspec.json.encode(self._everything()).decode()
                error = write_atomically(path, f"{text}\n", durable=False)
                if error is not None:
                    raise error
                self._begins_anew = False
            file = log_dir.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
        size = os.fstat(file).st_size
        if size > 0 and os.pread(file, 1, size - 1) != b"\n":  # torn by an agent that was killed
            with suppress(OSError):
                os.write(file, b"\n")
        return file


class ProgressFile:
    """AGENT_PROGRESS_FILE of one attempt, which the job appends to."""

    def __init__(self, path: Path, position: int = 0) -> None:
        self.path = path
        self.position = position  # the bytes of all lines so far

    def read_lines(self) -> list[bytes]:
        """Return the whole lines that are new, at most 64 KiB of them."""
        with suppress(OSError, ValueError), reading(self.path) as file:
            if os.fstat(file.fileno()).st_size < self.position:  # written anew
                self.position = 0
            file.seek(self.position)
            data = file.read(_MOST_AT_ONCE)
            whole = data[: data.rfind(b"\n") + 1]
            if not whole and len(data) == _MOST_AT_ONCE:
                whole = data  # no line is that long
            self.position += len(whole)
            return whole.splitlines()
        return []


_MOST_AT_ONCE = 1 << 16  # bytes: a job that appends without end takes little of a core
