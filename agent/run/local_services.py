"""Run this node's prepare steps, services and shares of a torchrun job."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
from msgspec.structs import replace

from agent.base import times
from agent.base.text import error_text
from agent.decisions.attempts import submission_id_of
from agent.decisions.head import head_state as h
from agent.decisions.shared import (
    HERE,
    OrderKind,
    ServiceGone,
    ServiceReady,
    ServiceWaits,
    StepOver,
)
from agent.job.job import fill
from agent.job.services import reward_url
from agent.job.torchrun_command import (
    RANK_VARIABLE,
    ShareEnd,
    ShareOrder,
    ShareOver,
    closes_by_itself,
    first_failure,
)
from agent.plan import environment
from agent.plan.plan import JOB_LOG
from agent.processes import process
from agent.processes.output import OutputCopies, PreambleFilter, RecentOutput
from agent.processes.probing import ReadinessProbe, cpu_of, until_dead
from agent.processes.waiting import NotYet, TimedOutError, until
from agent.record.background import NO_THREAD, in_background, in_thread
from agent.record.files import iso_time, read_end
from agent.record.log import say
from agent.record.log_dir import log_dir
from agent.settings.jobs import TORCHRUN

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.frameworks.recipe import JobBasis
    from agent.job.services import Placeholders, PrepareStep, ServiceSpec
    from agent.port.reports import Reports
    from agent.processes.process import Child
    from agent.record.job_lines import JobLines
    from agent.run.node_run import NodeRun

    LocalEvent = StepOver | ServiceReady | ServiceWaits | ServiceGone


_LONGEST_LINE = 200


class LocalWork:
    """Runs this node's prepare steps and services, and sends their events."""

    def __init__(
        self, run: NodeRun, send: Callable[[LocalEvent], None], place: Callable[[], Placeholders]
    ) -> None:
        self._run = run
        self._send = send
        self._place = place
        self._locks: defaultdict[str, anyio.Lock] = defaultdict(anyio.Lock)
        """One lock per step: a repeated run waits until the stopped one has ended."""
        self._running_steps: set[anyio.CancelScope] = set()
        self._running: dict[str, Child] = {}

    async def prepare(self, name: str) -> None:
        """Run a step; send the event of its end, unless it was stopped."""
        step = next(step for step in self._run.plan.steps if step.name == name)
        with anyio.CancelScope() as scope:
            self._running_steps.add(scope)
            try:
                async with self._locks[name]:
                    failure = await self._run_step(step)
            finally:
                self._running_steps.discard(scope)
            self._send(StepOver(name, failure))

    def stop_steps(self) -> None:
        """Stop the running steps; a later run of a step starts once it has ended."""
        for scope in self._running_steps:
            scope.cancel()

    async def _run_step(self, step: PrepareStep) -> str:
        """Run a step unless its marker exists; return '' or why it failed."""
        run = self._run
        plan = self._run.plan
        name = step.name
        if name in run.finished_steps:
            return ""
        place = self._place()
        marker = None if step.once is None else Path(place.fill(step.once))
        if marker is not None:
            try:
                if await _is_there(marker, name):
                    say(f"{name}: skipped, {marker} is there")
                    return ""
            except TimedOutError as error:
                return str(error)
        # A worker's step may run before the head is found: its own address is then unknown.
        env = environment.for_children(plan.environ, plan.settings)
        if plan.topology.is_head:
            env = plan.environment(place.node_ip, place.head_ip)
        env = environment.without_cluster_auth(env, plan.settings, keeps_wandb=True)
        say(f"{name}: running (output in {step.log})")
        # A step may leave a server running on purpose.
        child = await run.start(name, step.argv(place), env, step.log, keep_group=True)
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._log_progress, name, child)
                code = await child.wait()
                tasks.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                if child.running:
                    await child.stop(1.0)
                run.node.remove_process(child.pid)
                run.stats.progress.pop(name, None)
        if code != 0:
            return child.end_sentence(code)
        if marker is not None:
            fault = await in_thread(partial(_mark, marker, name), times.IDLE_DISK)
            if fault != "":
                why = fault or "it does not answer"
                say(f"{name}: done, but {marker} cannot be written ({why})", "warning")
        run.node.update(done=(*run.node.record.done, name))
        return ""

    async def _log_progress(self, name: str, child: Child) -> None:
        """Log the last line of a step's output as it changes."""
        before = child.tail(1, _LONGEST_LINE)
        pause = times.STEP_PROGRESS

        async def read_line() -> NotYet | None:
            return NotYet(child.tail(1, _LONGEST_LINE))

        def log(line: str) -> None:
            if line and line != before:
                self._run.stats.progress[name] = line
                say(f"{name}: {line}")

        await until(read_line, None, step=pause, longest=pause, on_evidence=log)

    async def serve(self, name: str, generation: int = 1) -> None:
        """Run a service until it ends; send events for ready and gone."""
        plan = self._run.plan
        place = self._place()
        spec = next(spec for spec in plan.possible_services if spec.name == name)
        if spec.argv is None:
            dead = await self._probe(spec, place, generation, lambda: 0.0)
            self._send(ServiceGone(name, dead, generation=generation))
            return
        former = self._running.get(name)
        if former is not None and former.running:
            await former.stop(plan.budget.services)
        full = plan.environment(place.node_ip, place.head_ip)
        env = {**environment.without_cluster_auth(full, plan.settings), **spec.environment(place)}
        child = await self._run.start(name, spec.command(place), env, spec.log)
        self._running[name] = child
        dead = ""

        async def probe_until_dead() -> None:
            nonlocal dead
            dead = await self._probe(spec, place, generation, partial(cpu_of, child.pid))
            await child.stop(times.SERVICE_GRACE)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(probe_until_dead)
            code = await child.wait()
            tasks.cancel_scope.cancel()
        self._run.node.remove_process(child.pid)
        why = dead or child.end_sentence(code)
        self._send(ServiceGone(name, why, generation=generation))

    async def stop_services(self, grace: float) -> None:
        """Stop all services concurrently."""
        async with anyio.create_task_group() as tasks:
            for child in self._running.values():
                tasks.start_soon(child.stop, grace)

    async def _probe(
        self, spec: ServiceSpec, place: Placeholders, generation: int, cpu: Callable[[], float]
    ) -> str:
        """Send an event when a service is ready; return why it is dead once it stops answering."""
        log = self._run.folder.file(spec.log)
        token = self._run.plan.secret("AGENT_REWARD_TOKEN")
        probe = ReadinessProbe(spec.ready, place, log, token)

        async def probe_once(limit: float) -> str:
            began = anyio.current_time()
            evidence = await probe.ask(limit)
            if not evidence:
                self._run.stats.record_latency(spec.name, anyio.current_time() - began)
            return evidence

        async def check() -> bool | NotYet:
            evidence = await probe_once(times.SERVICE_FIRST_PROBE)
            return NotYet(evidence) if evidence else True

        def send(evidence: str) -> None:
            self._send(ServiceWaits(spec.name, evidence, generation=generation))

        await until(check, None, longest=0.5, on_evidence=send)
        self._send(ServiceReady(spec.name, generation=generation))
        if spec.asked_again is None:
            await anyio.sleep_forever()
            return ""
        return await until_dead(probe_once, spec.asked_again, cpu)


