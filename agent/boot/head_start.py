"""The head's first second: its address, its port, its checks, and `ray start`."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from agent.base.errors import PreflightError, UnavailableError
from agent.base.outcome import Outcome
from agent.base.value import Value
from agent.boot import make_ready
from agent.control.sockets import bind
from agent.decisions.values import Wait
from agent.node.addresses import source_towards
from agent.plan.listeners import may_listen_on
from agent.plan.plan import RAY
from agent.record.log import say
from agent.runtime.dns import resolve
from agent.runtime.process import Child
from agent.runtime.waiting import NotYet, TimedOutError, until
from agent.work.where import Placeholders

if TYPE_CHECKING:
    import anyio

    from agent.boot.node_run import NodeRun
    from agent.boot.run_keeper import RunKeeper
    from agent.plan.plan import Address, Plan


async def find_own_address(address: Address, addresses: tuple[str, ...], limit: float) -> str:
    """Return this node's address; wait until its names resolve to one of them."""
    if address.ip is not None:
        return address.ip

    foreign: list[str] = []
    began = time.monotonic()

    def log_wait(evidence: str) -> None:
        wait = Wait("address", "this node's own address", limit, evidence)
        say(wait.sentence(time.monotonic() - began))

    async def check() -> str | NotYet:
        foreign.clear()
        if address.route_to is not None:
            return await _by_route(address.route_to)
        return await _by_names(address, addresses, foreign)

    try:
        return await until(check, limit, step=0.1, on_evidence=log_wait)
    except TimedOutError as error:
        if foreign:
            raise _not_ours(address, error.evidence, addresses) from None
        raise UnavailableError(
            f"this node's address could not be found as {address.how}",
            why=error.evidence,
            remedy="Check DNS, or set AGENT_NODE_IP"
            if address.route_to
            else "Check HEAD_POD_ID and DNS, or set AGENT_NODE_IP",
            culprit="DNS",
        ) from None


async def _by_route(host: str) -> str | NotYet:
    found = await resolve(host)
    if isinstance(found, str):
        return NotYet(found)
    return source_towards(found[0]) or NotYet(f"no route to {host} ({found[0]})")


async def _by_names(
    address: Address, addresses: tuple[str, ...], foreign: list[str]
) -> str | NotYet:
    """Resolve own names; add those that resolve to other nodes to `foreign`."""
    evidence = []
    for name in address.names:
        found = await resolve(name)
        if isinstance(found, str):
            evidence.append(found)
            continue
        mine = next((a for a in found if a in addresses), None)
        if mine is not None:
            return mine
        evidence.append(f"{name} is {', '.join(found)}, no address of this node")
        foreign.append(name)
        if address.must_be_own:
            raise _not_ours(address, evidence[-1], addresses)
    return NotYet("; ".join(evidence))


def _not_ours(address: Address, evidence: str, addresses: tuple[str, ...]) -> PreflightError:
    own = ", ".join(addresses) or "none"
    return PreflightError(
        f"this node is not the head it is taken for ({address.how})",
        why=f"{evidence} (it has: {own})",
        remedy="On the head, HEAD_POD_ID or AGENT_HEAD must name this node; on a worker "
        "set RAY_WORKER=1",
        culprit="HEAD_POD_ID",
    )


class HeadStart(Value):
    """The result of the head's first second."""

    placeholders: Placeholders
    env: Mapping[str, str]
    local_sockets: list[socket.socket]
    """The agent's port on loopback."""
    sockets: list[socket.socket]
    """The agent's port on this node's own address."""
    refusal: Outcome | None
    """The refusal of this node's checks; then nothing was started."""
    ray: Child | None
    """This node's Ray, where the agent starts it."""


async def start(run: NodeRun, keeper: RunKeeper, stop_scope: anyio.CancelScope) -> HeadStart | None:
    """Start Ray as early as possible; return None if a stop was requested before.

    A stop request cancels the scope.
    """
    plan = run.plan
    # The port first: a second agent on this node ends here, before it changes anything.
    local_sockets = bind(["127.0.0.1"], plan.ports.agent)
    keeper.save_former_state()
    run.folder.become_latest()
    ip = ""
    with stop_scope:
        limit = plan.settings.wait_head
        ip = await find_own_address(plan.address, plan.facts.addresses(), limit)
    if not ip:
        return None
    placeholders = Placeholders(ip, ip, "0", str(run.folder.path))
    env = plan.environment(ip, ip)
    keeps_ray = run.surviving is not None and run.surviving.has_ray
    refusal = keeper.final_outcome(plan.settings.job_retries)
    if refusal is not None and run.surviving is not None:
        run.surviving.end_ray()
    if refusal is None:
        refusal = make_ready.prepare_machine(plan, run.surviving)
    sockets = open_port(plan, ip, refusal)
    if not keeps_ray:
        keeper.new_epoch(plan.topology.node_name)
    ray = None
    if refusal is None and plan.own_ray is not None:
        ray = await start_ray(run, placeholders, env)
    return HeadStart(placeholders, env, local_sockets, sockets, refusal, ray)


def open_port(plan: Plan, ip: str, refusal: Outcome | None) -> list[socket.socket]:
    """Open the agent's port on the head's own address, where workers can report early.

    A head that refuses to run opens it too, so that its workers get the refusal, unless the port
    itself is refused.
    """
    if ip == "127.0.0.1":  # already open
        return []
    if refusal is not None and not may_listen_on(ip, plan.settings):
        return []
    try:
        return bind([ip], plan.ports.agent)
    except PreflightError:
        if refusal is None:
            raise
        return []  # the refusal explains more


async def start_ray(run: NodeRun, placeholders: Placeholders, env: Mapping[str, str]) -> Child:
    """Start this node's Ray."""
    if run.surviving is None or not run.surviving.has_ray:
        say(f"starting Ray's head on {placeholders.node_ip}:{run.plan.ports.gcs}")
    process = run.plan.process(RAY)
    return await run.start(process.name, process.command(placeholders), env, process.log)
