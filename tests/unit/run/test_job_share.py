"""A node's share of the job: each has an end, and no end takes longer than the run has time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import anyio
import pytest

from agent.decisions.shared import SHARE, ItemsReported, Step, Want
from agent.frameworks.recipe import NodeSize
from agent.job.services import Placeholders
from agent.job.share import ShareArgs, ShareEnd
from agent.processes.waiting import NotYet, until
from agent.record.run_folder import RunFolder
from agent.run.executor import Executor
from agent.run.job_share import JobShare
from agent.settings.redact import redactor_for
from support.node_runs import made_run
from support.worlds import plan_of

if TYPE_CHECKING:
    from pathlib import Path

    from agent.processes.output import RecentOutput
    from agent.run.node_run import NodeRun

ALONE = Want(1, ShareArgs(0, (NodeSize(0),)))


def run_of(root: Path, command: str) -> NodeRun:
    """Return the run of a head whose job is this shell command, on each node."""
    environ = {"AGENT_LOG_DIR": str(root), "RAY_WORKER": "0", "AGENT_LAUNCHER": "node"}
    plan = plan_of(environ, command=["sh", "-c", command])
    redactor = redactor_for(environ, plan.settings, plan.texts_with_secrets)
    return made_run(plan, redactor, RunFolder(root, "run-1", "node-a"), 0.0, "run-1")


def last_end(sent: list[ItemsReported]) -> ShareEnd | None:
    """Return the end of the share by the last report."""
    return sent[-1].items[-1].share_end


@pytest.mark.parametrize("is_held", [False, True])
def test_a_share_that_is_stopped_before_it_began(tmp_path: Path, *, is_held: bool) -> None:
    """Its end is reported, also if a slow disk holds its start: the head waits for it."""
    run = run_of(tmp_path, "sleep 1000")
    sent: list[ItemsReported] = []

    async def hold(_recent: RecentOutput) -> None:
        await anyio.sleep_forever()

    async def scenario() -> None:
        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:
                share = JobShare(run, Placeholders, hold)
                executor = Executor(tasks, {SHARE: share.run}.get, sent.append)
                executor.apply({SHARE: ALONE})
                if is_held:
                    await anyio.wait_all_tasks_blocked()
                await executor.close()
                assert last_end(sent) == ShareEnd(143, by_stop=True)

    anyio.run(scenario)
    run.close()


def test_the_end_of_the_run_shortens_a_stop(tmp_path: Path) -> None:
    """A share that ignores its signal has the job's grace, and once the run ends less."""
    begun = tmp_path / "begun"
    run = run_of(tmp_path, f"trap '' TERM; touch {begun}; while :; do sleep 0.05; done")
    sent: list[ItemsReported] = []
    took: list[float] = []

    async def has_begun() -> bool | NotYet:
        return True if begun.exists() else NotYet()

    async def scenario() -> None:
        with anyio.fail_after(40):
            async with anyio.create_task_group() as tasks:
                share = JobShare(run, Placeholders)
                executor = Executor(tasks, {SHARE: share.run}.get, sent.append)
                executor.apply({SHARE: ALONE})
                await until(has_begun, None, longest=0.05)
                executor.apply({SHARE: Want(1, is_over=True)})
                await anyio.wait_all_tasks_blocked()
                began = time.monotonic()
                share.hurry()
                await executor.close()
                took.append(time.monotonic() - began)

    anyio.run(scenario)
    run.close()
    budget = run.plan.budget
    assert took[0] < budget.ray + 2.0 < budget.job
    assert last_end(sent) == ShareEnd(137, by_stop=True)
    assert sent[-1].items[-1].step is Step.LOST
