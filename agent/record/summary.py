"""The summary of a run that `explain` prints, and the phases that `/status` shows."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from agent.base.errors import UnavailableError
from agent.base.text import (
    duration_text,
    escaped,
    first_names,
    iso_time,
    seconds_between,
    short_duration,
)
from agent.base.value import Value
from agent.decisions.durable import on_clock
from agent.decisions.head.head_state import HeadPhase, WorkerReplaced, WorkerReported, WorkerSilent
from agent.decisions.receipt import RunActivity
from agent.decisions.shared import (
    OWN_THINGS,
    RAY,
    ItemReport,
    ItemsReported,
    Step,
)
from agent.decisions.stall import Stalled
from agent.decisions.worker.worker_state import WorkerPhase
from agent.diagnosis.advice import advise, failures_of
from agent.job.progress import reward_text
from agent.job.services import is_member, service_of
from agent.record.events import (
    EVENTS_FILE,
    Began,
    GoodbyeReceived,
    NodeNoticed,
    PhaseEntered,
    RecordedEvent,
    SplitAdvised,
    Waited,
    WaitsOver,
    read_events,
)
from agent.record.files import NoRecord, seconds_of
from agent.record.outcome_file import OUTCOME_FILE, read_outcome, read_receipt
from agent.record.run_folder import stacks_file
from agent.record.run_record import RUN_FILE, RunRecord, outcomes_of
from agent.record.run_search import agent_runs, newest_run, node_folders, why_no_outcome
from agent.record.series_file import SERIES_FILE, read_steps

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from agent.base.ends import Outcome
    from agent.decisions.head.head_state import HeadEvent, HeadState
    from agent.decisions.receipt import Meter, ReceiptStatus
    from agent.decisions.shared import Outage, Shortage
    from agent.record.series_file import SavedSteps

V = TypeVar("V", bound=Value)
_SPAN_SHORTEST = 0.05  # `explain` leaves out what took less.
MOST_SPANS = 32  # phases kept of each node: the first one and the latest
_MOST_LINES = 10
_MOST_WAITS = 3
_MOST_NOTICED = 3  # the latest sentences about nodes' figures


# --- phases in /status ---------------------------------------------------------------------------


Spans = list[tuple[str, float]]
"""Phases and when each began; it ends where the next one begins."""


class Timeline:
    """The phases of the head and of each worker; the cost per event is constant."""

    def __init__(self) -> None:
        self.phases: Spans = []  # the head's own
        self.nodes: dict[str, Spans] = {}  # by the key of a worker's agent

    def add(self, event: HeadEvent, state: HeadState, now: float) -> None:
        """Add what an event changed; `state` is the state after it."""
        _enter(self.phases, state.phase.value, state.phase_since)
        if isinstance(event, WorkerReported):
            worker = event.worker
            phase = "left" if worker.has_left else worker.phase
            _enter(self.nodes.setdefault(worker.key, []), phase, now)
        elif isinstance(event, WorkerSilent) and event.key in self.nodes:
            _enter(self.nodes[event.key], "silent", now)
        elif isinstance(event, WorkerReplaced):
            self.nodes.pop(event.key, None)


def _enter(spans: Spans, phase: str, now: float) -> None:
    if spans and spans[-1][0] == phase:
        return
    spans.append((phase, round(now, 1)))
    if len(spans) > MOST_SPANS:
        del spans[1]


# --- explain -------------------------------------------------------------------------------------


def explain(folder: Path) -> list[str]:
    """Summarize a run in at most ten lines, by its head's events, or by those of a named node.

    The folder is a run's, or one node's in it, or one above runs, of which the newest is taken.
    """
    # Which run, and which of its nodes?
    if not folder.is_dir():
        what = f"{folder} is no folder" if folder.exists() else f"there is no folder {folder}"
        remedy = "Name a run's folder, or leave it out for the newest run in AGENT_LOG_DIR"
        raise UnavailableError(what, remedy=remedy, culprit="RUN FOLDER")
    run = newest_run(folder)
    record = RunRecord.read((run or folder) / RUN_FILE)
    nodes = [] if run is None else node_folders(run)
    node = next(iter(nodes), folder)  # the head's
    if folder.resolve() in nodes:
        node = folder.resolve()

    events, starts = _on_one_clock(node)
    if not starts:
        raise UnavailableError(
            f"{folder} holds no run",
            why=f"neither it nor a folder below it has a start in {EVENTS_FILE}",
            remedy="Name a run's folder, or set AGENT_LOG_DIR to the folder that holds the runs",
            culprit="RUN FOLDER",
        )
    outcome = read_outcome(node)
    is_over = not isinstance(outcome, NoRecord) or not outcome.is_missing
    is_head = starts[-1].role == "head"
    first_phase = HeadPhase.BOOTING if is_head else WorkerPhase.FINDING

    # How far did the job come, and until when is that known? A run that goes on lasts until now.
    began = starts[0].started_at
    saved = read_steps(node / SERIES_FILE, seconds_of(began))
    meter = _meter(record, began)
    lasted = events[-1].at
    if not is_over:
        lasted = max(lasted, _last_sign(node, began, saved, meter if is_head else None))

    receipt = read_receipt(node) or _receipt_until(lasted, record, meter, saved)
    lines = [
        _title(node, starts, receipt, lasted=lasted),
        *_phases(events, first_phase.value, lasted),
        *_steps(saved),
        *_receipt(receipt),
        *_stalled(events, node),
        *_advice(saved, record, began),
        *_split(events),
        *_attempts(record),
        *_shortages(record, began, lasted),
        *_noticed(events),
        *_failures(events),
        *_members(events),
    ]
    goes_on = not is_over and agent_runs(node) is not False
    details = [*_waits(events, lasted, goes_on=goes_on), *_joined(events)]

    # The end and its remedy are last; waits and nodes that joined are shown if there is room.
    end = _end(outcome, node)
    lines = lines[: _MOST_LINES - len(end)]
    details = details[: _MOST_LINES - len(end) - len(lines)]
    return [escaped(" ".join(line.split())) for line in (*lines, *details, *end)]


def _title(node: Path, starts: list[Began], receipt: ReceiptStatus | None, *, lasted: float) -> str:
    """Return which run and node this is, when it began, how long it lasted and what it cost."""
    last = starts[-1]
    run_id = last.run_id or "without an id"
    began = f"began {starts[0].started_at}, lasted {_time(lasted)}"
    title = f"run {run_id}, recorded by the {last.role} {node.name}: {began}"
    if receipt is not None and receipt.cost is not None:
        title += f", cost ${receipt.cost.total:.2f}"
    agents = len({start.started_at for start in starts})
    if agents > 1:
        title += f"; its agent was started {agents} times"
    return title


class _Event(NamedTuple):
    """An event of a node on one clock, and the time on it at which its agent's clock was 0."""

    at: float
    agent_began: float
    read: RecordedEvent


