"""Histories as tables: what happens, and what the head or a worker does about it.

A case is a list: its goal, what is durable if an earlier agent has left something, and its history
in words (`support.event_words`). A step whose event has no words is a row: a time, the event, and
in words what is begun, asked or ended since then. A step without such words is an event after which
nothing new is done. `…` stands for any words. What is done at a tick was due by then: nobody else
wakes the head or a worker.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from agent.decisions import worker
from agent.decisions.durable import Durable, on_clock
from agent.decisions.head import head_decide as head
from agent.decisions.head import head_state as h
from agent.decisions.head.members import members_of
from agent.decisions.head.wanted import wanted_of
from agent.decisions.shared import HERE, RAY, SHARE, LogLine, Tick
from agent.decisions.worker import worker_state as w
from agent.decisions.worker.worker_state import WorkerGoal, WorkerState
from support.event_words import BOOT, LATER, NEXT_AGENT, Check, Row, rows_of
from support.heads import (
    NOTHING_DURABLE,
    FollowJob,
    RayStarted,
    Released,
    SaveJob,
    Started,
    StopJob,
    SubmitJob,
    Trace,
)
from support.workers import Began, Ended, WorkerTrace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from agent.decisions.head.head_goal import HeadGoal
    from agent.decisions.shared import HeadAction, WorkerAction

Case = list[Any]
"""A goal, perhaps what is durable, and a history."""
AnyTrace = Trace | WorkerTrace


def play(case: Case) -> AnyTrace:
    """Play a history; check what is done about each event, and what is so between them."""
    goal, *parts = case
    trace: AnyTrace = WorkerTrace(goal, ()) if isinstance(goal, WorkerGoal) else Trace(goal, ())
    wrong = []
    for row in _rows(parts):
        if isinstance(row, Durable):
            trace = Trace(goal, (), row)
        elif isinstance(row, WorkerState):
            trace = WorkerTrace(goal, (), row)
        elif isinstance(row, Check):
            wrong += _wrong(trace, row)
        elif row[1] is NEXT_AGENT:
            assert isinstance(trace, Trace)
            trace = Trace(goal, (), on_clock(trace.persisted[-1], -row[0]))
        else:
            at, event, *expected = row
            done = _play_row(trace, at, event)
            if not _are_as(done, expected):
                wrong.append(f"{at}: {done}, not {expected}")
    assert not wrong, "\n".join(wrong)
    _check_end(trace)
    return trace


def play_head(case: Case) -> Trace:
    """Play the history of a head; return its trace."""
    trace = play(case)
    assert isinstance(trace, Trace)
    return trace


def _check_end(trace: AnyTrace) -> None:
    """Check that an end is final: one outcome, with the phase in which it came, and no deadline."""
    for end in trace.outcomes:
        assert trace.outcomes == [end]
        assert end.phase
        assert trace.state.phase.value == "leaving"
        if isinstance(trace, WorkerTrace):
            assert trace.state.verdict == end
        else:
            assert (trace.state.outcome, _deadline(trace)) == (end, None)


def head_after(goal: HeadGoal, *history: str | Row, left: Durable = NOTHING_DURABLE) -> Trace:
    """Return the trace of a head after a history, of which nothing is checked."""
    trace = Trace(goal, (), left)
    take(trace, *history)
    return trace


def worker_after(goal: WorkerGoal, *history: str | Row) -> WorkerTrace:
    """Return the trace of a worker after a history, of which nothing is checked."""
    trace = WorkerTrace(goal, ())
    take(trace, *history)
    return trace


def take(trace: AnyTrace, *history: str | Row) -> None:
    """Take the events of a history."""
    for row in _rows(history):
        at, event, *_ = row
        _play_row(trace, at, event)


def _rows(parts: Sequence[Any]) -> Iterator[Any]:
    for part in parts:
        if isinstance(part, str):
            yield from rows_of(part)
        else:
            yield part


def _wrong(trace: AnyTrace, check: Check) -> list[str]:
    """Return what is not as a check has it."""
    words = check.words
    if check.what == "log":
        is_there = re.search(_pattern(words), trace.log)
        return [] if is_there else [f"{words} is not in the log:\n{trace.log}"]
    if check.what in {"once", "not"}:
        count, words = (1, words) if check.what == "once" else (0, words.removeprefix("logged "))
        is_so = len(re.findall(_pattern(words), trace.log)) == count
        return [] if is_so else [f"{words} is {count} times in the log:\n{trace.log}"]
    if check.what == "wants":
        node, _, words = words.partition(" ")
        found = _wants(trace, node)
    else:
        found = _READINGS[check.what](trace)
    expected = [] if words == "nothing" else words.split(" & ")
    return [] if _are_as(found, expected) else [f"{check.what}: {found}, not {expected}"]


MARKS = ("is_jobs_verdict", "holds_pod", "is_superseded", "is_warning")


def _marks(trace: AnyTrace) -> list[str]:
    return [mark for mark in MARKS if any(getattr(end, mark) for end in trace.outcomes)]


def _standing(trace: Trace) -> list[str]:
    worker = trace.state.fleet.workers["agent2"]
    return [worker.state(counts=worker.ip in trace.state.fleet.alive).value]


def _outages(trace: Trace) -> list[str]:
    outages = trace.state.durable.outages
    ends = ("" if one.until is None else f"{one.until:g}" for one in outages)
    return [
        f"{one.service} {one.since:g} to {end}".strip()
        for one, end in zip(outages, ends, strict=True)
    ]


LETTERS = {"loading": "L", "stale": "T", "serving": "S", "dead": "D", "retired": "R"}


def _members(trace: Trace) -> list[str]:
    known = members_of(trace.state, trace.state.goal.services[0])
    return ["".join(LETTERS[member.state.value] for member in known)] if known else []


def _wants(trace: AnyTrace, node: str) -> list[str]:
    assert isinstance(trace, Trace)
    wants = wanted_of(trace.state, node)
    return [
        f"{_short(name)}{_again(want.generation)}{', stale' if want.is_stale else ''}"
        for name, want in wants.items()
    ]


def _since(at: float | None) -> list[str]:
    return [] if at is None else [f"since {at:g}"]


def _play_row(trace: AnyTrace, at: float, event: Any) -> list[str]:  # noqa: ANN401 - of either
    """Take an event, or pass time; return what is done."""
    if event is BOOT:
        return _begun(trace)
    before = len(trace.effects)
    due = _deadline(trace)
    if at == LATER:
        assert trace.finish(200)
    else:
        if isinstance(event, h.WorkerReported):  # it is sent when it arrives
            event = h.WorkerReported(replace(event.worker, last_report_at=at))
        trace.take(event, at)
    done = [in_words(action) for action in trace.effects[before:]]
    if isinstance(event, Tick) and done:
        assert due is not None, f"{at}: no tick would come"
        assert due <= at, f"{at}: the next tick comes at {due}"
    return done


def _begun(trace: AnyTrace) -> list[str]:
    if isinstance(trace, WorkerTrace):
        return [f"start {name}" for name in trace.items]
    held_back = [one.sentence for one in trace.state.actions if isinstance(one, LogLine)]
    return [in_words(action) for action in trace.at_once] + held_back


def _deadline(trace: AnyTrace) -> float | None:
    if isinstance(trace, WorkerTrace):
        return worker.deadline(trace.state)
    return head.deadline(trace.state)


def _waits(trace: AnyTrace) -> list[str]:
    if isinstance(trace, WorkerTrace):
        return [wait.sentence(trace.now) for wait in worker.pending_waits(trace.state)]
    return [wait.sentence(trace.now) for wait in head.pending_waits(trace.state)]


_READINGS: dict[str, Callable[[Any], list[str]]] = {
    "phase": lambda trace: [trace.state.phase.value],
    "culprit": lambda trace: [end.culprit for end in trace.outcomes],
    "marks": _marks,
    "waits": _waits,
    "alive": lambda trace: [*trace.state.fleet.alive.values()],
    "down": _outages,
    "joined": lambda trace: ["yes" if trace.state.joined else "no"],
    "members": _members,
    "lost": lambda trace: [*trace.state.attempt.lost_nodes],
    "stands": _standing,
    "short": lambda trace: _since(trace.state.losses.below_required_since),
}


def _are_as(texts: Sequence[str], expected: Sequence[str]) -> bool:
    """Return whether texts are as expected, each of them."""
    if len(texts) != len(expected):
        return False
    return all(map(re.fullmatch, map(_pattern, expected), texts))


def _pattern(words: str) -> str:
    return ".*".join(map(re.escape, words.split("…")))


_VERBS: dict[type[HeadAction], str] = {
    SubmitJob: "submit",
    FollowJob: "follow",
    SaveJob: "save",
    StopJob: "stop",
    Released: "release",
}
_QUESTIONS: dict[type[h.HeadQuestion], str] = {
    h.ListJobs: "ask for jobs",
    h.AskNodes: "ask the nodes",
}


def in_words(action: HeadAction | WorkerAction) -> str:
    """Return what an action is, as rows have it."""
    match action:
        case Started(name, node, generation):
            where = "" if node == HERE else f" on {node}"
            return f"start {_short(name)}{where}{_again(generation)}"
        case RayStarted(generation):
            return f"start Ray{_again(generation)}"
        case Began(name, generation):
            return f"start {_short(name)}{_again(generation)}"
        case Ended(name):
            return f"stop {_short(name)}"
        case SubmitJob(it) | FollowJob(it) | SaveJob(it) | StopJob(it) | Released(it):
            return f"{_VERBS[type(action)]} {it}"
        case h.Ask(question):
            return _QUESTIONS[type(question)]
        case h.EndRun(outcome) | w.EndWorker(outcome):
            return f"end {outcome.exit_code}: {outcome.reason}"
        case _:
            raise AssertionError(f"no words for {action}")


def _again(generation: int) -> str:
    return f", generation {generation}" if generation > 1 else ""


def _short(name: str) -> str:
    return {RAY: "Ray", SHARE: "share"}.get(name, name)
