"""A run's story in ten lines, from its records: what took long, what was waited for, the end."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from agent.base.errors import PreflightError
from agent.base.value import dataclass
from agent.base.words import listed
from agent.decisions.head.state import Phase, ServiceGone, ServiceReady, WorkerReported
from agent.decisions.items import HERE
from agent.decisions.worker.state import Phase as WorkerPhase
from agent.record.events import (
    FILE,
    FORMER,
    Began,
    ByeHeard,
    Ended,
    PhaseEntered,
    Waited,
    WaitsOver,
    read_events,
)
from agent.record.files import read_small, seconds_between
from agent.record.outcome_file import FILE as OUTCOME
from agent.record.run_record import FILE as RUN
from agent.record.run_record import NoRecord, RunRecord
from agent.record.trace import FILE as TRACE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

_MOST_LINES = 10
_MOST_WAITS = 3
_MOST_NAMES = 4
_LEAST = 0.05
"""Shorter than so many seconds nothing is worth a word."""

Told = tuple[float, object]


@dataclass(frozen=True)
class Life:
    """One life of a node's agent: its events, on a clock of its own."""

    began: Began
    events: tuple[Told, ...]

    @property
    def end(self) -> float:
        """Return when it was heard of last."""
        return self.events[-1][0] if self.events else 0.0


@dataclass(frozen=True)
class NodeStory:
    """What one node's records hold."""

    name: str
    lives: tuple[Life, ...]
    outcome: Mapping[str, object] | None
    """What outcome.json has; None where there is none (yet)."""

    @property
    def is_head(self) -> bool:
        """Say whether it was the run's head."""
        return any(life.began.role == "head" for life in self.lives)


def explain(folder: Path) -> list[str]:
    """Tell the story of a run's folder, or of one node's in it; at most ten lines."""
    nodes, record, trace = _read(folder)
    if not nodes:
        raise PreflightError(
            f"{folder} holds no run",
            why=f"neither it nor a folder in it has {FILE}",
            remedy="Name a run's folder, or set AGENT_LOG_DIR to the folder that holds the runs",
            culprit="RUN FOLDER",
        )
    first = record.head if isinstance(record, RunRecord) else ""
    nodes.sort(key=lambda node: (node.name != first, not node.is_head, node.name))
    teller, others = nodes[0], nodes[1:]
    lines = [
        _opening(teller, record) + (f"; in a browser: {trace}" if trace else ""),
        *_phases(teller.lives),
        *_waits(teller.lives[-1], is_over=teller.outcome is not None),
        *_joined(teller.lives),
        *_services(teller.lives),
        *_attempts(record),
        *_others(teller, others),
        *_end(teller),
    ]
    short = lines if len(lines) <= _MOST_LINES else [*lines[: _MOST_LINES - 2], *lines[-2:]]
    return [_plain(line) for line in short]


def _plain(line: str) -> str:
    """Make one printable line of whatever was recorded."""
    return "".join(sign if sign.isprintable() else " " for sign in " ".join(line.split()))


def _read(folder: Path) -> tuple[list[NodeStory], RunRecord | NoRecord, str]:
    """Read a run's records; return its nodes, the head's record, and where its trace is."""
    is_node = any((folder / name).is_file() for name in (FILE, FORMER))
    run = folder.resolve().parent if is_node else folder
    try:
        places = [folder] if is_node else sorted(p for p in folder.iterdir() if p.is_dir())
    except OSError:
        places = []
    stories = [NodeStory(p.resolve().name, lives(read_events(p)), _outcome(p)) for p in places]
    trace = f"{run / TRACE} (ui.perfetto.dev)" if (run / TRACE).is_file() else ""
    return [story for story in stories if story.lives], RunRecord.read(run / RUN), trace


def lives(told: Iterable[Told]) -> tuple[Life, ...]:
    """Part events by the agents that recorded them; a file that was begun anew parts nothing."""
    lives: list[tuple[Began, list[Told]]] = []
    for at, event in told:
        if isinstance(event, Began):
            if not lives or lives[-1][0].started_at != event.started_at:
                lives.append((event, []))
        elif lives:
            lives[-1][1].append((at, event))
    return tuple(Life(began, tuple(events)) for began, events in lives)