def _on_one_clock(node: Path) -> tuple[list[_Event], list[Began]]:
    """Return a node's events, timed from the start of its first agent, and the agents' starts."""
    events: list[_Event] = []
    starts: list[Began] = []
    offset = 0.0
    for event in read_events(node):
        start = event.read(Began)
        if start is not None:
            starts.append(start)
            offset = seconds_between(starts[0].started_at, start.started_at)
        events.append(_Event(event.at + offset, offset, event))
    return events, starts


def _of_kind(
    events: list[_Event], form: type[V], of: type[Value] | None = None
) -> Iterator[tuple[float, V]]:
    """Yield the events of a class in a form, each with its time."""
    for event in events:
        found = event.read.read(form, of)
        if found is not None:
            yield event.at, found


def _last_sign(node: Path, began: str, saved: SavedSteps | None, meter: Meter | None) -> float:
    """Return until when a run without an end is known to have gone on, since its start."""
    if agent_runs(node):
        return seconds_between(began, iso_time(time.time()))
    step_at = None if saved is None or saved.progress is None else saved.progress.last_at
    return max(step_at or 0.0, 0.0 if meter is None else meter.seen_at)


def _phases(events: list[_Event], phase: str, lasted: float) -> list[str]:
    """Return the total time in each phase; `phase` is the first one."""
    spent: dict[str, float] = {}
    since = 0.0
    for at, entered in _of_kind(events, PhaseEntered):
        spent[phase] = spent.get(phase, 0.0) + at - since
        since = at
        phase = entered.phase
    spent[phase] = spent.get(phase, 0.0) + lasted - since
    long = {name: seconds for name, seconds in spent.items() if seconds >= _SPAN_SHORTEST}
    if not long:
        return []
    phases = ", ".join(f"{name} {_time(seconds)}" for name, seconds in long.items())
    return [f"phases: {phases}"]


