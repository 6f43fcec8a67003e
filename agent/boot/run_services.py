"""Services of this node: started, asked until they are ready, and watched to their end."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import anyio

from agent.decisions.items import ServiceGone, ServiceReady, ServiceWaits
from agent.runtime.pulse import cpu_of, until_dead
from agent.runtime.readiness import Probe
from agent.runtime.waiting import NotYet, until

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agent.boot.node_run import NodeRun
    from agent.runtime.process import Child
    from agent.work.services import ServiceSpec
    from agent.work.where import Place

    Word = ServiceReady | ServiceWaits | ServiceGone

_FIRST_LIMIT = 10.0
"""Longest that one answer may take while it comes up."""
_GRACE = 1.0
"""What a service that answers no more has to end in."""


class Services:
    """Runs this node's services and tells what becomes of them."""

    def __init__(self, run: NodeRun, tell: Callable[[Word], None]) -> None:
        self._run = run
        self._tell = tell
        self._running: dict[str, Child] = {}

    async def serve(
        self, spec: ServiceSpec, place: Place, env: Mapping[str, str], generation: int = 1
    ) -> None:
        """Run a service, tell when it is ready, and tell when it ends."""
        if spec.argv is None:
            dead = await self._attend(spec, place, generation, lambda: 0.0)
            self._tell(ServiceGone(spec.name, dead, generation=generation))
            return
        former = self._running.get(spec.name)
        if former is not None and former.running:
            await former.stop(self._run.plan.budget.services)
        full = {**env, **spec.environment(place)}
        child = await self._run.start(spec.name, spec.command(place), full, spec.log)
        self._running[spec.name] = child
        dead = ""

        async def attend() -> None:
            nonlocal dead
            dead = await self._attend(spec, place, generation, partial(cpu_of, child.pid))
            await child.stop(_GRACE)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(attend)
            code = await child.wait()
            tasks.cancel_scope.cancel()
        self._run.child_ended(child)
        why = dead or await child.end_sentence(code)
        self._tell(ServiceGone(spec.name, why, generation=generation))

    async def stop(self, grace: float) -> None:
        """Stop them all, side by side."""
        async with anyio.create_task_group() as tasks:
            for child in self._running.values():
                tasks.start_soon(child.stop, grace)

    async def _attend(
        self, spec: ServiceSpec, place: Place, generation: int, cpu: Callable[[], float]
    ) -> str:
        """Tell when a service is ready, and return why it is dead once it answers no more."""
        probe = Probe(spec.ready, place, self._run.folder.file(spec.log))

        async def ask(limit: float) -> str:
            began = anyio.current_time()
            evidence = await probe.ask(limit)
            if not evidence:
                self._run.seen.answered(spec.name, anyio.current_time() - began)
            return evidence

        async def check() -> bool | NotYet:
            evidence = await ask(_FIRST_LIMIT)
            return NotYet(evidence) if evidence else True

        def tell(evidence: str) -> None:
            self._tell(ServiceWaits(spec.name, evidence, generation=generation))

        await until(check, None, longest=0.5, on_evidence=tell)
        self._tell(ServiceReady(spec.name, generation=generation))
        alive = spec.asked_again
        if alive is None:
            await anyio.sleep_forever()
            return ""
        return await until_dead(ask, alive, cpu)
