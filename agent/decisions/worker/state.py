"""The worker as data: what it was told, what it knows, what can happen to it, what it can do."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from agent.decisions.items import Item
from agent.decisions.shared import Said, StopAsked, Tick, Unfit
from agent.plan.limits import JOIN_LIMIT

if TYPE_CHECKING:
    from agent.base.outcome import Outcome


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
    head_deadline: float
    prepare_deadline: float
    silence_limit: float
    """How long a joined worker bears a silent head."""
    has_prepare: bool = False
    stays: bool = False
    """True with AGENT_JOB=none: being stopped is then what was asked for."""
    join_limit: float = JOIN_LIMIT
    """Longest from a join's first try to its success."""


@dataclass(frozen=True)
class WorkerState:
    """Everything that a worker's decisions rest on."""

    goal: Goal
    phase: Phase = Phase.FINDING
    since: float = 0.0
    evidence: str = "not asked yet"
    head_ip: str | None = None
    epoch: str | None = None
    bare: bool = False
    """True where the head is a plain `ray start --head` without an agent."""
    ray_ready: bool = False
    head_phase: str = ""
    heard: float = 0.0
    prepare: Item = field(default_factory=Item)
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


# --- what can happen ---------------------------------------------------------------------------


@dataclass(frozen=True)
class HeadSpoke:
    """The head's agent answered; where there is none, GCS did (`epoch` is None then)."""

    ip: str
    epoch: str | None
    ray_ready: bool
    phase: str = ""
    verdict: Outcome | None = None
    refusal: str = ""


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
class Prepared:
    """AGENT_PREPARE_EACH is over; `evidence` says how it failed, or is empty."""

    evidence: str = ""


WorkerEvent = (
    Tick | StopAsked | Unfit | HeadSpoke | HeadSilent | RaySilent | RayUp | RayExited | Prepared
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
class Leave:
    """Take everything down, say goodbye, end."""

    outcome: Outcome
    head_must_hear: bool = False
    """True where this node failed by itself, perhaps before the head was up."""


WorkerAction = Said | StartRay | StopRay | Leave
