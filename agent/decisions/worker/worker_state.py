"""The worker's goal, state, events and actions, as frozen values."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from signal import SIGTERM

from msgspec import field
from msgspec.structs import replace

from agent.base import times
from agent.base.ends import Outcome
from agent.base.value import Value
from agent.decisions.shared import (
    RAY,
    SHARE,
    Item,
    ItemReport,
    LocalWorkerEvent,
    NodeWanted,
    Step,
    Want,
    Wants,
    WorkerAction,
    kept_or_next,
)
from agent.job.gpu_split import GpuSplit
from agent.job.services import PrepareStep, ServiceSpec

__all__ = ["WorkerAction"]


class WorkerPhase(str, Enum):
    """The worker's phases, in order."""

    FINDING = "finding the head"
    JOINING = "joining Ray"
    FOLLOWING = "following the head"
    LEAVING = "leaving"


class WorkerGoal(Value):
    """The configuration of a worker, fixed at the start; times are on the run's clock."""

    head: str  # the head's address as configured, for messages
    limits: Mapping[str, float]  # the limit of each wait in seconds, by its key in the plan
    steps: tuple[PrepareStep, ...] = ()  # this node's, which must be done before it joins
    services: tuple[ServiceSpec, ...] = ()  # what the head may want here: all else is refused
    without_job: bool = False  # AGENT_JOB=none: a stop is then the expected end, with code 0
    rank: int | None = None  # this node's rank, if its platform has one
    service_only_ranks: frozenset[int] = frozenset()  # of nodes that do not join Ray
    gpu_split: GpuSplit = GpuSplit()  # this node's GPUs, between its services and the job
    by_shares: bool = False  # true if a launcher starts its share of the job and no Ray runs


class WorkerState(Value):
    """The whole input of the worker's decisions, apart from event and time."""

    goal: WorkerGoal
    phase: WorkerPhase = WorkerPhase.FINDING
    phase_since: float = 0.0
    verdict: Outcome | None = None
    taken_at: float | None = None  # when it leaves at the latest, as its platform takes it away

    # The head, by its last reply.
    head_ip: str | None = None
    head_phase: str = ""
    epoch: int | None = None
    run_id: str = ""  # of the run that it has joined; before the first join, of the last reply
    given_rank: int | None = None  # the rank that the head assigned, if the platform has none
    has_agent: bool = False  # a head's agent answered: GCS alone is not enough from then on
    bare_since: float | None = None  # since when GCS alone answers, without an agent
    is_plain_head: bool = False  # true if the head is a plain `ray start --head` without an agent
    ray_ready: bool = False

    # Its silence, and the fence.
    evidence: str = "not asked yet"
    last_reply_at: float = 0.0
    head_is_silent: bool = False  # true while the head does not answer
    last_reached_at: float = 0.0  # when the head's agent or its GCS was last reached
    unreached_since: float | None = None  # neither the head's agent nor its GCS is reached since
    silent_for: float = 0.0  # how long neither of them is reached
    fenced: bool = False  # the fence stopped everything, and none of them is reached yet
    fenced_attempt: int = 0  # whose share it stopped: its end is no result of the job; 0 for none

    # This node's Ray.
    ray_evidence: str = ""  # how it last ended, until it is up again
    has_joined_before: bool = False  # it was part of the cluster: a timeout is then a loss, 75

    # What runs here.
    steps: Mapping[str, Item] = field(default_factory=dict)
    awaiting_order: frozenset[str] = frozenset()  # steps that run once the head wants them to
    blocked: frozenset[str] = frozenset()  # run after others of this node, or after the fence
    wanted: NodeWanted | None = None  # the head's last message about this node
    items: tuple[ItemReport, ...] = ()  # the services and steps that run here, or did
    addresses: Mapping[str, str] = field(default_factory=dict)
    """Of services on a rank, by the head's last message that had them; '' for the head's."""

    def with_surviving_ray(self, generation: int) -> WorkerState:
        """Return the state of a worker that keeps a killed agent's Ray and follows at once.

        Its node never left the cluster: the head must count it neither as lost nor as cleared.
        This state has the recorded head, run and attempt, and since when the head is out of reach.
        """
        since = self.unreached_since
        done = {step.name: Item().ready() for step in self.goal.steps}  # before the join
        ray = ItemReport(RAY, Step.READY, generation=generation, is_running=True)
        return replace(
            self,
            phase=WorkerPhase.FOLLOWING,
            has_agent=True,
            steps=done,
            items=(ray,),
            wanted=NodeWanted("", 0, {RAY: Want(generation)}),
            last_reached_at=-times.REPLY_AGE if since is None else since,
            has_joined_before=True,
        )

    def notice(self, now: float) -> float | None:
        """Return the seconds until this node leaves for its platform, or None."""
        if self.verdict is None:
            return None if self.taken_at is None else max(0.0, self.taken_at - now)
        is_taken = self.taken_at is not None or self.verdict.culprit == SIGTERM.name
        return 0.0 if is_taken else None

    @property
    def rank(self) -> int | None:
        """Return this node's rank, if known."""
        return self.given_rank if self.goal.rank is None else self.goal.rank

    @property
    def service_only(self) -> bool:
        """Return whether this node only runs a service and does not join Ray."""
        return self.rank in self.goal.service_only_ranks

    @property
    def joined(self) -> bool:
        """Return whether this node is part of the cluster, by its own Ray.

        A Ray that joined while the head had no agent is started again once the head has one.
        """
        is_up = self.goal.by_shares or self.ray_is_up
        is_in_cluster = is_up and self.epoch is not None and not self.service_only
        return self.phase is WorkerPhase.FOLLOWING and is_in_cluster

    @property
    def head_wants(self) -> Wants:
        """Return what the head wants here; nothing before it has decided anything."""
        return {} if self.wanted is None else self.wanted.wants or {}

    def item(self, name: str) -> ItemReport | None:
        """Return the last that the executor of this node has reported of a thing."""
        return next((item for item in self.items if item.name == name), None)

    @property
    def share(self) -> ItemReport | None:
        """Return this node's last share of the job."""
        return self.item(SHARE)

    @property
    def ray(self) -> ItemReport | None:
        """Return this node's last Ray."""
        return self.item(RAY)

    @property
    def ray_is_up(self) -> bool:
        """Return whether the Ray that is wanted here is up, and belongs to the head's."""
        want = wanted_of(self).get(RAY)
        ray = self.ray
        if ray is None or want is None or ray.generation != want.generation:
            return False
        is_heads = ray.generation >= (self.epoch or 0)
        return is_heads and ray.step is Step.READY and ray.is_running

    @property
    def services(self) -> tuple[ItemReport, ...]:
        """Return this node's services: what runs or ran here beside steps, Ray and the share."""
        others = {RAY, SHARE, *self.steps}
        return tuple(item for item in self.items if item.name not in others)

    @property
    def running_steps(self) -> tuple[str, ...]:
        """Return the prepare steps that run here."""
        idle = self.awaiting_order | self.blocked
        pending = (name for name, item in self.steps.items() if item.step is Step.PENDING)
        return tuple(name for name in pending if name not in idle)

    @property
    def preparing(self) -> bool:
        """Return whether a prepare step is not done yet."""
        return any(item.step is Step.PENDING for item in self.steps.values())


