"""What agent and Ray report about a node that is silent is logged once."""

from __future__ import annotations

from agent.decisions.head import head_state as h
from support.heads import PAIR, Trace, goal


def test_a_silence_is_logged_once() -> None:
    """It is logged again only if the sources report something else."""
    silent = h.WorkerSilent("agent2", "no answer")
    trace = Trace(goal(1), [*PAIR, (9, silent), (10, silent), (11, silent)])
    assert trace.log.count("pod2 is silent, no answer; nor does its Ray answer") == 1
    trace.take(h.WorkerSilent("agent2", "no answer", ray_answers=True), 12)
    assert "pod2 is silent, no answer; its Ray still answers" in trace.log
