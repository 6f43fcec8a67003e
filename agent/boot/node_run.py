"""One run on one node, as both stories need it: clock, folder, waits, children, and the way out."""

from __future__ import annotations

import time
from functools import cached_property, partial
from typing import TYPE_CHECKING, Literal

from agent import __version__
from agent.decisions.shared import StopAsked
from agent.record.files import iso_time
from agent.record.log import disk, keep_in, say
from agent.record.node_record import FILE as NODE
from agent.record.node_recorder import NodeRecorder
from agent.record.outcome_file import write_outcome
from agent.runtime import orphans
from agent.runtime.best_effort import BestEffort
from agent.runtime.exiting import in_time
from agent.runtime.memory_watch import MemoryWatch
from agent.runtime.process import Child
from agent.runtime.waiting import NotYet, until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from agent.base.outcome import Outcome
    from agent.boot.left_behind import LeftBehind
    from agent.boot.seen import Seen
    from agent.decisions.shared import Said, Wait
    from agent.plan.plan import Plan
    from agent.record.outcome_file import Outage
    from agent.record.recorder import Recorder
    from agent.record.run_folder import RunFolder
    from agent.record.run_record import Attempt
    from agent.record.waits import WaitTeller
    from agent.settings.redact import Redactor

WRITE_LIMIT = 2.0
"""Longest that the end waits for a disk that stalls."""
_STEP = 5.0


def _warn(sentence: str) -> None:
    say(sentence, "warning")


class NodeRun:
    """One run on one node."""

    def __init__(  # noqa: PLR0913 - all of it is fixed once, at the start
        self,
        plan: Plan,
        redactor: Redactor,
        folder: RunFolder,
        started: float,
        run_id: str = "",
        left: LeftBehind | None = None,
    ) -> None:
        self.plan = plan
        self.redactor = redactor
        self.folder = folder
        self.started = started
        """When the agent was started, on the machine's monotonic clock."""
        self.run_id = run_id
        """The run to which this node belongs; '' on a worker that was not told yet."""
        self.outages: Sequence[Outage] = ()
        """When services did not answer, for the outcome."""
        self.bundle: str | None = None
        """The file with all that tells of a failure, '' where none could be made."""
        self._phase = ""
        self.left = left
        """What a killed agent left behind, in whose stead this one goes on."""
        own = folder.own if left is None else folder.own.taken_over(left.record)
        self.node = NodeRecorder(own, partial(folder.steady, NODE), _warn, disk)
        disk.of(lambda: folder.path)
        self.best_effort = BestEffort()
        """Runs optional tasks: their failures never end the run."""
        self.memory = MemoryWatch()
        self.node.counted(self.memory.kills.number)
        keep_in(partial(folder.file, "agent.log"))
        self.node.start()

    @cached_property
    def _recorder(self) -> Recorder:
        """Begin to keep events, with the first of them: Ray's start need not wait for it."""
        from agent.record import events  # noqa: PLC0415 - see above
        from agent.record.recorder import Recorder  # noqa: PLC0415 - same

        role: Literal["head", "worker"] = "head" if self.plan.topology.is_head else "worker"
        began = events.Began(role, self.run_id, iso_time(time.time() - self.now()), __version__)
        where = partial(self.folder.steady, events.FILE)
        recorder = Recorder(events.EventLog(where, self.redactor.clean, began), self.now)
        recorder.start()
        return recorder

    @cached_property
    def seen(self) -> Seen:
        """Return what is seen of services and steps here."""
        from agent.boot.seen import Seen  # noqa: PLC0415 - as with events

        return Seen(self.redactor.clean)

    @cached_property
    def _waits(self) -> WaitTeller:
        from agent.record.waits import WaitTeller  # noqa: PLC0415 - as with events

        return WaitTeller(self.record, say)

    @property
    def done(self) -> tuple[str, ...]:
        """Return the prepare steps that a killed agent has finished here."""
        return () if self.left is None else self.left.record.done

    def now(self) -> float:
        """Return the run's clock: seconds since the agent's start."""
        return time.monotonic() - self.started

    def at(self, moment: float | None) -> float | None:
        """Return a moment of the monotonic clock as the run's clock has it."""
        return None if moment is None else moment - self.started

    def utc(self, at: float) -> str:
        """Write a time of the run's clock as records have it."""
        return iso_time(time.time() - self.now() + at)

    def record(self, event: object) -> None:
        """Keep an event for later."""
        self._recorder.note(event)

    def in_phase(self, phase: str) -> None:
        """Keep which phase the story is in, if that is news; a killed agent leaves it in any."""
        from agent.record.events import PhaseEntered  # noqa: PLC0415 - as with the recorder

        if phase != self._phase:
            self._phase = phase
            self.record(PhaseEntered(phase))

    def child_ended(self, child: Child) -> None:
        """Keep that a child is gone: its pid may be another's soon."""
        self.node.ended(child.pid)

    def close(self) -> None:
        """Write what is left of the records, and let go of the folder."""
        self._recorder.close()
        self.node.close()
        self.folder.close()

    def belongs_to(self, run_id: str) -> None:
        """Go on in the folder of the run that the head named."""
        before, self.run_id = self.folder.path, run_id
        self.folder.belongs_to(run_id)
        if self.folder.path != before:
            self.node.in_run(run_id)

    def speak(self, said: Said) -> None:
        """Log a decision's sentence."""
        say(said.sentence, said.level)

    async def watch_machine(self, on_memory: Callable[[], None] = lambda: None) -> None:
        """Tell of a disk of the run folder that stalls, and of memory that ran out."""

        async def look() -> None:
            disk.look()
            told = self.memory.look()
            if told:
                _warn(told)
                on_memory()
            self.node.counted(self.memory.kills.number)

        async def turn() -> NotYet:
            await self.best_effort("a look at disk and memory", look)
            return NotYet()

        await until(turn, None, step=_STEP, longest=_STEP)

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
        """Start a child whose output goes to a file of the run folder.

        One that a killed agent left behind under this name is taken over in its stead.
        """
        file = partial(self.folder.file, log)
        child = None if self.left is None else self.left.adopt(name, file)
        if child is not None:
            say(f"{name} (pid {child.pid}) lives: taken over")
            return child
        child = await Child.start(name, argv, env, file, rest_stays=rest_stays)
        self.note_child(child)
        return child

    def note_child(self, child: Child) -> None:
        """Keep that a child was started."""
        from agent.record.events import ProcessStarted  # noqa: PLC0415 - the first is Ray's

        self.record(ProcessStarted(child.name, child.pid))
        self.node.started(child.name, child.pid)

    def ended(self, outcome: Outcome) -> None:
        """Say and record how it ends."""
        from agent.record.events import Decided  # noqa: PLC0415 - as above

        self.record(Decided(outcome))
        say(f"leaving: {outcome.reason}")

    async def hold(
        self,
        outcome: Outcome,
        next_event: Callable[[], Awaitable[object]],
        attempts: Sequence[Attempt] = (),
    ) -> None:
        """Stay with the verdict where a platform would start the container again."""
        if self.plan.on_done != "hold" or not outcome.is_worth_a_hold:
            return
        told = (outcome, attempts, self.outages, self.bundle or "")
        in_time(WRITE_LIMIT, partial(write_outcome, self.folder.path, *told))
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