async def _is_there(marker: Path, name: str) -> bool:
    """Return whether a marker exists; raise TimedOutError if its disk does not answer in time."""
    pending: asyncio.Future[bool | str] | None = None

    async def look() -> bool | NotYet:
        nonlocal pending
        pending = pending or in_background(partial(_look_for, marker))
        if pending is None:
            return NotYet(f"{marker} cannot be read: {NO_THREAD}")
        await asyncio.wait([pending], timeout=times.STALLED_DISK)
        if not pending.done():  # the next look waits for the same answer
            return NotYet(f"{marker} does not answer")
        found = pending.result()
        pending = None
        return NotYet(f"{marker} cannot be read: {found}") if isinstance(found, str) else found

    def log(evidence: str) -> None:
        say(f"{name}: waiting for its marker, {evidence}", "warning")

    return await until(look, times.IDLE_DISK, on_evidence=log)


def _look_for(marker: Path) -> bool | str:
    """Return whether a marker exists, or its disk's error."""
    try:
        return marker.exists()
    except OSError as error:
        return error_text(error)


def _mark(marker: Path, name: str) -> str:
    """Write the marker, which only has to exist; return '' or the error.

    Without it the step runs again next time.
    """
    try:
        marker.parent.mkdir(parents=True, exist_ok=True)
        marker.write_text(f"{name}: done {iso_time(time.time())}\n", encoding="utf-8")
    except OSError as error:
        return error_text(error)
    return ""


