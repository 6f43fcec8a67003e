"""The summary of a run that `explain` prints, and the phases that `/status` shows."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from agent.base import times
from agent.base.ends import Outcome
from agent.base.errors import PreflightError
from agent.base.text import duration_text, escaped, listed
from agent.base.value import Value
from agent.decisions.head.state import HeadPhase, WorkerReplaced, WorkerReported, WorkerSilent
from agent.decisions.values import HERE
from agent.decisions.worker.state import WorkerPhase
from agent.record.events import EVENTS_FILE, FORMER_EVENTS_FILE, RecordedEvent, read_events
from agent.record.files import NoRecord, seconds_between
from agent.record.run_folder import OUTCOME_FILE, newest_run, read_outcome
from agent.record.run_record import RUN_FILE, RunRecord

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from agent.decisions.head.state import HeadEvent, HeadState

MOST_SPANS = 32  # phases kept of each node: the first one and the latest
_FILES = (EVENTS_FILE, FORMER_EVENTS_FILE)
_MOST_LINES = 10
_MOST_WAITS = 3
_MOST_NAMES = 4

_KEYS: Mapping[str, set[str]] = {
    "Began": {"role", "run_id", "started_at"},
    "PhaseEntered": {"phase"},
    "Waited": {"what", "evidence"},
    "WaitsOver": {"what"},
    "WorkerReported": {"worker"},
    "ByeHeard": {"node", "cause"},
    "ServiceGone": {"name", "node", "evidence"},
    "ServiceReady": {"name", "node"},
}
"""What the summary uses of an event, by its kind; an event that lacks a key is left out."""


# --- phases in /status ---------------------------------------------------------------------------


class Span(Value):
    """A phase and when it began; it ends where the next one begins."""

    phase: str
    start: float


class Timeline:
    """The phases of the head and of each worker; the cost per event is constant."""

    def __init__(self) -> None:
        self.phases: list[Span] = []  # the head's own
        self.nodes: dict[str, list[Span]] = {}  # by the key of a worker's agent

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


def _enter(spans: list[Span], phase: str, now: float) -> None:
    if spans and spans[-1].phase == phase:
        return
    spans.append(Span(phase, now))
    if len(spans) > MOST_SPANS:
        del spans[1]


# --- explain -------------------------------------------------------------------------------------


def explain(folder: Path) -> list[str]:
    """Summarize a run in at most ten lines.

    The folder is a run's, or one node's in it, or one above runs, of which the newest is taken.
    """
    nodes, record = _read(folder)
    if not nodes and (newest := newest_run(folder, _FILES)) is not None:
        nodes, record = _read(newest)
    if not nodes:
        raise PreflightError(
            f"{folder} holds no run",
            why=f"neither it nor a folder below it has {EVENTS_FILE}",
            remedy="Name a run's folder, or set AGENT_LOG_DIR to the folder that holds the runs",
            culprit="RUN FOLDER",
        )
    head = record.head if isinstance(record, RunRecord) else ""
    nodes.sort(key=lambda node: (node.name != head, node.role, node.name))
    first, others = nodes[0], nodes[1:]
    lines = [
        _opening(first, record),
        *_phases(first.agents),
        *_waits(first.agents[-1], is_over=first.outcome is not None),
        *_joined(first),
        *_services(first),
        *_attempts(record),
        *_others(first, others),
        *_end(first),
    ]
    short = lines if len(lines) <= _MOST_LINES else [*lines[: _MOST_LINES - 2], *lines[-2:]]
    return [escaped(" ".join(line.split())) for line in short]


class AgentEvents(Value):
    """The events of one agent process, timed by its own clock."""

    role: str
    run_id: str
    started_at: str
    events: list[RecordedEvent]

    @property
    def end(self) -> float:
        """Return the time of the last event."""
        return self.events[-1].at if self.events else 0.0


class NodeHistory(Value):
    """The records of one node; each start of its agent has its own events."""

    name: str
    agents: tuple[AgentEvents, ...]
    outcome: Outcome | None

    @property
    def role(self) -> str:
        """Return whether the node was the run's head."""
        return "head" if any(agent.role == "head" for agent in self.agents) else "worker"

    def events(self) -> Iterator[RecordedEvent]:
        """Yield the events of all agents in their order."""
        return chain.from_iterable(agent.events for agent in self.agents)


def _read(folder: Path) -> tuple[list[NodeHistory], RunRecord | NoRecord]:
    """Read the nodes of a run and the head's record."""
    is_node = any((folder / name).is_file() for name in _FILES)
    run = folder.resolve().parent if is_node else folder
    try:
        paths = [folder] if is_node else sorted(p for p in folder.iterdir() if p.is_dir())
    except OSError:
        paths = []
    nodes = [
        NodeHistory(p.resolve().name, _by_agent(read_events(p)), read_outcome(p)) for p in paths
    ]
    return [node for node in nodes if node.agents], RunRecord.read(run / RUN_FILE)


def _by_agent(events: Iterable[RecordedEvent]) -> tuple[AgentEvents, ...]:
    """Split events by the agent that recorded them; a rotated file begins no new agent."""
    agents: list[AgentEvents] = []
    for event in events:
        data = event.data
        if not _KEYS.get(event.kind, set()) <= data.keys():
            continue
        if event.kind == "Began":
            if not agents or agents[-1].started_at != data["started_at"]:
                agents.append(AgentEvents(data["role"], data["run_id"], data["started_at"], []))
        elif agents:
            agents[-1].events.append(event)
    return tuple(agents)


