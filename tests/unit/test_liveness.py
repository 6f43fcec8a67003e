"""What agent, Ray and GCS report about a node: a contradiction is logged once."""

from __future__ import annotations

import pytest

from agent.decisions.head import state as h
from agent.decisions.head.fleet import Fleet, Worker, contradiction
from unit.heads import PAIR, Trace, goal


@pytest.mark.parametrize(
    ("silent", "lost", "is_listed", "doubt"),
    [
        ("", False, True, ""),
        ("", False, False, "its agent answers: Ray does not know it any more"),
        ("no answer", False, True, "its Ray answers still"),
        ("no answer", True, True, "nor does its Ray answer, though GCS lists it still"),
        ("no answer", True, False, ""),
    ],
)
def test_contradictions(silent: str, lost: bool, is_listed: bool, doubt: str) -> None:  # noqa: FBT001 - a row
    """Each combination of the three sources, with its text."""
    worker = Worker("agent2", "pod2", "10.0.0.2", silent=silent, lost=lost)
    nodes = {"10.0.0.2": frozenset({"ray2"})} if is_listed else {}
    assert contradiction(Fleet(node_ids=nodes), worker) == doubt


def test_a_silence_is_logged_once() -> None:
    """It is logged again only if the sources report something else."""
    silent = h.WorkerSilent("agent2", "no answer")
    trace = Trace(goal(1), [*PAIR, (9, silent), (10, silent), (11, silent)])
    assert trace.log.count("pod2 is silent, no answer; nor does its Ray answer, though GCS") == 1
    trace.take(h.WorkerSilent("agent2", "no answer", ray_answers=True), 12)
    assert "pod2 is silent, no answer; its Ray answers still" in trace.log
