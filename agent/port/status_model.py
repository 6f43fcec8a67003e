"""The run's status, declared once: each field with its type, what it means, and its metric.

JSON and its description (docs/reference/openapi.json), `/metrics`, the terminal's views, the
judgment and the page's fields follow from these types. A further value of the run is declared in
`CommonStatus` and set in run/head_server.py; a node's in `NodeValues` (port/protocol.py) and set in
run/node_run.py; a machine's that is read anew in `MachineFigures` (node/figures.py) and read in
run/node_figures.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from itertools import islice
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from msgspec import UNSET, Meta, UnsetType

from agent.base.ends import Outcome
from agent.base.fields import (
    CLOCK,
    NUMBERS,
    Label,
    Sample,
    combined,
    count,
    gauge,
    of_group,
    of_member,
    of_node,
    of_service,
    one_of,
    plain,
    says,
)
from agent.base.value import Value
from agent.checks.finding import Finding
from agent.decisions.head.fleet import NodeState
from agent.decisions.head.head_state import HeadPhase
from agent.decisions.head.member_states import MemberState
from agent.decisions.receipt import ReceiptStatus
from agent.decisions.worker.worker_state import WorkerPhase
from agent.job.series import SeriesPart
from agent.job.services import JudgeCost, Latency
from agent.node.facts import MIB
from agent.node.figures import MachineFigures
from agent.port.protocol import NodeValues
from agent.record.outcome_file import OutageRecord, ShortageRecord
from agent.record.run_record import AttemptOutcome

if TYPE_CHECKING:
    from agent.decisions.head.member_states import GroupMember
    from agent.decisions.shared import Item, ItemReport, Wait
    from agent.diagnosis.advice import Advice
    from agent.node.figures import Figures
    from agent.record.job_lines import JobLines

C = TypeVar("C", bound="CommonStatus")
State = Literal["keep", "look", "end"]
GpuColumn = Literal["use", "power", "clock", "temperature", "memory_used", "memory_total"]
SlowBy = Literal["", "use", "power", "clock"]
Whole = Annotated[int, Meta(ge=0)]
Values = tuple[Whole | None, ...]
Span = tuple[str, float]
"""A phase, and the seconds since the agent's start at which it began."""


class Reader(Enum):
    """Who reads a status."""

    ALL = "all"  # with the token, or the control key: log text, too
    LOCAL = "local"  # without a token, on this node
    ANYONE = "anyone"  # without a token, from elsewhere

    def evidence_of(self, known: Item | GroupMember | ItemReport | Wait) -> str:
        """Return the evidence of an item or a wait; what was printed last is text of a log."""
        return known.evidence if self is Reader.ANYONE else known.in_full


Clock = Annotated[float, CLOCK]

_MEMBER_STATES = tuple(state.value for state in MemberState)
_JOB_STATES = ("not submitted", "pending", "running", "succeeded", "failed", "stopped")
"""Each has a sample, from 0 on."""


def _by_phase(phase: HeadPhase | WorkerPhase, owner: CommonStatus | WorkerStatus) -> list[Sample]:
    return [({"role": owner.role, "phase": phase.value}, 1)]


def _seconds_by_phase(spans: tuple[Span, ...], owner: HeadStatus) -> Iterator[Sample]:
    ends = [*(start for _, start in spans[1:]), owner.seconds]
    spent: dict[str, float] = {}
    for (phase, start), end in zip(spans, ends, strict=False):
        spent[phase] = spent.get(phase, 0.0) + max(0.0, end - start)
    for phase, seconds in spent.items():
        yield {"phase": phase}, round(seconds, 1)


def _by_state(nodes: tuple[NodeStatus, ...], _owner: object) -> list[Sample]:
    states = [node.state for node in nodes]
    return [({"state": state.value}, states.count(state)) for state in NodeState]


def _joined_at(spans: tuple[Span, ...], _owner: object) -> list[Sample]:
    joined = (start for phase, start in spans if phase == WorkerPhase.FOLLOWING.value)
    return [({}, start) for start in islice(joined, 1)]


