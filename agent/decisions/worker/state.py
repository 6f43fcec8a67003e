"""The worker as data: what it was told, what it knows, what can happen to it, what it can do."""

from __future__ import annotations

from dataclasses import field
from enum import Enum
from typing import TYPE_CHECKING

from agent.base.value import dataclass
from agent.decisions.items import Item, ServiceGone, ServiceReady, ServiceWaits, Step, StepOver
from agent.decisions.shared import Order, Said, StopAsked, Tick, Unfit

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.base.outcome import Outcome
    from agent.work.prepare import PrepareStep
    from agent.work.services import ServiceSpec

__all__ = ["ServiceGone", "ServiceReady", "ServiceWaits", "StepOver"]


class Phase(str, Enum):
    """The worker's life, in order."""

    FINDING = "finding the head"
    JOINING = "joining Ray"
    FOLLOWING = "following the head"
    LEAVING = "leaving"


class RayStep(str, Enum):
    """What this node's Ray is doing."""

    DOWN = "down"
    STARTING = "starting"
    UP = "up"
    STOPPING = "stopping"


@dataclass(frozen=True)
class Goal:
    """What a worker was told, fixed at the start; times are on the run's own clock."""

    head: str
    """The head as the user named it, for messages."""
    limits: Mapping[str, float]
    """Every wait's limit, by the key under which the plan shows it."""
    steps: tuple[PrepareStep, ...] = ()
    """Its own prepare steps, which must be over before it joins."""
    services: tuple[ServiceSpec, ...] = ()
    """What the head may have it run: an order for anything else is refused."""
    stays: bool = False
    """True with AGENT_JOB=none: being stopped is then what was asked for."""


@dataclass(frozen=True)
class WorkerState:
    """Everything that a worker's decisions rest on."""

    goal: Goal
    phase: Phase = Phase.FINDING
    since: float = 0.0
    evidence: str = "not asked yet"
    head_ip: str | None = None
    epoch: int | None = None
    bare: bool = False
    """True where the head is a plain `ray start --head` without an agent."""
    ray_ready: bool = False
    head_phase: str = ""
    heard: float = 0.0
    steps: Mapping[str, Item] = field(default_factory=dict)
    services: Mapping[str, Item] = field(default_factory=dict)
    """What the head had it start."""
    obeyed: Order | None = None
    """The last order that was taken in."""
    ray: RayStep = RayStep.DOWN
    ray_evidence: str = ""
    """How `ray start` ended last."""
    raylet: str = ""
    """Why this node's raylet is not taken for up."""
    retry_at: float | None = None
    tries: int = 0
    verdict: Outcome | None = None

    @property
    def joined(self) -> bool:
        """Say whether this node's Ray is up and part of the cluster, as far as it can tell."""
        return self.phase is Phase.FOLLOWING and self.ray is RayStep.UP

    @property
    def preparing(self) -> bool:
        """Say whether a prepare step is not over yet."""
        return any(item.step is Step.PENDING for item in self.steps.values())


# --- what can happen ---------------------------------------------------------------------------


@dataclass(frozen=True)
class HeadSpoke:
    """The head's agent answered; where there is none, GCS did (`epoch` is None then)."""

    ip: str
    epoch: int | None
    ray_ready: bool
    phase: str = ""
    verdict: Outcome | None = None
    refusal: str = ""
    held: bool = False
    """True where it only holds the verdict of a run to which this agent never belonged."""


@dataclass(frozen=True)
class HeadSilent:
    """The head could not be resolved or reached."""

    evidence: str


@dataclass(frozen=True)
class RaySilent:
    """This node's raylet does not listen so far."""

    evidence: str


@dataclass(frozen=True)
class RayUp:
    """This node's raylet listens."""


@dataclass(frozen=True)
class RayExited:
    """This node's `ray start --block` ended."""

    evidence: str


@dataclass(frozen=True)
class Ordered:
    """The head has this worker do something."""

    order: Order


WorkerEvent = (
    Tick
    | StopAsked
    | Unfit
    | HeadSpoke
    | HeadSilent
    | RaySilent
    | RayUp
    | RayExited
    | StepOver
    | Ordered
    | ServiceReady
    | ServiceWaits
    | ServiceGone
)

# --- what can be done --------------------------------------------------------------------------


@dataclass(frozen=True)
class StartRay:
    """Start Ray here and join it to the head at this address."""

    head_ip: str


@dataclass(frozen=True)
class StopRay:
    """Stop this node's Ray; its end comes back as RayExited."""


@dataclass(frozen=True)
class StartService:
    """Start a service of the plan's."""

    name: str
    generation: int


@dataclass(frozen=True)
class RunStep:
    """Run a prepare step of the plan's."""

    name: str


@dataclass(frozen=True)
class SendLog:
    """Send the end of one of this node's logs with the next report."""

    name: str


@dataclass(frozen=True)
class Leave:
    """Take everything down, say goodbye, end."""

    outcome: Outcome
    head_must_hear: bool = False
    """True where this node failed by itself, perhaps before the head was up."""


WorkerAction = Said | StartRay | StopRay | StartService | RunStep | SendLog | Leave