def _steps(saved: SavedSteps | None) -> list[str]:
    """Return how far the job came, and how its reward moved."""
    known = None if saved is None else saved.progress
    if saved is None or known is None or known.last is None:
        return []
    each = known.seconds_per_step
    reward = known.value("reward")
    trend = saved.series.trend("reward")
    parts = [f"step {known.last}" if known.of is None else f"step {known.last} of {known.of}"]
    if each is not None:
        parts.append(f"{short_duration(each)} a step")
    if reward is not None:
        parts.append(reward_text(reward, trend))
    return [f"steps: {', '.join(parts)}"]


def _stalled(events: list[_Event], node: Path) -> list[str]:
    """Return the last stall with the suspects, and how many attempts stalled before."""
    stalls = {stall.attempt: stall for _, stall in _of_kind(events, Stalled)}
    if not stalls:
        return []
    *before, last = stalls.values()
    what = f"{last.sentence}: {last.suspects}" if last.suspects else last.sentence
    where = [f"attempt {last.attempt}"]
    stacks = stacks_file(last.attempt)
    if (node / stacks).exists():
        where.append(stacks)
    if before:
        where.append(f"before it {first_names(f'attempt {stall.attempt}' for stall in before)}")
    return [f"stalled: {what} ({'; '.join(where)})"]


def _advice(saved: SavedSteps | None, record: RunRecord | NoRecord, began: str) -> list[str]:
    """Return the advice on the job's metrics at its last steps."""
    if saved is None or saved.progress is None:
        return []
    outages: tuple[Outage, ...] = ()
    if isinstance(record, RunRecord):
        outages = record.durable_at(seconds_between(began, iso_time(time.time()))).outages
    advice = advise(saved.progress, saved.series.points, failures_of(outages))
    if not advice:
        return []
    return [f"training: {'; '.join(item.what for item in advice)}. {advice[0].remedy}"]


def _split(events: list[_Event]) -> list[str]:
    """Return whether trainer or engines waited, as the last attempt's steps have shown."""
    advice = [advised for _, advised in _of_kind(events, SplitAdvised)]
    return [f"nodes: {advice[-1].what}. {advice[-1].remedy}"] if advice else []


def _meter(record: RunRecord | NoRecord, began: str) -> Meter | None:
    """Return the run's meter as last recorded, on a clock that began at its start."""
    if not isinstance(record, RunRecord) or record.measured.receipt is None:
        return None
    saved = record.measured.receipt
    now = seconds_between(began, iso_time(time.time()))
    return on_clock(saved.meter, now - saved.clock.age())


def _receipt_until(
    lasted: float, record: RunRecord | NoRecord, meter: Meter | None, saved: SavedSteps | None
) -> ReceiptStatus | None:
    """Return the receipt of a run without one in its outcome, by its record and its steps."""
    if meter is None or not isinstance(record, RunRecord) or record.measured.receipt is None:
        return None
    progress = None if saved is None else saved.progress
    if meter.now.part == "job" and progress is not None and progress.attempt == meter.now.attempt:
        meter = meter.at_moment(RunActivity.of_job(progress.attempt, progress), lasted)
    return meter.receipt(max(lasted, meter.seen_at)).to_status(record.measured.receipt.price)


