"""The head's state, events and actions, as frozen values.

`HeadState` has one group of fields for each subject, and what can be said of them together;
head_decide.py has the order in which an event changes them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import NamedTuple, TypeVar

from msgspec import field
from msgspec.structs import replace

from agent.base.ends import Outcome  # noqa: TC001 - of an action, whose fields are read
from agent.base.text import iso_time
from agent.base.value import Value
from agent.checks.finding import Finding
from agent.decisions import attempts, shared
from agent.decisions.attempts import Attempt, JobReport, LostAttempt
from agent.decisions.durable import Durable, Losses
from agent.decisions.head.fleet import Fleet, RayNode, Worker
from agent.decisions.head.head_goal import HeadGoal, StepOnDisk
from agent.decisions.shared import (
    HERE,
    Answered,
    HeadAction,
    HeadEvent,
    Item,
    ItemReport,
    JobItem,
    JobWant,
    LocalAnswer,
    LogLine,
    Step,
)
from agent.frameworks.recipe import NodeSize
from agent.job.groups import group_of
from agent.job.share import ShareArgs, ShareEnd
from agent.node.facts import Facts  # noqa: TC001 - of an event, whose fields are read
from agent.plan.node_price import NodePrice  # noqa: TC001 - same

__all__ = ["HeadAction", "HeadEvent"]  # declared in shared.py, beside what both roles have

Actions = tuple[HeadAction, ...]
Key = tuple[str, str]  # a service or step on a node: HERE or the worker's agent id, then its name


class HeadPhase(str, Enum):
    """The head's phases in order; each further attempt starts at BOOTING."""

    RESUMING = "resuming"  # a killed agent left a job running: find it
    BOOTING = "booting"  # Ray, services, prepare steps and workers start in parallel
    SUBMITTING = "submitting"
    RUNNING = "running"  # or, without a job, serving
    JUDGING = "judging"  # the job failed: ask all nodes whether one was lost
    STOPPING = "stopping"  # the job was asked to stop
    LEAVING = "leaving"  # the verdict is sent to the workers, everything stops


# --- parts of the state, in its order -------------------------------------------------------------


class JobWatch(Value):
    """What is known of the present attempt's job, which Ray reports to the next agent again."""

    want: JobWant | None = None  # what this node is to do for it
    begun: int = 0  # how often this agent has submitted or followed a job
    item: JobItem | None = None  # what this node last reported of it
    last_status_at: float = 0.0
    """When Ray last returned its status, or this agent began to submit or follow it."""
    ended_at: float | None = None  # when the job ended, of which Ray's report may be late
    unreachable_nodes: str = ""  # nodes of a given Ray that did not answer after it failed

    @property
    def report(self) -> JobReport | None:
        """Return its last status."""
        return None if self.item is None else self.item.report

    def of_next(self) -> JobWatch:
        """Return what is known of the next one: nothing but how many there were."""
        return JobWatch(begun=self.begun)


class RayState(Value):
    """Ray on the head, and what it has answered."""

    item: Item = field(default_factory=Item)  # ready once GCS lists the head's own node
    oom_evidence: str = ""  # what the kernel's OOM killer did here when Ray last exited
    doubt: str = ""  # which of its processes, other than GCS and raylet, is stopped
    doubt_since: float = 0.0
    beside_job: bool = False  # the driver of some job runs here
    gcs_answers: bool = False  # true once GCS accepts connections: workers can join
    head_ip: str | None = None  # the address of the head node in GCS's list
    node_sizes: Mapping[str, NodeSize] = field(default_factory=dict)  # by address, from GCS
    jobs_asked: bool = False  # true once Ray was asked for the jobs of this run
    jobs_known: bool = False  # true once it has answered


class ServicesState(Value):
    """The services of all nodes."""

    by_key: dict[Key, Item] = field(default_factory=dict)  # in the order of their starts
    pending: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """By service: the nodes on which it is not ready yet, with their deadlines."""
    lost: frozenset[Key] = frozenset()  # ended, and not restarted yet
    abandoned: frozenset[Key] = frozenset()  # optional ones that failed for good
    blocked: frozenset[Key] = frozenset()  # a dependency is not ready; the head's own steps, too