def _is_ready(state: str, _owner: object) -> list[Sample]:
    return [({}, state == "ready")]


def _by_name(values: Mapping[str, float] | UnsetType, _owner: object) -> list[Sample]:
    return [({"name": name}, value) for name, value in (values or {}).items()]


_PHASE = gauge("phase", "The phase of this node's agent; 1 for the current one.", _by_phase)
_UPTIME = gauge("uptime_seconds", "Seconds since the agent's start.")
_WAITS = gauge("waits", "Things waited for.", count)


# --- machines -------------------------------------------------------------------------------------


class GpuColumns(Value, omit_defaults=True):
    """One list for each figure of a machine's GPUs, in their order; none without GPUs."""

    index: tuple[Whole, ...] = ()
    use: Annotated[
        Values,
        says("percent"),
        of_node("gpu_use_percent", "Mean utilization of a node's GPUs.", combined(fmean)),
    ] = ()
    memory_used: Annotated[
        Values,
        says("MiB"),
        of_node("gpu_memory_used_bytes", "GPU memory in use.", combined(sum, MIB)),
    ] = ()
    memory_total: Annotated[
        Values,
        says("MiB"),
        of_node("gpu_memory_bytes", "GPU memory of a node.", combined(sum, MIB)),
    ] = ()
    power: Annotated[
        Values,
        says("watts"),
        of_node("gpu_power_watts", "Power of a node's GPUs in all.", combined(sum)),
    ] = ()
    power_limit: Annotated[Values, says("watts")] = ()
    temperature: Annotated[
        Values,
        says("degrees Celsius"),
        of_node("gpu_celsius", "Temperature of its hottest GPU.", combined(max)),
    ] = ()
    clock: Annotated[
        Values,
        says("MHz"),
        of_node("gpu_clock_mhz", "Clock of a node's slowest GPU.", combined(min)),
    ] = ()
    throttled: Annotated[tuple[tuple[str, ...], ...], says("what limits its clock")] = ()
    xid: Annotated[tuple[Whole, ...], says("the last Xid error; 0 for none")] = ()
    errors: Annotated[tuple[Whole, ...], says("uncorrected memory errors")] = ()
    fault: Annotated[tuple[str, ...], says("why the driver does not report it")] = ()

    def known(self, column: GpuColumn) -> list[int]:
        """Return the known values of a figure."""
        return [value for value in getattr(self, column) if value is not None]


class DiskStatus(Value, array_like=True):
    """How full the disk of a folder is, in bytes."""

    folder: Annotated[str, Label("folder")]
    used: Annotated[
        Whole, of_node("disk_used_bytes", "What is used of a folder's disk.", plain, "folder")
    ]
    total: Annotated[Whole, of_node("disk_bytes", "The size of a folder's disk.", plain, "folder")]


class MachineStatus(MachineFigures):
    """The figures of a machine: its own values, and its GPUs, disks and forecasts."""

    gpus: GpuColumns
    disks: tuple[DiskStatus, ...]
    forecasts: Annotated[tuple[Span, ...], says("what will be full, and the seconds until then")]

    @classmethod
    def of(cls, figures: Figures) -> MachineStatus:
        """Return a machine's figures as the status has them."""
        gpus = figures.gpus
        columns = GpuColumns.__struct_fields__
        as_read = {name: getattr(figures, name) for name in MachineFigures.__struct_fields__}
        return cls(
            gpus=GpuColumns(
                **{name: tuple(getattr(gpu, name) for gpu in gpus) for name in columns}
            ),
            disks=tuple(DiskStatus(disk.folder, disk.used, disk.total) for disk in figures.disks),
            forecasts=tuple((ahead.what, ahead.seconds) for ahead in figures.forecasts),
            **as_read,
        )


class GpuHistoryStatus(Value):
    """What the GPUs did at these seconds since the agent's start, in percent."""

    seconds: list[Whole]
    use: Annotated[list[Whole], says("the median of all GPUs")]
    lowest: Annotated[list[Whole], says("the mean of the node with the lowest use")]
    memory: Annotated[list[Whole], says("the median of all GPUs")]


