"""Prepare this machine for Ray, and start the head's.

`prepare_machine` runs on each node, in this order: the limit of open files, a stale Ray, the ports
of a killed agent's processes, the folder around Ray's temp dir, and the checks that need these.
`start_head` is the head's first second: port, run record, own address, `prepare_machine`, Ray. In
the background `prune_sessions` removes what earlier Rays left on the disk.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

import anyio
import psutil
from msgspec.structs import replace

from agent.base import ends, times
from agent.base.ends import Kind, Outcome
from agent.base.errors import PreflightError, UnavailableError
from agent.base.text import duration_text
from agent.base.value import Value
from agent.checks import NAMES, OWN_NAME, PORTS, TEMP_DIR, run_checks
from agent.checks.finding import Finding, Level
from agent.job.services import Placeholders
from agent.node.read import taken_ports
from agent.plan.page_address import proxied_ip
from agent.port.node_network import NETWORK
from agent.processes.process import Child
from agent.processes.stale_ray import stale_ray
from agent.processes.waiting import NotYet, TimedOutError, until
from agent.record.log import say
from agent.run.node_run import start_ray
from agent.settings.rules import may_listen_on

if TYPE_CHECKING:
    from agent.plan.plan import Address, Plan
    from agent.port.node_network import Network
    from agent.run.effects import TakenPorts
    from agent.run.node_run import NodeRun
    from agent.run.run_store import RunStore
    from agent.run.takeover import SurvivingProcesses
    from agent.settings.redact import Redactor


OWN_POD_NAME = 20.0  # For the DNS name of a pod that runs already: an ssh shell is in it.


async def prepare_machine(run: NodeRun) -> Outcome | None:
    """Prepare this machine; return the refusal if the run cannot start here.

    A killed agent's surviving processes keep their ports; if its Ray is one of them, nothing is
    prepared.
    """
    plan = run.plan
    surviving = run.surviving
    machine = run.effects.machine
    machine.raise_open_files()
    if surviving is not None and surviving.has_ray:
        return None
    ray = plan.own_ray
    if ray is not None:
        stale = machine.stale_ray(ray.session, everything=plan.topology.owns_machine)
        _remove_stale_ray(stale)

    # Which ports of this run are taken now?
    ports = _ports_to_be_free(plan, surviving)
    if surviving is not None:
        await _wait_for_ports(ports, machine.taken_ports)
    facts = replace(plan.facts, taken_ports=machine.taken_ports(ports))

    # The plan's findings are from before. The checks of ports and temp dir are repeated.
    failed = [finding for finding in plan.failed() if finding.check not in {PORTS, TEMP_DIR}]
    if not failed and ray is not None:
        facts = replace(facts, ray_temp=machine.secure_folder(ray.session, facts.uid))
    for name in (PORTS, TEMP_DIR):
        findings = run_checks(facts, plan.settings, plan.topology, only=name)
        failed += [finding for finding in findings if finding.level is Level.FAIL]
    if not failed:
        return None

    reason = "; ".join(f"{finding.check}: {finding.what}" for finding in failed)
    remedies = dict.fromkeys(f"{finding.remedy}." for finding in failed if finding.remedy)
    remedy = " ".join(remedies).rstrip(".")
    return ends.REFUSED.outcome(reason=reason, culprit=failed[0].check, remedy=remedy)


def _remove_stale_ray(stale: list[psutil.Process]) -> None:
    """Kill the processes of an earlier Ray; a port that one keeps is reported by the checks."""
    if not stale:
        return
    say(f"removing a stale Ray ({len(stale)} processes)", "warning")
    for process in stale:
        with suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(stale, timeout=3.0)


def _ports_to_be_free(plan: Plan, surviving: SurvivingProcesses | None) -> list[int]:
    """Return the ports that nothing may listen on: neither the agent's nor an adopted process's."""
    adopted = frozenset[str]() if surviving is None else frozenset(surviving.running)
    ports = {
        int(listener.port)
        for listener in plan.listeners
        if listener.port.isdigit() and listener.who not in adopted
    }
    return sorted(ports - {plan.ports.agent})


async def _wait_for_ports(ports: list[int], taken_ports: TakenPorts) -> None:
    """Wait for the ports of killed processes, which keep them until their last moment."""

    async def are_free() -> bool | NotYet:
        return NotYet() if taken_ports(ports) else True

    if taken_ports(ports):
        with suppress(TimedOutError):
            await until(are_free, times.DESCENDANTS_EXIT)


def with_taken_ports(plan: Plan) -> Plan:
    """Add to a plan the ports that are taken now, apart from those of a Ray that `run` removes."""
    ports = [int(listener.port) for listener in plan.listeners if listener.port.isdigit()]
    taken = taken_ports(ports)
    if taken and plan.own_ray is not None:
        stale = stale_ray(plan.own_ray.session, everything=plan.topology.owns_machine)
        taken = taken_ports(taken, leaving=[process.pid for process in stale])

    facts = replace(plan.facts, taken_ports=taken)
    about_ports = run_checks(facts, plan.settings, plan.topology, only=PORTS)
    others = [finding for finding in plan.findings if finding.check != PORTS]
    return replace(plan, facts=facts, findings=(*others, *about_ports))


class OwnAddress(Value):
    """The result of one lookup of this node's own names."""

    ip: str  # '' if none of them is an address of this node
    evidence: str = ""
    is_foreign: bool = False  # whether one of them is an address of another node


