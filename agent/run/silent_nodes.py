"""Probe nodes that may be gone: workers that stopped reporting, all nodes of a failed job."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import anyio

from agent.base import times
from agent.base.text import in_url
from agent.decisions.head import head_state as h
from agent.port.node_network import NETWORK
from agent.processes.probing import first_answer
from agent.processes.waiting import NotYet, until
from agent.run.effects import REAL

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from agent.base.ports import Ports
    from agent.decisions.head.fleet import Fleet
    from agent.port.node_network import Network
    from agent.port.reports import Reports
    from agent.run.effects import Effects

_PROBE_EVIDENCE = 1.0  # A probe that ends at its own limit has no evidence: that one is later.
_PROBE_INTERVAL = 5.0  # Between two probes of a worker that stays silent.
_PER_NODE_ASKED = 2.0  # For one node's answer.


async def watch_silent_workers(
    reports: Reports,
    ports: Ports,
    send: Callable[[h.WorkerSilent], None],
    effects: Effects = REAL,
) -> None:
    """Probe workers whose connection broke, and at intervals those that are overdue.

    An event is sent for each worker whose agent does not answer.
    """
    pause = _PROBE_INTERVAL
    limiter = anyio.CapacityLimiter(128)  # if the head is cut off, all workers are silent at once

    async def probe(key: str) -> None:
        agent = reports.awaited(key)
        if agent is None or not agent.ip:
            return
        async with limiter:
            agent_evidence, ray_evidence = await probe_worker(agent.ip, ports, effects)

        # Has it reported meanwhile, or left?
        agent = reports.awaited(key)
        if agent_evidence and agent is not None:
            agent.is_silent = True
            send(h.WorkerSilent(key, agent_evidence, ray_answers=not ray_evidence))

    async def probe_overdue() -> NotYet:
        async with anyio.create_task_group() as overdue:
            for key in reports.overdue():
                overdue.start_soon(probe, key)
        return NotYet()

    async def on_disconnect(key: str) -> None:
        if not await reports.reports_again(key, times.RECONNECT):
            await probe(key)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(partial(until, probe_overdue, None, step=pause, longest=pause))
        while True:
            key = await reports.disconnected.take(None)
            if key is not None:
                tasks.start_soon(on_disconnect, key)


async def probe_worker(ip: str, ports: Ports, effects: Effects) -> tuple[str, str]:
    """Probe a worker's agent and its Ray; return the evidence that each is silent, or ''."""
    limit = times.PROBE_OF_SILENT + _PROBE_EVIDENCE
    evidence = dict[str, str]()

    async def ask(part: str, question: Callable[[], Awaitable[str]]) -> None:
        evidence[part] = str(await first_answer(question, times.PROBE_OF_SILENT))

    # Without redirects: a stranger that reported cannot have a request sent elsewhere.
    url = f"http://{in_url(ip)}:{ports.agent}/livez"
    reply_evidence = effects.late().reply_evidence
    ask_agent = partial(reply_evidence, url, None, "", limit, follows_redirects=False)
    ask_ray = partial(effects.network.port_answers, ip, ports.node_manager, limit)
    async with anyio.create_task_group() as both:
        both.start_soon(ask, "agent", ask_agent)
        both.start_soon(ask, "ray", ask_ray)
    return evidence["agent"], evidence["ray"]


async def probe_nodes(job_id: str, fleet: Fleet, network: Network = NETWORK) -> h.NodesAsked:
    """Probe all workers of a failed job at their raylets' ports; return the silent ones.

    GCS needs 15 s to miss a node; the kernel of a live node answers at once.
    """
    silent: dict[str, str] = {}

    async def probe_port(ip: str, name: str, port: int) -> None:
        evidence = await network.port_answers(ip, port, _PER_NODE_ASKED)
        if evidence:
            silent[name] = f"its Ray does not answer, {evidence}"

    with anyio.move_on_after(times.NODES_ASKED):
        async with anyio.create_task_group() as tasks:
            for ip, name in fleet.alive.items():
                for port in {node.port for node in fleet.ray_nodes.get(ip, ())}:
                    tasks.start_soon(probe_port, ip, name, port)
    return h.NodesAsked(job_id, dict(silent))
