"""What head and worker share: one run on one node.

`NodeRun` has the run's clock, folder, records and child processes. Both event loops take an event
by its `next_event` and decide by its `decide`; `write_outcome` is the end. Below it: this node's
Ray from start to stop.

What reads logs is imported where it is used: its patterns take a tenth of a second to compile, and
this module is imported before Ray starts.
"""

from __future__ import annotations

import time
import traceback
from contextlib import asynccontextmanager
from functools import cached_property, partial
from signal import SIGINT
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import anyio
from msgspec.structs import replace

from agent import __version__, load
from agent.base import ends, times
from agent.base.text import iso_time, listed
from agent.decisions.shared import Tick, Woke
from agent.job.services import CACHES, JudgeCost, Latency
from agent.plan import environment
from agent.plan.plan import JOB_LOG, RAY
from agent.port.protocol import WorkerStats
from agent.processes import process
from agent.processes.oom import MemoryWatch
from agent.processes.ray_parts import RayParts
from agent.processes.run_clock import RunClock
from agent.processes.waiting import BestEffort, NotYet, TimedOutError, until
from agent.record import events
from agent.record.background import result_in_thread, run_within
from agent.record.events import (
    Decided,
    Dropped,
    EventRecorder,
    PhaseEntered,
    ProcessStarted,
    WaitLog,
)
from agent.record.log import disk_alarm, draw, say
from agent.record.node_record import NODE_FILE
from agent.record.outcome_file import NO_FACTS, facts_of, outcome_text, write_outcome
from agent.run.cache_keeper import CacheKeeper
from agent.run.effects import REAL
from agent.run.gpu_memory import GpuMemory
from agent.run.node_figures import NodeFigures

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Mapping

    from agent.base.ends import Outcome
    from agent.decisions.shared import LogLine, Wait
    from agent.diagnosis.end_lines import RunEnd
    from agent.job.services import Placeholders
    from agent.node.figures import Figures
    from agent.plan.plan import Plan
    from agent.processes.process import Child
    from agent.processes.waiting import Inbox
    from agent.record.job_lines import JobLines
    from agent.record.outcome_file import RunFacts
    from agent.record.run_folder import RunFolder
    from agent.run.effects import Effects
    from agent.run.notify import Notifier
    from agent.run.restarts import Container
    from agent.run.run_store import RunStore
    from agent.run.takeover import SurvivingProcesses
    from agent.settings.redact import Redactor

_NODE_CHECK = 5.0  # Between two reads of a node's own statistics.


S = TypeVar("S")
E = TypeVar("E")
A = TypeVar("A")


