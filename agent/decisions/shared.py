"""Values that head and worker share: waits, events, what is wanted, items, probes, output."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from enum import Enum
from signal import SIGTERM
from typing import Annotated

from msgspec import Meta, field
from msgspec.structs import replace

from agent.base import times
from agent.base.ends import Outcome
from agent.base.text import duration_text, with_output
from agent.base.value import (
    ByName,
    Bytes,
    Count,
    OptionalAddress,
    Required,
    RunTime,
    Seconds,
    Timestamp,
    Value,
)
from agent.checks.finding import Finding
from agent.decisions.attempts import JobReport
from agent.frameworks.recipe import JobBasis
from agent.job.share import ShareArgs, ShareEnd


class Wait(Value):
    """A wait: what for, its deadline, and the last evidence.

    What a program printed last stands apart from the evidence, here as in items: not everyone who
    may read the run's status may read logs.
    """

    key: str  # the key of the planned wait
    what: str
    deadline: float
    source: str | Callable[[], str] = ""  # the evidence, or a function that computes it
    is_following: bool = False  # it only follows a job or head that runs: no log line announces it
    remedy: str = ""  # what to do if it is over
    output: str = ""  # what the program that is waited for printed last, if it has ended

    @property
    def evidence(self) -> str:
        """Return the last evidence."""
        return self.source if isinstance(self.source, str) else self.source()

    @property
    def in_full(self) -> str:
        """Return the last evidence with what was printed last."""
        return with_output(self.evidence, self.output)

    def sentence(self, now: float, evidence: str | None = None) -> str:
        """Return the log line: what is missing, the evidence, the time left."""
        left = duration_text(self.deadline - now)
        evidence = self.in_full if evidence is None else evidence
        why = f", {evidence}" if evidence else ""
        return f"waiting for {self.what}{why} ({left} left)"

    def is_over(self, now: float) -> bool:
        """Return whether the deadline has passed."""
        return now >= self.deadline


class HeadEvent(Value):
    """Something that happened, as an input of the head's decisions."""


class LocalWorkerEvent(Value):
    """Something that happened, as an input of a worker's decisions."""


class SharedEvent(HeadEvent, LocalWorkerEvent):
    """An event of either role."""


class HeadAction(Value):
    """Something that the head is to do."""


class WorkerAction(Value):
    """Something that a worker is to do."""


class LogLine(HeadAction, WorkerAction):
    """A line for the log: a sentence, or what is known of a subject and how long it took."""

    sentence: str
    level: str = "info"
    subject: str = ""
    seconds: float | None = None


class Tick(SharedEvent):
    """Time has passed."""


class Woke(SharedEvent):
    """The agent did not run for so many seconds, in which the run's clock stood still."""

    seconds: float


class StopAsked(SharedEvent):
    """A signal asks this node to stop, or a request to the head's port that stands for one."""

    signum: int
    on_request: bool = False


class Refused(LocalWorkerEvent):
    """This node's checks forbid the run."""

    outcome: Outcome


HERE = "head"  # names the head's own node where a worker's node has its agent's id


class Step(str, Enum):
    """The state of something that must become ready."""

    PENDING = "pending"
    READY = "ready"
    LOST = "lost"


class Item(Value):
    """One thing that must become ready: Ray, a service, a prepare step."""

    step: Step = Step.PENDING
    evidence: str = ""
    restarts: int = 0  # the restarts that still count
    was_ready: bool = False  # true once it was ready, whatever happened later
    deadline: float = math.inf  # while it is pending; of Ray only after an attempt, as it starts
    generation: int = 1  # counts its starts: reports about an earlier start are dropped
    restarted_at: float | None = None  # when it was last restarted
    restart_at: float | None = None  # when it is to be restarted, if it has ended
    was_stopped: bool = False  # it is lost since its node stopped it, and has not failed
    output: str = ""  # what it printed last, if the evidence is its end
    last_end: str = ""  # the evidence of its last end, until it is ready again

    @property
    def in_full(self) -> str:
        """Return the evidence with what it printed last."""
        return with_output(self.evidence, self.output)

    def ready(self) -> Item:
        """Return it as ready."""
        item = replace(self.with_evidence(""), last_end="")
        return replace(item, step=Step.READY, was_ready=True, deadline=math.inf, restart_at=None)

    def lost(self, evidence: str, output: str = "") -> Item:
        """Return it as ended or failed."""
        return replace(self.with_evidence(evidence, output), step=Step.LOST, last_end=evidence)

    def with_evidence(self, evidence: str, output: str = "") -> Item:
        """Return it with other evidence; the output of an earlier end does not belong to it."""
        return replace(self, evidence=evidence, output=output)

    def recent_restarts(self, now: float) -> int:
        """Return how many restarts count: none after a long time without one."""
        last = self.restarted_at
        quiet = last is not None and now >= last + times.RESTARTS_FORGOTTEN
        return 0 if quiet else self.restarts


