"""The plan: everything that `run` will do, as data, before anything is touched."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from agent.base.errors import SettingsError
from agent.base.own_command import own_command
from agent.base.ports import Ports, port_map
from agent.checks import Finding, Level, about_names, examine
from agent.checks.job_checks import job_program
from agent.node.ray_versions import honours_token
from agent.plan import environment
from agent.plan.limits import JOIN_LIMIT, SILENCE_LIMIT, SUBMIT_LIMIT
from agent.plan.listeners import NODE_IP, Listener, listeners, port_clashes
from agent.plan.ray_start import RayStart
from agent.plan.stop_budget import Budget, share
from agent.settings.rules import NO_JOB
from agent.work.job import Job, job_of
from agent.work.services import Service, reward_service

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.node.facts import Facts
    from agent.settings import Loaded, Settings
    from agent.topology.resolve import Topology

HEAD_IP = "{head_ip}"


@dataclass(frozen=True)
class PlannedWait:
    """Something that will be waited for, at most this long from the start."""

    what: str
    seconds: float
    variable: str


@dataclass(frozen=True)
class Address:
    """This node's address: known, or to be found in a way that is."""

    ip: str | None
    how: str
    names: tuple[str, ...] = ()
    """Own names to resolve until one of them is an address of this node."""
    must_be_own: bool = False
    """True where a name that turns out to be another node's proves this node is no head."""
    towards: str | None = None
    """The host to which this node's route tells the address."""


@dataclass(frozen=True)
class Plan:
    """All that is decided before anything starts."""

    settings: Settings
    topology: Topology
    facts: Facts
    environ: Mapping[str, str]
    command: tuple[str, ...] | None
    address: Address
    ports: Ports
    ray: RayStart | None
    """How Ray is started here; None where it is given."""
    job: Job | None
    budget: Budget
    waits: tuple[PlannedWait, ...]
    listeners: tuple[Listener, ...]
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    on_done: str

    def service(self, node_ip: str) -> Service | None:
        """Return the reward server, given the address that the head turned out to have."""
        return reward_service(self.settings, self.command, node_ip, self.facts.ray_python)

    def bridge_addresses(self, node_ip: str) -> tuple[str, str]:
        """Return where Ray's GCS and dashboard answer, as this node reaches them."""
        if self.topology.given_ray is not None:
            return self.topology.given_ray.gcs, self.topology.given_ray.dashboard
        assert self.ray is not None  # noqa: S101 - it is given, or ours
        host = f"[{node_ip}]" if ":" in node_ip else node_ip
        listens = self.ray.dashboard_host
        everywhere = {"0.0.0.0", "::", "localhost"}  # noqa: S104 - compared
        near = "127.0.0.1" if listens in everywhere else listens
        near = f"[{near}]" if ":" in near else near
        return f"{host}:{self.ports.gcs}", f"http://{near}:{self.ports.dashboard}"

    def bridge_command(self, node_ip: str) -> list[str]:
        """Return the bridge's argv: it runs in Ray's Python, and is told where Ray answers."""
        where = self.bridge_addresses(node_ip)
        return own_command(self.facts.ray_python, "ray-bridge", *where)

    def environment(self, node_ip: str, head_ip: str) -> dict[str, str]:
        """Return what is found in their environment by all that this node starts."""
        environ, settings, given = self.environ, self.settings, self.topology.given_ray
        if given is not None:
            return environment.for_given_ray(environ, settings, node_ip, given.gcs_host)
        if self.topology.is_head:
            return environment.for_head(environ, settings, self.facts, node_ip, self.budget.job)
        return environment.for_node(environ, settings, self.facts, node_ip, head_ip)

    def job_id(self, run_id: str) -> str:
        """Return the id of the submission; whose Ray it is may expect a certain one."""
        given = self.topology.given_ray
        return (None if given is None else given.submission_id) or f"{run_id}-1"

    @property
    def ray_session(self) -> str | None:
        """Return the folder of Ray's sessions on this machine, if the head's Ray is on it."""
        if self.ray is not None:
            return self.ray.temp_dir
        return self.topology.given_ray.session if self.topology.given_ray is not None else None

    def ray_and_service_ports(self) -> list[int]:
        """Return the fixed ports but the agent's own."""
        others = [x.port for x in self.listeners if x.port != str(self.ports.agent)]
        return [int(port) for port in others if port.isdigit()]

    def failed(self) -> tuple[Finding, ...]:
        """Return the findings that forbid a run."""
        return tuple(f for f in self.findings if f.level is Level.FAIL)

    @property
    def token(self) -> str | None:
        """Return the cluster's secret."""
        secret = self.settings.ray_auth_token
        return None if secret is None else secret.reveal()