# --- parts ----------------------------------------------------------------------------------------


class WaitStatus(Value):
    """What is waited for."""

    what: str
    evidence: Annotated[str, says("the last evidence"), NUMBERS]
    seconds_left: Clock
    following: Annotated[bool, says("it only follows a job or head that runs")]

    @classmethod
    def of(cls, wait: Wait, now: float, reader: Reader) -> WaitStatus:
        """Return a wait as the status has it."""
        left = round(wait.deadline - now, 1)
        return cls(wait.what, reader.evidence_of(wait), left, wait.is_following)


class StepStatus(Value):
    """A prepare step of a worker."""

    name: str
    state: str


class ItemStatus(Value):
    """A service or prepare step: its state, and its last evidence."""

    name: str
    state: str
    detail: str


class PartStatus(Value):
    """The state of a part of a node, and what there is to say of it."""

    state: str
    detail: str


class NodeStatus(NodeValues, kw_only=True):
    """A worker's node, or one that joined by a plain `ray start`."""

    name: Annotated[str, Label("node")]
    ip: str
    rank: Annotated[Whole | None, Label("rank")]
    state: NodeState
    phase: str
    detail: str
    last_error: str
    heard_seconds_ago: Annotated[float | None, says("its last report"), CLOCK]
    joined: bool
    phases: Annotated[
        tuple[Span, ...],
        of_node(
            "node_join_seconds", "Seconds from the head's start to a worker's join.", _joined_at
        ),
    ]
    steps: tuple[StepStatus, ...]
    figures: Annotated[MachineStatus | None, CLOCK]
    slow: Annotated[str, says("why it is slow"), CLOCK]
    slow_by: Annotated[SlowBy, says("the figure that shows it"), CLOCK] = ""


class ServiceStatus(Value):
    """A service on a node."""

    name: Annotated[str, Label("service")]
    state: Annotated[str, of_service("service_up", "Whether a service answers.", _is_ready)]
    gpus: Whole
    detail: str
    restarts: Annotated[Whole, of_service("service_restarts_total", "Restarts of a service.")]
    outages: Annotated[Whole, of_service("service_outages", "Outages of a ready service.")]
    outage_seconds: Annotated[
        float, of_service("service_outage_seconds", "Their total seconds."), CLOCK
    ]
    outage_since: float | None
    latency: Annotated[Latency | None, says("how quickly it answers probes"), CLOCK]
    judge: Annotated[JudgeCost | None, says("what the judge was asked"), CLOCK]


class MemberStatus(Value):
    """One process of a group's service."""

    name: Annotated[str, Label("member")]
    node: Annotated[str, Label("node")]
    state: Annotated[
        str,
        of_member(
            "member_state",
            "The state of a group's member; 1 for the current one.",
            one_of(_MEMBER_STATES, "state"),
        ),
    ]
    detail: str
    restarts: Annotated[Whole, of_member("member_restarts_total", "Restarts of a group's member.")]
    version: Annotated[str, says("of its weights, as its front has sent or seen them")] = ""
    requests: Annotated[Whole, says("that its front has passed on to it"), CLOCK] = 0
    errors: Annotated[
        Whole,
        says("of these, answered with 5xx or not at all"),
        of_member(
            "member_errors_total",
            "Requests that a group's member answered with 5xx, or not at all.",
        ),
    ] = 0
    requests_per_second: Annotated[float, says("over the last ten seconds"), CLOCK] = 0.0
    outages: Whole = 0
    outage_seconds: Clock = 0.0
    latency: Annotated[Latency | None, says("how quickly it answers probes"), CLOCK] = None