def _opening(node: NodeHistory, record: RunRecord | NoRecord) -> str:
    first, last, starts = node.agents[0], node.agents[-1], len(node.agents)
    run_id = record.run_id if isinstance(record, RunRecord) else last.run_id
    took = seconds_between(first.started_at, last.started_at) + last.end
    again = f"; its agent was started {starts} times" if starts > 1 else ""
    return (
        f"run {run_id or 'without an id'}, recorded by the {node.role} {node.name}: began "
        f"{first.started_at or 'at an unknown time'}, lasted {_time(took)}{again}"
    )


def _phases(agents: tuple[AgentEvents, ...]) -> list[str]:
    """Return the total time in each phase."""
    spent: dict[str, float] = {}
    for agent in agents:
        phase = (HeadPhase.BOOTING if agent.role == "head" else WorkerPhase.FINDING).value
        since = 0.0
        for event in agent.events:
            if event.kind == "PhaseEntered":
                spent[phase] = spent.get(phase, 0.0) + event.at - since
                phase, since = event.data["phase"], event.at
        spent[phase] = spent.get(phase, 0.0) + agent.end - since
    long = {name: seconds for name, seconds in spent.items() if seconds >= times.SPAN_SHORTEST}
    phases = ", ".join(f"{name} {_time(seconds)}" for name, seconds in long.items())
    return [f"phases: {phases}"] if phases else []


def _waits(agent: AgentEvents, *, is_over: bool) -> list[str]:
    """Return the longest waits, each with its last evidence; unfinished ones first."""
    since: dict[str, tuple[float, str]] = {}
    waits: list[tuple[float, str, str, bool]] = []
    for at, kind, data in agent.events:
        if kind == "Waited":
            begun, evidence = since.get(data["what"], (at, ""))
            since[data["what"]] = (begun, data["evidence"] or evidence)
        elif kind == "WaitsOver":
            for what in data["what"]:
                begun, evidence = since.pop(what, (at, ""))
                waits.append((at - begun, what, evidence, True))
    waits += [(agent.end - at, what, evidence, False) for what, (at, evidence) in since.items()]
    waits.sort(key=lambda wait: (wait[3], -wait[0]))
    unfinished = ", in vain" if is_over else " so far"
    return [
        f"waited for {what} {_time(seconds)}{'' if is_done else unfinished}"
        + (f"; last: {evidence}" if evidence else "")
        for seconds, what, evidence, is_done in waits[:_MOST_WAITS]
        if seconds >= times.SPAN_SHORTEST or not is_done
    ]


def _joined(node: NodeHistory) -> list[str]:
    """Return the nodes that joined, the slowest first, and those that left, with the cause."""
    joined: dict[str, float] = {}
    left: dict[str, str] = {}
    for at, kind, data in node.events():
        if kind == "WorkerReported" and data["worker"].get("joined"):
            joined.setdefault(data["worker"]["name"], at)
        elif kind == "ByeHeard":
            left[data["node"]] = data["cause"]
    slowest = sorted(joined.items(), key=lambda one: -one[1])
    lines = []
    for what, rest, names in (
        ("joined", "sooner", [f"{name} after {_time(at)}" for name, at in slowest]),
        ("left", "more", [f"{name} ({cause})" for name, cause in left.items()]),
    ):
        more = f" and {len(names) - _MOST_NAMES} {rest}" if len(names) > _MOST_NAMES else ""
        lines += [f"{what}: {', '.join(names[:_MOST_NAMES])}{more}"] if names else []
    return lines


def _services(node: NodeHistory) -> list[str]:
    """Return the services that failed, how often, and whether they were ready again."""
    failed: dict[str, list[str]] = {}
    ready: set[str] = set()
    for _, kind, data in node.events():
        if kind not in {"ServiceGone", "ServiceReady"}:
            continue
        name = data["name"] if data["node"] == HERE else f"{data['name']} on {data['node']}"
        if kind == "ServiceReady":
            ready.add(name)
        else:
            ready.discard(name)
            failed.setdefault(name, []).append(data["evidence"])
    texts = [
        f"{name} failed {f'{len(why)} times' if len(why) > 1 else 'once'} ({why[-1]}), "
        f"and was {'' if name in ready else 'not '}ready again"
        for name, why in failed.items()
    ]
    return [f"services: {'; '.join(texts)}"] if texts else []


def _attempts(record: RunRecord | NoRecord) -> list[str]:
    if isinstance(record, NoRecord) or not record.attempts:
        return []
    last = record.attempts[-1]
    length = "not over" if last.end is None else _time(seconds_between(last.start, last.end))
    code = "" if last.exit_code is None else f", exit code {last.exit_code}"
    before = [f"attempt {one.number}: {one.reason or 'over'}" for one in record.attempts[:-1]]
    return [f"job: {'; '.join([*before[-2:], f'attempt {last.number}: {length}{code}'])}"]


def _others(first: NodeHistory, others: list[NodeHistory]) -> list[str]:
    """Name the nodes of a shared folder whose exit code differs from the first one's."""
    codes = [node.outcome and node.outcome.exit_code for node in (first, *others)]
    different = [
        f"{node.name} with {'no outcome' if code is None else code}"
        for node, code in zip(others, codes[1:], strict=True)
        if code != codes[0]
    ]
    return [f"different exit codes: {listed(different[:_MOST_NAMES])}"] if different else []


def _end(node: NodeHistory) -> list[str]:
    outcome = node.outcome
    if outcome is None:
        has_ended = any(event.kind == "Ended" for event in node.agents[-1].events)
        why = "it could not be written" if has_ended else "the agent still runs, or was killed"
        return [f"no {OUTCOME_FILE}: {why}"]
    end = f"end: {outcome.kind.value}, exit code {outcome.exit_code}: {outcome.reason}"
    return [end, f"remedy: {outcome.remedy}"] if outcome.remedy else [end]


def _time(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 60 else duration_text(seconds)
