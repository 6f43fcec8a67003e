"""Histories of events, and their traces, for tests of the head's decisions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from agent.decisions.attempts import Attempt, EndedAttempt, JobReport
from agent.decisions.durable import Durable
from agent.decisions.head import head_decide as head
from agent.decisions.head import head_state as h
from agent.decisions.head.fleet import RayNode, Worker
from agent.decisions.head.head_goal import OUR_RAY, HeadGoal
from agent.decisions.head.losses import is_output_left
from agent.decisions.head.wanted import wanted_of
from agent.decisions.shared import (
    CHECK,
    HERE,
    JOB,
    RAY,
    SAVE,
    HeadAction,
    ItemReport,
    ItemsReported,
    JobItem,
    JobWant,
    LogLine,
    Publish,
    Step,
    StopAsked,
    Tick,
    Want,
)
from agent.job.services import ON_EVERY, ON_HEAD, PrepareStep, ScoringProbe, ServiceSpec, TcpProbe
from agent.plan import waits as wait_keys

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from agent.base.ends import Outcome
    from agent.decisions.attempts import LostAttempt
    from agent.decisions.shared import Answer

REWARD = "reward server"
NOTHING_DURABLE = Durable("run")
TICK, TERM, INT = Tick(), StopAsked(15), StopAsked(2)
NODES = {n: RayNode(f"id{n}", f"10.0.0.{n}", gpus=8.0) for n in range(2, 100)}
HEAD = RayNode("id1", "10.0.0.1", is_head=True, gpus=8.0)

History = list[tuple[float, h.HeadEvent]]
OF_NOW = 0
"""In a test's report: the generation that the head wants now."""


LATEST = 1 << 50
"""The generation of a worker's Ray that belongs to the head's, whatever its epoch."""
RAY_UP = ItemReport(RAY, Step.READY, generation=LATEST, is_running=True)
"""The item of a worker that has joined."""


class Started(HeadAction):
    """A service or prepare step that is wanted on a node from now on."""

    name: str
    node: str = HERE
    generation: int = 1


class RayStarted(HeadAction):
    """A Ray of the head's node is wanted anew."""

    generation: int


def ready(name: str, generation: int = OF_NOW) -> ItemsReported:
    """Return the event that a service of this node answers, or that a step of it is done."""
    return ItemsReported((ItemReport(name, Step.READY, "", generation),))


def lost(name: str, evidence: str, generation: int = OF_NOW, *, output: str = "") -> ItemsReported:
    """Return the event that a service or step of this node has ended or failed."""
    return ItemsReported((ItemReport(name, Step.LOST, evidence, generation, output=output),))


def pending(name: str, evidence: str, generation: int = OF_NOW) -> ItemsReported:
    """Return the event that a service of this node does not answer yet."""
    return ItemsReported((ItemReport(name, Step.PENDING, evidence, generation, is_running=True),))


def ray_open(generation: int = OF_NOW) -> ItemsReported:
    """Return the event that the port of this node's Ray is open."""
    return ItemsReported((ItemReport(RAY, Step.READY, "", generation, is_running=True),))


def ray_waits(evidence: str, generation: int = OF_NOW) -> ItemsReported:
    """Return the event that the port of this node's Ray is not open yet."""
    return ItemsReported((ItemReport(RAY, Step.PENDING, evidence, generation, is_running=True),))


def ray_doubt(
    doubt: str = "", generation: int = OF_NOW, *, beside_job: bool = False
) -> ItemsReported:
    """Return the event that a process of this node's Ray is stopped, or that none is any more."""
    item = ItemReport(RAY, Step.PENDING, "", generation, is_running=True)
    return ItemsReported((replace(item, doubt=doubt, beside_job=beside_job),))


def ray_lost(
    evidence: str,
    memory: str = "",
    generation: int = OF_NOW,
    *,
    doubt: str = "",
    is_running: bool = True,
) -> ItemsReported:
    """Return the event that this node's Ray has ended; some of it is left until it is over."""
    item = ItemReport(RAY, Step.LOST, evidence, generation, is_running)
    return ItemsReported((replace(item, memory=memory, doubt=doubt),))


