"""Which checkpoints of the run appear in its folder, looked at every minute and at its end."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from agent.base import times
from agent.base.value import Value
from agent.job.checkpoints import newest_complete, resumes_from, step_of
from agent.plan.page_address import how_to_fetch
from agent.port.status_model import CheckpointStatus
from agent.record.background import in_thread
from agent.record.checkpoint_folder import read_checkpoints
from agent.record.log import say

if TYPE_CHECKING:
    from agent.base.ends import Outcome
    from agent.run.node_run import NodeRun

MOST_MARKS = 200  # of the run's checkpoints; the newest are kept


class CheckpointMark(Value):
    """A checkpoint, and when it was there at the latest, on the run's clock."""

    step: int
    at: float
    is_former: bool  # it was there at the first look


class CheckpointWatch:
    """Looks into the checkpoint folder at intervals."""

    def __init__(self, run: NodeRun) -> None:
        self._run = run
        self._has_looked = False
        self.marks: tuple[CheckpointMark, ...] = ()

    async def look(self) -> None:
        """Look for a checkpoint that a further attempt would resume from."""
        job = self._run.plan.job
        if job is None or not job.checkpoints:
            return
        read = partial(read_checkpoints, job.checkpoints)
        contents = await in_thread(read, times.CHECKPOINT_LISTING)
        if contents is None:
            return
        path = resumes_from(contents, job.framework) if job.framework else contents.newest
        step = step_of(path) if path else None
        if step is not None and (not self.marks or self.marks[-1].step != step):
            mark = CheckpointMark(step, self._run.now(), is_former=not self._has_looked)
            self.marks = (*self.marks, mark)[-MOST_MARKS:]
        self._has_looked = True

    def to_series(self) -> tuple[tuple[int, str | None], ...]:
        """Return step and time of each checkpoint; no time for one that was there before."""
        utc = self._run.utc
        return tuple((mark.step, None if mark.is_former else utc(mark.at)) for mark in self.marks)

    def to_status(self) -> CheckpointStatus | None:
        """Return the newest checkpoint as `/status` has it; None without one."""
        if not self.marks:
            return None
        newest = self.marks[-1]
        return CheckpointStatus(newest.step, None if newest.is_former else self._run.utc(newest.at))


async def say_newest_checkpoint(run: NodeRun, outcome: Outcome) -> None:
    """Log the newest complete checkpoint of a run that has ended, and how it is copied."""
    line = await checkpoint_line(run, outcome)
    if line:
        say(line)


async def checkpoint_line(run: NodeRun, outcome: Outcome) -> str:
    """Return a line with the newest complete checkpoint and the command that copies it, or ''."""
    job = run.plan.job
    if job is None or not job.checkpoints:
        return ""
    read = partial(read_checkpoints, job.checkpoints)
    contents = await in_thread(read, times.CHECKPOINT_LISTING)
    name = "" if contents is None else newest_complete(contents, job.framework)
    if name:
        path = f"{job.checkpoints}/{name}"
        how = how_to_fetch(run.plan, path)
        return f"newest checkpoint: {path}{f' · copy it by: {how}' if how else ''}"

    # Did the job mean to save there?
    is_set = run.plan.settings.checkpoints is not None or bool(job.framework)
    saves_there = is_set or "{checkpoints}" in " ".join(job.argv)
    if contents is not None and saves_there and outcome.is_jobs_verdict:
        return f"no checkpoint in {job.checkpoints}"
    return ""
