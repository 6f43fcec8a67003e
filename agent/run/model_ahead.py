"""Have this node's model read into the page cache, beside the boot and the job's imports.

It begins once the prepare steps are over, since they may fetch the model, and Ray has started. The
program that reads (processes/page_cache.py) says what it did in its last line, which is logged.
Nothing waits for it: it is stopped with the services. On a disk that other nodes share, a worker
stops when the job starts, which then has all of the disk's speed.
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
    from agent.run.node_run import NodeRun


class ModelAhead:
    """Starts, follows and stops the program that reads the model ahead."""

    def __init__(self, run: NodeRun, is_prepared: Callable[[], bool]) -> None:
        self._run = run
        self._is_prepared = is_prepared
        self._scope: anyio.CancelScope | None = None  # while it reads, or waits to
        self._yields_to_job = False

    async def read(self) -> None:
        """Read the model once it is here; return when it is read, or this was stopped."""
        run = self._run
        process = planned_reading(run.plan)
        if process is None or run.surviving is not None:  # a killed agent's node has read it
            return

        async def may_begin() -> bool | NotYet:
            if run.now() < times.MODEL_READ_AFTER or not self._is_prepared():
                return NotYet()
            return True

        with anyio.CancelScope() as self._scope:
            await until(may_begin, None, longest=0.5)
            if not run.plan.topology.is_head:
                is_shared = partial(is_on_shared_disk, run.plan)
                self._yields_to_job = bool(await in_thread(is_shared, times.STALLED_DISK))
            await self._follow(process)

    def stop(self) -> None:
        """Stop it at once."""
        if self._scope is not None:
            self._scope.cancel()

    def job_starts(self) -> None:
        """Stop it on a worker whose disk other nodes use, too."""
        if self._yields_to_job:
            self.stop()

    async def _follow(self, process: PlannedProcess) -> None:
        run = self._run
        plan = run.plan
        inherited = environment.for_children(plan.environ, plan.settings)
        env = environment.without_cluster_auth(inherited, plan.settings)
        child = await run.start(process.name, [*process.argv], env, process.log)
        try:
            code = await child.wait()
            said = child.tail(1) if code == 0 else f"reading ahead: {child.end_sentence(code)}"
            say(f"{plan.settings.model}: {said}", "info" if code == 0 else "debug")
        finally:
            with anyio.CancelScope(shield=True):
                if child.running:
                    await child.stop(0.0)
                run.node.remove_process(child.pid)


def planned_reading(plan: Plan) -> PlannedProcess | None:
    """Return the program that reads the model ahead on this node; None without one."""
    return next((process for process in plan.processes if process.name == READ_AHEAD), None)


def is_on_shared_disk(plan: Plan) -> bool:
    """Return whether other machines may read the model from the same disk."""
    settings = plan.settings
    model = settings.model or ""
    folder = folder_of_model(model, settings.model_revision, plan.environ)
    mount = None if folder is None else mount_of(str(folder))
    return mount is not None and mount.is_shared
