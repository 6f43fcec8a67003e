"""The head as data: what it was asked for, what it knows, what can happen to it, what it can do."""

from __future__ import annotations

from dataclasses import field, replace
from enum import Enum
from typing import TYPE_CHECKING

from agent.base.value import dataclass
from agent.decisions.head.workers import Fleet, RayNode, Worker
from agent.decisions.items import HERE, Item, ServiceGone, ServiceReady, ServiceWaits, StepOver
from agent.decisions.shared import Said, StopAsked, Tick, Unfit

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.base.outcome import Outcome
    from agent.decisions.attempts import Attempt
    from agent.decisions.verdict import JobReport
    from agent.node.facts import Facts
    from agent.work.prepare import PrepareStep
    from agent.work.services import ServiceSpec

__all__ = ["Fleet", "RayNode", "ServiceGone", "ServiceReady", "ServiceWaits", "StepOver", "Worker"]

OUR_RAY = "Ray on this node"
RAY_RESTARTS = 2


class Phase(str, Enum):
    """The head's life, in order; another attempt at the job begins anew with the first."""

    BOOTING = "booting"  # Ray, services, prepare step and workers come up side by side
    SUBMITTING = "submitting"
    RUNNING = "running"  # or, without a job, serving
    STOPPING = "stopping"  # the job was told to end
    LEAVING = "leaving"  # the verdict stands; workers hear it, everything goes down


@dataclass(frozen=True)
class Goal:
    """What this run is to achieve, fixed at the start; times are on the run's own clock."""

    limits: Mapping[str, float]
    """Every wait's limit, by the key under which the plan shows it."""
    job_stop_grace: float
    """How long a job may take to stop."""
    expected_workers: int = 0
    least_workers: int = 0
    """Fewer do, once the workers' deadline has passed."""
    wants_job: bool = True
    run_id: str = "run"
    first_attempt: int = 1
    """The number of the first attempt: those of an earlier head of the same run count."""
    submission_id: str | None = None
    """The id by which a given Ray's owner will look for the job."""
    services: tuple[ServiceSpec, ...] = ()
    """Those of the whole run, wherever they live."""
    steps: tuple[PrepareStep, ...] = ()
    """The head's own prepare steps, in the order in which they are run."""
    longest_prepare: float = 0.0
    """How long a worker may prepare, as long as it is heard of."""
    retries: int = 0
    """Further attempts at the job after a loss."""
    ray: str = OUR_RAY
    """What to call the Ray that must come up."""
    ray_is_given: bool = False
    """True where others start and stop it: then a job outlives this agent unless it is stopped."""
    ray_restarts: int = RAY_RESTARTS

    def service(self, name: str) -> ServiceSpec:
        """Return a service by its name."""
        return next(spec for spec in self.services if spec.name == name)

    def step(self, name: str) -> PrepareStep:
        """Return a prepare step by its name."""
        return next(step for step in self.steps if step.name == name)


Key = tuple[str, str]
"""Names an item: the node on which it is (HERE, or a worker's agent by its id), and its name."""


@dataclass(frozen=True)
class HeadState:
    """Everything that the head's decisions rest on."""

    goal: Goal
    attempt: Attempt
    phase: Phase = Phase.BOOTING
    since: float = 0.0
    """When this phase began."""
    ray: Item = field(default_factory=Item)
    last_ray: str = ""
    """How the Ray before this one ended."""
    gcs_answers: bool = False
    """True once GCS takes connections: from then on workers can join."""
    ray_head: str | None = None
    """The address of Ray's head, as GCS knows it."""
    gpus: Mapping[str, int] = field(default_factory=dict)
    """The GPUs of each living node by its address, as GCS knows them."""
    services: Mapping[Key, Item] = field(default_factory=dict)
    given_up: frozenset[Key] = frozenset()
    """Services that the run goes on without: nobody is to start them again."""
    steps: Mapping[Key, Item] = field(default_factory=dict)
    fleet: Fleet = field(default_factory=Fleet)
    required: int = 0
    """Workers without which the running job cannot go on."""
    short_since: float | None = None
    """Since when fewer nodes than required are alive."""
    loss: str = ""
    """The last node lost while the job ran, for the record."""
    earlier: tuple[Attempt, ...] = ()
    """The attempts before this one, each with its end."""
    verdict: Outcome | None = None
    """What stands at the end; known before the job has stopped where the agent ends it."""

    def to(self, phase: Phase, now: float) -> HeadState:
        """Enter a phase."""
        return replace(self, phase=phase, since=now)

    def gpus_by_node(self) -> list[int]:
        """Return the GPUs of the head and of each worker that counts."""
        head = [] if self.ray_head is None else [self.ray_head]
        return [self.gpus.get(ip, 0) for ip in (*head, *self.fleet.alive)]

    def until(self, key: str) -> float:
        """Return the deadline of a wait that began with the attempt."""
        return self.attempt.began + self.goal.limits[key]


# --- what can happen ---------------------------------------------------------------------------


@dataclass(frozen=True)
class RayGone:
    """`ray start --block` ended."""

    evidence: str


@dataclass(frozen=True)
class RaySilent:
    """Ray does not answer, or not as it should; the deadline of what is waited for decides."""

    evidence: str


@dataclass(frozen=True)
class GcsOpen:
    """GCS takes connections on this node."""


@dataclass(frozen=True)
class RayNodes:
    """GCS's list of nodes, as of now."""

    nodes: tuple[RayNode, ...]


@dataclass(frozen=True)
class WorkerIntroduced:
    """A worker's agent said what its machine is, once for its whole life."""

    key: str
    name: str
    facts: Facts


@dataclass(frozen=True)
class WorkerReported:
    """A worker's agent said something."""

    worker: Worker


@dataclass(frozen=True)
class WorkerReplaced:
    """An agent turned out to be a later life of the same node: this one is no more."""

    key: str


@dataclass(frozen=True)
class Submitted:
    """Ray took an attempt."""

    id: str


@dataclass(frozen=True)
class SubmitWaits:
    """Ray does not take an attempt yet, or refuses it for good."""

    id: str
    evidence: str
    final: bool = False
    cancelled: bool = False
    """True where it was to be stopped, and Ray said that it has no such job."""


@dataclass(frozen=True)
class JobHeard:
    """Ray answered about an attempt."""

    id: str
    report: JobReport


HeadEvent = (
    Tick
    | StopAsked
    | RayGone
    | GcsOpen
    | Unfit
    | RaySilent
    | RayNodes
    | ServiceReady
    | ServiceWaits
    | ServiceGone
    | StepOver
    | WorkerIntroduced
    | WorkerReported
    | WorkerReplaced
    | Submitted
    | SubmitWaits
    | JobHeard
)

# --- what can be done --------------------------------------------------------------------------


@dataclass(frozen=True)
class Submit:
    """Submit the job under this id; once per attempt."""

    id: str


@dataclass(frozen=True)
class StopJob:
    """Ask Ray to stop an attempt."""

    id: str


@dataclass(frozen=True)
class RestartRay:
    """Start this node's Ray again."""


@dataclass(frozen=True)
class StartService:
    """Start a service, on this node or by order on a worker's; `generation` counts its starts."""

    name: str
    node: str = HERE
    generation: int = 1


@dataclass(frozen=True)
class Retry:
    """Write down how this attempt ended, and that another begins."""

    ended: Attempt
    next: Attempt


@dataclass(frozen=True)
class Leave:
    """Tell the workers, take everything down, end."""

    outcome: Outcome


HeadAction = Said | Submit | StopJob | RestartRay | StartService | Retry | Leave
