"""The head's first second: its address, its port, its checks, and Ray's start.

All else that the head does is loaded once Ray boots: this file imports only what it needs itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from agent.base.value import dataclass
from agent.boot import head_port, make_ready
from agent.boot.own_address import find_own_address
from agent.boot.requests import Requests
from agent.control.sockets import bind
from agent.plan.plan import RAY
from agent.record.log import say
from agent.runtime import signals
from agent.work.where import Place

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping

    from agent.base.outcome import Outcome
    from agent.boot.node_run import NodeRun
    from agent.boot.run_keeper import RunKeeper
    from agent.runtime.process import Child


@dataclass(frozen=True)
class HeadStart:
    """What is there once the first second is over."""

    place: Place
    env: Mapping[str, str]
    local: list[socket.socket]
    """The agent's port on loopback."""
    listens: list[socket.socket]
    """The agent's port on this node's own address."""
    unfit: Outcome | None
    """The refusal of this node's own checks; nothing was started then."""
    ray: Child | None
    """This node's Ray, where it is ours to start."""


async def run(node_run: NodeRun, keeper: RunKeeper) -> Outcome:
    """Be the head."""
    requests = Requests()
    async with anyio.create_task_group() as tasks:
        await tasks.start(signals.watch, requests.stop, requests.notice)
        begun = await _begin(node_run, keeper, requests)
        if begun is None:
            outcome = requests.outcome(expected=node_run.plan.job is None)
        else:
            from agent.boot.head import Head  # noqa: PLC0415 - 20 ms, while Ray boots

            head = Head(node_run, keeper, begun)
            requests.hand_to(head.on_signal, head.on_notice)
            outcome = await head.run(tasks)
        tasks.cancel_scope.cancel()
    return outcome


async def _begin(run: NodeRun, keeper: RunKeeper, requests: Requests) -> HeadStart | None:
    """Start Ray as soon as may be; None where a stop was asked for before."""
    plan = run.plan
    # The port before all else: a second agent on this node ends here, and harms nothing.
    local = bind(["127.0.0.1"], plan.ports.agent)
    keeper.begin()
    run.folder.become_latest()
    ip = ""
    with requests.guard():
        limit = plan.settings.wait_head
        ip = await find_own_address(plan.address, plan.facts.addresses(), limit)
    if not ip:
        return None
    place = Place(ip, ip, "0", str(run.folder.path))
    env = plan.environment(ip, ip)
    goes_on = run.left is not None and run.left.has_ray
    unfit = keeper.spent(plan.settings.job_retries)
    if unfit is not None and run.left is not None:
        run.left.end_ray()
    if unfit is None:
        unfit = make_ready.make_ready(plan, run.left)
    listens = head_port.open_port(plan, ip, unfit)
    if not goes_on:
        keeper.new_epoch(plan.topology.node_name)
    ray = None
    if unfit is None and plan.own_ray is not None:
        ray = await start_ray(run, place, env)
    return HeadStart(place, env, local, listens, unfit, ray)


async def start_ray(run: NodeRun, place: Place, env: Mapping[str, str]) -> Child:
    """Start this node's Ray."""
    if run.left is None or not run.left.has_ray:
        say(f"starting Ray's head on {place.node_ip}:{run.plan.ports.gcs}")
    process = run.plan.process(RAY)
    return await run.start(process.name, process.command(place), env, process.log)