class NodeStats:
    """Service latencies, step progress, share output and figures of this node, in memory."""

    def __init__(
        self,
        clean: Callable[[str], str],
        newest_figures: Callable[[], Figures | None] = lambda: None,
        caches: Callable[[], Literal["", "seeded", "cold"]] = lambda: "",
    ) -> None:
        self._clean = clean
        self._newest_figures = newest_figures
        self._caches = caches  # how this node's compile caches were seeded
        self._figures_due = 0.0  # when they were read that are sent next, on the run's clock
        self._latencies: dict[str, Latency] = {}
        self._judge: JudgeCost | None = None  # since its reward server's start
        self._judge_before = JudgeCost()  # of the earlier starts
        self.progress: dict[str, str] = {}  # the last output line of each running step
        self._share: JobLines | None = None
        self._attempt = 0
        self._has_sent_causes = False

    def record_latency(self, service: str, seconds: float) -> None:
        """Record the time of a service's successful answer."""
        self._latencies[service] = self._latencies.get(service, Latency()).with_answer(seconds)

    def record_judge(self, cost: JudgeCost) -> None:
        """Record what the judge was asked; a restarted reward server counts from 0 again."""
        if self._judge is not None and cost.requests < self._judge.requests:
            self._judge_before = self._judge_before.plus(self._judge)
        self._judge = cost

    def share_lines(self, attempt: int) -> JobLines:
        """Return the scanner for the output of this node's share of an attempt."""
        from agent.record.job_lines import JobLines  # noqa: PLC0415 - only a node with a share has it

        if self._share is None or attempt != self._attempt:
            self._share = JobLines(self._clean)
            self._attempt = attempt
            self._has_sent_causes = False
        return self._share

    @property
    def last_share_output(self) -> float | None:
        """Return when that share wrote output last, on the monotonic clock."""
        return None if self._share is None else self._share.last_output

    def snapshot(self) -> WorkerStats:
        """Return all statistics."""
        progress = {step: self._clean(line) for step, line in self.progress.items()}
        causes = () if self._share is None else self._share.known.for_head
        return WorkerStats(
            latencies=dict(self._latencies),
            progress=progress,
            known=causes,
            attempt=self._attempt,
            figures=self._newest_figures(),
            caches=self._caches(),
            judge=None if self._judge is None else self._judge_before.plus(self._judge),
        )

    def for_report(self) -> WorkerStats | None:
        """Return the statistics for a report; None if there are none. Figures are sent rarely."""
        stats = self.snapshot()
        if stats.figures is not None and stats.figures.at < self._figures_due:
            stats = replace(stats, figures=None)
        elif stats.figures is not None:
            self._figures_due = stats.figures.at + times.FIGURES_SENT
        has_any = stats != WorkerStats(attempt=stats.attempt)
        takes_back = self._has_sent_causes and not stats.known
        self._has_sent_causes = bool(stats.known)
        return stats if has_any or takes_back else None


