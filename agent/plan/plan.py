"""The plan as data: everything that `run` will do."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from agent.base import times
from agent.base.ports import Ports
from agent.base.value import Value
from agent.checks.finding import Finding, Level
from agent.job.compile_caches import CompileCaches
from agent.job.gpu_split import GpuSplit
from agent.job.groups import NodeGroup, is_kept_from_ray
from agent.job.job import Job
from agent.job.services import (
    HttpProbe,
    PrepareStep,
    ServiceSpec,
    service_log,
    service_only_ranks,
    step_log,
)
from agent.node.facts import Facts
from agent.plan import environment
from agent.plan.ray_start import OwnRay
from agent.platforms.rank_variables import GivenRay
from agent.platforms.resolve import Topology
from agent.settings.model import Settings, secret_texts

if TYPE_CHECKING:
    from agent.job.node_command import NodeCommand
    from agent.job.services import Placeholders
    from agent.job.share import ShareLauncher
    from agent.job.torchrun_command import Torchrun

    Launch = OwnRay | GivenRay | Torchrun | NodeCommand


class Address(Value):
    """This node's address, or how `run` finds it."""

    ip: str | None
    how: str
    names: tuple[str, ...] = ()  # names to resolve until one yields an address of this node
    must_be_own: bool = False  # whether a name that resolves to another node ends the run
    by_route: bool = False  # whether a name may be another host's, to which the route leads


def address_of(  # noqa: PLR0911 - an ordered list, the first that applies wins
    topology: Topology, settings: Settings, facts: Facts
) -> Address:
    """Choose the address, or how to find it."""
    named = topology.head_host
    platform = topology.platform
    given = topology.given_ray

    # Set by the user, or shown by the route to the head or to a given Ray.
    if settings.node_ip is not None:
        return Address(settings.node_ip, "AGENT_NODE_IP")
    if not topology.is_head:
        return Address(None, f"the source address of the route to {named}")
    if given is not None and given.session is None:
        how = f"the source address of the route to {given.gcs_host}"
        return Address(None, how, (given.gcs_host,), by_route=True)

    # On the head: the address of its name comes first, since other nodes connect to it.
    if topology.must_own_head_host:
        how = f"{named}, which must be this node"
        return Address(None, how, platform.own_names, must_be_own=True)
    own = facts.own_address_of(named, platform.reported_address) if named else None
    if own is not None:
        return Address(own, f"{named} is an address of this node")
    between = facts.interfaces.get(platform.interface or "", ())
    if between and named is not None:
        return Address(between[0], f"interface {platform.interface}")
    if named:
        return Address(None, f"what {named} resolves to", (named,))

    # Nothing names the head.
    if facts.default_source is not None:
        return Address(facts.default_source, "the source address of the default route")
    return Address(next(iter(facts.addresses()), "127.0.0.1"), "the only address found")


RAY = "ray start"
RAY_LOG = "ray-start.log"
AGENT_LOG = "agent.log"
JOB_LOG = "job.log"
ALL_REDUCE = "all-reduce"
PREFLIGHT_LOG = "preflight.log"
BRIDGE = "ray bridge"
READ_AHEAD = "page cache"
READ_AHEAD_LOG = "page-cache.log"
CACHES_LOG = "compile-caches.log"


class PlannedProcess(Value):
    """A process of the agent's own on this node: Ray, the bridge, the all-reduce."""

    name: str
    label: str  # its purpose in a word, as `plan` shows it
    argv: tuple[str, ...]  # its command, with placeholders for values that only the run knows
    log: str

    def command(self, place: Placeholders) -> list[str]:
        """Return the argv with placeholders filled in."""
        return [place.fill(word) for word in self.argv]


class StopBudget(Value):
    """Seconds for each phase of a stop; together less than AGENT_STOP_GRACE."""

    job: float
    final_replies: float  # for workers to receive the verdict before the head's port closes
    services: float
    ray: float
    leftovers: float
    output: float  # for the rest of the job's output to be copied
    bundle: float  # for the diagnostics bundle after a failure, out of the time for KILL and exit


