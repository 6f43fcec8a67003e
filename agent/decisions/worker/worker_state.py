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
    OWN_THINGS,
    RAY,
    SHARE,
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
from agent.job.groups import NodeGroup, is_kept_from_ray
from agent.job.services import PrepareStep, ServiceSpec, wanted_steps

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
    groups: tuple[NodeGroup, ...] = ()  # of nodes beside the trainer
    group: str = ""  # the one that this node names
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
    turns_since: float = 0.0  # since when turns of prepare steps are awaited: the last fence's end
    fenced_attempt: int = 0  # whose share it stopped: its end is no result of the job; 0 for none

    # This node's Ray.
    ray_end: ItemReport | None = None  # as it last ended by itself, until it is up again
    has_joined_before: bool = False  # it was part of the cluster: a timeout is then a loss, 75

    # What runs here.
    items: tuple[ItemReport, ...] = ()  # what runs here, or did, by this node's executor
    steps_due: Mapping[str, float] = field(default_factory=dict)
    """Of the prepare steps that are wanted: until when each must be done."""
    wanted: NodeWanted | None = None  # the head's last message about this node
    addresses: Mapping[str, str] = field(default_factory=dict)
    """Of services on a rank, by the head's last message that had them; '' for the head's."""
    members: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Of services in a group: where their members are reached."""

    def with_surviving_ray(self, generation: int) -> WorkerState:
        """Return the state of a worker that keeps a killed agent's Ray and follows at once.

        Its node never left the cluster: the head must count it neither as lost nor as cleared.
        This state has the recorded head and run, and since when the head is out of reach.
        """
        since = self.unreached_since
        done = [ItemReport(step.name, Step.READY) for step in self.goal.steps]  # before the join
        ray = ItemReport(RAY, Step.READY, generation=generation, is_running=True)
        return replace(
            self,
            phase=WorkerPhase.FOLLOWING,
            has_agent=True,
            items=(ray, *done),
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
        goal = self.goal
        is_kept = is_kept_from_ray(goal.groups, goal.group, self.rank)
        return is_kept or self.rank in goal.service_only_ranks

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
        want = wanted_here(self).get(RAY)
        ray = self.ray
        if ray is None or want is None or ray.generation != want.generation:
            return False
        is_heads = ray.generation >= (self.epoch or 0)
        return is_heads and ray.step is Step.READY and ray.is_running

    @property
    def services(self) -> tuple[ItemReport, ...]:
        """Return this node's services: all that runs or ran here but steps and own things."""
        others = {*OWN_THINGS, *(step.name for step in self.goal.steps)}
        return tuple(item for item in self.items if item.name not in others)

    @property
    def running_steps(self) -> tuple[str, ...]:
        """Return the prepare steps that run here, or are about to."""
        running = []
        for name, want in steps_wanted(self).items():
            item = self.item(name)
            if item is None or item.generation < want.generation or item.step is Step.PENDING:
                running.append(name)
        return tuple(running)

    @property
    def awaited_turns(self) -> tuple[str, ...]:
        """Return the steps that begin once the head wants them, as other nodes may run theirs.

        A head without an agent wants none: nothing on other nodes is awaited.
        """
        if self.is_plain_head:
            return ()
        awaited = []
        for step in wanted_steps(self.goal.steps):
            item = self.item(step.name)
            want = self.head_wants.get(step.name)
            if item is None:
                begun = 0
            elif item.is_stopped:  # by the fence
                begun = item.generation
            else:
                continue
            if want is None or want.generation <= begun:
                awaited.append(step.name)
        return tuple(awaited)

    @property
    def preparing(self) -> bool:
        """Return whether a prepare step is not done yet."""
        items = (self.item(step.name) for step in self.goal.steps)
        return any(item is None or item.step is not Step.READY for item in items)

    def unmet_dependencies(self, step: PrepareStep) -> list[str]:
        """Return the steps of this node that are not done, and after which this one runs."""
        items = {name: self.item(name) for name in step.after}
        names = {step.name for step in self.goal.steps}
        return [
            name
            for name, item in items.items()
            if name in names and (item is None or item.step is not Step.READY)
        ]


def enter_joining(state: WorkerState, now: float) -> WorkerState:
    """Return the state of a worker that begins to join Ray."""
    return replace(state, phase=WorkerPhase.JOINING, phase_since=now)


def wanted_here(state: WorkerState) -> Wants:
    """Return what this node is to run, by name: its steps, and what else the head wants here.

    Ray and the share begin once the steps are done. A fence ends all; afterwards steps run again,
    and the head wants the next generation of the rest.
    """
    if state.fenced:
        return {}
    steps = {step.name for step in state.goal.steps}
    others = _wanted_by_no_agent(state) if state.is_plain_head else state.head_wants
    wants = steps_wanted(state)
    for name, want in others.items():
        must_wait = name in {RAY, SHARE} and state.preparing
        if name not in steps and not must_wait:
            wants[name] = want
    return wants


def steps_wanted(state: WorkerState) -> dict[str, Want]:
    """Return the prepare steps that are to run here, those that are done included.

    A step begins after those that it depends on, or in its turn. One that the fence has ended runs
    again in the same way, as its next generation.
    """
    if state.fenced:
        return {}
    awaited = state.awaited_turns
    wants = {}
    for step in state.goal.steps:
        item = state.item(step.name)
        if item is not None and not item.is_stopped:
            wants[step.name] = Want(item.generation)
            continue
        is_blocked = step.name not in state.head_wants and state.unmet_dependencies(step)
        if step.name not in awaited and not is_blocked:
            wants[step.name] = Want(1 if item is None else item.generation + 1)
    return wants


def _wanted_by_no_agent(state: WorkerState) -> Wants:
    """Return what a worker of a plain Ray head runs: Ray, once GCS answers."""
    ray = state.ray
    runs = ray is not None and ray.is_running
    if state.service_only or not (runs or state.ray_ready):
        return {}
    return {RAY: Want(kept_or_next(ray, 1))}


def item_reports(state: WorkerState) -> tuple[ItemReport, ...]:
    """Return what is reported of all that runs here, or did, and of the steps to come."""
    known = {item.name: item for item in state.items}
    share = state.share
    if share is not None and share.generation == state.fenced_attempt:
        known[SHARE] = _as_fenced(share)

    # A step that is about to run is one that runs.
    wants = steps_wanted(state)
    running = state.running_steps
    for step in state.goal.steps:
        item = known.get(step.name) or ItemReport(step.name, Step.PENDING)
        if step.name in running and not item.is_running:
            item = ItemReport(step.name, Step.PENDING, "", wants[step.name].generation, True)  # noqa: FBT003 - it runs
        known[step.name] = item
    return tuple(known.values())


def _as_fenced(share: ItemReport) -> ItemReport:
    """Return a share that the fence stopped: it is lost, and its code is none of the job's."""
    end = share.share_end
    if end is None or not end.by_stop:
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
