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
from agent.decisions.values import ServiceGone, ServiceReady, ServiceWaits
from agent.record.files import iso_time
from agent.record.log import say
from agent.runtime.probes import ReadinessProbe, cpu_of, until_dead
from agent.runtime.waiting import NotYet, until

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agent.boot.node_run import NodeRun
    from agent.runtime.process import Child
    from agent.work.prepare import PrepareStep
    from agent.work.services import ServiceSpec
    from agent.work.where import Placeholders

    ServiceEvent = ServiceReady | ServiceWaits | ServiceGone


_LONGEST_LINE = 200


class PrepareSteps:
    """Runs prepare steps; the decisions order each start."""

    def __init__(self, run: NodeRun) -> None:
        self._run = run
        self._locks: defaultdict[str, anyio.Lock] = defaultdict(anyio.Lock)
        """One lock per step: a repeated run waits until the stopped one has ended."""
        self._running_steps: set[anyio.CancelScope] = set()

    async def run_stoppable(
        self, step: PrepareStep, placeholders: Placeholders, env: Mapping[str, str]
    ) -> str | None:
        """Run a step as `run` does; return None if it was stopped meanwhile."""
        with anyio.CancelScope() as scope:
            self._running_steps.add(scope)
            try:
                return await self.run(step, placeholders, env)
            finally:
                self._running_steps.discard(scope)
        return None

    def stop(self) -> None:
        """Stop the running steps; a later run of a step starts once it has ended."""
        for scope in self._running_steps:
            scope.cancel()

    async def run(
        self, step: PrepareStep, placeholders: Placeholders, env: Mapping[str, str]
    ) -> str:
        """Run a step unless its marker exists; return '' or why it failed."""
        async with self._locks[step.name]:
            if step.name in self._run.finished_steps:
                return ""
            marker = None if step.once is None else Path(placeholders.fill(step.once))
            if marker is not None and await anyio.to_thread.run_sync(marker.exists):
                say(f"{step.name}: skipped, {marker} is there")
                return ""
            failure = await self._run_command(step, placeholders, env)
            if failure:
                return failure
            if marker is not None:
                await anyio.to_thread.run_sync(_mark, marker, step.name)
            self._run.node.add_done_step(step.name)
            return ""

    async def _run_command(
        self, step: PrepareStep, placeholders: Placeholders, env: Mapping[str, str]
    ) -> str:
        say(f"{step.name}: running (output in {step.log})")
        # A step may leave a server running on purpose.
        child = await self._run.start(
            step.name, step.argv(placeholders), env, step.log, keep_group=True
        )
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._log_progress, step.name, child)
                code = await child.wait()
                tasks.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                if child.running:
                    await child.stop(1.0)
                self._run.record_child_end(child)
                self._run.stats.clear_progress(step.name)
        return "" if code == 0 else await child.end_sentence(code)

    async def _log_progress(self, name: str, child: Child) -> None:
        """Log the last line of a step's output as it changes."""
        before = await child.tail(1, _LONGEST_LINE)

        async def read_line() -> NotYet | None:
            return NotYet(await child.tail(1, _LONGEST_LINE))

        def log(line: str) -> None:
            if line and line != before:
                self._run.stats.record_progress(name, line)
                say(f"{name}: {line}")

        await until(
            read_line,
            None,
            step=times.STEP_PROGRESS,
            longest=times.STEP_PROGRESS,
            on_evidence=log,
        )


def _mark(marker: Path, name: str) -> None:
    """Write the marker atomically; without it the step just runs again next time."""
    new = marker.with_name(f".{marker.name}.{os.getpid()}-{time.monotonic_ns()}")
    try:
        marker.parent.mkdir(parents=True, exist_ok=True)
        new.write_text(f"{name}: done {iso_time(time.time())}\n", encoding="utf-8")
        new.replace(marker)
    except OSError as error:
        say(f"{name}: done, but {marker} cannot be written ({error.strerror})", "warning")


class Services:
    """Runs this node's services and sends their events."""

    def __init__(self, run: NodeRun, send: Callable[[ServiceEvent], None]) -> None:
        self._run = run
        self._send = send
        self._running: dict[str, Child] = {}

    async def run(
        self,
        spec: ServiceSpec,
        placeholders: Placeholders,
        env: Mapping[str, str],
        generation: int = 1,
    ) -> None:
        """Run a service until it ends; send events for ready and gone."""
        if spec.argv is None:
            dead = await self._probe(spec, placeholders, generation, lambda: 0.0)
            self._send(ServiceGone(spec.name, dead, generation=generation))
            return
        former = self._running.get(spec.name)
        if former is not None and former.running:
            await former.stop(self._run.plan.budget.services)
        full = {**env, **spec.environment(placeholders)}
        child = await self._run.start(spec.name, spec.command(placeholders), full, spec.log)
        self._running[spec.name] = child
        dead = ""

        async def probe_until_dead() -> None:
            nonlocal dead
            dead = await self._probe(spec, placeholders, generation, partial(cpu_of, child.pid))
            await child.stop(times.SERVICE_GRACE)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(probe_until_dead)
            code = await child.wait()
            tasks.cancel_scope.cancel()
        self._run.record_child_end(child)
        why = dead or await child.end_sentence(code)
        self._send(ServiceGone(spec.name, why, generation=generation))

    async def stop(self, grace: float) -> None:
        """Stop all services concurrently."""
        async with anyio.create_task_group() as tasks:
            for child in self._running.values():
                tasks.start_soon(child.stop, grace)

    async def _probe(
        self,
        spec: ServiceSpec,
        placeholders: Placeholders,
        generation: int,
        cpu: Callable[[], float],
    ) -> str:
        """Send an event when a service is ready; return why it is dead once it stops answering."""
        probe = ReadinessProbe(spec.ready, placeholders, self._run.folder.file(spec.log))

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
        alive = spec.asked_again
        if alive is None:
            await anyio.sleep_forever()
            return ""
        return await until_dead(probe_once, alive, cpu)