def of_now(event: h.HeadEvent, state: h.HeadState, at: float) -> h.HeadEvent:
    """Return an event with the generations that are wanted now, where it says so."""
    if isinstance(event, h.RaySeen):
        return replace(event, generation=event.generation or state.ray.item.generation)
    if not isinstance(event, ItemsReported):
        return event
    items: list[ItemReport] = []
    for item in event.items:
        if isinstance(item, JobItem) and item.name == JOB:
            items.append(_job_now(item, state, at))
            continue
        key = (HERE, item.name)
        known = state.steps.by_key.get(key) or state.services.by_key.get(key)
        known = state.ray.item if item.name == RAY else known
        now = 1 if known is None else known.generation
        now = state.check.generation if item.name == CHECK else now
        items.append(replace(item, generation=item.generation or now))
    return ItemsReported(tuple(items))


def checked(unknown: str = "", refusal: Outcome | None = None) -> ItemsReported:
    """Return the event that the framework has answered: it accepts, refuses, or is not known."""
    why = unknown if refusal is None else refusal.reason
    step = Step.LOST if why else Step.READY
    return ItemsReported((JobItem(CHECK, step, why, OF_NOW, refusal=refusal),))


class SaveJob(HeadAction):
    """A job that is wanted to save from now on."""

    id: str


def saved(evidence: str, attempt: int = 1, step: Step = Step.READY) -> ItemsReported:
    """Return the event that an attempt has saved, or cannot."""
    return ItemsReported((ItemReport(SAVE, step, evidence, attempt),))


def _job_now(item: JobItem, state: h.HeadState, at: float) -> JobItem:
    """Return a report of an attempt's job; that of another attempt is one of an earlier start."""
    want = state.job.want
    if want is None or state.attempt.number != -item.generation:
        return replace(item, generation=0)
    status_at = None if item.status_at is None else at
    report = item.report or state.job.report
    return replace(item, generation=want.generation, status_at=status_at, report=report)


class SubmitJob(HeadAction):
    """A job that is wanted to be submitted from now on."""

    id: str


class FollowJob(HeadAction):
    """A job that is wanted to be followed from now on, and not submitted."""

    id: str


class StopJob(HeadAction):
    """A job that is wanted to be stopped from now on."""

    id: str


def job_wants(before: Want | None, after: Want | None) -> list[HeadAction]:
    """Return what is wanted of the job since a decision."""
    actions: list[HeadAction] = []
    former = before if isinstance(before, JobWant) else JobWant(0)
    if not isinstance(after, JobWant):
        return actions
    is_new = after.generation != former.generation
    if is_new:
        actions.append(SubmitJob(after.id) if after.may_submit else FollowJob(after.id))
    if after.is_to_stop and (is_new or not former.is_to_stop):
        actions.append(StopJob(after.id))
    return actions


def job_report(event: object, of: JobWant | None = None) -> JobReport | None:
    """Return Ray's status of the job that an event has, of this submission if given."""
    items = event.items if isinstance(event, ItemsReported) else ()
    jobs = (item for item in items if isinstance(item, JobItem) and item.name == JOB)
    own = (job for job in jobs if of is None or job.generation == of.generation)
    return next((job.report for job in own), None)


def of_job(before: h.HeadState, after: h.HeadState) -> list[HeadAction]:
    """Return what is wanted of the job since a decision, before the head leaves."""
    is_over = after.phase is h.HeadPhase.LEAVING
    return [] if is_over else job_wants(before.job.want, after.job.want)


class Released(HeadAction):
    """A worker's node, which its platform takes away, may leave."""

    node: str


def _start(node: str, name: str, want: Want) -> HeadAction:
    if name == SAVE and isinstance(want, JobWant):
        return SaveJob(want.id)
    if (node, name) == (HERE, RAY):
        return RayStarted(want.generation)
    return Started(name, node, want.generation)


def started_by(
    before: h.HeadState | None, after: h.HeadState, nodes: Iterable[str]
) -> list[HeadAction]:
    """Return what is wanted on these nodes since a decision, and does not run there yet."""
    actions: list[HeadAction] = []
    for node in nodes:
        former = {} if before is None else wanted_of(before, node)
        for name, want in wanted_of(after, node).items():
            if want.is_over or former.get(name) == want:
                continue
            if name == JOB:
                actions += job_wants(former.get(JOB), want)
            elif not _has_joined(after, node, name, want.generation):
                actions.append(_start(node, name, want))
    return actions