class Outage(Value):
    """A period in which a service that was ready did not answer, on the run's clock."""

    service: str
    node: str  # the worker by name, or HERE
    since: RunTime
    until: RunTime | None = None  # None while it lasts

    def seconds(self, now: float) -> float:
        """Return how long it lasted, or has lasted so far."""
        return (now if self.until is None else self.until) - self.since


class Shortage(Value):
    """A period in which fewer members of a group's service served than it needs."""

    group: str
    service: str
    since: RunTime
    until: RunTime | None = None  # None while it lasts
    nothing_since: RunTime | None = None  # since when no member serves; None while one does
    nothing_seconds: float = 0.0  # of it, while no member served; without the open part
    served_at: RunTime | None = None  # when a member served last after a time without any
    why: str = ""  # why too few served, the worst that was seen

    def seconds(self, now: float) -> float:
        """Return how long it lasted, or has lasted so far."""
        return max(0.0, (now if self.until is None else self.until) - self.since)

    def seconds_without_any(self, now: float) -> float:
        """Return for how long of it no member served."""
        open_part = 0.0 if self.nothing_since is None else max(0.0, now - self.nothing_since)
        return self.nothing_seconds + open_part

    def with_serving(self, now: float, *, any_serves: bool) -> Shortage:
        """Return it with whether any member serves from now on."""
        if not any_serves:
            since = now if self.nothing_since is None else self.nothing_since
            return replace(self, nothing_since=since)
        if self.nothing_since is None:
            return self
        spent = self.seconds_without_any(now)
        return replace(self, nothing_since=None, nothing_seconds=spent, served_at=now)

    def over(self, now: float) -> Shortage:
        """Return it as over."""
        return replace(self.with_serving(now, any_serves=True), until=now)


RAY = "Ray on this node"
"""The name of a node's Ray: no service or step has a space."""
CHECK = "the framework's check"
"""The name, on the head, of the question to the installed framework about the job's command."""
JOB = "the job"
"""The name of the job on the head: submitted to Ray and followed there, or made for a launcher."""
SHARE = "share of the job"
"""The name of a node's share where a launcher starts the job."""
ALL_REDUCE = "the all-reduce"
"""The name of a node's ranks in the all-reduce over all GPUs before the job."""
SAVE = "save of the job"
"""The name, on the head, of the wait for a checkpoint after the signal on which the job saves."""
OWN_THINGS = frozenset({RAY, CHECK, JOB, SHARE, ALL_REDUCE, SAVE})
"""All that runs on nodes and is neither a service nor a prepare step."""


class ItemReport(Value):
    """One thing on a node, as the node reports it: Ray, a service, a step, the job's share.

    Once it has ended its report stays, so that no end is lost.
    """

    name: Required
    step: Step
    """A prepare step is ready once it is done, and lost if it failed; Ray once its port is open."""
    evidence: str = ""
    generation: Count = 1  # of a share: the attempt
    is_running: bool = False  # something of it is left here; else the next generation may start
    was_stopped: bool = False  # it is lost since its node stopped it, and has not failed
    share: ShareEnd | None = None  # how the job's share ended
    doubt: str = ""  # of Ray: which of its processes is stopped, or what of it cannot be ended
    beside_job: bool = False  # a job runs here that does without the stopped process
    memory: str = ""  # what the kernel did for want of memory as Ray ended, or ''
    output: str = ""  # what it printed last before it ended

    @property
    def in_full(self) -> str:
        """Return the evidence with what it printed last."""
        return with_output(self.evidence, self.output)

    @property
    def is_stopped(self) -> bool:
        """Return whether its node has stopped it, and nothing of it is left."""
        return self.was_stopped and not self.is_running

    @property
    def share_end(self) -> ShareEnd | None:
        """Return how the job's share ended, also one that never began; None while it runs."""
        if self.share is not None or self.is_running or self.step is not Step.LOST:
            return self.share
        if self.was_stopped:
            return ShareEnd(128 + SIGTERM, by_stop=True)
        return ShareEnd(1, words=self.evidence)