class SeenMember(Value):
    """What the front of a service has seen of one member."""

    port: int  # of the front
    generation: int  # the member's, as the front knew it
    state: str
    version: str = ""  # of its weights
    why: str = ""  # why it does not serve
    is_wedged: bool = False  # it answers its probe and no request


class GroupsState(Value):
    """The members of groups, beyond what each node reports of them."""

    fronts: Mapping[str, tuple[SeenMember, ...]] = field(default_factory=dict)
    """By service: what its front reports."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """By service: the trainer's newest weights, as its front has received them."""
    goes_on: bool = False  # without the nodes of groups that have not reported


class StepsState(Value):
    """The prepare steps."""

    by_key: Mapping[Key, Item] = field(default_factory=dict)  # the head's own
    wanted: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """By a worker's agent id: the steps that it is wanted to run."""
    holders: Mapping[StepOnDisk, str] = field(default_factory=dict)  # the nodes that run them
    are_of_other_head: bool = False  # a worker has proved that it outlived a head: it may run some


class NodeShare(Value):
    """One node's share of an attempt that a launcher starts on each node."""

    node: str  # the node by its name
    rank: int
    size: NodeSize
    end: ShareEnd | None = None
    failed_at: float = 0.0  # when its first rank failed, on the head's clock


class JobShares(Value):
    """All shares of an attempt, in the order of ranks."""

    by_node: Mapping[str, NodeShare] = field(default_factory=dict)
    wanted: Mapping[str, ShareArgs | None] = field(default_factory=dict)
    """By node what is wanted once the job is to run; None for a share that is to be over."""
    absent: frozenset[str] = frozenset()  # the running shares whose node is absent or lost them
    silent_are_absent: bool = False  # so count those that have not reported since the stop

    @property
    def running(self) -> Iterator[str]:
        """Yield the shares without a reported end, those that their node lost included."""
        return (k for k, share in self.by_node.items() if share.end is None or share.end.lost)

    @property
    def first_failed(self) -> NodeShare | None:
        """Return the share that failed first."""
        failed = [share for share in self.by_node.values() if share.end and share.end.failed]
        return min(failed, key=lambda share: share.failed_at, default=None)

    @property
    def is_settled(self) -> bool:
        """Return whether no report can follow: each share has ended or is absent."""
        return all(key in self.absent for key in self.running)

    @property
    def sizes(self) -> tuple[NodeSize, ...]:
        """Return each node's size, in the order of ranks."""
        return tuple(share.size for share in self.by_node.values())


class Uncounted(Value):
    """The nodes in GCS's list that do not count."""

    since: Mapping[str, float] = field(default_factory=dict)
    """By id in Ray: since when; -inf once the head waits no longer for Ray to drop it."""
    fleet: Fleet | None = None  # for which that was computed


class Comparison(Value):
    """The last comparison of the nodes."""

    differences: tuple[Finding, ...] = ()
    workers: Mapping[str, str] | None = None  # that were compared, address to name


class Joined(Value):
    """Nodes of a large run that joined, and are not logged yet."""

    names: tuple[str, ...] = ()
    since: float = 0.0  # when the first of them joined


class FrameworkCheck(Value):
    """The framework's check of the job's command."""

    generation: int = 0  # how often it was wanted; 0 where no framework is known
    may_change: bool = False  # it was asked before prepare steps ended
    answered: int = 0  # the last generation that was answered


class Preflight(Value):
    """The all-reduce before the job."""

    members: tuple[tuple[str, str, int], ...]  # key, name and GPUs, by rank
    generation: int
    until: float | None  # then its result is late; None once it is over
    wanted: Mapping[str, ShareArgs] = field(default_factory=dict)  # by node, while it lasts
    lost: tuple[str, ...] = ()  # members that were lost meanwhile
    has_failed: bool = False  # the ranks of a node have failed


class EarlierAttempts(Value):
    """What is known, and what may still run, of the attempts before this one."""

    number: int = 0  # how many of them this head has begun
    newest_checkpoint: int | None = None  # the step of the newest checkpoint, if known
    resumes_from: str = ""  # the checkpoint that the recipe resumes from
    leftovers: Mapping[str, float] = field(default_factory=dict)
    """What may still run the previous attempt: agent id, or name without one, and last contact."""
    former_workers: tuple[str, ...] = ()
    """Those that a killed agent counted in the present attempt: it may run there, too."""
    ray: int = 0  # the generation of this node's Ray on which the previous attempt ran


