"""Prepare steps as they are run: side by side, stopped where need be, and run again."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import anyio
import psutil

from agent.boot.node_run import NodeRun
from agent.boot.services import PrepareSteps
from agent.record.run_folder import RunFolder
from agent.runtime.waiting import NotYet, until
from agent.settings.redact import redactor_for
from agent.work.prepare import PrepareStep
from agent.work.where import ON_EVERY, Placeholders
from unit.worlds import plan_of

if TYPE_CHECKING:
    from pathlib import Path


def a_run(root: Path) -> NodeRun:
    """Return a node's run in a folder."""
    environ = {"AGENT_LOG_DIR": str(root), "RAY_WORKER": "0"}
    plan = plan_of(environ, command=["true"])
    redactor = redactor_for(environ, plan.settings, plan.services_file_texts)
    return NodeRun(plan, redactor, RunFolder(root, "run-1", "node-a"), 0.0, "run-1")


def test_what_runs_is_stopped_and_may_be_run_again(tmp_path: Path) -> None:
    """All of them, with what they started, and they tell nothing."""
    go, pids = tmp_path / "go", tmp_path / "pids"
    command = f"[ -e {go} ] || {{ sleep 1000 & echo $! >> {pids}; wait; }}"
    steps = [PrepareStep(name, command, ON_EVERY, 60.0, "within") for name in ("one", "two")]
    run = a_run(tmp_path)
    prepare, told = PrepareSteps(run), list[tuple[str, str | None]]()

    async def one(step: PrepareStep) -> None:
        told.append((step.name, await prepare.run_stoppable(step, Placeholders(), {})))

    async def have_begun() -> bool | NotYet:
        return True if pids.exists() and len(pids.read_text().split()) == 2 else NotYet()

    def is_gone(pid: str) -> bool:
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(int(pid)).status() == psutil.STATUS_ZOMBIE
        return True

    async def are_gone() -> bool | NotYet:
        return True if all(map(is_gone, pids.read_text().split())) else NotYet()

    async def story() -> None:
        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(one, steps[0])
                tasks.start_soon(one, steps[1])
                await until(have_begun, None)
                prepare.stop()
            assert sorted(told) == [("one", None), ("two", None)]
            await until(are_gone, None)
            go.touch()
            assert [await prepare.run_stoppable(step, Placeholders(), {}) for step in steps] == [
                ""
            ] * 2

    anyio.run(story)
    run.close()
