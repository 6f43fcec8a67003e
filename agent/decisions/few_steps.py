"""Whether a job that succeeded has made its steps: one that ends with 0 may have made none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.base import ends
from agent.job.checkpoints import step_of

if TYPE_CHECKING:
    from agent.base.ends import Outcome
    from agent.job.progress import Progress


def warn_of_few_steps(
    success: Outcome, progress: Progress, total: int | None, checkpoint: str = ""
) -> Outcome:
    """Return the outcome of a job that succeeded; with a warning if steps are missing.

    A job that had none left to make is no success with missing steps.

    `progress` is that of its last attempt after all of its output, `total` the number of steps that
    this attempt's output names, and `checkpoint` what it resumed from, if known.
    """
    before = success.before
    of = total or progress.of
    if of is not None and was_finished(progress, of, checkpoint):
        return ends.JOB_WAS_FINISHED.outcome(of=of, checkpoint=checkpoint, before=before)
    steps = missing_steps(progress, total, checkpoint)
    if not steps:
        return success
    return ends.JOB_MADE_FEW_STEPS.outcome(steps=steps, before=before)


def was_finished(progress: Progress, of: int, checkpoint: str) -> bool:
    """Return whether the checkpoint of an earlier run had all steps, so that none was made."""
    step = step_of(checkpoint)
    return progress.highest is None and step is not None and step >= of


def missing_steps(progress: Progress, total: int | None, checkpoint: str = "") -> str:
    """Say after how many steps it ended; '' if none are missing, or nothing is known of them.

    Not every step has a line, and some programs count from 0: the last one may be behind the total
    by as much as two lines with steps are apart.
    """
    of = total or progress.of
    apart = max((1, *progress.strides))
    last = progress.last

    # Did it make some, and fewer than all?
    if last is not None:
        is_short = of is not None and last + apart < of
        return f"after {last} of {of} steps" if is_short else ""

    # Did it make none, and were some left to make?
    before = progress.highest
    if of is not None and before is not None and before + apart >= of:
        return ""
    if before is not None:
        return f"without a step, though an earlier attempt had come to step {before}"
    if of:
        return f"after 0 of {of} steps"
    return f"without a step after it resumed from {checkpoint}" if checkpoint else ""