def new_run_id() -> str:
    """Make an id for a run that no platform names."""
    return time.strftime("%Y%m%d-%H%M%S", time.gmtime()) + "-" + secrets.token_hex(2)


def make_plan(
    loaded: Loaded,
    topology: Topology,
    facts: Facts,
    environ: Mapping[str, str],
    runtime_env: dict[str, object],
) -> Plan:
    """Decide everything that can be decided now."""
    settings = loaded.settings
    ports = _ports(settings, topology, loaded.command)
    guarded = settings.ray_auth_token is not None and honours_token(facts.ray)
    dashboard_host = settings.dashboard_host or (
        "0.0.0.0" if guarded else "127.0.0.1"  # noqa: S104 - guarded by the token
    )
    ray = RayStart(
        settings,
        replace(facts, cpus=min(facts.cpus, topology.cpus or facts.cpus)),
        ports,
        temp_dir(facts, topology.job_id),
        dashboard_host,
        topology.memory,
    )
    return Plan(
        settings=settings,
        topology=topology,
        facts=facts,
        environ=environ,
        command=loaded.command,
        address=_address(topology, settings, facts),
        ports=ports,
        ray=ray if topology.given_ray is None else None,
        job=job_of(settings, loaded.command, runtime_env, facts.ray_python)
        if topology.is_head
        else None,
        budget=share(settings.stop_grace),
        waits=_waits(settings, topology, loaded.command),
        listeners=listeners(settings, topology, loaded.command, ray, guarded=guarded),
        findings=(
            *examine(facts, settings, topology),
            *job_program(facts, settings, topology),
            *about_names(loaded.slips),
        ),
        notes=(*loaded.notes, *topology.notes, *_notes(settings, topology, facts)),
        on_done=settings.on_done or _default_on_done(topology, facts),
    )


def temp_dir(facts: Facts, job_id: str | None = None) -> str:
    """Return Ray's temp dir: ours alone, on a shared host this job's alone.

    It is short, since socket paths end at 107 bytes, 62 of which Ray's session needs.
    """
    return f"{private_folder(facts, job_id)}/ray"


def private_folder(facts: Facts, job_id: str | None = None) -> str:
    """Return the folder around Ray's temp dir, which nobody else may enter.

    Ray opens its temp dir to everybody at each start (mode 0777, 2.40 to 2.60), so that dir itself
    could not keep others out.
    """
    user = "" if facts.uid == 0 else f"-{facts.uid}"
    job = "" if job_id is None else f"-j{job_id}"
    return f"/tmp/pod-agent{user}{job}"


def _ports(settings: Settings, topology: Topology, command: tuple[str, ...] | None) -> Ports:
    """Lay out the ports from where the platform begins, and keep them clear of each other."""
    clashes = port_clashes(settings, command, topology.ports, topology.given_ray)
    if clashes:
        raise SettingsError(clashes)
    return port_map(settings.ray_port, settings.dashboard_port, settings.port, topology.ports)


def log_root(settings: Settings) -> Path:
    """Return the folder that holds the runs' folders."""
    return Path(settings.log_dir).expanduser()


def _default_on_done(topology: Topology, facts: Facts) -> str:
    return "hold" if topology.restarts and facts.is_first_process else "exit"


