"""Prepare this machine for Ray, and start the head's.

`prepare_machine` runs on each node, in this order: the limit of open files, a stale Ray, the ports
of a killed agent's processes, the folder around Ray's temp dir, and the checks that need these.
`start_head` is the head's first second: port, run record, own address, `prepare_machine`, Ray. In
the background `prune_sessions` removes what earlier Rays left on the disk.
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import socket
import stat
import time
from collections.abc import Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
from msgspec.structs import replace

from agent.base import ends, times
from agent.base.ends import Outcome
from agent.base.errors import PreflightError, UnavailableError
from agent.base.value import Value
from agent.checks import PORTS, TEMP_DIR, run_checks
from agent.checks.finding import Level
from agent.checks.machine import WANTED_FILES
from agent.job.services import Placeholders
from agent.node.read import read_folder, source_towards, taken_ports
from agent.plan.page_address import proxied_ip
from agent.port.sockets import bind
from agent.processes.process import Child
from agent.processes.resolving import resolve
from agent.processes.waiting import NotYet, TimedOutError, until
from agent.record.background import result_in_thread
from agent.record.log import say
from agent.run.node_run import start_ray
from agent.settings.rules import may_listen_on

if TYPE_CHECKING:
    from collections.abc import Container, Iterator

    import anyio

    from agent.node.facts import Folder
    from agent.plan.plan import Address, Plan
    from agent.processes.waiting import BestEffort
    from agent.run.node_run import NodeRun
    from agent.run.run_keeper import RunKeeper
    from agent.run.takeover import SurvivingProcesses


_RAY_MARKS = (
    "/ray/core/src/ray/",
    "/ray/dashboard/",
    "/ray/_private/",
    "/ray/autoscaler/_private/",
    "ray.util.client.server",
    "ray::",
    "ray-dashboard-",
)
"""Parts of the command lines of Ray's processes."""


async def prepare_machine(plan: Plan, surviving: SurvivingProcesses | None) -> Outcome | None:
    """Prepare this machine; return the refusal if the run cannot start here.

    A killed agent's surviving processes keep their ports; if its Ray is one of them, nothing is
    prepared.
    """
    raise_open_files(plan.facts.nofile_hard)
    if surviving is not None and surviving.has_ray:
        return None
    ray = plan.own_ray
    if ray is not None:
        _remove_stale_ray(ray.session, everything=plan.topology.owns_machine)

    # Which ports of this run are taken now?
    ports = _ports_to_be_free(plan, surviving)
    if surviving is not None:
        await _wait_for_ports(ports)
    facts = replace(plan.facts, taken_ports=taken_ports(ports))

    # The plan's findings are from before. The checks of ports and temp dir are repeated.
    failed = [finding for finding in plan.failed() if finding.check not in {PORTS, TEMP_DIR}]
    if not failed and ray is not None:
        facts = replace(facts, ray_temp=secure_folder(ray.session, facts.uid))
    for name in (PORTS, TEMP_DIR):
        findings = run_checks(facts, plan.settings, plan.topology, only=name)
        failed += [finding for finding in findings if finding.level is Level.FAIL]
    if not failed:
        return None

    reason = "; ".join(f"{finding.check}: {finding.what}" for finding in failed)
    remedies = dict.fromkeys(f"{finding.remedy}." for finding in failed if finding.remedy)
    remedy = " ".join(remedies).rstrip(".")
    return ends.REFUSED.outcome(reason=reason, culprit=failed[0].check, remedy=remedy)


def _remove_stale_ray(session: str, *, everything: bool) -> None:
    """Kill the processes of an earlier Ray; a port that one keeps is reported by the checks."""
    stale = stale_ray(session, everything=everything)
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


async def _wait_for_ports(ports: list[int]) -> None:
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


