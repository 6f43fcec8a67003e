"""Services of this node: started, asked until they are ready, and watched to their end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from agent.decisions.items import ServiceGone, ServiceReady, ServiceWaits
from agent.runtime.readiness import Probe
from agent.runtime.waiting import NotYet, until

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agent.boot.node_run import NodeRun
    from agent.runtime.process import Child
    from agent.work.services import ServiceSpec
    from agent.work.where import Place

    Word = ServiceReady | ServiceWaits | ServiceGone


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
            await self._probe(spec, place, generation)
            return
        former = self._running.get(spec.name)
        if former is not None and former.running:
            await former.stop(self._run.plan.budget.services)
        full = {**env, **dict(spec.env)}
        child = await self._run.start(spec.name, spec.command(place), full, spec.log)
        self._running[spec.name] = child
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._probe, spec, place, generation)
            code = await child.wait()
            tasks.cancel_scope.cancel()
        self._run.child_ended(child)
        self._tell(ServiceGone(spec.name, await child.end_sentence(code), generation=generation))

    async def stop(self, grace: float) -> None:
        """Stop them all, side by side."""
        async with anyio.create_task_group() as tasks:
            for child in self._running.values():
                tasks.start_soon(child.stop, grace)

    async def _probe(self, spec: ServiceSpec, place: Place, generation: int) -> None:
        probe = Probe(spec.ready, place, self._run.folder.file(spec.log))

        async def check() -> bool | NotYet:
            evidence = await probe.ask()
            return NotYet(evidence) if evidence else True

        def tell(evidence: str) -> None:
            self._tell(ServiceWaits(spec.name, evidence, generation=generation))

        await until(check, None, longest=0.5, on_evidence=tell)
        self._tell(ServiceReady(spec.name, generation=generation))