async def look_up_own_address(
    address: Address, addresses: tuple[str, ...], network: Network = NETWORK
) -> OwnAddress:
    """Resolve this node's own names once."""
    is_foreign = False
    evidence = list[str]()
    for name in address.names:
        resolved = await network.resolve(name)
        if isinstance(resolved, str):
            evidence.append(resolved)
            continue

        # Is one of them this node's, or does the route to it show which address is?
        reached = network.source_towards(resolved[0]) if address.by_route else None
        own = next((ip for ip in resolved if ip in addresses), reached)
        if own is not None:
            return OwnAddress(own)

        is_foreign = not address.by_route
        problem = "no address of this node" if is_foreign else "to which there is no route"
        evidence.append(f"{name} is {', '.join(resolved)}, {problem}")
    return OwnAddress("", "; ".join(evidence), is_foreign)


def not_the_head(address: Address, addresses: tuple[str, ...], evidence: str) -> PreflightError:
    """Return the error of a node whose own name is another node's."""
    what = f"this node is not the head it is taken for ({address.how})"
    why = f"{evidence} (it has: {', '.join(addresses) or 'none'})"
    remedy = "HEAD_POD_ID or AGENT_HEAD must name the head; on a worker set RAY_WORKER=1"
    return PreflightError(what, why=why, remedy=remedy, culprit="HEAD_POD_ID")


def with_own_address(plan: Plan, network: Network = NETWORK) -> Plan:
    """Look this head's own names up, as `run` does first; add what it finds to the plan.

    `run` waits for a name that is wrong or unknown, unless it must be this node's.
    """
    address = plan.address
    if not address.names:
        return plan
    addresses = plan.facts.addresses()
    found = anyio.run(look_up_own_address, address, addresses, network)
    if found.ip:
        finding = Finding(OWN_NAME, Level.OK, f"{found.ip} ({address.how})")
    elif found.is_foreign and address.must_be_own:
        error = not_the_head(address, addresses, found.evidence)
        finding = Finding(OWN_NAME, Level.FAIL, error.reason, error.remedy)
    else:
        limit = OWN_POD_NAME if address.must_be_own else plan.settings.wait_head
        what = f"{found.evidence}: `run` waits for it, for {duration_text(limit)}"
        finding = Finding(OWN_NAME, Level.WARN, what, "Check HEAD_POD_ID and DNS")
    count = sum(one.check == NAMES for one in plan.findings)  # They come first
    others = plan.findings[count:]
    return replace(plan, findings=(*plan.findings[:count], finding, *others))


