"""The timeline of a run: the phases of each node, as the page and the metrics show them."""

from __future__ import annotations

from agent.decisions.head import head_state as h
from agent.record.summary import MOST_SPANS, Timeline
from support.heads import RETRIEVER, SUBMITTED, History, Trace, goal, job, nodes, reported


def timeline_of(history: History, *services: str) -> Timeline:
    """Return the timeline of a history."""
    trace, timeline = Trace(goal(1, services=services), ()), Timeline()
    for at, event in history:
        trace.take(event, at)
        timeline.add(event, trace.state, at)
    return timeline


def spans(timeline: Timeline, key: str) -> list[tuple[str, float]]:
    """Return the phases of a node."""
    return timeline.nodes[key]


def test_a_node_s_phases() -> None:
    """Each phase starts with the first report of it; a goodbye ends the last."""
    history: History = [
        (1.0, reported(2, "finding the head", joined=False)),
        (3.0, reported(2, "joining Ray", joined=False)),
        (4.0, reported(2, "joining Ray", joined=False)),
        (9.0, reported(2, reported_at=9.0)),
        (20.0, reported(2, has_left=True)),
        (25.0, reported(2, has_left=True)),
    ]
    assert spans(timeline_of(history), "agent2") == [
        ("finding the head", 1.0),
        ("joining Ray", 3.0),
        ("following the head", 9.0),
        ("left", 20.0),
    ]


def test_a_silent_node_and_its_next_agent() -> None:
    """Silence is a separate phase; a replaced agent is removed."""
    silent = h.WorkerSilent("agent2", "connection refused")
    timeline = timeline_of([(1.0, reported(2)), (5.0, silent)])
    assert spans(timeline, "agent2") == [("following the head", 1.0), ("silent", 5.0)]
    assert timeline_of([(1.0, reported(2)), (6.0, h.WorkerReplaced("agent2"))]).nodes == {}
    assert timeline_of([(5.0, silent)]).nodes == {}


def test_the_head_s_phases() -> None:
    """They are the decisions' own."""
    history: History = [
        (1.0, reported(2)),
        (2.0, nodes(2)),
        (3.0, SUBMITTED),
        (4.0, job("RUNNING")),
        (60.0, job("SUCCEEDED", 0)),
    ]
    phases = timeline_of(history).phases
    assert [phase for phase, _ in phases] == ["booting", "submitting", "running", "leaving"]
    assert [start for _, start in phases] == sorted(start for _, start in phases)


def test_a_run_of_weeks_stays_small() -> None:
    """The first phase of a node and the last ones are kept."""
    phases = ("joining Ray", "following the head")
    long: History = [(float(at), reported(2, phases[at % 2])) for at in range(1000)]
    kept = spans(timeline_of(long, RETRIEVER), "agent2")
    assert len(kept) == MOST_SPANS
    assert (kept[0][1], kept[-1][1]) == (0.0, 999.0)