def _address(  # noqa: PLR0911 - an ordered list of ways, the first that applies wins
    topology: Topology, settings: Settings, facts: Facts
) -> Address:
    if settings.node_ip is not None:
        return Address(settings.node_ip, "AGENT_NODE_IP")
    if not topology.is_head:
        return Address(None, f"the source address of the route to {topology.head_host}")
    given = topology.given_ray
    if given is not None and given.session is None:
        how = f"the source address of the route to {given.gcs_host}"
        return Address(None, how, towards=given.gcs_host)
    if topology.must_own_head_host:
        how = f"{topology.head_host}, which must be this node"
        return Address(None, how, topology.own_names, must_be_own=True)
    named = topology.head_host
    mine = facts.own_address_of(named, topology.seen_at) if named else None
    if mine is not None:  # first, since it is where the others will call
        return Address(mine, f"{topology.head_host} is an address of this node")
    between = facts.interfaces.get(topology.interface or "", ())
    if between and topology.head_host is not None:
        return Address(between[0], f"interface {topology.interface}")
    names = (topology.head_host,) if topology.head_host else ()
    if names:
        return Address(None, f"what {names[0]} resolves to", names)
    if facts.default_source is not None:
        return Address(facts.default_source, "the source address of the default route")
    return Address(next(iter(facts.addresses()), "127.0.0.1"), "the only address found")


def _waits(
    settings: Settings, topology: Topology, command: tuple[str, ...] | None
) -> tuple[PlannedWait, ...]:
    if topology.is_idle:
        return ()
    owner = "the head's" if topology.given_ray is None else f"{topology.given_ray.owner}'s"
    found = [PlannedWait(f"{owner} Ray", settings.wait_head, "AGENT_WAIT_HEAD")]
    if not topology.is_head:
        found[0] = PlannedWait(
            f"the head {topology.head_host}", settings.wait_head, found[0].variable
        )
    if settings.prepare_each or (settings.prepare and topology.is_head):
        found.append(PlannedWait("prepare steps", settings.wait_prepare, "AGENT_WAIT_PREPARE"))
    if topology.is_head and reward_service(settings, command, NODE_IP):
        found.append(PlannedWait("the reward server", settings.wait_reward, "AGENT_WAIT_REWARD"))
    if topology.is_head and topology.expected_workers:
        workers = f"{topology.expected_workers} worker(s)"
        found.append(PlannedWait(workers, settings.wait_workers, "AGENT_WAIT_WORKERS"))
    if topology.is_head and (command is not None or settings.job != NO_JOB):
        found.append(PlannedWait("Ray to take the job, from the first try", SUBMIT_LIMIT, "fixed"))
        found.append(PlannedWait("word of the running job from Ray", SILENCE_LIMIT, "fixed"))
    if not topology.is_head:
        found.append(PlannedWait("Ray on this node to join, per join", JOIN_LIMIT, "fixed"))
    found.append(PlannedWait("a lost node", settings.node_grace, "AGENT_NODE_GRACE"))
    found.append(PlannedWait("a stop, all in all", settings.stop_grace, "AGENT_STOP_GRACE"))
    return tuple(found)


def _notes(settings: Settings, topology: Topology, facts: Facts) -> tuple[str, ...]:
    given = topology.given_ray
    if topology.is_idle:
        return ()
    if given is not None:
        whose = f"the job's environment is that of {given.owner}'s pods"
        there = "WANDB_API_KEY and NCCL_* belong there"
        grace = "RAY_JOB_STOP_WAIT_TIME_S on the head's (without it a stopped job has 3 s)"
        elsewhere = "AGENT_PREPARE runs in this pod, not on Ray's head: on a shared disk it helps"
        notes = (f"{whose}: {there}, {grace}",)
        return (*notes, elsewhere) if settings.prepare and given.session is None else notes
    if settings.wandb_api_key is None and facts.wandb_login:
        return ("WANDB_API_KEY is not set: W&B has this machine's `wandb login`",)
    if settings.wandb_api_key is None:
        return ("WANDB_API_KEY is not set: W&B stays offline",)
    return ()
