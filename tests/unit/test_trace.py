"""`timeline.json`: valid by the rules of the format, bounded, and true."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from hypothesis import given
from hypothesis import strategies as st

from agent.decisions.head import state as h
from agent.decisions.items import HERE, ItemWord, Step
from agent.record import events as e
from agent.record import trace
from agent.record.former_lives import former_lives
from agent.record.outcome_file import Outage
from agent.record.run_record import Attempt
from agent.record.timeline import Span, Timeline
from unit.heads import (
    RETRIEVER,
    REWARD,
    STEPS,
    SUBMITTED,
    TICK,
    History,
    Story,
    goal,
    job,
    nodes,
    word,
)

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    import pytest

DAY = "2026-11-22T07"
BEGAN = f"{DAY}:00:00.000Z"
HISTORY: History = [
    (1.0, word(2, "finding the head", joined=False, rank=1)),
    (2.0, h.ServiceReady(REWARD)),
    (3.0, word(2, "joining Ray", joined=False, rank=1)),
    (8.0, word(2, heard=8.0, rank=1)),
    (9.0, nodes(2)),
    (10.0, h.ServiceReady(RETRIEVER)),
    (10.5, word(2, heard=8.0, rank=1, items=(ItemWord(RETRIEVER, Step.READY),))),
    (12.0, TICK),
    (13.0, SUBMITTED),
    (14.0, job("RUNNING")),
    (20.0, h.ServiceGone(REWARD, "killed by SIGKILL")),
    (23.0, h.ServiceReady(REWARD, generation=2)),
    (60.0, job("SUCCEEDED", 0)),
    (61.0, word(2, gone=True, rank=1)),
]


def recorded(history: History) -> Timeline:
    """Return the timeline of a history."""
    story, timeline = Story(goal(1, services=(REWARD, RETRIEVER)), ()), Timeline()
    for at, event in history:
        story.take(event, at)
        timeline.note(event, story.state, at)
    return timeline


def told(*attempts: Attempt, outages: tuple[Outage, ...] = (), seconds: float = 62.0) -> trace.Told:
    """Return what else a trace is made of."""
    return trace.Told("run-1", "pod1", BEGAN, seconds, "the job succeeded", attempts, outages)


def checked(made: dict[str, Any]) -> dict[str, Any]:
    """Judge a trace by the format's rules, as it is once it was written and read."""
    read: dict[str, Any] = json.loads(json.dumps(made, allow_nan=False))
    assert read.keys() <= {"traceEvents", "displayTimeUnit", "otherData"}
    assert read["displayTimeUnit"] in {"ms", "ns"}
    processes, threads = set(), set()
    slices: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for event in read["traceEvents"]:
        assert isinstance(event["name"], str)
        assert {type(event["pid"]), type(event["tid"])} == {int}
        at = (event["pid"], event["tid"])
        if event["ph"] == "M":
            assert event["name"] in {
                *("process_name", "process_sort_index", "thread_name", "thread_sort_index"),
            }
            (key,) = event["args"]
            assert key == ("sort_index" if "sort" in event["name"] else "name")
            processes |= {event["pid"]} if event["name"] == "process_name" else set()
            threads |= {at} if event["name"] == "thread_name" else set()
            continue
        assert event["ts"] >= 0
        if event["ph"] == "i":
            assert event["s"] in {"g", "p", "t"}
            continue
        assert event["ph"] == "X"
        assert event["dur"] >= 0
        slices.setdefault(at, []).append((event["ts"], event["ts"] + event["dur"]))
    for at, found in slices.items():  # slices of a thread follow one another
        assert at in threads
        assert at[0] in processes
        assert all(one[1] <= other[0] for one, other in pairwise(found))
    return read


def slices_of(made: dict[str, Any], process: str, thread: str) -> list[tuple[str, float, float]]:
    """Return the name, the beginning and the length of each slice of a thread, in seconds."""

    def named(what: str, events: Iterable[dict[str, Any]], name: str) -> dict[str, Any]:
        (found,) = [e for e in events if e["name"] == what and e["args"]["name"] == name]
        return found

    pid = named("process_name", made["traceEvents"], process)["pid"]
    own = [event for event in made["traceEvents"] if event["pid"] == pid]
    tid = named("thread_name", own, thread)["tid"]
    return [
        (event["name"], event["ts"] / 1e6, event["dur"] / 1e6)
        for event in own
        if event["ph"] == "X" and event["tid"] == tid
    ]