_LONGEST_END = 1 << 20  # bytes of the output's end that are searched for torchrun's failure report


class LocalShare:
    """Runs this node's torchrun, one attempt after the other."""

    def __init__(
        self, run: NodeRun, tasks: anyio.abc.TaskGroup, send: Callable[[ShareOver], None]
    ) -> None:
        self._run = run
        self._tasks = tasks
        self._send = send
        self._child: Child | None = None
        self._recent = self.new_output()
        self._is_stopped = False

    def new_output(self) -> RecentOutput:
        """Return the place in memory for a share's output: a full log disk loses none of it."""
        return RecentOutput(self._run.folder.file(JOB_LOG))

    async def start(
        self, attempt: int, share: ShareOrder, place: Placeholders, recent: RecentOutput
    ) -> None:
        """Start the share of an attempt, after an earlier one; `recent` gets its output."""
        plan = self._run.plan
        run = self._run
        assert plan.torchrun is not None  # noqa: S101 - ordered only where it starts the job
        assert plan.job is not None  # noqa: S101 - every node has one where torchrun starts it
        await self.stop(plan.budget.ray)
        self._recent = recent
        attempt_id = submission_id_of(run.run_id, attempt)
        recipe = plan.job.recipe
        argv = plan.job.argv
        recipe_env = {}
        if recipe is not None:  # the head checked that it fits
            sized = recipe.command(share.nodes, run.run_id, share.basis)
            argv = sized.argv
            recipe_env = {**sized.env}
        reward = reward_url(plan.all_services, replace(place, node_ip=share.reward_ip))
        words = fill(argv, share.gpus, place, reward, attempt, plan.job.checkpoints)
        rank = str(share.rank)
        size = str(len(share.nodes))
        command = plan.torchrun.command(words, rank, size, attempt_id, place.head_ip)
        full = {**recipe_env, **plan.environment(place.node_ip, place.head_ip)}
        full |= environment.without_proxy_to(full, [share.reward_ip])
        env = plan.torchrun.environment(full, attempt)
        self._is_stopped = False
        say(f"starting torchrun: node rank {rank} of {size}")
        output = OutputCopies(recent, PreambleFilter())
        if not plan.topology.is_head:  # there the job's output is scanned
            output.to_watcher(run.stats.share_lines(attempt))
        output.start()
        self._child = await run.start(TORCHRUN, command, env, JOB_LOG, on_output=recent.add)
        self._tasks.start_soon(self._watch, self._child, attempt, attempt_id, output)

    async def stop(self, grace: float) -> None:
        """Stop the share: torchrun forwards the signal to its ranks.

        A torchrun that already stops its ranks after a failure gets no signal: it would forget
        which rank failed.
        """
        child = self._child
        if child is None or not child.running:
            return
        if closes_by_itself(self._read_output()):
            with anyio.move_on_after(grace):
                await child.wait()
                return
            grace = 0.0
        self._is_stopped = True
        await child.stop(grace, leader_ends_group=True)

    async def _watch(
        self, child: Child, attempt: int, attempt_id: str, output: OutputCopies
    ) -> None:
        code = await child.wait()
        self._run.node.remove_process(child.pid)
        if code != 0:  # a killed torchrun leaves its ranks, each in its own session
            for name in await anyio.to_thread.run_sync(
                process.kill_marked, RANK_VARIABLE, attempt_id.__eq__
            ):
                say(f"torchrun had left {name} running: killed", "warning")
        text = self._read_output()
        # Its findings are sent with the end, or before.
        await anyio.to_thread.run_sync(output.finish, times.STALLED_DISK)
        now = time.time()
        local = time.localtime(now)
        time_of_day = local.tm_hour * 3600 + local.tm_min * 60 + local.tm_sec + now % 1
        end = None if code == 0 else first_failure(text, time_of_day)
        if end is None and self._is_stopped:
            end = ShareEnd(code, by_order=True)
        elif end is None:
            end = ShareEnd(code, words="" if code == 0 else child.tail())
        self._send(ShareOver(attempt, end))

    def _read_output(self) -> str:
        return self._recent.end(_LONGEST_END).decode(errors="replace")