class Saving(Value):
    """A stop of the job that first lets the job save."""

    until: float  # then the job is stopped, saved or not
    is_of_grace: bool  # true if this wait is part of the stop's own grace
    over: str = ""  # what it has saved, or why it cannot save on the signal


class Ending(Value):
    """How the job is stopped, and what was announced of the run's end."""

    saving: Saving | None = None  # the job may save before it is stopped; None once that is over
    hours_warned: bool = False  # true once the end by AGENT_MAX_HOURS was announced
    cost_warned: bool = False  # true once most of AGENT_MAX_COST was used, and that announced


class Notices(Value):
    """The workers, by agent id, whose platform takes their node away."""

    leaving: frozenset[str] = frozenset()  # not yet released
    released: frozenset[str] = frozenset()

    def without(self, key: str) -> Notices:
        """Remove an agent that ended."""
        return Notices(self.leaving - {key}, self.released - {key})


# --- the state ------------------------------------------------------------------------------------


class HeadState(Value):
    """The whole input of the head's decisions, apart from event and time."""

    goal: HeadGoal
    durable: Durable
    phase: HeadPhase = HeadPhase.BOOTING
    phase_since: float = 0.0  # when this phase started
    began: float = 0.0  # the deadlines of this attempt's boot count from this time
    not_before: float = 0.0  # it is submitted no earlier than this: a pause after a loss
    has_resumed: bool = False  # it follows, or followed, the attempt of a killed agent
    watch_is_logged: bool = False  # how to open the page
    actions: Actions = ()  # what is to be done after the last event

    # What runs here and on the workers
    job: JobWatch = field(default_factory=JobWatch)
    items: Mapping[str, ItemReport] = field(default_factory=dict)
    """What runs on the head's own node, or did, as last reported, by name."""
    ray: RayState = field(default_factory=RayState)
    services: ServicesState = field(default_factory=ServicesState)
    groups: GroupsState = field(default_factory=GroupsState)
    steps: StepsState = field(default_factory=StepsState)
    shares: JobShares = field(default_factory=JobShares)  # of an attempt without Ray

    # The nodes
    fleet: Fleet = field(default_factory=Fleet)
    reports_due: float | None = None
    """Until then a node in GCS's list may have an agent that has not reported to this one yet."""
    uncounted: Uncounted = field(default_factory=Uncounted)
    comparison: Comparison = field(default_factory=Comparison)
    joined: Joined = field(default_factory=Joined)
    check: FrameworkCheck = FrameworkCheck()
    probes: shared.Probes = field(default_factory=shared.Probes)  # between nodes, before the job
    preflight: Preflight | None = None  # the all-reduce before the job, once it started

    # Further attempts and the end
    earlier: EarlierAttempts = field(default_factory=EarlierAttempts)
    ending: Ending = field(default_factory=Ending)
    notices: Notices = field(default_factory=Notices)

    # --- changes ----------------------------------------------------------------------------------

    def do(self, *actions: HeadAction) -> HeadState:
        """Add actions."""
        return replace(self, actions=(*self.actions, *actions))

    def log(self, sentence: str, level: str = "info") -> HeadState:
        """Add a log line."""
        return self.do(LogLine(sentence, level))

    def enter(self, phase: HeadPhase, now: float) -> HeadState:
        """Enter a phase."""
        return replace(self, phase=phase, phase_since=now)

    def with_durable(self, **changes: object) -> HeadState:
        """Change fields of `durable`."""
        return replace(self, durable=replace(self.durable, **changes))

    def with_attempt(self, **changes: object) -> HeadState:
        """Change fields of the present attempt."""
        return self.with_durable(attempt=replace(self.attempt, **changes))

    def with_losses(self, **changes: object) -> HeadState:
        """Change fields of `losses`."""
        return self.with_durable(losses=replace(self.losses, **changes))

    def with_job(self, **changes: object) -> HeadState:
        """Change fields of `job`."""
        return replace(self, job=replace(self.job, **changes))

    def with_ray(self, **changes: object) -> HeadState:
        """Change fields of `ray`."""
        return replace(self, ray=replace(self.ray, **changes))

    def with_services(self, **changes: object) -> HeadState:
        """Change fields of `services`."""
        return replace(self, services=replace(self.services, **changes))

    def with_groups(self, **changes: object) -> HeadState:
        """Change fields of `groups`."""
        return replace(self, groups=replace(self.groups, **changes))

    def with_steps(self, **changes: object) -> HeadState:
        """Change fields of `steps`."""
        return replace(self, steps=replace(self.steps, **changes))

    def with_earlier(self, **changes: object) -> HeadState:
        """Change fields of `earlier`."""
        return replace(self, earlier=replace(self.earlier, **changes))

    def with_ending(self, **changes: object) -> HeadState:
        """Change fields of `ending`."""
        return replace(self, ending=replace(self.ending, **changes))

    # --- time -------------------------------------------------------------------------------------

    def utc(self, now: float) -> str:
        """Return a time of the run's clock in UTC."""
        return iso_time(self.goal.began_at + now)

    def deadline_of(self, key: str) -> float:
        """Return the deadline of a wait that starts with the attempt."""
        return self.began + self.goal.limits[key]

    # --- the attempt and the outcome --------------------------------------------------------------

    @property
    def attempt(self) -> Attempt:
        """Return the present attempt; until it is submitted, the next one."""
        return self.durable.attempt

    @property
    def required(self) -> int:
        """Return how many workers the attempt needs."""
        return self.durable.attempt.required

    @property
    def losses(self) -> Losses:
        """Return what the present attempt has lost."""
        return self.durable.losses

    @property
    def runs_attempt(self) -> bool:
        """Return whether this agent has submitted or followed the attempt, which is not over."""
        is_known = self.attempt.is_submitted and self.job.want is not None
        return is_known and self.phase is not HeadPhase.LEAVING

    @property
    def lost_attempts(self) -> tuple[LostAttempt, ...]:
        """Return the attempts of this run that were lost so far."""
        return self.durable.tried

    @property
    def another_follows(self) -> bool:
        """Return whether another attempt follows if the present one is lost."""
        present = LostAttempt(0.0, announced=self.attempt.is_announced_loss())
        lost = (*self.lost_attempts, present)
        return attempts.count_losses(lost) <= self.goal.retries

    @property
    def last_attempt_number(self) -> int:
        """Return the highest number that an attempt of this run can have."""
        left = self.goal.retries - attempts.count_losses(self.lost_attempts)
        return self.attempt.number + max(0, left)

    @property
    def outcome(self) -> Outcome | None:
        """Return the outcome to end with: decided, or once the job that is stopped has ended."""
        stop = self.durable.stop
        return self.durable.verdict or (None if stop is None else stop.outcome)

    @property
    def verdict_for_workers(self) -> Outcome | None:
        """Return the outcome to send to workers: only while leaving, and not if superseded."""
        verdict = self.durable.verdict
        ours_alone = verdict is not None and verdict.is_superseded
        return verdict if self.phase is HeadPhase.LEAVING and not ours_alone else None

    # --- services and steps -----------------------------------------------------------------------

    def with_item(self, key: Key, item: Item) -> HeadState:
        """Set the state of a service on a node, or of one of the head's own steps."""
        if key in self.steps.by_key:
            return self.with_steps(by_key={**self.steps.by_key, key: item})
        node, name = key
        pending = self.services.pending
        nodes = pending.get(name, {})
        if item.step is Step.PENDING and nodes.get(node) != item.deadline:
            pending = {**pending, name: {**nodes, node: item.deadline}}
        elif item.step is not Step.PENDING and node in nodes:
            others = {other: until for other, until in nodes.items() if other != node}
            pending = {**pending, name: others}
        lost = self.services.lost - {key}
        lost = lost | {key} if item.step is Step.LOST else lost
        services = {**self.services.by_key, key: item}
        return self.with_services(by_key=services, pending=pending, lost=lost)

    def without_service(self, key: Key) -> HeadState:
        """Remove a service that no wait covers any more."""
        if key not in self.services.by_key:
            return self
        state = self.with_item(key, Item(Step.READY))
        others = {k: item for k, item in state.services.by_key.items() if k != key}
        return state.with_services(by_key=others)

    def without_services_on(self, node: str) -> HeadState:
        """Remove the services of a node that left."""
        state = self
        for name in self.service_names(node):
            state = state.without_service((node, name))
        return state

    def without_members_on(self, node: str) -> HeadState:
        """Remove the members of groups on a node."""
        state = self
        for name in self.service_names(node):
            if self.goal.is_of_group(name):
                state = state.without_service((node, name))
        return state

    def service_names(self, node: str) -> Iterator[str]:
        """Yield the names of all services and members that may run on a node."""
        worker = self.fleet.workers.get(node)
        for spec in self.goal.services:
            count = 1 if worker is None else worker.members.get(spec.name, 1)
            yield from spec.names(count)

    def service_home(self, name: str) -> str | None:
        """Return the node of a service that runs once, the latest one; None if none has it."""
        if (HERE, name) in self.services.by_key:
            return HERE
        keys = reversed(self.services.by_key)
        return next((node for node, service in keys if service == name), None)

    # --- nodes ------------------------------------------------------------------------------------

    def nodes(self) -> tuple[NodeSize, ...]:
        """Return the sizes of the head and of each worker of the trainer that counts."""
        if self.goal.by_shares:
            return self.shares.sizes
        fleet = self.fleet
        head = self.ray.head_ip
        nodes = {} if head is None else {head: self.goal.facts}
        of_trainer = (ip for ip in fleet.alive if not self.is_in_group(ip))
        nodes |= {ip: fleet.facts.get(fleet.agent_at.get(ip, "")) for ip in of_trainer}
        sizes = []
        for ip, facts in nodes.items():  # Ray has a node's GPUs and CPUs, its agent all its memory
            size = self.ray.node_sizes.get(ip, NodeSize(0))
            if facts is not None:
                memory = facts.memory or size.memory
                size = replace(size, memory=memory, gpu_memory=facts.gpu_memory)
            sizes.append(size)
        return tuple(sizes)

    @property
    def unreported_nodes(self) -> tuple[str, ...]:
        """Return the addresses of nodes in Ray whose agents may not have reported yet."""
        if self.reports_due is None:
            return ()
        return tuple(ip for ip in self.fleet.alive if ip not in self.fleet.agent_at)

    def expects(self, worker: Worker) -> bool:
        """Return whether a worker is one of the run: by its rank, in Ray, or in the attempt.

        A spare has a further rank: until it takes part, it neither delays nor ends the run.
        """
        rank = worker.effective_rank
        last = self.goal.last_rank
        if worker.refused:
            return False
        is_known = rank is None or rank <= last or worker.key in self.shares.by_node
        if is_known or worker.ip in self.attempt.workers:
            return True

        # A spare that joined Ray: what it ran must have ended before the next attempt.
        if worker.name in self.attempt.lost_nodes or worker.key in self.earlier.leftovers:
            return True
        if self.goal.by_shares:  # in place of an expected one
            return any(expected.key == worker.key for expected in self.fleet.present()[:last])
        return self.fleet.counts(worker)

    def relies_on(self, node: str) -> bool:
        """Return whether the run relies on what runs on a node: HERE or an agent's id."""
        worker = self.fleet.workers.get(node)
        return worker is None or self.expects(worker)

    def is_in_group(self, ip: str) -> bool:
        """Return whether the node at an address is of a group beside the trainer."""
        worker = self.fleet.workers.get(self.fleet.agent_at.get(ip, ""))
        rank = None if worker is None else worker.effective_rank
        return group_of(self.goal.groups, rank) is not None

    def gpus_for_job(self, worker: Worker) -> int:
        """Return a worker's GPUs without those of services whose rank the head has given it.

        Its report leaves out those of other services.
        """
        if worker.rank is not None:
            return worker.gpus
        places = [spec for spec in self.goal.services if spec.where.is_by_rank]
        rank = worker.effective_rank
        there = [spec for spec in places if rank in spec.where.ranks]
        taken = sum(spec.gpus * len(spec.names(worker.members.get(spec.name, 1))) for spec in there)
        return max(0, worker.gpus - taken)