def _has_joined(state: h.HeadState, node: str, name: str, generation: int) -> bool:
    worker = state.fleet.workers.get(node)
    ray = None if worker is None or name != RAY else worker.item(RAY)
    return ray is not None and ray.generation == generation


REWARD_SPEC = ServiceSpec(
    REWARD,
    "builtin",
    ("serve",),
    ScoringProbe("http://{node_ip}:5000/x"),
    300.0,
    "AGENT_WAIT_REWARD",
)
RETRIEVER = "retriever"
RETRIEVER_SPEC = ServiceSpec(
    RETRIEVER, "serve", ("serve",), TcpProbe(8000), 300.0, "within", where=ON_EVERY
)
SPECS = {REWARD: REWARD_SPEC, RETRIEVER: RETRIEVER_SPEC}
STEPS = (
    PrepareStep("AGENT_PREPARE_EACH", "fetch", ON_EVERY, 7200.0, "AGENT_WAIT_PREPARE"),
    PrepareStep("AGENT_PREPARE", "make", ON_HEAD, 7200.0, "AGENT_WAIT_PREPARE"),
)
SHARED_DATA_STEP = PrepareStep("data", "make", ON_EVERY, 60.0, "within", "/shared/.data")
LIMITS = {
    wait_keys.HEAD: 100.0,
    wait_keys.WORKERS: 200.0,
    wait_keys.SUBMIT: 120.0,
    wait_keys.JOB: 120.0,
    wait_keys.NODE: 60.0,
}


def _of_job(  # its generation is that of the attempt, see `_job_now`
    attempt: int,
    step: Step,
    evidence: str = "",
    **said: Any,  # noqa: ANN401 - fields of an item
) -> ItemsReported:
    return ItemsReported((JobItem(JOB, step, evidence, -attempt, **said),))


def accepted(attempt: int = 1) -> ItemsReported:
    """Return the event that Ray has accepted an attempt, or that a launcher may start it."""
    return _of_job(attempt, Step.READY, status_at=0.0, is_running=True)


def never(attempt: int = 1) -> ItemsReported:
    """Return the event that Ray has no job of an attempt."""
    return _of_job(attempt, Step.LOST, "Ray has no job of this attempt", never=True)


def signaled(attempt: int = 1) -> ItemsReported:
    """Return the event that an attempt's driver got SIGTERM, as Ray did not accept the stop."""
    running = JobReport("RUNNING")
    return _of_job(attempt, Step.READY, report=running, signaled=True, is_running=True)


def unfit(refusal: Outcome, attempt: int = 1) -> ItemsReported:
    """Return the event that an attempt does not fit the nodes that joined."""
    return _of_job(attempt, Step.LOST, refusal.reason, refusal=refusal)


SUBMITTED = accepted()
PREPARED: list[h.HeadEvent] = [ready(step.name) for step in STEPS]


def waits(
    evidence: str, attempt: int = 1, *, final: bool = False, canceled: bool = False
) -> ItemsReported:
    """Return the event that Ray does not accept an attempt."""
    step = Step.LOST if final or canceled else Step.PENDING
    return _of_job(attempt, step, evidence, never=canceled, is_running=step is Step.PENDING)


def goal(  # noqa: PLR0913 - what a run may be asked for
    workers: int = 0,
    least: int | None = None,
    *,
    job: bool = True,
    services: tuple[str, ...] = (),
    prepare: bool = False,
    given: bool = False,
    retries: int = 0,
) -> HeadGoal:
    """Return a goal with distinct timeouts."""
    return HeadGoal(
        limits=LIMITS,
        job_stop_grace=16.0,
        expected_workers=workers,
        min_workers=workers if least is None else least,
        has_job=job,
        services=tuple(SPECS[name] for name in services),
        steps=STEPS if prepare else (),
        max_prepare_seconds=7200.0,
        retries=retries,
        ray="KubeRay's Ray" if given else OUR_RAY,
        ray_is_given=given,
    )


def after_losses(*tried: LostAttempt) -> Durable:
    """Return what is durable after these lost attempts of earlier heads."""
    ended = [
        EndedAttempt(
            number,
            f"run-{number}",
            "",
            "",
            one.reason,
            75,
            one.seconds,
            checkpoint=one.checkpoint,
            last_step=one.last_step,
            announced=one.announced,
            cause=one.cause,
        )
        for number, one in enumerate(tried, 1)
    ]
    return replace(NOTHING_DURABLE, ended=(*ended,))