async def size_at_start(run: NodeRun, log: Path) -> int:
    """Return a log's size as an attempt begins.

    On a stalled disk this takes 2 s, and earlier output may be passed on again.
    """

    def read_size() -> int:
        with suppress(OSError):
            return log_dir.stat(log).st_size
        return 0

    size = await in_thread(read_size, times.STALLED_DISK)
    if size is None:
        problem = f"{run.folder.path} does not answer within {times.STALLED_DISK:g} s"
        say(f"{problem}. Output of an earlier attempt may be repeated", "warning")
    return size or 0


def remove_file(path: Path) -> None:
    """Remove a file if it is there; writing the new one reports an error of the disk."""
    with suppress(OSError):
        log_dir.remove(path)


def text_of(path: Path, began: int = 0) -> str:
    """Return the end of a file from an offset on; '' if it cannot be read."""
    return (read_end(path, _LONGEST_END, began) or b"").decode(errors="replace")


class TorchrunLink:
    """Starts, stops and follows attempts on all nodes, as RayLink does for Ray."""

    def __init__(
        self,
        run: NodeRun,
        tasks: anyio.abc.TaskGroup,
        place: Placeholders,
        send: Callable[[h.HeadEvent], None],
        watcher: JobLines,
    ) -> None:
        self._run = run
        self._tasks = tasks
        self._place = place
        self._send = send
        self._watcher = watcher
        self.share = LocalShare(run, tasks, lambda over: send(h.OwnShareOver(over)))
        self._stops: list[Callable[[], object]] = []  # they stop the last attempt's shares

    async def run(self) -> None:
        """Run until canceled: the nodes' agents report their shares."""
        await anyio.sleep_forever()

    async def launch(
        self, state: h.HeadState, reports: Reports, reward_ip: str, basis: JobBasis
    ) -> OutputCopies:
        """Start every node's share of the attempt; return this node's output."""
        number = state.attempt.number
        nodes = state.shares.sizes
        self._stops = [partial(self._tasks.start_soon, self.share.stop, self._run.plan.budget.job)]
        for rank, key in enumerate(state.shares.by_node):
            if key != HERE:
                order = partial(reports.order, key)
                share = ShareOrder(rank, nodes, reward_ip, basis)
                order(OrderKind.RUN_SHARE, "job", number, share=share)
                self._stops.append(partial(order, OrderKind.STOP_SHARE, "job", number))
        log = self._run.folder.file(JOB_LOG)
        self._run.output_begins = await size_at_start(self._run, log)
        recent = self.share.new_output()
        output = OutputCopies(recent, PreambleFilter())
        output.to_stdout(0, lambda _count: None)
        output.to_watcher(self._watcher)
        output.start()
        own = ShareOrder(0, nodes, reward_ip, basis)
        await self.share.start(number, own, self._place, recent)
        self._send(h.Submitted(state.attempt.id))
        return output

    async def follow(self, job_id: str, _mirror: object = None) -> None:
        """Report that the job was never submitted: its shares ended with the earlier agent."""
        self._send(h.NeverSubmitted(job_id))

    async def stop_job(self, _job_id: str) -> None:
        """Stop every node's share."""
        for stop in self._stops:
            stop()

    def forget(self, _job_id: str) -> None:
        """Forget an attempt that is over."""
        self._stops = []
