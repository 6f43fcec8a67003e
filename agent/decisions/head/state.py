"""The head as data: what it was asked for, what it knows, what can happen to it, what it can do."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING

from agent.decisions.items import Item
from agent.decisions.shared import Said, StopAsked, Tick, Unfit
from agent.plan.limits import SILENCE_LIMIT, SUBMIT_LIMIT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.base.outcome import Outcome
    from agent.decisions.verdict import JobReport

OUR_RAY = "Ray on this node"
RAY_RESTARTS = 2


class Phase(str, Enum):
    """The head's life, in order."""

    BOOTING = "booting"  # Ray, services, prepare step and workers come up side by side
    SUBMITTING = "submitting"
    RUNNING = "running"  # or, without a job, serving
    STOPPING = "stopping"  # the job was told to end
    LEAVING = "leaving"  # the verdict stands; workers hear it, everything goes down


@dataclass(frozen=True)
class Goal:
    """What this run is to achieve, fixed at the start; times are on the run's own clock."""

    expected_workers: int
    least_workers: int
    """Fewer do, once the workers' deadline has passed."""
    head_deadline: float
    workers_deadline: float
    reward_deadline: float
    prepare_deadline: float
    node_grace: float
    job_stop_grace: float
    """How long a job may take to stop."""
    wants_job: bool = True
    services: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()
    """The prepare steps of this node, by their variables, in order."""
    submit_limit: float = SUBMIT_LIMIT
    """Longest from the first try to submit to Ray's acceptance."""
    silence_limit: float = SILENCE_LIMIT
    """Longest that Ray may say nothing of a running job."""
    ray: str = OUR_RAY
    """What to call the Ray that must come up."""
    ray_restarts: int = RAY_RESTARTS
    """How often it may be started again; never where it is others' to start."""
    service_restarts: int = 3
    service_limit: float = 120.0
    """Longest for a restarted service to answer again."""


@dataclass(frozen=True)
class Worker:
    """A worker's agent, as it last reported."""

    key: str
    name: str
    ip: str = ""
    rank: int | None = None
    phase: str = ""
    detail: str = ""
    heard: float = 0.0
    joined: bool = False
    preparing: bool = False
    refused: str = ""
    gone: bool = False
    error: str = ""


@dataclass(frozen=True)
class RayNode:
    """A node as Ray's GCS knows it."""

    node_id: str
    ip: str
    is_head: bool = False
    gpus: float = 0.0
    alive: bool = True


@dataclass(frozen=True)
class HeadState:
    """Everything that the head's decisions rest on."""

    goal: Goal
    phase: Phase = Phase.BOOTING
    ray: Item = field(default_factory=Item)
    last_ray: str = ""
    """How the Ray before this one ended."""
    prepare: Item = field(default_factory=Item)
    services: Mapping[str, Item] = field(default_factory=dict)
    workers: Mapping[str, Worker] = field(default_factory=dict)
    ray_nodes: tuple[RayNode, ...] = ()
    gcs_answers: bool = False
    """True once GCS takes connections: from then on workers can join."""
    required: int = 0
    """Workers without which the running job cannot go on."""
    since: float = 0.0
    """When this phase began."""
    job_heard: float = 0.0
    job: JobReport | None = None
    short_since: float | None = None
    """Since when fewer nodes than required are alive."""
    loss: str = ""
    """The last node lost while the job ran, for the record."""
    verdict: Outcome | None = None
    """What stands at the end; known before the job has stopped where the agent ends it."""

    def to(self, phase: Phase, now: float) -> HeadState:
        """Enter a phase."""
        return replace(self, phase=phase, since=now)


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
class ServiceReady:
    """A service answered a real request."""

    name: str


@dataclass(frozen=True)
class ServiceWaits:
    """A service does not answer as it should, so far."""

    name: str
    evidence: str


@dataclass(frozen=True)
class ServiceGone:
    """A service's process ended."""

    name: str
    evidence: str


@dataclass(frozen=True)
class Prepared:
    """The prepare steps are over, or one has failed: which, and how."""

    failed: str = ""
    evidence: str = ""


@dataclass(frozen=True)
class WorkerReported:
    """A worker's agent said something."""

    worker: Worker


@dataclass(frozen=True)
class Submitted:
    """Ray took the job."""


@dataclass(frozen=True)
class SubmitWaits:
    """Ray does not take the job yet, or refuses it for good."""

    evidence: str
    final: bool = False


@dataclass(frozen=True)
class JobHeard:
    """Ray answered about the job."""

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
    | Prepared
    | WorkerReported
    | Submitted
    | SubmitWaits
    | JobHeard
)

# --- what can be done --------------------------------------------------------------------------


@dataclass(frozen=True)
class Submit:
    """Submit the job; once per attempt."""


@dataclass(frozen=True)
class StopJob:
    """Ask Ray to stop the job."""


@dataclass(frozen=True)
class RestartRay:
    """Start this node's Ray again."""


@dataclass(frozen=True)
class RestartService:
    """Start a dead service again."""

    name: str


@dataclass(frozen=True)
class Leave:
    """Tell the workers, take everything down, end."""

    outcome: Outcome


HeadAction = Said | Submit | StopJob | RestartRay | RestartService | Leave
