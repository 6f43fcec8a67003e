"""Runs that an author of a row may read: how many of them the agent explains."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tools.causes.runs import Answer, Grade, diagnosed, grade_end, grade_live, load_runs

CAUSES = Path(__file__).parents[2] / "causes"


def test_seen_runs_are_explained() -> None:
    """The cause or the true line of nearly all, and no false cause.

    No run is made around a log: that a case goes the way of a run is a test of held-out cases.
    """
    end = Counter[Grade]()
    live = Counter[Grade]()
    for case in load_runs(CAUSES / "seen_runs"):
        found, named = diagnosed(case, case.texts())
        answer = Answer(found.remedy() if case.exit else "", named)
        end[grade_end(case, answer)] += 1
        live[grade_live(case, answer)] += 1
    assert end[Grade.RIGHT] >= 0.65 * end.total()
    assert end[Grade.RIGHT] + end[Grade.LINE] >= 0.95 * end.total()
    assert end[Grade.WRONG] == 0
    assert live[Grade.WRONG] == 0


def test_seen_runs_are_whole() -> None:
    """Their true lines are in their logs, and none is from a locked thread."""
    locked = (CAUSES / "held_out_threads.txt").read_text().splitlines()
    cases = [*load_runs(CAUSES / "seen_runs")]
    assert len({case.id for case in cases}) == len(cases)
    for case in cases:
        assert case.thread not in locked
        texts = [text.text for text in case.texts().values()]
        true = any(line in text for text in texts for line in case.lines)
        assert true or case.trap, case.id