def resumed(run_id: str = "run", **changes: object) -> Durable:
    """Return what is durable of a run whose first attempt a killed agent has left open."""
    attempt = Attempt("run-1", required=0, submitted=-50.0)
    return Durable(run_id, attempt=replace(attempt, **changes))


def nodes(
    *others: int, dead: tuple[int, ...] = (), up: bool = True, generation: int = OF_NOW
) -> h.RaySeen:
    """Return GCS's list of nodes: the head, live workers by number, and dead ones."""
    gone = [RayNode(NODES[n].node_id, NODES[n].ip, alive=False) for n in dead]
    seen = (*([HEAD] if up else []), *(NODES[n] for n in others), *gone)
    return h.RaySeen(seen, generation=generation)


def reported(  # noqa: PLR0913 - what a worker may say
    n: int,
    phase: str = "following the head",
    *,
    joined: bool = True,
    rank: int | None = None,
    preparing: bool = False,
    has_left: bool = False,
    detail: str = "",
    refused: str = "",
    reported_at: float = 0.0,
    items: tuple[ItemReport, ...] = (),
    answers: tuple[Answer, ...] = (),
    memory: str = "",
) -> h.WorkerReported:
    """Return the event of a report from the worker with this number."""
    if joined:
        items = (*items, RAY_UP)
    if preparing:
        items = (*items, ItemReport(STEPS[0].name, Step.PENDING))
    return h.WorkerReported(
        Worker(
            f"agent{n}",
            name=f"pod{n}",
            ip=f"10.0.0.{n}",
            rank=rank,
            phase=phase,
            detail=detail,
            last_report_at=reported_at,
            refused=refused,
            has_left=has_left,
            items=items,
            answers=answers,
            memory=memory,
        )
    )


def job(status: str, code: int | None = None, message: str = "", attempt: int = 1) -> ItemsReported:
    """Return the event of a job status from Ray."""
    return status_of(JobReport(status, message, code), attempt)


def status_of(report: JobReport, attempt: int = 1) -> ItemsReported:
    """Return the event of a job status from Ray, with all that it says."""
    runs = not report.ended
    return _of_job(attempt, Step.READY, status_at=0.0, report=report, is_running=runs)


BEGUN: list[tuple[float, h.HeadEvent]] = [(2.0, SUBMITTED), (2.0, job("RUNNING"))]
"""The job of the first attempt begins."""
WITH_REWARD = goal(services=(REWARD,))
SERVING = goal(1, job=False)
READY = (5.0, ready(REWARD))
RUNNING: History = [(3.0, nodes()), (4.0, SUBMITTED), (5.0, job("RUNNING"))]
PAIR: History = [
    (3.0, nodes(2)),
    (4.0, reported(2)),
    (5.0, SUBMITTED),
    (6.0, job("RUNNING")),
]
SERVED: History = [(3.0, nodes()), READY, (6.0, SUBMITTED), (7.0, job("RUNNING"))]
LOST = lost(REWARD, "exit code 1")
"""Common beginnings of histories."""


def is_probe(action: HeadAction) -> bool:
    """Return whether an action asks a node for a probe."""
    return isinstance(action, h.Ask) and isinstance(action.question, h.Probe)


def asks_progress(action: HeadAction) -> bool:
    """Return whether an action asks what an attempt has made."""
    return isinstance(action, h.Ask) and isinstance(action.question, h.AskProgress)


