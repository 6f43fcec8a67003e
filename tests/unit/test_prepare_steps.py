"""Prepare steps run in parallel, are stopped when necessary, and run again."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import anyio
import psutil
from msgspec.structs import replace

from agent.boot.node_run import NodeRun
from agent.boot.services import LocalWork
from agent.decisions.values import StepOver
from agent.record.run_folder import RunFolder
from agent.runtime.waiting import NotYet, until
from agent.settings.redact import redactor_for
from agent.work.services import ON_EVERY, Placeholders, PrepareStep
from unit.worlds import plan_of

if TYPE_CHECKING:
    from pathlib import Path

    from agent.boot.services import LocalEvent


def a_run(root: Path, steps: tuple[PrepareStep, ...]) -> NodeRun:
    """Return the run of a node with these steps."""
    environ = {"AGENT_LOG_DIR": str(root), "RAY_WORKER": "0"}
    plan = replace(plan_of(environ, command=["true"]), steps=steps)
    redactor = redactor_for(environ, plan.settings, plan.texts_with_secrets)
    return NodeRun(plan, redactor, RunFolder(root, "run-1", "node-a"), 0.0, "run-1")


def test_what_runs_is_stopped_and_may_be_run_again(tmp_path: Path) -> None:
    """All of them with their child processes, without a report."""
    go, pids = tmp_path / "go", tmp_path / "pids"
    command = f"[ -e {go} ] || {{ sleep 1000 & echo $! >> {pids}; wait; }}"
    names = ("one", "two")
    steps = tuple(PrepareStep(name, command, ON_EVERY, 60.0, "within") for name in names)
    run = a_run(tmp_path, steps)
    sent: list[LocalEvent] = []
    work = LocalWork(run, sent.append, Placeholders)

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
                for name in names:
                    tasks.start_soon(work.prepare, name)
                await until(have_begun, None)
                work.stop_steps()
            assert sent == []
            await until(are_gone, None)
            go.touch()
            for name in names:
                await work.prepare(name)
            assert sent == [StepOver("one", ""), StepOver("two", "")]

    anyio.run(story)
    run.close()