class GroupServiceStatus(Value):
    """A service of a group: how many of its members serve, and the rest."""

    name: Annotated[str, Label("service")]
    serving: Annotated[
        Whole, of_group("members_serving", "The members of a group's service that serve.")
    ]
    needed: Whole
    states: Annotated[Mapping[str, Whole], says("the number of members by state")]
    names: Annotated[tuple[str, ...], says("of members on a node, each with a log of its own")]
    members: Annotated[
        tuple[MemberStatus, ...], says("for the page only those that do not serve, the first ones")
    ]
    short: Annotated[str, says("that too few serve, and why; '' while enough do")] = ""
    short_since: Annotated[float | None, says("on the run's clock")] = None
    nothing_since: Annotated[
        float | None, says("since when none serves, on the run's clock, while the job runs")
    ] = None
    may_recover: Annotated[bool, says("enough members serve, or are started again")] = True
    version: Annotated[str, says("of the trainer's newest weights")] = ""
    held: Annotated[Whole, says("requests that wait for a member that serves"), CLOCK] = 0
    requests_per_second: Annotated[
        float | None,
        says("over the last ten seconds; null without a front, which counts them"),
        of_group(
            "group_requests_per_second", "Requests that the members of a group's service get."
        ),
        CLOCK,
    ] = None
    errors: Annotated[Whole, says("of all its members")] = 0


class GroupStatus(Value):
    """A group of nodes beside the trainer."""

    name: Annotated[str, Label("group")]
    nodes: Whole
    joined: Annotated[Whole, says("nodes whose agent has reported and is there")]
    ray: bool
    lost: Annotated[str, says("what follows when too few members are left")]
    services: tuple[GroupServiceStatus, ...]


class JobStatus(Value):
    """The job, and the number of its attempt."""

    name: str
    status: Annotated[
        str,
        gauge(
            "job_status", "The job's status; 1 for the current one.", one_of(_JOB_STATES, "status")
        ),
    ]
    attempt: Annotated[Whole, gauge("attempt", "The number of the attempt at the job.")]


class ProgressStatus(Value):
    """The job's steps, as its output or AGENT_PROGRESS_FILE has them."""

    attempt: Whole
    step: Annotated[Whole, gauge("job_step", "The job's last step.")]
    of: Annotated[Whole | None, gauge("job_steps", "The number of the job's steps.")]
    highest: Whole | None
    seconds_per_step: Annotated[float | None, gauge("job_step_seconds", "Seconds of a step.")]
    usual_seconds: Annotated[float | None, says("between two lines with steps")]
    seconds_since_step: Clock
    is_pausing: Annotated[bool, says("an evaluation or checkpoint runs")]
    last_step_at: str
    ends_at: str | None
    reward: Annotated[float | None, gauge("job_reward", "The mean reward of the last step.")]
    reward_trend: float | None

    @classmethod
    def of_job(
        cls, lines: JobLines, utc: Callable[[float], str], *, is_running: bool
    ) -> ProgressStatus | None:
        """Return the job's steps as the status has them; None before the first one."""
        known = lines.progress
        if known is None or known.last is None or known.last_at is None:
            return None
        each = known.seconds_per_step
        usual = known.usual
        ends_at = known.ends_at if is_running else None
        return cls(
            attempt=known.attempt,
            step=known.last,
            of=known.of,
            highest=known.highest,
            seconds_per_step=None if each is None else round(each, 3),
            usual_seconds=None if usual is None else round(usual, 3),
            seconds_since_step=lines.seconds_since_step(),
            is_pausing=known.pause_at is not None,
            last_step_at=utc(known.last_at),
            ends_at=None if ends_at is None else utc(ends_at),
            reward=known.value("reward"),
            reward_trend=lines.reward_trend(),
        )


class StallStatus(Value):
    """A job without progress, and what follows."""

    what: str
    then: Literal["log", "retry", "stop"]
    suspects: Annotated[str, says("'' for readers without the token")]
    nodes: Annotated[tuple[str, ...], says("the nodes of the suspects")]
    log: Annotated[Literal["job", "agent"], says("the log to read there")]


