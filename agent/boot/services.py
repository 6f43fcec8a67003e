"""Run this node's prepare steps and services."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from agent.base import times
from agent.decisions.values import ServiceGone, ServiceReady, ServiceWaits, StepOver
from agent.plan import environment
from agent.record.files import iso_time
from agent.record.log import say
from agent.runtime.probes import ReadinessProbe, cpu_of, until_dead
from agent.runtime.waiting import NotYet, until

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.boot.node_run import NodeRun
    from agent.runtime.process import Child
    from agent.work.services import Placeholders, PrepareStep, ServiceSpec

    LocalEvent = StepOver | ServiceReady | ServiceWaits | ServiceGone


_LONGEST_LINE = 200


class LocalWork:
    """Runs this node's prepare steps and services, and sends their events."""

    def __init__(
        self, run: NodeRun, send: Callable[[LocalEvent], None], place: Callable[[], Placeholders]
    ) -> None:
        self._run, self._send, self._place = run, send, place
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
        run, plan, name = self._run, self._run.plan, step.name
        if name in run.finished_steps:
            return ""
        place = self._place()
        marker = None if step.once is None else Path(place.fill(step.once))
        if marker is not None and await anyio.to_thread.run_sync(marker.exists):
            say(f"{name}: skipped, {marker} is there")
            return ""
        env = environment.for_children(plan.environ, plan.settings)
        if plan.topology.is_head:
            env = plan.environment(place.node_ip, place.head_ip)
        env = environment.for_prepare(env, plan.settings)
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
            return await child.end_sentence(code)
        if marker is not None:
            await anyio.to_thread.run_sync(_mark, marker, name)
        run.node.update(done=(*run.node.record.done, name))
        return ""

    async def _log_progress(self, name: str, child: Child) -> None:
        """Log the last line of a step's output as it changes."""
        before, pause = await child.tail(1, _LONGEST_LINE), times.STEP_PROGRESS

        async def read_line() -> NotYet | None:
            return NotYet(await child.tail(1, _LONGEST_LINE))

        def log(line: str) -> None:
            if line and line != before:
                self._run.stats.progress[name] = line
                say(f"{name}: {line}")

        await until(read_line, None, step=pause, longest=pause, on_evidence=log)

    async def serve(self, name: str, generation: int = 1) -> None:
        """Run a service until it ends; send events for ready and gone."""
        plan, place = self._run.plan, self._place()
        spec = next(spec for spec in plan.possible_services if spec.name == name)
        if spec.argv is None:
            dead = await self._probe(spec, place, generation, lambda: 0.0)
            self._send(ServiceGone(name, dead, generation=generation))
            return
        former = self._running.get(name)
        if former is not None and former.running:
            await former.stop(plan.budget.services)
        full = plan.environment(place.node_ip, place.head_ip)
        env = {**environment.for_service(full, plan.settings), **spec.environment(place)}
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
        why = dead or await child.end_sentence(code)
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
        log, token = self._run.folder.file(spec.log), self._run.plan.reward_token
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


def _mark(marker: Path, name: str) -> None:
    """Write the marker atomically; without it the step just runs again next time."""
    new = marker.with_name(f".{marker.name}.{os.getpid()}-{time.monotonic_ns()}")
    try:
        marker.parent.mkdir(parents=True, exist_ok=True)
        new.write_text(f"{name}: done {iso_time(time.time())}\n", encoding="utf-8")
        new.replace(marker)
    except OSError as error:
        say(f"{name}: done, but {marker} cannot be written ({error.strerror})", "warning")
