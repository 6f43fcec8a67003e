"""One run on one node, as both stories need it: clock, folder, waits, children, and the way out."""

from __future__ import annotations

import time
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING

import anyio

from agent.decisions.shared import StopAsked
from agent.record.log import keep_in, say
from agent.record.waits import WaitTeller
from agent.runtime import orphans
from agent.runtime.process import Child

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from agent.base.outcome import Outcome
    from agent.decisions.shared import Said, Wait
    from agent.plan.plan import Plan
    from agent.record.run_folder import RunFolder
    from agent.settings.redact import Redactor
    from agent.work.prepare import PrepareStep


class NodeRun:
    """One run on one node."""

    def __init__(self, plan: Plan, redactor: Redactor, folder: RunFolder, started: float) -> None:
        self.plan = plan
        self.redactor = redactor
        self.folder = folder
        self._started = started
        self._waits = WaitTeller(folder.record, say)
        keep_in(folder.file("agent.log"))

    def now(self) -> float:
        """Return the run's clock: seconds since the agent's start."""
        return time.monotonic() - self._started

    def record(self, kind: str, **data: object) -> None:
        """Keep an event for later."""
        self.folder.record({"at": round(self.now(), 3), "event": kind, **data})

    def speak(self, said: Said) -> None:
        """Log a decision's sentence."""
        say(said.sentence, said.level)

    def show_waits(self, waits: tuple[Wait, ...]) -> None:
        """Tell of what is waited for, as it changes."""
        self._waits.tell(waits, self.now())

    def patience(self, deadline: float | None) -> float | None:
        """Return how long to wait for an event: to the deadline, or until waits must be told."""
        return self._waits.patience(deadline, self.now())

    async def start(self, name: str, argv: list[str], env: Mapping[str, str], log: str) -> Child:
        """Start a child whose output goes to a file of the run folder."""
        child = await Child.start(name, argv, env, partial(self.folder.file, log))
        self.record("started", name=name, pid=child.pid)
        return child

    async def run_step(self, step: PrepareStep, env: Mapping[str, str]) -> str:
        """Run a prepare step to its end; return '' or how it failed."""
        say(f"{step.name}: running (output in {step.log})")
        child = await self.start(step.name, step.argv, env, step.log)
        try:
            code = await child.wait()
        finally:
            with anyio.CancelScope(shield=True):
                if child.running:
                    await child.stop(1.0)
        return "" if code == 0 else child.end_sentence(code)

    def ended(self, outcome: Outcome) -> None:
        """Say and record how it ends."""
        self.record("outcome", outcome={**asdict(outcome), "kind": outcome.kind.value})
        say(f"leaving: {outcome.reason}")

    async def hold(self, outcome: Outcome, next_event: Callable[[], Awaitable[object]]) -> None:
        """Stay with the verdict where a platform would start the container again."""
        if self.plan.on_done != "hold" or not outcome.is_jobs_verdict:
            return
        outcome.write(self.folder.path)
        say(outcome.sentence())
        say("holding the pod, which would be started again: stop it when you have what you need")
        while not isinstance(await next_event(), StopAsked):
            continue

    async def sweep(self, limit: float) -> None:
        """End whatever of ours is left."""
        for name in await orphans.stop_descendants(limit):
            say(f"had to kill {name}", "warning")


async def stop_ray(child: Child, grace: float) -> None:
    """Stop this node's Ray."""
    await child.stop(grace, leader_ends_group=True)
