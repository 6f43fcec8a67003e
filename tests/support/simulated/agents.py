"""The common part of both roles' agents: tasks on a machine, an inbox, late file writes."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from agent.base.value import Value
from agent.decisions.shared import Tick
from agent.processes.waiting import Inbox
from support.simulated.machines import Execution, NodeLife, Service

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from agent.job.services import PrepareStep
    from support.simulated.machines import LateFile, Machine


class Agent:
    """One agent, until it exits or is killed."""

    def __init__(self, machine: Machine, *, replaces: bool) -> None:
        self.machine, self.world = machine, machine.world
        self.replaces = replaces
        self.inbox: Inbox[Any] = Inbox(lambda event: event)
        self.files: list[LateFile[Any]] = []
        self._tasks: list[asyncio.Task[Any]] = []
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    def start(self) -> None:
        """Start the agent's task."""
        self.go(self.live())

    async def live(self) -> None:
        """Run the agent from start to exit."""
        raise NotImplementedError

    def begin(self) -> NodeLife:
        """Read the state on this machine, and start a record."""
        self.node = NodeLife(self.machine, replaces=self.replaces)
        self.world.note(self.machine.label, f"{type(self).__name__} begins")
        return self.node

    def go(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a coroutine as a task of this agent."""
        task = self.machine.run(work)
        self._tasks.append(task)
        task.add_done_callback(self._over)
        return task

    def _over(self, task: asyncio.Task[Any]) -> None:
        self._tasks.remove(task)
        if not task.cancelled() and task.exception() is not None:
            self.world.fail(task.exception())

    def kill(self) -> None:
        """Cancel all its tasks."""
        for task in [*self._tasks]:
            task.cancel()

    async def dies_here(self) -> None:
        """Count an action; kill the agent before it, if the setup says so."""
        place = self.world.counted(self.machine.label, "actions")
        if place in self.world.setup.kills:
            self.world.note(self.machine.label, f"agent is killed before its action {place[1]}")
            self.machine.kill_agent()
            await asyncio.sleep(0)

    async def next_event(self, deadline: float | None) -> Any:  # noqa: ANN401 - of either role
        """Return the next event, or a Tick at the deadline."""
        limit = None if deadline is None else (deadline - self.node.now()) / self.machine.clock.rate
        return await self.inbox.take(None if limit is None else max(0.0, limit)) or Tick()

    async def prepared(self, step: PrepareStep) -> str:
        """Run a prepare step, unless it has finished before; return '' or the failure."""
        async with self._turns[step.name]:
            if step.name in self.node.finished_steps:
                return ""
            if (self.world.disk_of(self.machine), step.once) in self.world.markers:
                return ""
            running = Execution(self.machine, step)
            try:
                await asyncio.sleep(self.world.random.uniform(0.5, self.world.setup.step_seconds))
            except asyncio.CancelledError:
                # the step was stopped, and not killed with its agent
                if self.machine.agent is self:
                    self.machine.steps.discard(running)
                raise
            running.succeeds()
            self.node.update(done=(*self.node.record.done, step.name))
            return ""

    def serve(self, name: str, generation: int) -> None:
        """Start a service, or adopt one that a killed agent left running."""
        former = self.machine.services.get(name)
        if former is not None and self.node.surviving is not None and former.lives:
            former.attended(generation)
            return
        if former is not None:
            former.lives = False
        Service(self.machine, name, generation)


class End(Value):
    """The end of an agent."""

    code: int
    was_told: bool
    """True on a worker that ends with the head's verdict."""
