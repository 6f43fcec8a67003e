"""The plan: everything that `run` will do, as data, before anything is touched."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from agent.base.value import dataclass
from agent.checks import Finding, Level
from agent.plan import environment
from agent.plan.ray_start import OwnRay
from agent.topology.given_ray import GivenRay

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.base.ports import Ports
    from agent.node.facts import Facts
    from agent.plan.address import Address
    from agent.plan.listeners import Listener
    from agent.plan.stop_budget import StopBudget
    from agent.plan.torchrun import Torchrun
    from agent.plan.waits import PlannedWait
    from agent.settings import Settings
    from agent.topology.resolve import Topology
    from agent.work.job import Job
    from agent.work.prepare import PrepareStep
    from agent.work.services import ServiceSpec
    from agent.work.where import Place

if TYPE_CHECKING:
    Launch = OwnRay | GivenRay | Torchrun
"""What carries the job: a Ray of our own, one that the platform starts and stops, or torchrun."""

RAY = "ray start"
RAY_LOG = "ray-start.log"
AGENT_LOG, JOB_LOG = "agent.log", "job.log"
ALL_REDUCE, PREFLIGHT_LOG = "all-reduce", "preflight.log"
BRIDGE = "ray bridge"


@dataclass(frozen=True)
class PlannedProcess:
    """A process that this node starts for its own."""

    name: str
    label: str
    """Its duty in a word, as `plan` shows it."""
    argv: tuple[str, ...]
    """Its command, with placeholders for what only the run will find."""
    log: str

    def command(self, place: Place) -> list[str]:
        """Return its argv at a place."""
        return [place.fill(word) for word in self.argv]


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
    launch: Launch
    job: Job | None
    """What the head submits; where torchrun starts it, every node has its share."""
    recipe_env: Mapping[str, str]
    """What a recipe needs in the environment of every node."""
    steps: tuple[PrepareStep, ...]
    """The prepare steps of this node."""
    all_steps: tuple[PrepareStep, ...]
    """Those of the whole run, with this node's own fetch of the model."""
    services: tuple[ServiceSpec, ...]
    """The services of this node."""
    possible_services: tuple[ServiceSpec, ...]
    """Those, and such as this node may have to run once the head has given it a rank."""
    all_services: tuple[ServiceSpec, ...]
    """The services of the whole run, wherever they live."""
    processes: tuple[PlannedProcess, ...]
    budget: StopBudget
    waits: tuple[PlannedWait, ...]
    listeners: tuple[Listener, ...]
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    on_done: str

    @property
    def own_ray(self) -> OwnRay | None:
        """Return the Ray that is ours to start and stop, if it is."""
        return self.launch if isinstance(self.launch, OwnRay) else None

    @property
    def torchrun(self) -> Torchrun | None:
        """Return the torchrun that starts this node's share of the job, if one does."""
        return None if isinstance(self.launch, OwnRay | GivenRay) else self.launch

    @property
    def gpus(self) -> int:
        """Return the GPUs that a share of the job would have here."""
        from agent.work.torchrun import gpus_of  # noqa: PLC0415 - most runs need none of it

        return gpus_of(self.settings, self.facts.gpus, self.environ)

    def of_this_run(self, after: tuple[str, ...]) -> tuple[str, ...]:
        """Return the steps and services of these names that this run has, as far as known here."""
        known = {step.name for step in self.all_steps} | {s.name for s in self.all_services}
        return tuple(name for name in after if name in known)

    def process(self, name: str) -> PlannedProcess:
        """Return one of this node's processes."""
        return next(process for process in self.processes if process.name == name)

    def limit(self, key: str) -> float:
        """Return the limit of a wait that is planned."""
        return next(wait.seconds for wait in self.waits if wait.key == key)

    def environment(self, node_ip: str, head_ip: str) -> dict[str, str]:
        """Return what is found in their environment by all that this node starts."""
        return {**self.recipe_env, **self._environment(node_ip, head_ip)}

    def _environment(self, node_ip: str, head_ip: str) -> dict[str, str]:
        environ, settings, given = self.environ, self.settings, self.topology.given_ray
        if given is not None:
            return environment.for_given_ray(environ, settings, node_ip, given.gcs_host)
        if self.torchrun is not None:
            return environment.for_torchrun(environ, settings, self.facts, node_ip, head_ip)
        if self.topology.is_head:
            return environment.for_head(environ, settings, self.facts, node_ip, self.budget.job)
        return environment.for_node(environ, settings, self.facts, node_ip, head_ip)

    def environment_before_addresses(self) -> dict[str, str]:
        """Return what a worker's prepare steps get, which may run before any address is known."""
        return environment.passed_on(self.environ, self.settings)

    @property
    def told_by_file(self) -> tuple[tuple[str, str], ...]:
        """Return the texts of a services file that may hold a secret, with what each is called."""
        env = (pair for spec in self.all_services for pair in spec.env)
        commands = ((spec.name, spec.asked) for spec in self.all_services)
        return (*env, *commands, *((step.name, step.command) for step in self.steps))

    def ray_and_service_ports(self, but: frozenset[str] = frozenset()) -> list[int]:
        """Return the fixed ports but the agent's own, and those of services that run already."""
        own = str(self.ports.agent)
        others = [x.port for x in self.listeners if x.port != own and x.who not in but]
        return [int(port) for port in others if port.isdigit()]

    def failed(self) -> tuple[Finding, ...]:
        """Return the findings that forbid a run."""
        return tuple(f for f in self.findings if f.level is Level.FAIL)

    def logs(self) -> dict[str, str]:
        """Return the files of this node's logs, by the names under which they are asked for."""
        found = {"agent": AGENT_LOG}
        if self.torchrun is None:
            found["ray"] = RAY_LOG
        if self.topology.is_head or self.torchrun is not None:
            found["job"] = JOB_LOG
        if self.settings.preflight is not None:
            found["preflight"] = PREFLIGHT_LOG
        found |= {spec.name: spec.log for spec in self.possible_services}
        return found | {step.name: step.log for step in self.steps}

    @property
    def token(self) -> str | None:
        """Return the cluster's secret."""
        secret = self.settings.ray_auth_token
        return None if secret is None else secret.reveal()


def versions(plan: Plan) -> tuple[str | None, str, str]:
    """Return what must be equal on all nodes: of Ray and its Python, or of torch."""
    if plan.torchrun is None:
        return plan.facts.ray.version, plan.facts.ray.python, ""
    torch = plan.facts.torch
    return None, "", "" if torch is None else torch.version or ""


def log_root(settings: Settings) -> Path:
    """Return the folder that holds the runs' folders."""
    return Path(settings.log_dir).expanduser()
