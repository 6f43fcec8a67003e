"""Runs that an author of a row may read: how many of them the agent explains."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tools.causes.runs import Grade, load_runs, measure

CAUSES = Path(__file__).parents[2] / "causes"


def test_seen_runs_are_explained() -> None:
    """The cause or the true line of nearly all, and no false cause."""
    figures = measure(CAUSES / "seen_runs", show=False)
    end = sum(figures.end.values(), Counter[Grade]())
    live = sum(figures.live.values(), Counter[Grade]())
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