def _receipt(receipt: ReceiptStatus | None) -> list[str]:
    """Return what the run's time was spent on."""
    line = "" if receipt is None else receipt.sentence()
    return [f"time: {line}"] if line else []


def _waits(events: list[_Event], lasted: float, *, goes_on: bool) -> list[str]:
    """Return the longest waits, each with its last evidence; unfinished ones first.

    A wait was in vain if its time ran out; else the end of the run ended it.
    """
    # Each wait: its seconds, for what, the evidence, and '' or in which way it is unfinished.
    since: dict[str, tuple[float, float, str]] = {}
    waits: list[tuple[float, str, str, str]] = []
    for at, agent_began, event in events:
        waited = event.read(Waited)
        if waited is not None:
            begun, _, evidence = since.get(waited.what, (at, 0.0, ""))
            until = agent_began + waited.until
            since[waited.what] = (begun, until, waited.evidence or evidence)
        over = event.read(WaitsOver)
        for what in () if over is None else over.what:
            begun, _, evidence = since.pop(what, (at, 0.0, ""))
            waits.append((at - begun, what, evidence, ""))
    for what, (begun, until, evidence) in since.items():
        unfinished = ", in vain" if lasted >= until else ""
        if goes_on:
            unfinished = " so far"
        waits.append((lasted - begun, what, evidence, unfinished))
    waits.sort(key=lambda wait: (not wait[3], -wait[0]))

    lines = []
    for seconds, what, evidence, state in waits[:_MOST_WAITS]:
        if seconds < _SPAN_SHORTEST and not state:
            continue
        line = f"waited for {what} {_time(seconds)}{state}"
        lines.append(f"{line}; last: {evidence}" if evidence else line)
    return lines


class _SeenWorker(Value):
    name: str
    phase: str = ""
    items: tuple[ItemReport, ...] = ()

    @property
    def has_joined(self) -> bool:
        """Return whether its Ray is up, or it follows a head without Ray."""
        rays = [item for item in self.items if item.name == RAY]
        if rays:
            return rays[0].step is Step.READY
        return self.phase == WorkerPhase.FOLLOWING.value


class _SeenReport(Value):
    """What is shown of a `WorkerReported`."""

    worker: _SeenWorker


def _joined(events: list[_Event]) -> list[str]:
    """Return the nodes that joined, the slowest first, and those that left, with the cause."""
    joined: dict[str, str] = {}
    for at, report in _of_kind(events, _SeenReport, WorkerReported):
        name = report.worker.name
        if report.worker.has_joined:
            joined.setdefault(name, f"{name} after {_time(at)}")
    left = {bye.node: f"{bye.node} ({bye.cause})" for _, bye in _of_kind(events, GoodbyeReceived)}
    lines = []
    if joined:
        lines.append(f"joined: {first_names([*joined.values()][::-1])}")
    if left:
        lines.append(f"left: {first_names(left.values())}")
    return lines


def _shortages(record: RunRecord | NoRecord, began: str, lasted: float) -> list[str]:
    """Return of which services of groups too few members served, how often, how long and why."""
    if not isinstance(record, RunRecord):
        return []
    now = seconds_between(began, iso_time(time.time()))
    by_service: dict[tuple[str, str], list[Shortage]] = {}
    for shortage in record.durable_at(now).shortages:
        by_service.setdefault((shortage.group, shortage.service), []).append(shortage)

    texts = []
    for (group, service), shortages in by_service.items():
        spent = sum(one.seconds(lasted) for one in shortages)
        without = sum(one.seconds_without_any(lasted) for one in shortages)
        longest = max(shortages, key=lambda one: one.seconds(lasted))
        at = iso_time(seconds_of(began) + longest.since)[11:16]
        none = f", {_time(without)} of it without any" if without else ""
        times = "once" if len(shortages) == 1 else f"{len(shortages)} x"
        since = f"from {at} UTC" if len(shortages) == 1 else f"the longest from {at} UTC"
        length = "" if len(shortages) == 1 else f" for {_time(longest.seconds(lasted))}"
        what = f"{group} had too few members of {service} {times}, {_time(spent)}{none}"
        texts.append(f"{what} ({since}{length}: {longest.why})")
    return [f"groups: {'; '.join(texts)}"] if texts else []