class JobItem(ItemReport):
    """A thing of the job on the head's own node: what is received from a worker has no such fields.

    The job is pending until Ray accepts it, and lost if it failed, or if Ray has no such job. The
    framework's check, the save and the head's part in the all-reduce are such items, too.
    """

    report: JobReport | None = None  # the last from Ray
    status_at: float | None = None  # when Ray last answered about it
    basis: JobBasis = JobBasis()  # what its recipe is sized by
    refusal: Outcome | None = None
    """Why it is not submitted: it does not fit the nodes that joined, or the framework refuses."""
    words: str = ""  # the result of the all-reduce
    never: bool = False  # it was stopped before Ray had it, or Ray has no such job
    signaled: bool = False  # this agent sent SIGTERM to its driver, as Ray did not accept the stop

    @property
    def is_accepted(self) -> bool:
        """Return whether Ray has it, or a launcher may start it on every node."""
        return self.step is Step.READY or self.report is not None


class ItemsReported(SharedEvent):
    """This node reports all that runs on it, or did."""

    items: tuple[ItemReport, ...]


class Want(Value):
    """One thing that a node is to run, an entry of the node's own plan.

    A generation starts at most once, after nothing of the former one is left.
    """

    generation: Count = 1
    share: ShareArgs | None = None  # of what several nodes run together: what only the head knows
    is_over: bool = False  # it is to end, and is reported as over where it has not begun
    is_stale: bool = False  # its weights are old ones: no router lists it


class JobWant(Want):
    """A thing of the job that only the head's own node runs: what is sent has no such fields."""

    id: str = ""  # the job's in Ray, or by which its processes are found
    may_submit: bool = False  # it is to be submitted, which is durable; else it is only followed
    is_to_stop: bool = False  # it is to be stopped; one that is not wanted any more is let go


Wants = Mapping[str, Want]


def kept_or_next(item: ItemReport | None, first: int) -> int:
    """Return the generation to want of what is to run on: the one that runs, or else the next.

    It is at least `first`: what runs of an earlier generation is replaced.
    """
    if item is None or item.generation < first:
        return first
    is_over = item.step is not Step.PENDING and not item.is_running
    return item.generation + 1 if is_over else item.generation


class QuestionKind(str, Enum):
    """What a head asks of a node."""

    LOG = "log"  # the end of one of its logs, or a diagnostic
    PROBE = "probe"


class Question(Value):
    """What has an answer and no life: a log, a probe."""

    number: Count  # counts all that one agent of the head sends: nothing is answered twice
    kind: QuestionKind
    name: str = ""
    at: OptionalAddress = ""  # the address of the node to probe; '' for the head


MAX_QUESTIONS = 1 << 16


_HostAndPort = Annotated[str, Meta(max_length=80)]
Members = Annotated[tuple[_HostAndPort, ...], Meta(max_length=20_000)]


class NodeWanted(Value):
    """What the head wants of a node: names and numbers, never a command, path or URL.

    The latest counts; a thing that is no longer in it is ended.
    """

    by: str  # the id of the head's agent: each agent counts its revisions
    revision: Count
    wants: ByName[Want] | None = None  # None: nothing is decided yet, and what runs is kept
    addresses: ByName[OptionalAddress] = field(default_factory=dict)
    """The nodes of services on a rank, for placeholders; '' for the head."""
    may_leave: bool = False  # nothing waits for a node that its platform takes away
    questions: Annotated[tuple[Question, ...], Meta(max_length=MAX_QUESTIONS)] = ()  # the new ones
    members: ByName[Members] = field(default_factory=dict)
    """`HOST:PORT` of the members of services, for placeholders."""

    @property
    def shares(self) -> list[ShareArgs]:
        """Return its node's parts in what several nodes run together."""
        parts = (want.share for want in (self.wants or {}).values())
        return [part for part in parts if part is not None]

    def is_later_than(self, other: NodeWanted | None) -> bool:
        """Return whether it counts instead of another one, as repeated messages do not."""
        return other is None or other.by != self.by or self.revision > other.revision


