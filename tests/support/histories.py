"""Histories as tables: when, what happens, and what the head or a worker does about it.

A case is a list: its goal, what is durable if an earlier agent has left something, and rows. A row
is a time, an event, and in words what is begun, asked or ended since then; one without words is an
event after which nothing new is done. `…` stands for any words. What is done at a tick was due by
then: nobody else wakes the head or a worker. Between rows stands what is logged so far (`Logged`),
and all that is waited for (`Waits`).
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.structs import replace

from agent.decisions import worker
from agent.decisions.durable import Durable, on_clock
from agent.decisions.head import head_decide as head
from agent.decisions.head import head_state as h
from agent.decisions.shared import HERE, LogLine, Tick
from agent.decisions.worker import worker_state as w
from agent.decisions.worker.worker_state import WorkerGoal
from support.heads import (
    SUBMITTED,
    FollowJob,
    RayStarted,
    Released,
    SaveJob,
    Started,
    StopJob,
    SubmitJob,
    Trace,
    job,
    nodes,
    reported,
)
from support.workers import Began, Ended, WorkerTrace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent.decisions.shared import HeadAction, WorkerAction

Row = tuple[Any, ...]
"""A time, an event, and words."""
BOOT = None
"""Instead of an event: the agent starts; it begins what waits for nothing, and says what waits."""
NEXT_AGENT = "next agent"
"""Instead of an event: the agent was killed, and the next one begins, which counts from 0."""
LATER = math.inf
"""Instead of a time: only time passes, until nothing more is waited for."""


Case = list[Any]
"""A goal, perhaps what is durable, and rows."""


class Logged(NamedTuple):
    """Words of a line that was logged so far."""

    words: str


class Waits:
    """All that is waited for, as it is logged."""

    def __init__(self, *sentences: str) -> None:
        self.sentences = sentences


ALONE_RUNS: list[Row] = [(3, nodes(), "submit run-1"), (4, SUBMITTED), (5, job("RUNNING"))]
"""The job runs on the head alone."""
PAIR_RUNS: list[Row] = [
    (3, nodes(2), "submit run-1"),
    (4, reported(2)),
    (5, SUBMITTED),
    (6, job("RUNNING")),
]
"""The job runs on the head and a worker."""


def play(case: Case) -> None:
    """Play a history; check what is done about each event, and what is so between them."""
    goal, *rows = case
    is_worker = isinstance(goal, WorkerGoal)
    trace: Trace | WorkerTrace = WorkerTrace(goal, ()) if is_worker else Trace(goal, ())
    wrong = []
    for row in rows:
        match row:
            case Durable():
                trace = Trace(goal, (), row)
            case Logged(words):
                if not re.search(_pattern(words), trace.log):
                    wrong.append(f"{words} is not in the log:\n{trace.log}")
            case Waits():
                waits = _waits(trace)
                if not _are_as(waits, row.sentences):
                    wrong.append(f"it waits for {waits}")
            case (at, event, *_) if event is NEXT_AGENT:
                assert isinstance(trace, Trace)
                trace = Trace(goal, (), on_clock(trace.persisted[-1], -at))
            case (at, event, *expected):
                done = _play_row(trace, at, event)
                if not _are_as(done, expected):
                    wrong.append(f"{at}: {done}, not {expected}")
    assert not wrong, "\n".join(wrong)


def _play_row(trace: Trace | WorkerTrace, at: float, event: Any) -> list[str]:  # noqa: ANN401 - of either
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


def _begun(trace: Trace | WorkerTrace) -> list[str]:
    if isinstance(trace, WorkerTrace):
        return [f"start {name}" for name in trace.items]
    held_back = [one.sentence for one in trace.state.actions if isinstance(one, LogLine)]
    return [in_words(action) for action in trace.at_once] + held_back


def _deadline(trace: Trace | WorkerTrace) -> float | None:
    if isinstance(trace, WorkerTrace):
        return worker.deadline(trace.state)
    return head.deadline(trace.state)


def _waits(trace: Trace | WorkerTrace) -> list[str]:
    if isinstance(trace, WorkerTrace):
        return [wait.sentence(trace.now) for wait in worker.pending_waits(trace.state)]
    return [wait.sentence(trace.now) for wait in head.pending_waits(trace.state)]


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
            return f"start {name}{where}{_again(generation)}"
        case RayStarted(generation):
            return f"start Ray{_again(generation)}"
        case Began(name, generation):
            return f"start {name}{_again(generation)}"
        case Ended(name):
            return f"stop {name}"
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