def _items(events: list[_Event]) -> Iterator[tuple[str, ItemReport]]:
    """Yield what all nodes reported of what runs there, each with ` on NODE` for a worker."""
    for _, reported in _of_kind(events, ItemsReported):
        for item in reported.items:
            yield "", item
    for _, report in _of_kind(events, _SeenReport, WorkerReported):
        for item in report.worker.items:
            yield f" on {report.worker.name}", item


def _failures(events: list[_Event]) -> list[str]:
    """Return the services and steps that failed, how often, and the last reason."""
    failed: dict[str, dict[int, str]] = {}
    for where, item in _items(events):
        is_failure = item.step is Step.LOST and not item.was_stopped and not is_member(item.name)
        if is_failure and item.name not in OWN_THINGS - {RAY}:
            failed.setdefault(f"{item.name}{where}", {})[item.generation] = item.in_full
    if not failed:
        return []
    texts = [f"{name} failed {len(why)} x ({[*why.values()][-1]})" for name, why in failed.items()]
    return [f"services and steps: {'; '.join(texts)}"]


def _members(events: list[_Event]) -> list[str]:
    """Return how often members of groups were started again, the worst first, and why last."""
    restarts: dict[str, dict[str, int]] = {}
    reasons: dict[str, str] = {}
    for where, item in _items(events):
        if not is_member(item.name):
            continue
        service = service_of(item.name)
        if item.step is Step.LOST and not item.was_stopped:
            reasons[service] = item.in_full
        if item.generation > 1:
            restarts.setdefault(service, {})[f"{item.name}{where}"] = item.generation - 1
    texts = []
    for service, by_member in restarts.items():
        worst = sorted(by_member.items(), key=lambda member: -member[1])
        names = first_names(f"{name} {count} x" for name, count in worst)
        why = f" (last: {reasons[service]})" if service in reasons else ""
        texts.append(f"{service} {sum(by_member.values())} x: {names}{why}")
    return [f"members started again: {'; '.join(texts)}"] if texts else []


def _noticed(events: list[_Event]) -> list[str]:
    """Return what the nodes' figures showed: slow nodes, and what would be full."""
    sentences = dict.fromkeys(noticed.what for _, noticed in _of_kind(events, NodeNoticed))
    if not sentences:
        return []
    return [f"nodes: {'; '.join([*sentences][-_MOST_NOTICED:])}"]


def _attempts(record: RunRecord | NoRecord) -> list[str]:
    known = outcomes_of(record.durable) if isinstance(record, RunRecord) else ()
    if not known:
        return []
    *before, last = known
    texts = [f"attempt {attempt.number}: {attempt.reason or 'over'}" for attempt in before[-2:]]
    length = "not over" if last.end is None else _time(seconds_between(last.start, last.end))
    code = "" if last.exit_code is None else f", exit code {last.exit_code}"
    texts.append(f"attempt {last.number}: {length}{code}")
    return [f"job: {'; '.join(texts)}"]


def _end(outcome: Outcome | NoRecord, node: Path) -> list[str]:
    if isinstance(outcome, NoRecord) and not outcome.is_missing:
        return [f"the end is unknown: {OUTCOME_FILE} cannot be read: {outcome.why}"]
    if isinstance(outcome, NoRecord):
        return [why_no_outcome(node)]
    lines = [f"end: {outcome.kind.value}, exit code {outcome.exit_code}: {outcome.reason}"]
    if outcome.is_warning:
        lines = [f"end: {outcome.headline} (exit code {outcome.exit_code})"]
    if outcome.remedy:
        lines.append(f"remedy: {outcome.remedy}")
    return lines


def _time(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    return duration_text(seconds)