def _outcome(folder: Path) -> Mapping[str, object] | None:
    try:
        data = json.loads(read_small(folder / OUTCOME))
    except (OSError, ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None


# --- the lines ---------------------------------------------------------------------------------


def _opening(teller: NodeStory, record: RunRecord | NoRecord) -> str:
    first, last = teller.lives[0], teller.lives[-1]
    run_id = record.run_id if isinstance(record, RunRecord) else last.began.run_id
    took = seconds_between(first.began.started_at, last.began.started_at) + last.end
    role = "head" if teller.is_head else "worker"
    again = f"; its agent was started {len(teller.lives)} times" if len(teller.lives) > 1 else ""
    return (
        f"run {run_id or 'without an id'}, told by the {role} {teller.name}: began "
        f"{first.began.started_at or 'at an unknown time'}, lasted {_time(took)}{again}"
    )


def _phases(lives: tuple[Life, ...]) -> list[str]:
    """Say how long each phase took, all its times together."""
    spent: dict[str, float] = {}
    for life in lives:
        phase = (Phase.BOOTING if life.began.role == "head" else WorkerPhase.FINDING).value
        since = 0.0
        for at, event in life.events:
            if isinstance(event, PhaseEntered):
                spent[phase] = spent.get(phase, 0.0) + at - since
                phase, since = event.phase, at
        spent[phase] = spent.get(phase, 0.0) + life.end - since
    told = [f"{name} {_time(seconds)}" for name, seconds in spent.items() if seconds >= _LEAST]
    return [f"phases: {', '.join(told)}"] if told else []


def _waits(life: Life, *, is_over: bool) -> list[str]:
    """Name what was waited for longest, with the last that was heard of it."""
    since: dict[str, tuple[float, str]] = {}
    over: list[tuple[float, str, str, bool]] = []
    for at, event in life.events:
        if isinstance(event, Waited):
            begun = since.get(event.what, (at, ""))
            since[event.what] = (begun[0], event.evidence or begun[1])
        elif isinstance(event, WaitsOver):
            for what in event.what:
                begun = since.pop(what, (at, ""))
                over.append((at - begun[0], what, begun[1], True))
    over += [(life.end - at, what, evidence, False) for what, (at, evidence) in since.items()]
    over.sort(key=lambda one: (one[3], -one[0]))
    open_end = ", in vain" if is_over else " so far"
    return [
        f"waited for {what} {_time(seconds)}{'' if came else open_end}"
        + (f"; last: {evidence}" if evidence else "")
        for seconds, what, evidence, came in over[:_MOST_WAITS]
        if seconds >= _LEAST or not came
    ]


def _joined(lives: tuple[Life, ...]) -> list[str]:
    """Name the nodes that joined, the slowest first, and those that left, with their word."""
    joined: dict[str, float] = {}
    left: dict[str, str] = {}
    for at, event in ((at, event) for life in lives for at, event in life.events):
        if isinstance(event, WorkerReported) and event.worker.joined:
            joined.setdefault(event.worker.name, at)
        elif isinstance(event, ByeHeard):
            left[event.node] = event.cause
    lines = []
    if joined:
        slowest = sorted(joined.items(), key=lambda one: -one[1])
        told = ", ".join(f"{name} after {_time(at)}" for name, at in slowest[:_MOST_NAMES])
        more = f" and {len(joined) - _MOST_NAMES} sooner" if len(joined) > _MOST_NAMES else ""
        lines.append(f"joined: {told}{more}")
    if left:
        told = ", ".join(f"{name} ({cause})" for name, cause in [*left.items()][:_MOST_NAMES])
        more = f" and {len(left) - _MOST_NAMES} more" if len(left) > _MOST_NAMES else ""
        lines.append(f"left: {told}{more}")
    return lines


def _services(lives: tuple[Life, ...]) -> list[str]:
    """Say which services died, how often, and whether they came back."""
    gone: dict[str, tuple[int, str, bool]] = {}
    for event in (event for life in lives for _, event in life.events):
        if isinstance(event, ServiceGone):
            name = event.name if event.node == HERE else f"{event.name} on {event.node}"
            count = gone.get(name, (0, "", False))[0]
            gone[name] = (count + 1, event.evidence, False)
        elif isinstance(event, ServiceReady):
            name = event.name if event.node == HERE else f"{event.name} on {event.node}"
            if name in gone:
                gone[name] = (*gone[name][:2], True)
    told = [
        f"{name} died {f'{count} times' if count > 1 else 'once'} ({evidence}), "
        + ("and came back" if back else "and did not come back")
        for name, (count, evidence, back) in gone.items()
    ]
    return [f"services: {'; '.join(told)}"] if told else []


def _attempts(record: RunRecord | NoRecord) -> list[str]:
    if isinstance(record, NoRecord) or not record.attempts:
        return []
    last = record.attempts[-1]
    length = "not over" if last.end is None else _time(seconds_between(last.start, last.end))
    how = "" if last.exit_code is None else f", exit code {last.exit_code}"
    before = [f"attempt {one.number}: {one.reason or 'over'}" for one in record.attempts[:-1]]
    told = [*before[-2:], f"attempt {last.number}: {length}{how}"]
    return [f"job: {'; '.join(told)}"]


def _others(teller: NodeStory, others: list[NodeStory]) -> list[str]:
    """Name the nodes of a shared folder that ended otherwise than the one that tells."""
    own = (teller.outcome or {}).get("exit_code")
    different = [
        f"{node.name} with {(node.outcome or {}).get('exit_code', 'no outcome')}"
        for node in others
        if (node.outcome or {}).get("exit_code") != own
    ]
    return [f"other ends: {listed(different[:_MOST_NAMES])}"] if different else []


def _end(teller: NodeStory) -> list[str]:
    outcome = teller.outcome
    if outcome is None:
        ended = any(isinstance(event, Ended) for _, event in teller.lives[-1].events)
        return [f"no outcome is written: {'its disk refused it' if ended else 'it lives, or died'}"]
    told = (
        f"end: {outcome.get('kind')}, exit code {outcome.get('exit_code')}: {outcome.get('reason')}"
    )
    remedy = outcome.get("remedy")
    return [told, f"remedy: {remedy}"] if remedy else [told]


def _time(seconds: float) -> str:
    """Write a length of time with what matters of it."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"
