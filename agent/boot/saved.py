"""The newest checkpoint of a job, looked at when an attempt is to begin or has ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from agent.decisions.head.state import CheckpointSeen
from agent.record import checkpoint_folder
from agent.runtime.best_effort import Failure
from agent.work.checkpoints import resumes_from, step_of

if TYPE_CHECKING:
    from agent.boot.node_run import NodeRun
    from agent.work.job import Job

_LIMIT = 5.0
"""A disk that does not answer for so long tells nothing."""


async def look_after(run: NodeRun, attempt: int) -> CheckpointSeen:
    """Return what there is to go on from after an attempt; 0 stands for those of earlier heads."""
    job = run.plan.job
    if job is None or not job.checkpoints:
        return CheckpointSeen(attempt)
    found = await run.best_effort("a look at the checkpoints", _look, job, attempt)
    return CheckpointSeen(attempt) if isinstance(found, Failure) else found


async def _look(job: Job, attempt: int) -> CheckpointSeen:
    with anyio.move_on_after(_LIMIT):
        held = await anyio.to_thread.run_sync(
            checkpoint_folder.look, job.checkpoints, abandon_on_cancel=True
        )
        framework = "" if job.recipe is None else job.recipe.known.framework
        path = resumes_from(held, framework) if framework else ""
        return CheckpointSeen(
            attempt, step_of(held.newest), f"{job.checkpoints}/{path}" if path else ""
        )
    return CheckpointSeen(attempt)
