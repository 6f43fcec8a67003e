"""Runs of a node, for tests of what a node does."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import anyio
from msgspec.structs import replace

from agent.processes.waiting import Inbox
from agent.record.run_folder import RunFolder
from agent.run.effects import REAL
from agent.run.node_run import NodeRun
from agent.run.restarts import container_of
from agent.settings.redact import redactor_for
from support.worlds import plan_of, settings_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from agent.decisions.shared import Step
    from agent.job.compile_caches import CompileCaches
    from agent.job.services import PrepareStep
    from agent.plan.plan import Plan
    from agent.run.effects import Effects
    from agent.run.restarts import Container
    from agent.run.run_store import RunStore
    from agent.run.takeover import SurvivingProcesses
    from agent.settings.redact import Redactor


def made_run(  # noqa: PLR0913 - as `NodeRun`
    plan: Plan,
    redactor: Redactor,
    folder: RunFolder,
    started: float = 0.0,
    run_id: str = "run-1",
    surviving: SurvivingProcesses | None = None,
    effects: Effects = REAL,
    *,
    container: Container | None = None,
    store: RunStore | None = None,
) -> NodeRun:
    """Return a run of a node in a container of its plan."""
    held = container or container_of(plan, {}, None)
    parts = (plan, redactor, folder, started, run_id, surviving, effects)
    return NodeRun(*parts, container=held, store=store)


def node_run_with(
    root: Path, steps: tuple[PrepareStep, ...], container: Container | None = None, **more: str
) -> NodeRun:
    """Return the run of a node with these steps."""
    return _node_run(root, steps, None, more, container)


def node_run_with_caches(root: Path, caches: CompileCaches, **more: str) -> NodeRun:
    """Return the run of a node that keeps these compile caches."""
    return _node_run(root, (caches.seeding(settings_of({})),), caches, more)


def _node_run(
    root: Path,
    steps: tuple[PrepareStep, ...],
    caches: CompileCaches | None,
    more: Mapping[str, str],
    container: Container | None = None,
) -> NodeRun:
    environ = {"AGENT_LOG_DIR": str(root), "RAY_WORKER": "0", **more}
    plan = replace(plan_of(environ, command=["true"]), steps=steps, caches=caches)
    redactor = redactor_for(environ, plan.settings, plan.texts_with_secrets)
    return made_run(plan, redactor, RunFolder(root, "run-1", "node-a"), container=container)


async def stopped_wait(folder: Path) -> None:
    """Wait for an input with a deadline of 4 s; print what came first."""
    run = node_run_with(folder, ())
    inbox: Inbox[object] = Inbox(lambda event: event)

    async def read_input() -> None:
        await anyio.to_thread.run_sync(sys.stdin.readline)
        # as the bridge's line, or a reply, that takes some turns of the loop
        await anyio.sleep(0.05)
        inbox.put("input")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run.keep_clock, lambda _: None)
        await anyio.sleep(0.1)
        deadline = run.now() + 4.0
        tasks.start_soon(read_input)
        print("waiting", flush=True)
        while True:
            event = await run.next_event(inbox, tuple, deadline)
            if event == "input" or run.now() >= deadline:
                print(event, flush=True)
                break
        tasks.cancel_scope.cancel()
    os._exit(0)


def unheard(_step: Step | None = None, _evidence: str = "", /, **_details: object) -> None:
    """Take what a runner says of its progress, for nobody."""
