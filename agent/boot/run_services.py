"""A service beside the job: started, asked until it answers, and watched to its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from agent.decisions.head import state as h
from agent.runtime.probes import reward_answers
from agent.runtime.waiting import NotYet, until

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agent.boot.node_run import Stage
    from agent.runtime.process import Child
    from agent.work.services import Service


class Attendant:
    """Runs services and tells what becomes of them."""

    def __init__(self, stage: Stage, tell: Callable[[h.HeadEvent], None]) -> None:
        self._stage = stage
        self._tell = tell
        self._running: dict[str, Child] = {}

    async def serve(self, service: Service, env: Mapping[str, str]) -> None:
        """Run a service, tell when it answers, and tell when it ends."""
        if service.argv is None:
            await self._probe(service)
            return
        log = f"{service.name.replace(' ', '-')}.log"
        own = dict(service.env)
        child = await self._stage.start(service.name, list(service.argv), {**env, **own}, log)
        self._running[service.name] = child
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._probe, service)
            code = await child.wait()
            tasks.cancel_scope.cancel()
        self._tell(h.ServiceGone(service.name, child.end_sentence(code)))

    async def stop(self, grace: float) -> None:
        """Stop them all, side by side."""
        async with anyio.create_task_group() as tasks:
            for child in self._running.values():
                tasks.start_soon(child.stop, grace)

    async def _probe(self, service: Service) -> None:
        async def check() -> bool | NotYet:
            evidence = await reward_answers(service.url)
            return NotYet(evidence) if evidence else True

        def tell(evidence: str) -> None:
            self._tell(h.ServiceWaits(service.name, evidence))

        await until(check, None, longest=0.5, on_evidence=tell)
        self._tell(h.ServiceReady(service.name))
