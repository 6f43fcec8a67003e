"""Prepare steps as they are run: one after another, stopped where need be, and run again."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import anyio
import psutil

from agent.boot.node_run import NodeRun
from agent.boot.prepare_steps import PrepareSteps
from agent.record.run_folder import RunFolder
from agent.runtime.waiting import NotYet, until
from agent.settings.redact import redactor_for
from agent.work.prepare import PrepareStep
from agent.work.where import ON_EVERY, Place
from unit.worlds import plan_of

if TYPE_CHECKING:
    from pathlib import Path


def a_run(root: Path) -> NodeRun:
    """Return a node's run in a folder."""
    environ = {"AGENT_LOG_DIR": str(root), "RAY_WORKER": "0"}
    plan = plan_of(environ, command=["true"])
    redactor = redactor_for(environ, plan.settings, plan.told_by_file)
    return NodeRun(plan, redactor, RunFolder(root, "run-1", "node-a"), 0.0, "run-1")


def test_what_runs_is_stopped_and_may_be_run_again(tmp_path: Path) -> None:
    """With all that it started; what waited for its turn ends as well, and tells nothing."""
    go, pids = tmp_path / "go", tmp_path / "pids"
    command = f"[ -e {go} ] || {{ sleep 1000 & echo $! >> {pids}; wait; }}"
    steps = [PrepareStep(name, command, ON_EVERY, 60.0, "within") for name in ("one", "two")]
    run = a_run(tmp_path)
    prepare, told = PrepareSteps(run), list[tuple[str, str | None]]()

    async def one(step: PrepareStep) -> None:
        told.append((step.name, await prepare.run_unless_stopped(step, Place(), {})))

    async def has_begun() -> bool | NotYet:
        return True if pids.exists() and pids.read_text().strip() else NotYet()

    async def is_gone() -> bool | NotYet:
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(int(pids.read_text()))
            return True if process.status() == psutil.STATUS_ZOMBIE else NotYet()
        return True

    async def story() -> None:
        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(one, steps[0])
                tasks.start_soon(one, steps[1])
                await until(has_begun, None)
                prepare.stop()
            assert sorted(told) == [("one", None), ("two", None)]
            await until(is_gone, None)
            go.touch()
            assert [await prepare.run_unless_stopped(step, Place(), {}) for step in steps] == [
                ""
            ] * 2

    anyio.run(story)
    run.close()