class AdviceStatus(Value):
    """What may go wrong with the training, and what to do."""

    what: str
    remedy: str
    state: State
    meaning: str
    is_reward_lost: Annotated[bool, says("at once, and not by the policy")]

    @classmethod
    def of(cls, advice: Advice) -> AdviceStatus:
        """Return an advice for every reader: without the metrics' names."""
        what = advice.plain or advice.what
        meaning = advice.meaning or ""
        return cls(what, advice.remedy, advice.state, meaning, advice.is_reward_lost)


class CheckpointStatus(Value):
    """The newest checkpoint."""

    step: Whole
    at: Annotated[str | None, says("null for one that was there before the run")]


class WhatRunsStatus(Value):
    """What the job is made of."""

    model: str
    data: str
    command: str
    versions: Mapping[str, str]


class WarningStatus(Value):
    """A warning for readers with the token."""

    check: str
    what: Annotated[str, NUMBERS]
    remedy: str

    @classmethod
    def of(cls, finding: Finding) -> WarningStatus:
        """Return a finding as a warning."""
        return cls(finding.check, finding.what, finding.remedy)

    @classmethod
    def of_advice(cls, advice: Advice) -> WarningStatus:
        """Return an advice as a warning."""
        return cls("training", advice.what, advice.remedy)


class NodesFinding(Finding, kw_only=True):
    """A finding of the same check on one node or more."""

    nodes: tuple[str, ...]


class FindingsStatus(Value):
    """The findings of all nodes' checks: each node's own, and those between nodes."""

    nodes: tuple[str, ...]
    unknown: Annotated[tuple[str, ...], says("nodes without an agent")]
    findings: tuple[NodesFinding, ...]
    between: tuple[Finding, ...]


class GlanceException(Value):
    """A node, service or prepare step that differs from the others."""

    name: str
    state: str
    figure: Annotated[str, says("the number that shows it, or ''")]
    detail: str


class Glance(Value):
    """The judgment of the run: keep it, look at it, or consider ending it."""

    state: State
    sentence: str
    details: str
    exceptions: tuple[GlanceException, ...]
    more_exceptions: Whole


# --- the status -----------------------------------------------------------------------------------


class CommonStatus(Value, kw_only=True):
    """What the whole status of a head and that of its page have in common."""

    run_id: str
    run_name: str | None
    role: Literal["head"] = "head"
    platform: str
    name: Annotated[str, says("of the head's node"), Label("node")]
    phase: Annotated[HeadPhase, _PHASE]
    at: Annotated[str, says("the time of this status, UTC"), CLOCK]
    seconds: Annotated[float, says("since the agent's start"), _UPTIME, CLOCK]
    seconds_in_phase: Clock
    waits: Annotated[tuple[WaitStatus, ...], _WAITS]
    more_refused: Annotated[Whole, says("refused agents that are not among the nodes")]
    services: tuple[ServiceStatus, ...]
    groups: tuple[GroupStatus, ...] = ()
    prepare: tuple[ItemStatus, ...]
    outages: tuple[OutageRecord, ...]
    shortages: Annotated[
        tuple[ShortageRecord, ...], says("when too few members of groups served"), CLOCK
    ] = ()
    job: JobStatus | None
    verdict: Outcome | None
    attempts: tuple[AttemptOutcome, ...]
    progress: ProgressStatus | None
    nodes_expected: Whole
    nodes_joined: Annotated[Whole, says("the most at one time")]
    attempts_allowed: Whole
    loss_seconds_left: Annotated[
        float | None, says("until the job is stopped for a missing node"), CLOCK
    ]
    stall: StallStatus | None
    advice: tuple[AdviceStatus, ...]
    checkpoint: CheckpointStatus | None
    gpu_history: Annotated[GpuHistoryStatus, CLOCK]
    caches: Annotated[PartStatus | None, says("the compile caches of the head's node")]
    price: Annotated[float | None, says("dollars an hour of all nodes")]
    cost: Annotated[float | None, says("dollars so far"), CLOCK]
    max_cost: Annotated[float | None, says("AGENT_MAX_COST")]
    price_source: str | None
    receipt: Annotated[ReceiptStatus, CLOCK]

    # Texts of logs: only readers with the token, or the key, get them.
    what_runs: WhatRunsStatus | UnsetType = UNSET
    warnings: tuple[WarningStatus, ...] | UnsetType = UNSET
    metrics: Annotated[
        Mapping[str, float] | UnsetType,
        gauge("job_metric", "The newest value of each of the job's metrics.", _by_name),
    ] = UNSET


