"""One run on one node, as both stories need it: clock, folder, waits, children, and the way out."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Literal

import anyio

from agent import __version__
from agent.decisions.shared import StopAsked
from agent.record.events import FILE as EVENTS
from agent.record.events import Began, Decided, EventLog, ProcessStarted
from agent.record.files import iso_time
from agent.record.log import keep_in, say
from agent.record.node_record import FILE as NODE
from agent.record.node_recorder import NodeRecorder
from agent.record.outcome_file import write_outcome
from agent.record.recorder import Recorder
from agent.record.waits import WaitTeller
from agent.runtime import orphans
from agent.runtime.exiting import in_time
from agent.runtime.process import Child

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from agent.base.outcome import Outcome
    from agent.decisions.shared import Said, Wait
    from agent.plan.plan import Plan
    from agent.record.run_folder import RunFolder
    from agent.record.run_record import Attempt
    from agent.settings.redact import Redactor
    from agent.work.prepare import PrepareStep

WRITE_LIMIT = 2.0
"""Longest that the end waits for a disk that stalls."""


def _warn(sentence: str) -> None:
    say(sentence, "warning")


class NodeRun:
    """One run on one node."""

    def __init__(
        self, plan: Plan, redactor: Redactor, folder: RunFolder, started: float, run_id: str = ""
    ) -> None:
        self.plan = plan
        self.redactor = redactor
        self.folder = folder
        self._started = started
        role: Literal["head", "worker"] = "head" if plan.topology.is_head else "worker"
        began = Began(role, run_id, iso_time(time.time() - self.now()), __version__)
        events = EventLog(partial(folder.steady, EVENTS), redactor.clean, began)
        self.recorder = Recorder(events, self.now)
        self.node = NodeRecorder(folder.own, partial(folder.steady, NODE), _warn)
        self._waits = WaitTeller(self.record, say)
        keep_in(partial(folder.file, "agent.log"))
        self.recorder.start()
        self.node.start()

    def now(self) -> float:
        """Return the run's clock: seconds since the agent's start."""
        return time.monotonic() - self._started

    def record(self, event: object) -> None:
        """Keep an event for later."""
        self.recorder.note(event)

    def child_ended(self, child: Child) -> None:
        """Keep that a child is gone: its pid may be another's soon."""
        self.node.ended(child.pid)

    def close(self) -> None:
        """Write what is left of the records, and let go of the folder."""
        self.recorder.close()
        self.node.close()
        self.folder.close()

    def belongs_to(self, run_id: str) -> None:
        """Go on in the folder of the run that the head named."""
        before = self.folder.path
        self.folder.belongs_to(run_id)
        if self.folder.path != before:
            self.node.in_run(run_id)

    def speak(self, said: Said) -> None:
        """Log a decision's sentence."""
        say(said.sentence, said.level)

    def show_waits(self, waits: tuple[Wait, ...]) -> None:
        """Tell of what is waited for, as it changes."""
        self._waits.tell(waits, self.now())

    def patience(self, deadline: float | None) -> float | None:
        """Return how long to wait for an event: to the deadline, or until waits must be told."""
        return self._waits.patience(deadline, self.now())

    async def start(
        self,
        name: str,
        argv: list[str],
        env: Mapping[str, str],
        log: str,
        *,
        rest_stays: bool = False,
    ) -> Child:
        """Start a child whose output goes to a file of the run folder."""
        file = partial(self.folder.file, log)
        child = await Child.start(name, argv, env, file, rest_stays=rest_stays)
        self.note_child(child)
        return child

    def note_child(self, child: Child) -> None:
        """Keep that a child was started."""
        self.record(ProcessStarted(child.name, child.pid))
        self.node.started(child.name, child.pid)

    async def run_step(self, step: PrepareStep, env: Mapping[str, str]) -> str:
        """Run a prepare step to its end; return '' or how it failed."""
        say(f"{step.name}: running (output in {step.log})")
        # It may leave a server running, as the example of Search-R1 does.
        child = await self.start(step.name, step.argv, env, step.log, rest_stays=True)
        try:
            code = await child.wait()
        finally:
            with anyio.CancelScope(shield=True):
                if child.running:
                    await child.stop(1.0)
                self.child_ended(child)
        return "" if code == 0 else await child.end_sentence(code)

    def ended(self, outcome: Outcome) -> None:
        """Say and record how it ends."""
        self.record(Decided(outcome))
        say(f"leaving: {outcome.reason}")

    async def hold(
        self,
        outcome: Outcome,
        next_event: Callable[[], Awaitable[object]],
        attempts: Sequence[Attempt] = (),
    ) -> None:
        """Stay with the verdict where a platform would start the container again."""
        if self.plan.on_done != "hold" or not outcome.is_jobs_verdict:
            return
        in_time(WRITE_LIMIT, partial(write_outcome, self.folder.path, outcome, attempts))
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