# --- events ---------------------------------------------------------------------------------------


class RaySeen(HeadEvent):
    """GCS's current list of nodes, or why the bridge has none."""

    nodes: tuple[RayNode, ...] = ()
    evidence: str = ""  # why it has none; '' with a list
    output: str = ""  # what the bridge printed last before it ended
    generation: int = 1  # of the head's Ray that the bridge was started for


class WorkerIntroduced(HeadEvent):
    """A worker's agent sent the facts of its machine, once per agent."""

    key: str
    name: str
    facts: Facts
    findings: tuple[Finding, ...] = ()  # the findings of its own checks


class WorkerReported(HeadEvent):
    """A worker's agent sent a report."""

    worker: Worker


class WorkerSilent(HeadEvent):
    """A worker's agent stopped reporting and answers no probe."""

    key: str
    evidence: str
    ray_answers: bool = False  # false if its Ray does not answer either: the node is lost


class WorkerReplaced(HeadEvent):
    """An agent ended: its node has a new one, or it left and nothing needs its state."""

    key: str


class RunRemembered(HeadEvent):
    """A worker's agent that outlived the former head reports the run and its last attempt."""

    run_id: str
    attempt: int
    epoch: int = 0  # the epoch of the head that it followed, if higher than ours; else 0
    is_of_other_head: bool = False  # that head's epoch is another than ours