class NodeRun:
    """One run on one node."""

    def __init__(  # noqa: PLR0913 - all fixed at the start
        self,
        plan: Plan,
        redactor: Redactor,
        folder: RunFolder,
        started: float,
        run_id: str = "",
        surviving: SurvivingProcesses | None = None,
        effects: Effects = REAL,
        *,
        container: Container,
        store: RunStore | None = None,
    ) -> None:
        self.effects = effects
        """How head and worker reach their machine."""
        self.container = container
        """What holds or stops it after the end."""
        self._store = store
        """The run's record, on a head."""

        # The run, its clock and its folder.
        self.plan = plan
        self.redactor = redactor
        self.folder = folder
        self.run_id = run_id  # the node's run; '' on a worker that has no reply of the head yet
        self.rank = plan.topology.own_rank  # on a worker without one also what the head gives it
        self.surviving = surviving  # the processes of a killed agent that this one replaces
        self._clock = RunClock(started, effects.clock)

        # Events and what is logged of them.
        self._phase = ""
        self._dropped: set[tuple[str, str]] = set()  # errors of dropped events, each logged once
        self._waits = WaitLog(self.record, say, draw)
        self.best_effort = BestEffort()  # runs optional tasks: their failures never end the run
        sources = effects.machine.figures(plan, lambda: folder.path)
        self.figures = NodeFigures(sources, self.now, self.job_gpus)
        self.gpu_memory = GpuMemory(
            plan, self.figures.gpus, self.figures.gpu_holders, self.job_gpus
        )
        self.stats = NodeStats(
            redactor.clean, lambda: self.figures.newest, lambda: self.caches.state
        )

        # The records on disk: node.json continues a killed agent's.
        own = folder.own if surviving is None else folder.own.continuing(surviving.record)
        where = partial(folder.held, NODE_FILE)
        self.node = effects.disk.node_recorder(own, where, disk_alarm)
        self.output_begins = own.log_begins.get(JOB_LOG, 0)
        """The offset in job.log of the current attempt's output, or of this start before any."""
        disk_alarm.folder = lambda: folder.path
        self.memory = MemoryWatch(effects.processes.oom_kills, effects.clock)
        self.node.update(oom_kills=self.memory.kills.number)
        effects.disk.log_to_file(partial(folder.file, "agent.log"))
        self.node.start()
        self.caches = CacheKeeper(
            plan,
            self.running,
            is_seeded=CACHES in self.finished_steps,
        )

    @cached_property
    def _recorder(self) -> EventRecorder:
        """Create the event recorder at the first event, so that it does not delay Ray's start."""
        role: Literal["head", "worker"] = "head" if self.plan.topology.is_head else "worker"
        began = events.Began(role, self.run_id, iso_time(time.time() - self.now()), __version__)
        where = partial(self.folder.held, events.EVENTS_FILE)
        return EventRecorder(where, self.redactor.clean, began, self.now)

    @property
    def facts(self) -> RunFacts:
        """Return what the run's record has for outcome.json so far; a worker has no record."""
        if self._store is None:
            return NO_FACTS
        return facts_of(self._store.record, self.plan.topology.node_name)

    @property
    def notifies(self) -> bool:
        """Return whether this node sends messages about the run."""
        return self.plan.settings.notify is not None and self.plan.topology.is_head

    @cached_property
    def notifier(self) -> Notifier:
        """Create what sends messages about the run, which few runs do."""
        notifier: type[Notifier] = load("run.notify:Notifier")
        return notifier(self.plan, self.redactor.clean, lambda: self.run_id)

    def job_gpus(self) -> frozenset[int] | None:
        """Return the numbers of the job's GPUs; None where no service has some of its own."""
        return self.plan.gpu_split.job_indexes(self.rank)

    @property
    def finished_steps(self) -> tuple[str, ...]:
        """Return the prepare steps that a killed agent finished here."""
        return () if self.surviving is None else self.surviving.record.done

    def now(self) -> float:
        """Return the run's clock: seconds since the agent's start in which it ran."""
        return self._clock.now()

    @property
    def started(self) -> float:
        """Return when the run's clock was 0, on the machine's monotonic clock."""
        return self._clock.started

    async def keep_clock(self, send: Callable[[Woke], None]) -> None:
        """Keep the run's clock; send an event after a time in which the agent did not run."""

        async def beat() -> NotYet:
            missed = self._clock.beat()
            if missed:
                what = f"the agent did not run for {missed:.0f} s (stopped, or its machine was)"
                say(f"{what}: its deadlines are later by that", "warning")
                send(Woke(missed))
            return NotYet()

        try:
            await until(beat, None, step=times.CLOCK_BEAT, longest=times.CLOCK_BEAT)
        finally:
            self._clock.end()

    def run_time(self, moment: float | None) -> float | None:
        """Convert a time of the monotonic clock to the run's clock."""
        return None if moment is None else moment - self.started

    def utc(self, at: float) -> str:
        """Format a time of the run's clock as records have it."""
        return iso_time(time.time() - self.now() + at)

    def record(self, event: object) -> None:
        """Record an event."""
        self._recorder.add(event)

    def decide(
        self,
        decide: Callable[[S, E, float], tuple[S, tuple[A, ...]]],
        from_outside: tuple[type, ...],
        state: S,
        event: E,
    ) -> tuple[E | Tick, S, tuple[A, ...]]:
        """Decide on an event; an event of another node on which that raises becomes a tick."""
        try:
            return event, *decide(state, event, self.now())
        except Exception as error:
            if not isinstance(event, from_outside):
                raise

            # Each bug is recorded and logged once, however often a node sends the message.
            name = type(event).__name__
            last = traceback.extract_tb(error.__traceback__)[-1]
            why = f"{type(error).__name__} at {last.name}, line {last.lineno}"
            if (name, why) not in self._dropped:
                self._dropped.add((name, why))
                self.record(Dropped(name, f"{why}: {error}"))
                what = "a bug in the agent, the message of another node is dropped"
                say(f"{what}: {name}: {why}: {error}", "error")
            return Tick(), state, ()

    def set_phase(self, phase: str) -> None:
        """Record a new phase; a killed agent's record may end in any phase."""
        if phase != self._phase:
            self._phase = phase
            self.record(PhaseEntered(phase))

    def close(self) -> None:
        """Write the remaining records, and close the folder."""
        limit = disk_alarm.patience(times.FLUSH)
        self._recorder.finish(limit)
        self.node.finish(limit)
        self.folder.close()

    def join_run(self, run_id: str) -> None:
        """Continue in the folder of the run that the head named."""
        before = self.folder.path
        self.run_id = run_id
        self.folder.move_to_run(run_id)
        if self.folder.path != before:
            self.node.update(run_id=run_id)

    def with_wandb_run(self, env: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of the job's processes with this run's W&B run."""
        has_login = self.plan.facts.wandb_login
        return {**env, **environment.one_wandb_run(env, self.run_id or "", has_login=has_login)}

    async def watch_machine(self, on_memory: Callable[[], None] = lambda: None) -> None:
        """Log stalled disks and out-of-memory kills."""

        async def look() -> None:
            disk_alarm.check()
            evidence = self.memory.poll()
            if evidence:
                say(evidence, "warning")
                on_memory()
            self.node.update(oom_kills=self.memory.kills.number)

        await self.best_effort.every(_NODE_CHECK, "a look at disk and memory", look)

    async def watch_figures(self) -> None:
        """Read this node's figures at intervals; first what its GPUs hold before any job."""
        if self.surviving is None:
            await self.gpu_memory.look_at_start()
        read = self.figures.read
        await self.best_effort.every(times.FIGURES_READ, "a reading of the node's figures", read)

    async def watch_caches(self) -> None:
        """Have what is new in this node's compile caches written back."""
        if self.plan.caches is not None:
            look = self.caches.look
            await self.best_effort.every(times.CACHES_LOOK, "a look at the compile caches", look)

    async def next_event(
        self, inbox: Inbox[E], waits: Callable[[], tuple[Wait, ...]], deadline: float | None
    ) -> E | Tick:
        """Return the next event, or a tick at the deadline; log the pending waits until then."""
        if not inbox.events:  # else a queued event may end a wait
            self._waits.update(waits(), self.now())
        return await inbox.take(self._waits.next_due(deadline, self.now())) or Tick()

    async def start(  # noqa: PLR0913 - as `Child.start`
        self,
        name: str,
        argv: list[str],
        env: Mapping[str, str],
        log: str,
        *,
        keep_group: bool = False,
        on_output: Callable[[bytes], None] = lambda _data: None,
        generation: int = 0,
    ) -> Child:
        """Start a child whose output goes to a file of the run folder, or adopt a surviving one."""
        file = partial(self.folder.file, log)
        child = None if self.surviving is None else self.surviving.adopt(name, file)
        if child is not None:
            say(f"{name} (pid {child.pid}) still runs: adopted")
            return child
        start = self.effects.processes.start
        child = await start(name, argv, env, file, keep_group=keep_group, on_output=on_output)
        self.record_child(child, generation)
        return child

    @asynccontextmanager
    async def running(  # noqa: PLR0913 - as `Child.start`
        self,
        name: str,
        argv: list[str],
        env: Mapping[str, str],
        log: str,
        *,
        grace: float,
        leader_ends_group: bool = False,
        keep_group: bool = False,
        on_output: Callable[[bytes], None] = lambda _data: None,
        generation: int = 0,
    ) -> AsyncIterator[Child]:
        """Start or adopt a child, and end it with this context, within `grace` seconds.

        Its pid is recorded for the next agent as long as it runs, and a service's generation.
        """
        child = await self.start(
            *(name, argv, env, log),
            keep_group=keep_group,
            on_output=on_output,
            generation=generation,
        )
        try:
            yield child
        finally:
            with anyio.CancelScope(shield=True):
                if child.running:
                    await child.stop(grace, leader_ends_group=leader_ends_group)
                self.node.remove_process(child.pid)

    def record_child(self, child: Child, generation: int = 0) -> None:
        """Record a started child, of a service with its generation."""
        self.record(ProcessStarted(child.name, child.pid))
        self.node.add_process(child.name, child.pid, generation)

    def record_outcome(self, outcome: Outcome, end: RunEnd | None = None) -> None:
        """Record the outcome, log what is known of the end, and send it to the user."""
        self.record(Decided(outcome))
        self.send_end(outcome)  # while all is stopped
        from agent.diagnosis.end_lines import RunEnd, end_lines  # noqa: PLC0415 - only an end needs it

        for line in end_lines(end or RunEnd(outcome)):
            say_line(line)

    def send_end(self, outcome: Outcome) -> None:
        """Send the end to the user, once; only a head does."""
        if self.notifies:
            self.notifier.send_end(outcome, self.now(), self.facts.cost)

    def record_kill(self) -> None:
        """Record that a second Ctrl-C ended this agent at once."""
        outcome = ends.STOPPED_BY_SIGNAL.outcome(code=128 + SIGINT, signal="a second SIGINT")
        outcome = replace(outcome, phase=self._phase or ends.STARTING)
        run_within(times.FLUSH, partial(self.write_outcome, outcome))
        say(outcome.sentence(), "error", is_last=True)

    def write_outcome(self, outcome: Outcome, bundle: str = "") -> bool:
        """Write outcome.json, and record the outcome for the next container; return True then."""
        self.container.restarts.record(self.run_id, outcome)
        write_outcome(self.folder.path, outcome_text(outcome, self.facts, bundle))
        return True

    async def stop_descendants(self, limit: float) -> None:
        """Stop every remaining descendant process."""
        processes = self.effects.processes
        killed = await process.stop_descendants(limit, processes.descendants, processes.reap)
        for name in killed:
            say(f"had to kill {name}", "warning")


def say_line(line: LogLine) -> None:
    """Log a line that a decision asks for."""
    say(line.sentence, line.level, subject=line.subject, seconds=line.seconds)


# --- This node's Ray ----------------------------------------------------------------------------


async def start_ray(run: NodeRun, placeholders: Placeholders, env: Mapping[str, str]) -> Child:
    """Start this node's Ray."""
    if run.surviving is None or not run.surviving.has_ray:
        say(f"starting Ray's head on {placeholders.node_ip}:{run.plan.ports.gcs}", "debug")
    process = run.plan.process(RAY)
    argv = process.command(placeholders)
    return await run.start(process.name, argv, run.with_wandb_run(env), process.log)


async def watch_until_end(
    run: NodeRun, child: Child, *watches: Callable[[], Coroutine[Any, Any, None]]
) -> str:
    """Watch one `ray start`, and run the given watches, until it ends; return how it ended."""
    parts = RayParts(child, run.now)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run.effects.processes.watch_ray_parts, parts)
        for watch in watches:
            tasks.start_soon(watch)
        code = await child.wait()
        tasks.cancel_scope.cancel()
    return parts.end_sentence(code)


async def stop_ray(child: Child, grace: float) -> None:
    """Stop this node's Ray."""
    await child.stop(grace, leader_ends_group=True)


async def kill_leftovers(run: NodeRun, whose: str, limit: float | None) -> str:
    """Kill what Ray's workers and drivers left; return what remains (nothing, without a limit)."""
    logged: list[str] = []

    async def kill() -> bool | NotYet:
        killed = await result_in_thread(run.effects.processes.kill_leftovers)
        for name in killed:
            if name not in logged:
                logged.append(name)
                say(f"{whose} had left {name} running: killed", "warning")
        return NotYet(listed(killed)) if killed else True

    try:
        await until(kill, limit, longest=0.5)
    except TimedOutError as late:
        return str(late)
    return ""