class HeadStatus(CommonStatus, kw_only=True):
    """The whole status of a head."""

    epoch: Whole
    phases: Annotated[
        tuple[Span, ...],
        gauge("phase_seconds", "Seconds that the head has spent in a phase.", _seconds_by_phase),
    ]
    ray: PartStatus
    figures: Annotated[MachineStatus | None, says("of the head's node"), CLOCK]
    slow: Annotated[str, says("why the head's node is slow"), CLOCK]
    slow_by: Annotated[SlowBy, says("the figure that shows it"), CLOCK] = ""
    own: Annotated[NodeValues, says("what the head's node reports of itself")] = NodeValues()
    nodes: Annotated[tuple[NodeStatus, ...], gauge("nodes", "Workers by state.", _by_state)]
    curves: SeriesPart
    job_tail: Annotated[
        tuple[str, ...] | UnsetType, says("the job's last lines; only with the token")
    ] = UNSET
    prepare_lines: Annotated[
        Mapping[str, Mapping[str, str]] | UnsetType,
        says("the last line of each running prepare step, by node; only with the token"),
    ] = UNSET

    def all_nodes(self) -> Iterator[tuple[HeadStatus | NodeStatus, NodeState]]:
        """Yield each node with its state, the head first: both have a name, figures and `slow`."""
        yield self, NodeState.JOINED
        for node in self.nodes:
            yield node, node.state


class JudgedStatus(HeadStatus, kw_only=True):
    """The whole status of a head, with its judgment."""

    glance: Annotated[Glance, CLOCK]


class GpusStatus(Value):
    """What the GPUs of all present nodes do: medians, and the node with the lowest use."""

    use: float | None
    lowest: Annotated[str | None, says("the name of that node")]
    lowest_use: float | None
    power: float | None
    memory_used: float | None
    memory_total: float | None


Cell = tuple[str, str, Values, bool]


class PageStatus(CommonStatus, kw_only=True):
    """The head's status as its page reads it."""

    glance: Glance
    cells: Annotated[
        tuple[Cell, ...],
        says("of each node its name, its state, the use of each GPU, and whether it is slow"),
    ]
    gpus: GpusStatus | None
    curves: SeriesPart | UnsetType = UNSET


class LogPart(Value):
    """A part of a log, with secrets removed."""

    text: str
    next: Annotated[Whole | None, says("where the next part begins; null: only the end is known")]
    over: Annotated[bool, says("the run has its verdict; an agent that is silent has left")] = False
    start: Annotated[Whole | None, says("where it begins, if there are lines before it")] = None


class StopAnswer(Value):
    """The answer to a request to stop: the seconds in which the run ends."""

    within: float
    ok: bool = True


class HeadAddress(Value):
    """Where a worker's head is."""

    host: str | None
    port: Whole


class WorkerStatus(Value, kw_only=True):
    """The status of a worker."""

    role: Literal["worker"] = "worker"
    platform: str
    name: str
    rank: Whole | None
    phase: Annotated[WorkerPhase, _PHASE]
    seconds: Annotated[float, says("since the agent's start"), _UPTIME, CLOCK]
    waits: Annotated[tuple[WaitStatus, ...], _WAITS]
    head: HeadAddress
    head_phase: str
    services: tuple[ItemStatus, ...]
    last_error: str
    verdict: Outcome | None


def extended(kind: type[C], status: CommonStatus, **more: Any) -> C:  # noqa: ANN401 - its fields
    """Return a status as another type, with the fields that this one lacks."""
    names = {*kind.__struct_fields__} & {*status.__struct_fields__}
    fields: dict[str, Any] = {name: getattr(status, name) for name in names}
    return kind(**fields, **more)
