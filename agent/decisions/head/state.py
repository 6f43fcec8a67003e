"""The head as data: what it was asked for, what it knows, what can happen to it."""

from __future__ import annotations

from dataclasses import field, replace
from enum import Enum
from typing import TYPE_CHECKING

from agent.base.value import dataclass
from agent.decisions.attempts import DriverSignaled
from agent.decisions.head.actions import (
    AskNodes,
    Follow,
    HeadAction,
    Keep,
    Leave,
    Probe,
    RestartRay,
    Retry,
    RunStep,
    StartService,
    StopJob,
    Submit,
    TakeUp,
)
from agent.decisions.head.goal import OUR_RAY, RAY_RESTARTS, Goal
from agent.decisions.head.roster import Key, Roster
from agent.decisions.head.shares import Parts
from agent.decisions.head.workers import Fleet, RayNode, Worker
from agent.decisions.items import Item, Outage, ServiceGone, ServiceReady, ServiceWaits, StepOver
from agent.decisions.probing import Answered, Preflight, Probes
from agent.decisions.shared import StopAsked, Tick, Unfit
from agent.decisions.stall import StalledSinceLoss
from agent.decisions.uploading import Upload, Uploading
from agent.work.recipes.recipe import NodeSize

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.base.outcome import Outcome
    from agent.checks.finding import Finding
    from agent.decisions.attempts import Attempt
    from agent.decisions.verdict import JobReport
    from agent.node.facts import Facts
    from agent.work.torchrun import PartOver

__all__ = [
    "OUR_RAY",
    "RAY_RESTARTS",
    "Answered",
    "AskNodes",
    "DriverSignaled",
    "Fleet",
    "Follow",
    "Goal",
    "HeadAction",
    "Keep",
    "Key",
    "Leave",
    "Probe",
    "RayNode",
    "RestartRay",
    "Retry",
    "Roster",
    "RunStep",
    "ServiceGone",
    "ServiceReady",
    "ServiceWaits",
    "StartService",
    "StepOver",
    "StopJob",
    "Submit",
    "TakeUp",
    "Uploading",
    "Worker",
]


class Phase(str, Enum):
    """The head's life, in order; another attempt at the job begins with the second."""

    RESUMING = "resuming"  # a killed agent left a job under way: it is looked for
    BOOTING = "booting"  # Ray, services, prepare step and workers come up side by side
    SUBMITTING = "submitting"
    RUNNING = "running"  # or, without a job, serving
    JUDGING = "judging"  # the job failed, and perhaps for want of a node: all are asked
    STOPPING = "stopping"  # the job was told to end
    LEAVING = "leaving"  # the verdict stands; workers hear it, everything goes down


Group = tuple[str, str]
"""A prepare step, and the disk on which its marker lies."""


@dataclass(frozen=True)
class Turns:
    """How far each worker has come with the steps that it runs by order, and who waits for whom."""

    done: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """By a worker's agent: those that are over there."""
    asked: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Likewise: those that it was ordered to run, or that are in a queue."""
    queues: Mapping[Group, tuple[str, ...]] = field(default_factory=dict)
    """Who is to run a step on a disk; the first of them does so now."""


@dataclass(frozen=True)
class HeadState:
    """Everything that the head's decisions rest on."""

    goal: Goal
    attempt: Attempt
    phase: Phase = Phase.BOOTING
    since: float = 0.0
    """When this phase began."""
    ray: Item = field(default_factory=Item)
    memory: str = ""
    """What the kernel did for want of memory as the last Ray ended here."""
    last_ray: str = ""
    """How the Ray before this one ended."""
    hang: RayHangs | None = None
    """What of Ray is stopped, beside GCS and raylet."""
    hangs_since: float = 0.0
    gcs_answers: bool = False
    """True once GCS takes connections: from then on workers can join."""
    ray_head: str | None = None
    """The address of Ray's head, as GCS knows it."""
    sizes: Mapping[str, NodeSize] = field(default_factory=dict)
    """What each living node brings, by its address, as GCS knows it."""
    services: Roster = field(default_factory=Roster)
    given_up: frozenset[Key] = frozenset()
    """Services that the run goes on without: nobody is to start them again."""
    waiting: frozenset[Key] = frozenset()
    """Services, and steps of the head's own, that wait for others and are not started yet."""
    outages: tuple[Outage, ...] = ()
    """When services did not answer, the latest of them."""
    steps: Mapping[Key, Item] = field(default_factory=dict)
    """The head's own prepare steps."""
    turns: Turns = field(default_factory=Turns)
    """Those that workers run by order."""
    fleet: Fleet = field(default_factory=Fleet)
    required: int = 0
    """Workers without which the running job cannot go on."""
    short_since: float | None = None
    """Since when fewer nodes than required are alive."""
    loss: str = ""
    """The last node lost while the job ran, for the record."""
    lost_at: float | None = None
    """When that was."""
    checkpoint: int | None = None
    """The newest checkpoint's step, as far as known."""
    resumes_from: str = ""
    """The checkpoint that a recipe would go on from."""
    earlier: tuple[Attempt, ...] = ()
    """The attempts before this one, each with its end."""
    leftovers: Mapping[str, float] = field(default_factory=dict)
    """Who may still run something of the attempt before: agents by their ids, others by name.

    For those that have no agent, since when nothing can be known of them.
    """
    clearing: str | None = None
    """What is known of the attempt before on this node, until all of it is gone; then None."""
    parts: Parts = field(default_factory=Parts)
    """The nodes' shares of an attempt that torchrun starts."""
    probes: Probes = field(default_factory=Probes)
    """What the nodes were asked to try before the job."""
    upload: Upload | None = None
    """How far the last upload for a job has come."""
    preflight: Preflight | None = None
    """The all-reduce before the job, once it was begun."""
    differences: tuple[Finding, ...] = ()
    """In what the nodes that joined differ, as it was found last."""
    compared: Mapping[str, str] | None = None
    """The workers that counted then, address to name."""
    verdict: Outcome | None = None
    """What stands at the end; known before the job has stopped where the agent ends it."""

    @property
    def told_verdict(self) -> Outcome | None:
        """Return the end that workers hear: none until all has stopped, nor one of ours alone."""
        ours_alone = self.verdict is not None and self.verdict.is_superseded
        return self.verdict if self.phase is Phase.LEAVING and not ours_alone else None

    @property
    def losses(self) -> int:
        """Return how many attempts of this run were lost before this one."""
        return len(self.goal.tried) + len(self.earlier)

    @property
    def most_attempts(self) -> int:
        """Return the number that the last attempt could have."""
        return self.attempt.number + max(0, self.goal.retries - self.losses)

    def to(self, phase: Phase, now: float) -> HeadState:
        """Enter a phase."""
        return replace(self, phase=phase, since=now)

    def nodes(self) -> tuple[NodeSize, ...]:
        """Return what the head and each worker that counts bring."""
        if self.goal.by_torchrun:
            return self.parts.sizes
        head = [] if self.ray_head is None else [self.ray_head]
        return tuple(self.sizes.get(ip, NodeSize(0)) for ip in (*head, *self.fleet.alive))

    def until(self, key: str) -> float:
        """Return the deadline of a wait that began with the attempt."""
        return self.attempt.began + self.goal.limits[key]


