"""Watch the head's Ray, GCS and silent workers."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import anyio

from agent.base import times
from agent.base.text import in_url
from agent.boot.node_run import watch_until_end
from agent.decisions.head import state as h
from agent.decisions.head.state import NodesAsked, WorkerSilent
from agent.runtime.probes import first_answer, port_answers, reply_evidence
from agent.runtime.ray_watch import watch_helpers
from agent.runtime.waiting import NotYet, until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from agent.base.ports import Ports
    from agent.boot.node_run import NodeRun
    from agent.control.reports import Reports
    from agent.decisions.head.fleet import Fleet
    from agent.runtime.process import Child
    from agent.work.services import Placeholders


async def watch_gcs(
    host: str,
    port: int,
    step: float,
    send: Callable[[h.HeadEvent], None],
    is_waiting: Callable[[], bool],
) -> None:
    """Send an event when GCS accepts connections, and when it stops while Ray still boots.

    The bridge, which still imports Ray, would be later; and `ray start` reports a GCS that died at
    boot only after a minute.
    """

    async def is_open() -> bool | NotYet:
        evidence = await port_answers(host, port)
        return NotYet(evidence) if evidence else True

    async def is_closed() -> str | NotYet:
        return (await port_answers(host, port) or NotYet()) if is_waiting() else ""

    await until(is_open, None, longest=step, on_evidence=lambda why: send(h.HeadRaySilent(why)))
    send(h.GcsOpen())
    evidence = await until(is_closed, None, step=1.0)
    if evidence:
        send(h.HeadRaySilent(f"GCS answered once: {evidence}"))


async def watch_ray(
    run: NodeRun,
    child: Child,
    place: Placeholders,
    send: Callable[[h.HeadEvent], None],
    is_waiting: Callable[[], bool],
) -> h.RayGone:
    """Watch one `ray start` until it ends; return the event of its end."""
    end = await watch_until_end(
        run,
        child,
        partial(watch_gcs, place.node_ip, run.plan.ports.gcs, 0.1, send, is_waiting),
        partial(watch_helpers, child, lambda *found: send(h.RayHangs(*found)), run.best_effort),
    )
    return h.RayGone(end, run.memory.recent())


_AT_ONCE = 128
"""Concurrent probes: if the head is cut off, all workers become silent together."""


class SilenceWatch:
    """Probes each worker that stopped reporting, once, and sends the result."""

    def __init__(
        self, reports: Reports, ports: Ports, send: Callable[[WorkerSilent], None]
    ) -> None:
        self._reports, self._ports, self._send = reports, ports, send
        self._limiter = anyio.CapacityLimiter(_AT_ONCE)

    async def run(self) -> None:
        """Probe workers whose connection broke, and at intervals those that are overdue."""
        pause = times.PROBE_INTERVAL

        async def probe_overdue() -> NotYet:
            async with anyio.create_task_group() as tasks:
                for key in self._reports.overdue():
                    tasks.start_soon(self._probe_worker, key)
            return NotYet()

        async def on_disconnect(key: str) -> None:
            if not await self._reports.reports_again(key, times.RECONNECT):
                await self._probe_worker(key)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(until, probe_overdue, None, step=pause, longest=pause))
            while True:
                key = await self._reports.disconnected.take(None)
                if key is not None:
                    tasks.start_soon(on_disconnect, key)

    async def _probe_worker(self, key: str) -> None:
        """Probe an agent and the Ray beside it; send an event if the agent does not answer."""
        ip = self._reports.address_of(key)
        if ip is None:
            return
        limit, found = times.PROBE_OF_SILENT + times.PROBE_EVIDENCE, dict[str, str]()
        url = f"http://{in_url(ip)}:{self._ports.agent}/livez"

        async def probe(part: str, ask: Callable[[], Awaitable[str]]) -> None:
            found[part] = await first_answer(ask, times.PROBE_OF_SILENT)

        async with self._limiter, anyio.create_task_group() as tasks:
            tasks.start_soon(probe, "agent", partial(reply_evidence, url, None, "", limit))
            tasks.start_soon(
                probe, "ray", partial(port_answers, ip, self._ports.node_manager, limit)
            )
        if found["agent"] and self._reports.mark_silent(key):
            self._send(WorkerSilent(key, found["agent"], ray_answers=not found["ray"]))


_NODES_AT_ONCE = 256


async def probe_nodes(job_id: str, fleet: Fleet, send: Callable[[NodesAsked], None]) -> None:
    """Probe all workers of a failed job at their raylets' ports, and send the silent ones.

    GCS needs 15 s to miss a node; the kernel of a live node answers at once.
    """
    silent: dict[str, str] = {}
    limiter = anyio.CapacityLimiter(_NODES_AT_ONCE)

    async def probe_port(ip: str, name: str, port: int) -> None:
        async with limiter:
            evidence = await port_answers(ip, port, times.PER_NODE_ASKED)
        if evidence:
            silent[name] = f"its Ray does not answer, {evidence}"

    with anyio.move_on_after(times.NODES_ASKED):
        async with anyio.create_task_group() as tasks:
            for ip, name in fleet.alive.items():
                for port in fleet.raylet_ports.get(ip, ()):
                    tasks.start_soon(probe_port, ip, name, port)
    send(NodesAsked(job_id, dict(silent)))