def test_a_run() -> None:
    """Phases of the head and the worker, services with their outages, attempts, and the end."""
    attempts = (
        Attempt(
            1, "run-1", "2026-11-22T06:59:00Z", "2026-11-22T06:59:30Z", "its head was lost", 75
        ),
        Attempt(2, "run-2", "2026-11-22T07:00:11Z"),
    )
    outage = Outage(REWARD, "pod1", "2026-11-22T07:00:20Z", "2026-11-22T07:00:23Z")
    made = checked(trace.trace_of(recorded(HISTORY), told(*attempts, outages=(outage,))))
    shift = 60.0  # the first attempt was an earlier head's
    phases = slices_of(made, "pod1 (head)", "phases")
    assert [name for name, _, _ in phases] == ["booting", "submitting", "running", "leaving"]
    assert slices_of(made, "pod1 (head)", "attempts") == [
        ("attempt 1", 0.0, 30.0),
        ("attempt 2", shift + 11.0, 51.0),
    ]
    assert slices_of(made, "pod1 (head)", REWARD) == [
        ("starting", shift, 2.0),
        ("ready", shift + 2.0, 18.0),
        *slices_of(made, "pod1 (head)", REWARD)[2:],
    ]
    assert slices_of(made, "pod1 (head)", REWARD)[-1] == ("ready", shift + 23.0, 39.0)
    assert slices_of(made, "pod1 (head)", f"outages of {REWARD}") == [
        (f"{REWARD} on pod1", shift + 20.0, 3.0)
    ]
    assert slices_of(made, "rank 1 (pod2)", "phases") == [
        ("finding the head", shift + 1.0, 2.0),
        ("joining Ray", shift + 3.0, 5.0),
        ("following the head", shift + 8.0, 53.0),
        ("left", shift + 61.0, 0.0),
    ]
    assert slices_of(made, "rank 1 (pod2)", RETRIEVER)[-1][0] == "ready"
    (end,) = [event for event in made["traceEvents"] if event["ph"] == "i"]
    assert (end["name"], end["ts"]) == ("the job succeeded", (shift + 62.0) * 1e6)
    assert made["otherData"] == {"run_id": "run-1", "began": BEGAN, "left_out": 0}


def test_prepare_steps() -> None:
    """The head's begin as they are started; a worker's are as it tells."""
    one, other = STEPS
    steps = (one, replace(other, after=(one.name,)))
    story, timeline = Story(replace(goal(1), steps=steps), ()), Timeline()
    history: History = [
        (4.0, h.StepOver("AGENT_PREPARE_EACH")),
        (9.0, h.StepOver("AGENT_PREPARE", "exit code 1")),
        (9.5, word(2)),
    ]
    for at, event in history:
        story.take(event, at)
        timeline.note(event, story.state, at)
    timeline.note_steps("agent2", {"data": Step.PENDING}, 9.5)
    timeline.note_steps("agent2", {"data": Step.PENDING}, 10.5)
    timeline.note_steps("agent2", {"data": Step.READY}, 12.0)
    assert timeline.items[HERE]["AGENT_PREPARE_EACH"] == [Span("running", 0.0), Span("done", 4.0)]
    assert timeline.items[HERE]["AGENT_PREPARE"] == [Span("running", 4.0), Span("failed", 9.0)]
    assert timeline.items["agent2"]["data"] == [Span("running", 9.5), Span("done", 12.0)]
    checked(trace.trace_of(timeline, told()))


def test_a_later_life_of_a_node() -> None:
    """Its former life is told in the same place."""
    again = h.WorkerReported(replace(word(2, heard=30.0).worker, key="agent9"))
    timeline = recorded([(1.0, word(2)), (29.0, h.WorkerReplaced("agent2")), (30.0, again)])
    made = checked(trace.trace_of(timeline, told()))
    assert slices_of(made, "pod2", "phases") == [
        ("following the head", 1.0, 29.0),
        ("following the head", 30.0, 32.0),
    ]