# --- what can happen ---------------------------------------------------------------------------


@dataclass(frozen=True)
class RayGone:
    """`ray start --block` ended."""

    evidence: str
    memory: str = ""
    """What the kernel did a moment before for want of memory, or ''."""


@dataclass(frozen=True)
class RayHangs:
    """Ray's dashboard or one of its agents on this node is stopped; evidence of '': none is."""

    evidence: str = ""
    beside_job: bool = False
    """True where a job's driver runs on this node, whoever has submitted it."""


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
    findings: tuple[Finding, ...] = ()
    """Those of its own checks."""


@dataclass(frozen=True)
class RunRemembered:
    """A worker's agent outlived its head: it knows this job's run, and its last attempt."""

    run_id: str
    attempt: int
    epoch: int = 0
    """The epoch of the head that it followed, where that is higher than ours; else 0."""


@dataclass(frozen=True)
class LaterHead:
    """A head with a higher epoch is at work in this very run."""

    epoch: int
    told_by: str


@dataclass(frozen=True)
class Cleared:
    """What an attempt had left on this node was ended; `left` names what runs all the same."""

    attempt: int
    left: str = ""


@dataclass(frozen=True)
class CheckpointSeen:
    """What an attempt, or those of earlier heads (0), left to go on from."""

    attempt: int
    step: int | None = None
    path: str = ""
    """The checkpoint that a recipe would go on from."""


@dataclass(frozen=True)
class WorkerReported:
    """A worker's agent said something."""

    worker: Worker


@dataclass(frozen=True)
class WorkerSilent:
    """A worker's agent does not call any more and answers no probe."""

    key: str
    evidence: str
    ray_answers: bool = False
    """False where its Ray does not answer either: the node is lost."""


@dataclass(frozen=True)
class WorkerReplaced:
    """An agent is no more: its node has a later one, or it departed and nothing needs it."""

    key: str


@dataclass(frozen=True)
class Submitted:
    """Ray took an attempt."""

    id: str


@dataclass(frozen=True)
class NeverSubmitted:
    """Ray knows nothing of an attempt that an earlier agent was about to submit."""

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


@dataclass(frozen=True)
class NodesAsked:
    """Every node was asked whether it still serves an attempt; `silent` ones do not, and why."""

    id: str
    silent: Mapping[str, str] = field(default_factory=dict)
    """From a node's name to the evidence."""


@dataclass(frozen=True)
class OwnPartOver:
    """The head's own share of an attempt has ended."""

    over: PartOver


HeadEvent = (
    Tick
    | StopAsked
    | RayGone
    | RayHangs
    | GcsOpen
    | Unfit
    | RaySilent
    | RayNodes
    | ServiceReady
    | ServiceWaits
    | ServiceGone
    | StepOver
    | WorkerIntroduced
    | RunRemembered
    | LaterHead
    | Cleared
    | CheckpointSeen
    | WorkerReported
    | WorkerSilent
    | WorkerReplaced
    | Answered
    | Submitted
    | NeverSubmitted
    | SubmitWaits
    | Uploading
    | JobHeard
    | DriverSignaled
    | NodesAsked
    | OwnPartOver
    | StalledSinceLoss
)
FROM_OUTSIDE = (WorkerIntroduced, WorkerReported, RunRemembered, LaterHead)
"""Those that only repeat what another node has sent."""