class Publish(HeadAction, WorkerAction):
    """Have nodes run what is wanted of them, which has changed."""

    nodes: tuple[str, ...]  # HERE, or agents' ids


SCORE = "score"  # one scoring request to the reward server
REACH = "reach"  # a connection to another node's Ray
SAMPLE = "sample"  # some MB from another node's agent: the bandwidth of the link
PROBES = (SCORE, REACH, SAMPLE)


class LocalAnswer(Value):
    """What is answered to the head's decisions: by a probe, Ray, a disk or the platform."""


class Answer(LocalAnswer):
    """The result of one probe."""

    probe: Required
    at: OptionalAddress  # the address of the probed node; '' for the head
    evidence: str = ""  # why it failed; '' on success
    seconds: Seconds = 0.0  # how long it took: the shortest of several tries
    size: Bytes = 0  # the bytes received in that time, for a bandwidth sample


class Answered(HeadEvent):
    """The head's own node answers."""

    answer: LocalAnswer


Link = tuple[str, str]  # the node that probes, and the address of the probed node


class Probes(Value):
    """The probes that were asked for, each once, and their results."""

    answers: Mapping[str, Mapping[Link, Answer | None]] = field(default_factory=dict)
    """By kind: each probe to its result, None while it is pending."""
    due: Mapping[str, float] = field(default_factory=dict)  # when a kind's pending ones are late
    findings: tuple[Finding, ...] = ()
    await_job: bool = False  # whether those between nodes are asked for once the job has begun

    def without_node(self, key: str, ip: str) -> Probes:
        """Remove an agent that ended; `ip` is its address, or '' if another node has it."""
        gone = {key, ip} - {""}
        answers = {
            kind: {link: answer for link, answer in known.items() if gone.isdisjoint(link)}
            for kind, known in self.answers.items()
        }
        return replace(self, answers=answers)


_SHOWN = 240  # characters of a line in a sentence


def shortened(line: str, *, is_cut: bool = False) -> str:
    """Return a line as far as a sentence shows it; a line that `is_cut` goes on."""
    return f"{line[:_SHOWN]}…" if is_cut or len(line) > _SHOWN else line


def place(node: str, rank: int | None) -> str:
    """Return ` on NODE (rank N)` as far as both are known."""
    where = f" on {node}" if node else ""
    return where if rank is None else f"{where} (rank {rank})"


class Known(Value):
    """A known line that was found in the job's output."""

    key: Required
    line: str  # its first characters
    cause: str
    what_to_do: str
    is_noise: bool = False
    is_symptom: bool = False  # whether the line only shows that another rank failed
    is_seen: bool = False  # whether nothing shows so far that it ended a process or the steps
    rank: Count | None = None
    prefix: str = ""  # what launchers and loggers wrote before the line
    at: Timestamp | None = None  # when it arrived, by the clock of its node
    is_cut: bool = False  # whether the line is longer

    @property
    def shown(self) -> str:
        """Return the line as a sentence shows it."""
        return shortened(self.line, is_cut=self.is_cut)

    def cut(self) -> Known:
        """Return it with the first characters of its line."""
        line = self.line[:_SHOWN]
        return replace(self, line=line, is_cut=self.is_cut or line != self.line)

    def sentence(self, node: str = "") -> str:
        """Return the message, with the name of another node."""
        if self.is_noise:
            return f"noise in the job's output, to be ignored ({self.shown!r}): {self.cause}"
        where = place(node, self.rank)
        what = "shows a symptom" if self.is_symptom else "shows"
        if self.is_seen:
            return f"seen in the job's output{where}, which goes on: {self.cause} ({self.shown!r})"
        return f"the job's output{where} {what}: {self.cause}. {self.what_to_do}: {self.shown!r}"