def test_an_agent_that_was_killed(tmp_path: Path) -> None:
    """What the one before recorded is told before it, of head, workers and services."""
    path = tmp_path / e.FILE
    for start, events in (
        (
            "2026-11-22T06:59:00.000Z",
            (
                (1.0, e.PhaseEntered("submitting")),
                (2.0, word(2, "joining Ray", joined=False)),
                (3.0, h.ServiceReady(REWARD)),
                (5.0, word(7, "joining Ray", joined=False)),
                (9.0, h.ServiceGone(REWARD, "killed by SIGKILL")),
                (10.0, e.ProcessStarted("job", 5)),
            ),
        ),
        (BEGAN, ((1.0, e.PhaseEntered("running")),)),
    ):
        log = e.EventLog(lambda: nullcontext(path), str, e.Began("head", "run-1", start, "1.0"))
        for at, event in events:
            assert log.append(at, event) is None
    former = former_lives(tmp_path)
    assert [(life.began, life.seconds) for life in former] == [("2026-11-22T06:59:00.000Z", 10.0)]
    made = checked(trace.trace_of(recorded(HISTORY), replace(told(), former=former)))
    phases = slices_of(made, "pod1 (head)", "phases")
    assert phases[:2] == [("booting", 0.0, 1.0), ("submitting", 1.0, 9.0)]
    assert phases[2][:2] == ("booting", 60.0)
    reward = slices_of(made, "pod1 (head)", REWARD)
    assert reward[:2] == [("ready", 3.0, 6.0), ("down", 9.0, 1.0)]
    worker = slices_of(made, "rank 1 (pod2)", "phases")
    assert worker[0] == ("joining Ray", 2.0, 8.0)
    assert worker[1][:2] == ("finding the head", 61.0)
    assert slices_of(made, "pod7", "phases") == [("joining Ray", 5.0, 5.0)]


def test_records_that_are_too_long_are_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of a run waits for no such reading."""
    (tmp_path / e.FILE).write_text("x" * 100)
    assert former_lives(tmp_path) == []
    monkeypatch.setattr("agent.record.former_lives.MOST_BYTES", 99)
    monkeypatch.setattr("agent.record.former_lives.read_events", None)
    assert former_lives(tmp_path) == []


times = st.floats(0, 1e6, allow_nan=False)


@given(
    st.lists(st.lists(st.tuples(st.text(max_size=9), times), max_size=6), max_size=5),
    st.lists(st.tuples(times, times), max_size=4),
    times,
)
def test_whatever_was_recorded(
    recorded_nodes: list[list[tuple[str, float]]], outages: list[tuple[float, float]], now: float
) -> None:
    """Clocks that jump, names of any kind: it stays a valid trace."""
    timeline = Timeline()
    for number, spans in enumerate(recorded_nodes):
        timeline.nodes[f"agent{number}"] = [Span(phase, start) for phase, start in spans]
        timeline.items[f"agent{number}"] = {"x": timeline.nodes[f"agent{number}"]}
    found = tuple(
        Outage(
            REWARD,
            "pod",
            f"2026-11-22T07:00:{int(a) % 60:02}Z",
            f"2026-11-22T07:{int(b) % 60:02}:00Z",
        )
        for a, b in outages
    )
    checked(trace.trace_of(timeline, told(outages=found, seconds=now)))


def test_it_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left out is counted."""
    monkeypatch.setattr(trace, "MOST_EVENTS", 12)
    made = checked(trace.trace_of(recorded(HISTORY), told()))
    assert len(made["traceEvents"]) == 12
    assert made["otherData"]["left_out"] > 0


def test_secrets_are_masked_and_the_file_is_whole(tmp_path: Path) -> None:
    """What others said passes the mask; a disk that refuses is told."""
    masked = trace.trace_of(recorded(HISTORY), told(), lambda text: text.replace("pod2", "****"))
    assert "pod2" not in json.dumps(masked)
    assert trace.write_trace(tmp_path, masked) is None
    assert json.loads((tmp_path / trace.FILE).read_text()) == masked
    assert isinstance(trace.write_trace(tmp_path / "gone", masked), OSError)
