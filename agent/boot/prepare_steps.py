"""Prepare steps of this node: run side by side, skipped where done before, told as they go."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from agent.record.files import iso_time
from agent.record.log import say
from agent.runtime.waiting import NotYet, until

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.boot.node_run import NodeRun
    from agent.runtime.process import Child
    from agent.work.prepare import PrepareStep
    from agent.work.where import Place

_LOOK = 2.0
"""How often a step's progress is looked at."""
_LONGEST_LINE = 200


class PrepareSteps:
    """Runs prepare steps; the decisions say when each may start."""

    def __init__(self, run: NodeRun) -> None:
        self._run = run
        self._turns: defaultdict[str, anyio.Lock] = defaultdict(anyio.Lock)
        """By step: one that is run again waits for the end of what was stopped."""
        self._under_way: set[anyio.CancelScope] = set()

    async def run_unless_stopped(
        self, step: PrepareStep, place: Place, env: Mapping[str, str]
    ) -> str | None:
        """Run a step as `run` does; return None where it was stopped meanwhile."""
        with anyio.CancelScope() as scope:
            self._under_way.add(scope)
            try:
                return await self.run(step, place, env)
            finally:
                self._under_way.discard(scope)
        return None

    def stop(self) -> None:
        """Stop what runs; a later run of the same step begins when it has ended."""
        for scope in self._under_way:
            scope.cancel()

    async def run(self, step: PrepareStep, place: Place, env: Mapping[str, str]) -> str:
        """Run a step to its end, unless its marker is there; return '' or how it failed."""
        async with self._turns[step.name]:
            if step.name in self._run.done:
                return ""
            marker = None if step.once is None else Path(place.fill(step.once))
            if marker is not None and await anyio.to_thread.run_sync(marker.exists):
                say(f"{step.name}: skipped, {marker} is there")
                return ""
            failure = await self._to_its_end(step, place, env)
            if failure:
                return failure
            if marker is not None:
                await anyio.to_thread.run_sync(_mark, marker, step.name)
            self._run.node.step_done(step.name)
            return ""

    async def _to_its_end(self, step: PrepareStep, place: Place, env: Mapping[str, str]) -> str:
        say(f"{step.name}: running (output in {step.log})")
        # It may leave a server running, as a script that starts one and waits for it does.
        child = await self._run.start(step.name, step.argv(place), env, step.log, rest_stays=True)
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._tell_progress, step.name, child)
                code = await child.wait()
                tasks.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                if child.running:
                    await child.stop(1.0)
                self._run.child_ended(child)
                self._run.seen.over(step.name)
        return "" if code == 0 else await child.end_sentence(code)

    async def _tell_progress(self, name: str, child: Child) -> None:
        """Pass on the last line of a step's output, as it changes."""
        before = await child.tail(1, _LONGEST_LINE)

        async def look() -> NotYet | None:
            return NotYet(await child.tail(1, _LONGEST_LINE))

        def tell(line: str) -> None:
            if line and line != before:
                self._run.seen.said(name, line)
                say(f"{name}: {line}")

        await until(look, None, step=_LOOK, longest=_LOOK, on_evidence=tell)


def _mark(marker: Path, name: str) -> None:
    """Leave the marker whole or not at all; without it the step is merely run again next time."""
    new = marker.with_name(f".{marker.name}.{os.getpid()}-{time.monotonic_ns()}")
    try:
        marker.parent.mkdir(parents=True, exist_ok=True)
        new.write_text(f"{name}: done {iso_time(time.time())}\n", encoding="utf-8")
        new.replace(marker)
    except OSError as error:
        say(f"{name}: done, but {marker} cannot be written ({error.strerror})", "warning")