def secure_folder(temp: str, uid: int) -> Folder | None:
    """Create the private folder around Ray's temp dir; return what exists then.

    It is created or restricted first and checked afterwards, when nobody else can change it.
    """
    folder = Path(temp).parent
    with suppress(OSError):  # Ray reports a folder that cannot be created
        folder.mkdir(mode=0o700, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            status = os.fstat(handle)
            if status.st_uid == uid and status.st_mode & 0o077:
                os.fchmod(handle, 0o700)
        finally:
            os.close(handle)
    return read_folder(str(folder))


def raise_open_files(hard: int) -> None:
    """Raise the limit of open files as far as allowed: Ray aborts on the usual 1024."""
    wanted = WANTED_FILES if hard == resource.RLIM_INFINITY else min(WANTED_FILES, hard)
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def stale_ray(temp_dir: str, *, everything: bool) -> list[psutil.Process]:
    """Find Ray processes of an earlier run: on a shared host only those with our temp dir.

    Processes of other containers are skipped: a host sees them, and their temp dir may have the
    same name.
    """
    stale = []
    here = _container(os.getpid())
    ours = {os.getpid(), os.getppid()}
    for pid, line in command_lines():
        if pid in ours or not any(mark in line for mark in _RAY_MARKS):
            continue
        is_removed = everything or f"{temp_dir}/" in line
        if is_removed and _container(pid) == here:
            with suppress(psutil.NoSuchProcess):
                stale.append(psutil.Process(pid))
    return stale


def command_lines() -> Iterator[tuple[int, str]]:
    """Yield every process's pid and command line; psutil.Process takes six times as long."""
    for pid in psutil.pids():
        with suppress(OSError):  # it has ended, or it is another user's
            line = Path(f"/proc/{pid}/cmdline").read_bytes()
            yield pid, os.fsdecode(line).replace("\0", " ")


def _container(pid: int) -> str:
    """Return the id of a process's pid namespace, which identifies its container."""
    try:
        return str(Path(f"/proc/{pid}/ns/pid").readlink())
    except OSError:  # it has ended, or it is another user's
        return ""


_SESSION = re.compile(r"session_\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d_\d+_\d+")
KEPT_SESSIONS = 3  # number of ended sessions whose logs are kept
_MOST_FILES = 10_000


def ended_sessions(temp_dir: Path, in_use: Container[str], now: float) -> list[Path]:
    """Return this user's sessions that are not in use nor changed lately, newest first; no links.

    A Ray of another container, whose processes are not visible, writes its logs.
    """
    changed = {}
    for path in temp_dir.glob("session_*"):
        with suppress(OSError):  # it was just removed, or cannot be read
            status = path.lstat()
            is_own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
            if is_own and _SESSION.fullmatch(path.name) and path.name not in in_use:
                files = (path, *islice(path.glob("logs/*"), _MOST_FILES))
                changed[path] = max(file.stat().st_mtime for file in files)

    ended = [path for path, at in changed.items() if at + times.SESSION_QUIET < now]
    return sorted(ended, key=lambda path: -changed[path])


async def prune_sessions(temp_dir: str, best_effort: BestEffort) -> None:
    """Remove old sessions from Ray's temp dir in the background, of the last ones only objects."""

    def prune() -> None:
        in_use = {name for _, line in command_lines() for name in _SESSION.findall(line)}
        ended = ended_sessions(Path(temp_dir), in_use, time.time())
        spilled = [folder for path in ended for folder in path.glob("ray_spilled_objects*")]
        old = ended[KEPT_SESSIONS:]
        for folder in (*spilled, *old):
            shutil.rmtree(folder, ignore_errors=True)  # a failure costs only disk space
        if old:
            say(f"removed {len(old)} earlier session(s) of Ray from {temp_dir}")

    await best_effort("the removal of Ray's earlier sessions", result_in_thread, prune)


async def find_own_address(address: Address, addresses: tuple[str, ...], limit: float) -> str:
    """Return this node's address; wait until its names resolve to one of them."""
    is_foreign = False
    if address.must_be_own:
        limit = min(limit, times.OWN_POD_NAME)

    async def check() -> str | NotYet:
        nonlocal is_foreign
        is_foreign = False
        evidence = list[str]()
        for name in address.names:
            resolved = await resolve(name)
            if isinstance(resolved, str):
                evidence.append(resolved)
                continue

            # Is one of them this node's, or does the route to it show which address is?
            reached = source_towards(resolved[0]) if address.by_route else None
            own = next((ip for ip in resolved if ip in addresses), reached)
            if own is not None:
                return own

            is_foreign = not address.by_route
            problem = "no address of this node" if is_foreign else "to which there is no route"
            evidence.append(f"{name} is {', '.join(resolved)}, {problem}")
            if address.must_be_own:
                raise TimedOutError(evidence[-1])
        return NotYet("; ".join(evidence))

    def log(evidence: str) -> None:
        say(f"waiting for this node's own address: {evidence}")

    try:
        return await until(check, limit, step=0.1, on_evidence=log)
    except TimedOutError as error:
        if is_foreign:
            what = f"this node is not the head it is taken for ({address.how})"
            why = f"{error} (it has: {', '.join(addresses) or 'none'})"
            remedy = "HEAD_POD_ID or AGENT_HEAD must name the head; on a worker set RAY_WORKER=1"
            raise PreflightError(what, why=why, remedy=remedy, culprit="HEAD_POD_ID") from None

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
    run: NodeRun, keeper: RunKeeper, stop_scope: anyio.CancelScope
) -> HeadStart | None:
    """Start Ray as early as possible; return None if a stop request canceled the scope before."""
    plan = run.plan
    settings = plan.settings
    surviving = run.surviving

    # The port first: a second agent on this node ends here, before it changes anything.
    local_socket = bind("127.0.0.1", plan.ports.agent)

    # The run's record, as an agent that replaces this one must find it.
    keeper.note_epoch = run.node.record_epoch
    keeper.save(keeper.record)
    run.folder.become_latest()

    # This node's address; a stop request ends the wait for it.
    ip = ""
    with stop_scope:
        known = plan.facts.addresses()
        ip = plan.address.ip or await find_own_address(plan.address, known, settings.wait_head)
    if not ip:
        return None
    placeholders = Placeholders(ip, ip, "0", str(run.folder.path))
    env = plan.environment(ip, ip)

    # Is the run's end decided already, or does this machine refuse? Then no Ray starts.
    keeps_ray = surviving is not None and surviving.has_ray
    refusal = keeper.final_outcome(settings.job_retries, settings.max_hours)
    if refusal is None:
        refusal = await prepare_machine(plan, surviving)
    elif surviving is not None:
        surviving.end_ray()
    sockets = open_port(plan, ip, refusal)

    # A new Ray is a new epoch. The next agent must not take it for the last attempt's.
    if not keeps_ray and not keeper.is_superseded:
        keeper.new_epoch(plan.topology.node_name)
        if keeper.record.attempts:
            await keeper.flush()

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


def open_port(plan: Plan, ip: str, refusal: Outcome | None) -> list[socket.socket]:
    """Open the agent's port on the head's own address, where workers can report early.

    A head that refuses to run opens it too, so that its workers get the refusal, unless the port
    itself is refused.
    """
    if ip == "127.0.0.1" or (refusal is not None and not may_listen_on(ip, plan.settings)):
        return []  # open already, or not allowed
    proxied = proxied_ip(plan)
    addresses = [ip] if proxied in {None, ip} else [ip, proxied]
    try:
        return [bind(address, plan.ports.agent) for address in addresses]
    except PreflightError:
        if refusal is None:
            raise
        return []  # the refusal explains more