def enter_joining(state: WorkerState, now: float) -> WorkerState:
    """Return the state of a worker that begins to join Ray."""
    return replace(state, phase=WorkerPhase.JOINING, phase_since=now)


def wanted_of(state: WorkerState) -> Mapping[str, Want]:
    """Return what this node is to run, by name: its steps, and what else the head wants here.

    Ray begins once the steps are done. A fence ends all but the steps; afterwards the head wants
    the next generation of each.
    """
    wants = {name: Want(state.steps[name].generation) for name in state.running_steps}
    if state.fenced:
        return wants
    others = _wanted_by_no_agent(state) if state.is_plain_head else state.head_wants
    for name, want in others.items():
        must_wait = name == RAY and state.preparing
        if name not in state.steps and not must_wait:
            wants[name] = want
    return wants


def _wanted_by_no_agent(state: WorkerState) -> Wants:
    """Return what a worker of a plain Ray head runs: Ray, once GCS answers."""
    ray = state.ray
    runs = ray is not None and ray.is_running
    if state.service_only or not (runs or state.ray_ready):
        return {}
    return {RAY: Want(kept_or_next(ray, 1))}


def item_reports(state: WorkerState) -> tuple[ItemReport, ...]:
    """Return what the head is told of this node's services and steps, those to come included."""
    known = {item.name: item for item in state.items}
    share = state.share
    if share is not None and share.generation == state.fenced_attempt:
        known[SHARE] = _as_fenced(share)
    running = state.running_steps
    steps = {
        name: ItemReport(name, item.step, item.evidence, item.generation, name in running)
        for name, item in state.steps.items()
    }
    return tuple({**known, **steps}.values())


def _as_fenced(share: ItemReport) -> ItemReport:
    """Return a share that the fence stopped: it is lost, and its code is none of the job's."""
    end = share.share_end
    if end is None or not end.by_order:
        return share
    return replace(share, share=replace(end, lost=True))


class HeadSpoke(LocalWorkerEvent):
    """The head's agent replied; without an agent, GCS answered (`epoch` is None then)."""

    ip: str  # the address of its node, where Ray is joined: a reply's own, which its proof covers
    epoch: int | None
    ray_ready: bool
    phase: str = ""
    verdict: Outcome | None = None
    refusal: str = ""
    held: bool = False  # it only serves the verdict of a run to which this agent never belonged
    rank: int | None = None  # the rank that it assigned to this node, if the platform has none
    run_id: str = ""  # its run id; '' before it has this node's run id
    wanted: NodeWanted | None = None  # what it wants here, if that has changed


class HeadSilent(LocalWorkerEvent):
    """The head could not be resolved or reached."""

    evidence: str


WorkerEvent = LocalWorkerEvent
FROM_OUTSIDE = (HeadSpoke,)  # events that carry data of the head


class EndWorker(WorkerAction):
    """Stop everything, report the end to the head, exit."""

    outcome: Outcome
    must_report: bool = False  # the head must get the report: the failure is this node's own