async def find_own_address(
    address: Address, addresses: tuple[str, ...], limit: float, network: Network = NETWORK
) -> str:
    """Return this node's address; wait until its names resolve to one of them."""
    if address.must_be_own:
        limit = min(limit, OWN_POD_NAME)
    found = OwnAddress("")

    async def check() -> str | NotYet:
        nonlocal found
        found = await look_up_own_address(address, addresses, network)
        if found.is_foreign and address.must_be_own:
            raise TimedOutError(found.evidence)
        return found.ip or NotYet(found.evidence)

    def log(evidence: str) -> None:
        say(f"waiting for this node's own address: {evidence}")

    try:
        return await until(check, limit, step=0.1, on_evidence=log)
    except TimedOutError as error:
        if found.is_foreign:
            raise not_the_head(address, addresses, found.evidence) from None

        what = f"this node's address could not be found as {address.how}"
        why = str(error)
        if address.must_be_own:
            remedy = "Correct HEAD_POD_ID; on a worker set RAY_WORKER=1, on one machine unset both"
            raise PreflightError(what, why=why, remedy=remedy, culprit="HEAD_POD_ID") from None
        remedy = "Check HEAD_POD_ID and DNS, or set AGENT_NODE_IP"
        raise UnavailableError(what, why=why, remedy=remedy, culprit="DNS") from None


class HeadStart(Value):
    """The result of the head's first second."""

    placeholders: Placeholders
    env: Mapping[str, str]
    local_socket: socket.socket  # the agent's port on loopback
    sockets: list[socket.socket]  # the agent's port on this node's own address
    refusal: Outcome | None  # the refusal of this node's checks; then nothing was started
    ray: Child | None  # this node's Ray, where the agent starts it


async def start_head(
    run: NodeRun, store: RunStore, stop_scope: anyio.CancelScope
) -> HeadStart | None:
    """Start Ray as early as possible; return None if a stop request canceled the scope before."""
    plan = run.plan
    settings = plan.settings
    surviving = run.surviving
    network = run.effects.network

    # The port first: a second agent on this node ends here, before it changes anything.
    local_socket = network.bind("127.0.0.1", plan.ports.agent)

    # The run's record, as an agent that replaces this one must find it.
    store.note_epoch = run.node.record_epoch
    store.put(store.durable, run.now())
    run.folder.become_latest()

    # This node's address; a stop request ends the wait for it.
    ip = ""
    with stop_scope:
        known = plan.facts.addresses()
        ip = plan.address.ip or await find_own_address(
            plan.address, known, settings.wait_head, network
        )
    if not ip:
        return None
    placeholders = Placeholders(ip, ip, "0", str(run.folder.path))
    env = plan.environment(ip, ip)

    # Is the run's end decided already, or does this machine refuse? Then no Ray starts.
    keeps_ray = surviving is not None and surviving.has_ray
    limits = (settings.max_hours, settings.max_cost)
    refusal = store.outcome_at_start(settings.job_retries, *limits)
    if refusal is None:
        refusal = await prepare_machine(run)
    elif surviving is not None:
        surviving.end_ray()
    sockets = bind_own_address(plan, ip, refusal, network)

    # A new Ray is a new epoch. The next agent must not take it for the last attempt's.
    if not keeps_ray and not store.is_superseded:
        durable = store.durable.starting_ray(plan.topology.node_name, time.time())
        store.put(durable, run.now())
        if durable.ended or durable.open_attempt is not None:
            await store.on_disk()

    ray = None
    if refusal is None and plan.own_ray is not None:
        ray = await start_ray(run, placeholders, env)
    return HeadStart(
        placeholders=placeholders,
        env=env,
        local_socket=local_socket,
        sockets=sockets,
        refusal=refusal,
        ray=ray,
    )


def refusal_of_head(plan: Plan, redactor: Redactor, refusal: Outcome) -> Outcome:
    """Return the head's refusal without secrets, and with its name where workers read it."""
    refusal = redactor.clean_fields(refusal)
    if not plan.topology.expected_workers or refusal.kind is not Kind.REFUSED:
        return refusal
    return replace(refusal, reason=f"on the head {plan.topology.node_name}: {refusal.reason}")


def bind_own_address(
    plan: Plan, ip: str, refusal: Outcome | None, network: Network = NETWORK
) -> list[socket.socket]:
    """Bind the agent's port on the head's own address, where workers can report early.

    A head that refuses to run binds it too, so that its workers get the refusal, unless the port
    itself is refused.
    """
    if ip == "127.0.0.1" or (refusal is not None and not may_listen_on(ip, plan.settings)):
        return []  # open already, or not allowed
    proxied = proxied_ip(plan)
    addresses = [ip] if proxied in {None, ip} else [ip, proxied]
    try:
        return [network.bind(address, plan.ports.agent) for address in addresses]
    except PreflightError:
        if refusal is None:
            raise
        return []  # the refusal explains more
