"""The worker as data: what it was told, what it knows, what can happen to it, what it can do."""

from __future__ import annotations

from dataclasses import field
from enum import Enum
from typing import TYPE_CHECKING

from agent.base.value import dataclass
from agent.decisions.items import Item, ServiceGone, ServiceReady, ServiceWaits, Step, StepOver
from agent.decisions.shared import Order, Said, StopAsked, Tick, Unfit
from agent.work.torchrun import PartOver

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.base.outcome import Outcome
    from agent.work.prepare import PrepareStep
    from agent.work.services import ServiceSpec
    from agent.work.torchrun import Seat

__all__ = ["PartOver", "ServiceGone", "ServiceReady", "ServiceWaits", "StepOver"]


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
    rank: int | None = None
    """This node's, where its platform tells."""
    alone: frozenset[int] = frozenset()
    """The ranks of nodes that are there for a service only: they join no Ray."""
    by_torchrun: bool = False
    """True where torchrun starts its share of the job, and no Ray runs."""


@dataclass(frozen=True)
class KeptRay:
    """This node's Ray, left behind by the killed agent in whose stead this one goes on."""

    epoch: int
    head_ip: str
    run_id: str
    attempt: int
    """The attempt for which it was started."""
    unreached: float | None = None
    """Since when the head is out of reach, on this run's clock: before its start, so below 0."""


@dataclass(frozen=True)
class WorkerState:
    """Everything that a worker's decisions rest on."""

    goal: Goal
    phase: Phase = Phase.FINDING
    since: float = 0.0
    evidence: str = "not asked yet"
    head_ip: str | None = None
    epoch: int | None = None
    has_agent: bool = False
    """True once a head's agent answered: an answer of GCS alone proves nothing from then on."""
    bare: bool = False
    """True where the head is a plain `ray start --head` without an agent."""
    ray_ready: bool = False
    given_rank: int | None = None
    """The rank that the head gave this node, where its platform has none."""
    head_phase: str = ""
    heard: float = 0.0
    steps: Mapping[str, Item] = field(default_factory=dict)
    awaiting: frozenset[str] = frozenset()
    """Those of its steps that it runs when the head says so."""
    waiting: frozenset[str] = frozenset()
    """Those that wait for others of its steps, and are not started yet."""
    halted: frozenset[str] = frozenset()
    """Those of its steps that were stopped out of the head's reach, and are to be run again."""
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
    run_id: str = ""
    """The run that it belongs to, from its first join on."""
    is_silent: bool = False
    """True while the head does not answer."""
    head_attempt: int = 0
    """The attempt that the head makes, or made last; 0 before it told."""
    ray_attempt: int = 0
    """The one that it made when Ray was started here."""
    reached: float = 0.0
    """When either the head's agent or its GCS was reached last."""
    unreached: float | None = None
    """Since when neither the head's agent nor its GCS is reached; None while one is."""
    fenced: bool = False
    """True once all here was stopped for that, until one is reached again."""
    fenced_attempt: int | None = None
    """The attempt whose share was stopped so: its end tells nothing of the job."""
    silence_said: bool = False
    """True once a person was told that the head does not answer."""
    has_followed: bool = False
    """True once it was part of the cluster: what it waits for then was lost before."""
    attempt: int | None = None
    """The attempt of which this node's share was started last."""
    part: PartOver | None = None
    """How that ended."""
    verdict: Outcome | None = None

    @property
    def rank(self) -> int | None:
        """Return this node's rank, as far as it is known."""
        return self.given_rank if self.goal.rank is None else self.goal.rank

    @property
    def alone(self) -> bool:
        """Say whether this node is there for a service only: it follows, and joins no Ray."""
        return self.rank in self.goal.alone

    @property
    def joined(self) -> bool:
        """Say whether this node is part of the cluster, as far as it can tell: by its Ray."""
        up = self.goal.by_torchrun or self.ray is RayStep.UP
        return self.phase is Phase.FOLLOWING and up and not self.alone

    @property
    def runs(self) -> int:
        """Return the attempt of which something may run here; 0 where nothing does."""
        if self.ray is not RayStep.DOWN:
            return self.ray_attempt
        has_part = self.attempt is not None and self.part is None
        return self.attempt or 0 if has_part else 0

    @property
    def under_way(self) -> tuple[str, ...]:
        """Return the prepare steps that run here."""
        idle = self.awaiting | self.waiting | self.halted
        return tuple(
            name
            for name, item in self.steps.items()
            if item.step is Step.PENDING and name not in idle
        )

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
    rank: int | None = None
    """The rank that it gave this node, where its platform has none."""
    attempt: int = 0
    """The attempt at the job that it makes, or made last; 0 where no agent tells."""
    run_id: str = ""
    """The run that it knows; '' where it has not heard yet to which run this node belongs."""


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
    | PartOver
)
FROM_OUTSIDE = (HeadSpoke, Ordered)
"""Those that only repeat what the head has sent."""

# --- what can be done --------------------------------------------------------------------------


@dataclass(frozen=True)
class StartRay:
    """Start Ray here and join it to the head at this address."""

    head_ip: str


@dataclass(frozen=True)
class StopRay:
    """Stop this node's Ray; its end comes back as RayExited."""


@dataclass(frozen=True)
class StopServices:
    """Stop all services here; their ends come back as ServiceGone."""


@dataclass(frozen=True)
class StartService:
    """Start a service of the plan's."""

    name: str
    generation: int


@dataclass(frozen=True)
class StopSteps:
    """Stop all prepare steps here; of those nothing comes back."""


@dataclass(frozen=True)
class RunStep:
    """Run a prepare step of the plan's."""

    name: str


@dataclass(frozen=True)
class StartPart:
    """Start this node's share of an attempt."""

    attempt: int
    seat: Seat


@dataclass(frozen=True)
class StopPart:
    """Stop this node's share; its end comes back as PartOver."""


@dataclass(frozen=True)
class Probe:
    """Try something, and tell the head how it went."""

    probe: str
    at: str
    seat: Seat | None = None


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


WorkerAction = (
    Said
    | StartRay
    | StopRay
    | StopServices
    | StartService
    | StopSteps
    | RunStep
    | StartPart
    | StopPart
    | SendLog
    | Probe
    | Leave
)