class Trace:
    """The state of a head after a history of events, and all its actions."""

    def __init__(
        self,
        of: HeadGoal,
        history: Iterable[tuple[float, h.HeadEvent]],
        durable: Durable = NOTHING_DURABLE,
    ) -> None:
        self.state = head.first_state(of, durable)
        self.now = 0.0
        self.actions: list[h.HeadAction] = []
        self._wanted: tuple[h.HeadState, dict[str, Mapping[str, Want]]] = self.state, {}
        started = started_by(None, self.state, [HERE])
        self.at_once = [one for one in started if isinstance(one, Started)]
        """The services and steps that are wanted here from the start."""
        for at, event in history:
            self.take(event, at)

    def take(self, event: h.HeadEvent, at: float) -> None:
        """Apply one event."""
        self.now = at
        before = self.state
        self.state, actions = head.decide(before, of_now(event, before, at), at)
        self._check_published(before, actions)
        for action in actions:
            published = action.nodes if isinstance(action, Publish) else ()
            new: list[h.HeadAction] = [*started_by(before, self.state, published)]
            released = self.state.notices.released - before.notices.released
            new += [Released(node) for node in published if node in released]
            self.actions += new if isinstance(action, Publish) else [action]
        if isinstance(event, Tick):  # otherwise the head would tick without end
            then = head.deadline(self.state)
            assert then is None or then > at, f"{head.pending_waits(self.state)}: {then} at {at}"
        is_over = self.state.phase is h.HeadPhase.LEAVING  # nothing starts any more
        if not is_over and self.state.ray.item.generation > before.ray.item.generation:
            self.take(ray_waits(""), at)  # nothing is left of the former one
        if not is_over and is_output_left(self.state):
            self.take(ItemsReported((replace(self.state.items[JOB], is_running=False),)), at)
        if self.state.durable.epoch != before.durable.epoch:
            self._rejoin(at)

    def _rejoin(self, at: float) -> None:
        """Have the workers that joined whatever epoch report that they are in the new one."""
        for worker in self.state.fleet.workers.values():
            is_here = not (worker.silent or worker.lost or worker.has_left or worker.refused)
            if is_here and RAY_UP in worker.items:
                self.take(h.WorkerReported(worker), at)

    def _check_published(self, before: h.HeadState, actions: Iterable[h.HeadAction]) -> None:
        """Check that each known node is told what is wanted of it when that differs, and only then.

        Of a new agent's node it differs from nothing.
        """
        told = [node for one in actions if isinstance(one, Publish) for node in one.nodes]
        after = self.state
        new = after.fleet.workers.keys() - before.fleet.workers.keys()
        known = {HERE, *after.fleet.workers}
        was = self._wanted_in(before, known)
        wanted = self._wanted_in(after, known)
        differs = {
            node
            for node in known
            if (node in new and not after.fleet.workers[node].refused)
            or was[node] != wanted[node]
            or (node in after.notices.released) != (node in before.notices.released)
        }
        is_over = after.phase is h.HeadPhase.LEAVING
        assert {node for node in told if node in known} == (set() if is_over else differs)
        assert len(told) == len({*told})

    def _wanted_in(self, state: h.HeadState, nodes: set[str]) -> dict[str, Mapping[str, Want]]:
        """Return what is wanted of nodes in a state, which the next event begins with."""
        of, wanted = self._wanted
        if of is not state:
            wanted = {}
        wanted |= {node: wanted_of(state, node) for node in nodes - wanted.keys()}
        self._wanted = state, wanted
        return wanted

    def finish(self, steps: int = 50) -> bool:
        """Tick at each deadline; return whether none is left."""
        for _ in range(steps):
            then = head.deadline(self.state)
            if then is None:
                return True
            self.take(TICK, max(self.now, then))
        return False

    @property
    def effects(self) -> list[h.HeadAction]:
        """All actions except log lines, probes, questions about progress and what is saved."""
        kept = LogLine | h.Persist
        others = (action for action in self.actions if not isinstance(action, kept))
        return [one for one in others if not is_probe(one) and not asks_progress(one)]

    @property
    def progress_asked(self) -> list[int]:
        """The attempts of which it was asked what they have made."""
        asked = (action.question for action in self.actions if isinstance(action, h.Ask))
        return [one.attempt for one in asked if isinstance(one, h.AskProgress)]

    @property
    def persisted(self) -> list[Durable]:
        """What was durable after each change."""
        return [action.durable for action in self.actions if isinstance(action, h.Persist)]

    @property
    def probes(self) -> list[tuple[str, str, str]]:
        """The requested probes: node, probe, address."""
        asked = ((a.node, a.question) for a in self.actions if isinstance(a, h.Ask))
        return [(node, one.kind, one.at) for node, one in asked if isinstance(one, h.Probe)]

    @property
    def log(self) -> str:
        """All log lines."""
        lines = [action for action in self.actions if isinstance(action, LogLine)]
        return "\n".join(f"{line.subject} {line.sentence}".strip() for line in lines)

    @property
    def outcomes(self) -> list[Outcome]:
        """The outcomes; more than one is an error."""
        return [action.outcome for action in self.actions if isinstance(action, h.EndRun)]

    def kinds(self) -> Iterator[str]:
        """Yield the names of the effects."""
        yield from (type(deed).__name__ for deed in self.effects)
