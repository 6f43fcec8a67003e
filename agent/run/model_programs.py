"""The program beside a run that reads the model ahead.

It reads the model into the page cache (processes/page_cache.py), once the prepare steps are over,
since they may fetch the model, and Ray has started. Its last line is logged. On a disk that other
nodes share, a worker stops it when the job starts, which then has all of the disk's speed.

Nothing waits for it, and it is stopped with the services.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import anyio

from agent.base import times
from agent.node.read import mount_of
from agent.plan import environment
from agent.plan.plan import READ_AHEAD
from agent.processes.page_cache import folder_of_model
from agent.processes.waiting import NotYet, until
from agent.record.background import in_thread
from agent.record.log import say

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.plan.plan import Plan, PlannedProcess
    from agent.processes.process import Child
    from agent.run.node_run import NodeRun


class ModelPrograms:
    """Starts, follows and stops the program that reads the model."""

    def __init__(self, run: NodeRun, is_prepared: Callable[[], bool]) -> None:
        self._run = run
        self._is_prepared = is_prepared
        self._reading: anyio.CancelScope | None = None  # while it reads, or waits to
        self._yields_to_job = False

    async def read(self) -> None:
        """Read the model once it is here; return when it is read, or this was stopped."""
        run = self._run
        process = planned(run.plan, READ_AHEAD)
        if process is None or run.surviving is not None:  # a killed agent's node has read it
            return

        async def may_begin() -> bool | NotYet:
            if run.now() < times.MODEL_READ_AFTER or not self._is_prepared():
                return NotYet()
            return True

        with anyio.CancelScope() as self._reading:
            await until(may_begin, None, longest=0.5)

            # On a disk that other nodes share, a worker stops once the job starts.
            if not run.plan.topology.is_head:
                is_shared = partial(is_on_shared_disk, run.plan)
                self._yields_to_job = bool(await in_thread(is_shared, times.STALLED_DISK))

            code, child = await self._run_to_end(process)
            what = child.tail(1) if code == 0 else f"reading ahead: {child.end_sentence(code)}"
            say(f"{run.plan.settings.model}: {what}", "info" if code == 0 else "debug")

    def stop(self) -> None:
        """Stop the reading."""
        if self._reading is not None:
            self._reading.cancel()

    def job_starts(self) -> None:
        """Stop the reading on a worker whose disk other nodes use, too."""
        if self._yields_to_job and self._reading is not None:
            self._reading.cancel()

    async def _run_to_end(self, process: PlannedProcess) -> tuple[int, Child]:
        """Run a program to its end; stop it if this is canceled."""
        run = self._run
        plan = run.plan
        inherited = environment.for_children(plan.environ, plan.settings)
        env = environment.without_cluster_auth(inherited, plan.settings)
        child = await run.start(process.name, [*process.argv], env, process.log)
        try:
            return await child.wait(), child
        finally:
            with anyio.CancelScope(shield=True):
                if child.running:
                    await child.stop(0.0)
                run.node.remove_process(child.pid)


def planned(plan: Plan, name: str) -> PlannedProcess | None:
    """Return a program of this node's plan; None without it."""
    return next((process for process in plan.processes if process.name == name), None)


def is_on_shared_disk(plan: Plan) -> bool:
    """Return whether other machines may read the model from the same disk."""
    settings = plan.settings
    model = settings.model or ""
    folder = folder_of_model(model, settings.model_revision, plan.environ)
    mount = None if folder is None else mount_of(str(folder))
    return mount is not None and mount.is_shared