def stop_budget(grace: float) -> StopBudget:
    """Split a grace into phases; the job gets the rest, and a short grace shrinks all."""
    scale = min(1.0, grace / times.STOP_WHOLE)
    return StopBudget(
        job=grace - times.STOP_PARTS * scale,
        final_replies=times.STOP_FINAL_REPLIES * scale,
        services=times.STOP_SERVICES * scale,
        ray=times.STOP_RAY * scale,
        leftovers=times.STOP_LEFTOVERS * scale,
        output=times.STOP_OUTPUT * scale,
        bundle=times.STOP_BUNDLE * scale,
    )


class PlannedWait(Value):
    """A wait and its limit."""

    key: str  # the key for the decisions; for a service its name
    what: str
    seconds: float
    variable: str = "fixed"


class Listener(Value):
    """A port of this node: the process that listens, the address, and what guards it."""

    port: str
    who: str
    bind: str
    guard: str


class Plan(Value):
    """Everything that is decided before anything starts."""

    settings: Settings
    topology: Topology
    facts: Facts
    environ: Mapping[str, str]
    command: tuple[str, ...] | None
    address: Address
    ports: Ports
    launch: Launch
    gpu_split: GpuSplit
    expected_gpus: tuple[int, ...]  # the job's, of the head and each expected worker
    job: Job | None  # on the head; without Ray on every node
    recipe_env: Mapping[str, str]  # environment variables of a recipe, for every node
    steps: tuple[PrepareStep, ...]  # the prepare steps of this node
    all_steps: tuple[PrepareStep, ...]  # those of the run, with this node's fetch of the model
    services: tuple[ServiceSpec, ...]  # the services of this node
    possible_services: tuple[ServiceSpec, ...]  # with those that its rank may add
    all_services: tuple[ServiceSpec, ...]  # the services of the whole run
    groups: tuple[NodeGroup, ...]  # of nodes beside the trainer, with their ranks
    budget: StopBudget
    on_done: str
    processes: tuple[PlannedProcess, ...] = ()
    waits: tuple[PlannedWait, ...] = ()
    listeners: tuple[Listener, ...] = ()
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()
    caches: CompileCaches | None = None  # the compile caches of this node, if they are kept
    why_no_caches: str = ""  # why they are not, though they could be expected
    resumes_from: str = ""  # the checkpoint that the recipe would resume from, where it is shown

    @property
    def joins_cluster(self) -> bool:
        """Return whether this node runs Ray or a share of the job, not only a service.

        Before the head gives ranks a node without the name of a group may do so.
        """
        is_service_only = self.topology.own_rank in service_only_ranks(self.all_services)
        is_of_group = is_kept_from_ray(self.groups, self.own_group, None)
        return not (self.topology.is_idle or is_service_only or is_of_group)

    @property
    def own_group(self) -> str:
        """Return the group that this node names, or ''; `trainer` for those in none."""
        return self.settings.group or self.topology.platform.group

    @property
    def nodes(self) -> int:
        """Return how many nodes the run has, with those that join no Ray."""
        return self.topology.expected_workers + 1 + len(service_only_ranks(self.all_services))

    @property
    def trainer_nodes(self) -> int:
        """Return how many nodes the job counts: those that join Ray, without those of a group."""
        in_groups = sum(group.nodes for group in self.groups if group.ray)
        return self.topology.expected_workers + 1 - in_groups

    @property
    def own_ray(self) -> OwnRay | None:
        """Return the Ray that the agent starts, if it does."""
        return self.launch if isinstance(self.launch, OwnRay) else None

    @property
    def share_launcher(self) -> ShareLauncher | None:
        """Return what starts this node's share of the job; None where Ray runs it."""
        return None if isinstance(self.launch, OwnRay | GivenRay) else self.launch

    @property
    def gpus(self) -> int:
        """Return this node's GPUs for Ray and the job, as far as its rank is known."""
        return len(self.gpu_split.of_job())

    def process(self, name: str) -> PlannedProcess:
        """Return one of this node's processes."""
        return next(process for process in self.processes if process.name == name)

    def limit(self, key: str) -> float:
        """Return the limit of a wait that is planned."""
        return next(wait.seconds for wait in self.waits if wait.key == key)

    def environment(self, node_ip: str, head_ip: str, rank: int | None = None) -> dict[str, str]:
        """Return the environment of the processes that this node starts.

        `rank` is the one that the head has given a node without one of its platform.
        """
        environ = self.environ
        settings = self.settings
        given = self.topology.given_ray
        if given is not None:
            own = environment.for_children(environ, settings, node_ip, given.gcs_host)
        else:
            own = environment.for_node(environ, settings, self.facts, node_ip, head_ip)
            if self.share_launcher is not None:  # the token then guards only the agent's port
                own = environment.without_cluster_auth(own, settings, keeps_wandb=True)
            else:
                stop = {"RAY_JOB_STOP_WAIT_TIME_S": f"{max(1, int(self.budget.job))}"}
                own = {**environment.OWN_RAY, **(stop if self.topology.is_head else {}), **own}
        caches = {} if self.caches is None else self.caches.variables(environ)
        return {**caches, **self.recipe_env, **own, **self.gpu_split.job_environment(rank)}

    @property
    def texts_with_secrets(self) -> tuple[tuple[str, str], ...]:
        """Return names and texts that may hold secrets: the command, and the services file's."""
        texts = [("", shlex.join(self.command or ()))]
        texts += [(step.name, step.command) for step in self.steps]
        for spec in self.all_services:
            texts += [*spec.env, (spec.name, spec.asked)]
            if isinstance(spec.ready, HttpProbe):
                texts += [("", spec.ready.url), ("", spec.ready.body or "")]
        return tuple(texts)

    def failed(self) -> tuple[Finding, ...]:
        """Return the findings that refuse the run."""
        return tuple(f for f in self.findings if f.level is Level.FAIL)

    def logs(self) -> dict[str, str]:
        """Return the log files of this node by the names for `pod-agent logs`."""
        logs = {"agent": AGENT_LOG}
        if self.share_launcher is None:
            logs["ray"] = RAY_LOG
        if self.topology.is_head or self.share_launcher is not None:
            logs["job"] = JOB_LOG
        if self.settings.preflight is not None:
            logs["preflight"] = PREFLIGHT_LOG
        if self.caches is not None:
            logs["compile-caches"] = CACHES_LOG
        logs |= {spec.name: spec.log for spec in self.possible_services}
        return logs | {step.name: step.log for step in self.steps}

    def secret(self, variable: str = "RAY_AUTH_TOKEN") -> str | None:
        """Return the secret of a variable; by default the cluster's."""
        return secret_texts(self.settings).get(variable)


def log_files(name: str) -> tuple[str, ...]:
    """Return the files that a log may be: by its own name, its service's or step's, or the file's.

    The first that exists counts: after a run only the files are left.
    """
    by_name = {"agent": AGENT_LOG, "ray": RAY_LOG, "job": JOB_LOG}
    files = (by_name.get(name, f"{name}.log"), service_log(name), step_log(name))
    return tuple(dict.fromkeys(files))


def versions(plan: Plan) -> tuple[str | None, str, str]:
    """Return the versions that must be equal on all nodes: Ray and its Python, or torch."""
    if plan.share_launcher is None:
        return plan.facts.ray.version, plan.facts.ray.python, ""
    torch = plan.facts.torch
    return None, "", "" if torch is None else torch.version or ""


def log_root(settings: Settings) -> Path:
    """Return the folder that contains the run folders."""
    return Path(settings.log_dir).expanduser()
