"""Keep the job's steps on the head: save them, and read AGENT_PROGRESS_FILE of the attempt.

At its start the head reads what an agent before it has saved, its own or that of a head on another
node of the run. As an attempt proceeds, what was read of its output is saved every second; lines
that the job appends to AGENT_PROGRESS_FILE are read as often.
"""

from __future__ import annotations

import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.base import times
from agent.decisions.few_steps import warn_of_few_steps
from agent.record.background import in_thread
from agent.record.files import remove_file
from agent.record.log import disk_alarm, say
from agent.record.log_dir import log_dir
from agent.record.series_file import SERIES_FILE, ProgressFile, SeriesFile, read_steps, shifted
from agent.run.node_figures import Source

if TYPE_CHECKING:
    from pathlib import Path

    from agent.base.ends import Outcome
    from agent.record.job_lines import JobLines
    from agent.record.run_folder import RunFolder
    from agent.record.series_file import SavedLine, SavedSteps
    from agent.run.node_run import NodeRun


def progress_path(folder: RunFolder, attempt: int) -> Path:
    """Return AGENT_PROGRESS_FILE of an attempt.

    It lies beside run.json, not in the head's own folder: its path is part of the job's command,
    which a head on another node must know word by word to follow the job.
    """
    return folder.path.parent / f"progress-{attempt}.jsonl"


class StepKeeper:
    """Saves the steps of a run, and continues those that were saved."""

    def __init__(self, run: NodeRun, lines: JobLines) -> None:
        self._run = run
        self._lines = lines
        self._file = SeriesFile(partial(run.folder.held, SERIES_FILE), self._everything)
        self._progress_file: ProgressFile | None = None
        self._reading: Source[None] | None = None  # of that file, which a stalled disk may hold

    async def restore(self) -> None:
        """Continue the steps that an earlier agent of the run has saved."""
        own = self._run.folder.file(SERIES_FILE)
        newest = await in_thread(partial(self._read, own), times.IDLE_DISK)
        if newest is None:
            return
        path, saved = newest
        self._lines.restore(saved)
        if path != own:
            self._file.begin_anew()
        if saved.progress is not None and saved.progress.last is not None:
            say(f"continuing the job's step count at step {saved.progress.last}")

    async def begin(self, attempt: int) -> None:
        """Begin an attempt."""
        self._lines.begin_attempt(attempt)
        file = ProgressFile(progress_path(self._run.folder, attempt))
        self._use(file)
        await in_thread(partial(remove_file, file.path))  # of a former run

    def follow(self, attempt: int) -> None:
        """Follow an attempt that an earlier agent began."""
        position = self._lines.follow_attempt(attempt)
        self._use(ProgressFile(progress_path(self._run.folder, attempt), position))

    def warn_of_few(self, success: Outcome, attempt: int, checkpoint: str) -> Outcome:
        """Return the end of an attempt that succeeded, with a warning if it lacks steps."""
        progress = self._lines.progress
        if progress is None or progress.attempt != attempt:
            return success
        end = warn_of_few_steps(success, progress, self._lines.total, checkpoint)
        if end != success and not self._lines.is_at_end:
            say("the job printed faster than its lines are read: its last step is not known")
            return success
        return end

    async def look(self) -> None:
        """Read what the job has appended to its file, and save what is new."""
        if self._reading is not None:
            await self._reading.value()
        for line in self._lines.take_unsaved():
            self._file.add(replace(line, at=line.at + self._zero))

    def last_of(self, attempt: int) -> int | None:
        """Return the last step of an attempt; None if it made none, or none is known."""
        progress = self._lines.progress
        return progress.last if progress is not None and progress.attempt == attempt else None

    def close(self) -> None:
        """Write the rest."""
        self._file.finish(disk_alarm.patience(times.FLUSH))

    def _use(self, file: ProgressFile) -> None:
        self._progress_file = file
        self._reading = Source(partial(self._read_new, file), times.STALLED_DISK)

    def _read_new(self, file: ProgressFile) -> None:
        lines = file.read_lines()
        if lines and file is self._progress_file:
            self._lines.read_file(lines, file.position)

    @property
    def _zero(self) -> float:
        """Return the time at which the run's clock was 0, in seconds since 1970."""
        return time.time() - self._run.now()

    def _everything(self) -> SavedLine:
        """Return a line with all steps so far, with which a file begins."""
        line = self._lines.everything()
        progress = None if line.progress is None else shifted(line.progress, self._zero)
        return replace(line, at=time.time(), progress=progress)

    def _read(self, own: Path) -> tuple[Path, SavedSteps] | None:
        """Return what was saved last, here or by another node of the run.

        Each head continues the numbers of the lines that it found: the highest is the newest. A
        node that was the head before may have an older file of its own.
        """
        newest: tuple[Path, SavedSteps] | None = None
        others: list[str] = []
        with suppress(OSError):
            others = log_dir.names(own.parent.parent)
        for path in (own, *(own.parent.parent / name / SERIES_FILE for name in others)):
            saved = read_steps(path, self._zero)
            if saved is not None and (newest is None or saved.number > newest[1].number):
                newest = path, saved
        return newest