class LaterHead(HeadEvent):
    """Another head with a higher epoch serves this run."""

    epoch: int
    evidence: str


FROM_OUTSIDE = (WorkerIntroduced, WorkerReported, RunRemembered, LaterHead)
"""Events that carry data of other nodes."""


# --- answers to what was asked --------------------------------------------------------------------


class JobsListed(LocalAnswer):
    """The attempts of this run that Ray knows, ended or not, by id."""

    ids: tuple[str, ...]


class NodesAsked(LocalAnswer):
    """Each node's raylet was probed after an attempt failed; `silent` ones did not answer."""

    id: str  # of the attempt
    silent: Mapping[str, str] = field(default_factory=dict)  # by node name: the evidence


class ProgressKnown(LocalAnswer):
    """What an attempt has made that is over, and the newest checkpoint now."""

    attempt: int
    checkpoint: int | None = None  # the step of the newest one
    path: str = ""  # the checkpoint that the recipe resumes from
    last_step: int | None = None  # the last step of the attempt, if known


class PriceKnown(LocalAnswer):
    """The platform gave the price of a node, which the user did not set."""

    price: NodePrice


class FrontSeen(LocalAnswer):
    """What the front of a service reports, after a change."""

    service: str
    members: tuple[SeenMember, ...]
    version: str = ""  # the trainer's newest weights


