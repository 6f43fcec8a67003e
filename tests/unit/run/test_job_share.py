"""A node's share of the job: each has an end, and no end takes longer than the run has time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import anyio
import pytest

from agent.decisions.shared import SHARE, Step, Want
from agent.frameworks.recipe import NodeSize
from agent.job.services import Placeholders
from agent.job.share import ShareArgs, ShareEnd
from agent.record.run_folder import RunFolder
from agent.run.job_share import JobShare
from agent.settings.redact import redactor_for
from support.conditions import is_so
from support.executing import executing
from support.node_runs import made_run
from support.worlds import plan_of

if TYPE_CHECKING:
    from pathlib import Path

    from agent.processes.output import RecentOutput
    from agent.run.node_run import NodeRun

pytestmark = pytest.mark.anyio
ALONE = Want(1, ShareArgs(0, (NodeSize(0),)))


def run_of(root: Path, command: str) -> NodeRun:
    """Return the run of a head whose job is this shell command, on each node."""
    environ = {"AGENT_LOG_DIR": str(root), "RAY_WORKER": "0", "AGENT_LAUNCHER": "node"}
    plan = plan_of(environ, command=["sh", "-c", command])
    redactor = redactor_for(environ, plan.settings, plan.texts_with_secrets)
    return made_run(plan, redactor, RunFolder(root, "run-1", "node-a"), 0.0, "run-1")


@pytest.mark.parametrize("is_held", [False, True])
async def test_a_share_that_is_stopped_before_it_began(tmp_path: Path, *, is_held: bool) -> None:
    """Its end is reported, also if a slow disk holds its start: the head waits for it."""
    run = run_of(tmp_path, "sleep 1000")

    async def hold(_recent: RecentOutput) -> None:
        await anyio.sleep_forever()

    share = JobShare(run, Placeholders, hold)
    async with executing({SHARE: share.run}.get) as there:
        there.executor.apply({SHARE: ALONE})
        if is_held:
            await anyio.wait_all_tasks_blocked()
    assert there.item.share_end == ShareEnd(143, by_stop=True)
    run.close()


async def test_the_end_of_the_run_shortens_a_stop(tmp_path: Path) -> None:
    """A share that ignores its signal has the job's grace, and once the run ends less."""
    begun = tmp_path / "begun"
    run = run_of(tmp_path, f"trap '' TERM; touch {begun}; while :; do sleep 0.05; done")

    share = JobShare(run, Placeholders)
    async with executing({SHARE: share.run}.get) as there:
        there.executor.apply({SHARE: ALONE})
        await is_so(begun.exists)
        await there.wants({SHARE: Want(1, is_over=True)})
        began = time.monotonic()
        share.hurry()
        await there.executor.close()
        took = time.monotonic() - began
    run.close()
    budget = run.plan.budget
    assert took < budget.ray + 2.0 < budget.job
    assert (there.item.step, there.item.share_end) == (Step.LOST, ShareEnd(137, by_stop=True))