A = TypeVar("A", bound=LocalAnswer)


def answer_of(event: HeadEvent, kind: type[A]) -> A | None:
    """Return the answer of this kind that an event has, if it has one."""
    if isinstance(event, Answered) and isinstance(event.answer, kind):
        return event.answer
    return None


# --- actions --------------------------------------------------------------------------------------


class Persist(HeadAction):
    """Write what the next agent of the run must have; it comes before all other actions."""

    durable: Durable
    must_be_on_disk: bool = False  # nothing else is done before it is there


class Ask(HeadAction):
    """Ask a node; Answered follows, or a worker's report with the answer."""

    question: HeadQuestion
    node: str = HERE


class HeadQuestion(Value):
    """What the head asks once."""


class ListJobs(HeadQuestion):
    """Which jobs of this run does Ray have? JobsListed is the answer."""

    prefix: str  # the ids are this one, or begin with it and a dash


class AskNodes(HeadQuestion):
    """Does each node's raylet answer? A lost node may be the cause of this attempt's failure."""

    id: str


class AskProgress(HeadQuestion):
    """What has an attempt made that is over? ProgressKnown is the answer."""

    attempt: int  # its number; 0 before the first attempt


class Probe(HeadQuestion):
    """How does the reward server or another node answer? Any node may be asked."""

    kind: str
    at: str = ""


class EndRun(HeadAction):
    """Send the verdict to the workers, stop everything, exit."""

    outcome: Outcome


# --- decisions ------------------------------------------------------------------------------------


class Turn(NamedTuple):
    """The input of one pass: the state before it, the event and the time."""

    before: HeadState
    event: HeadEvent
    now: float


def leave(state: HeadState, outcome: Outcome, now: float) -> HeadState:
    """Leave with an outcome, which also ends the running attempt."""
    outcome = outcome if outcome.phase else replace(outcome, phase=state.phase.value)
    state = state.with_durable(verdict=outcome)
    return state.enter(HeadPhase.LEAVING, now).do(EndRun(outcome))
