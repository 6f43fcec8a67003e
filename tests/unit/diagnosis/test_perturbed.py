"""Harmless lines in a log: how many answers they change."""

from __future__ import annotations

import random
import secrets

import pytest

from tools.causes.perturbed import between_records, count_changes, perturbed

KNOWN = 0.001
"""The part of the answers that still changes: what a row reads of the lines before an error."""


def test_harmless_lines_change_hardly_an_answer() -> None:
    """Before, behind and between the records of a twentieth of the logs, with a fresh seed."""
    _measure(part=20, most=6 * KNOWN)  # a part varies more from seed to seed


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_harmless_lines_change_hardly_an_answer_of_any_log() -> None:
    """The same for all logs."""
    _measure(part=1, most=KNOWN)


def _measure(part: int, most: float) -> None:
    seed = secrets.randbelow(10**9)
    counted = count_changes(seed, part)
    changed = [f"{one.corpus} {one.case} {one.where} {one.when}" for one in counted.changes]
    assert len(changed) <= most * counted.answers, (seed, changed)


def test_a_record_is_not_split() -> None:
    """Lines stand between records: not within a traceback, below a title or a header."""
    lines = [
        "loading",
        "Traceback (most recent call last):",
        '  File "/x/a.py", line 3, in f',
        "ValueError: the rows differ:",
        "a and b",
        "Exception ignored in: <function x at 0x7f>",
        "OSError: closed",
        "done",
    ]
    assert [*between_records(lines)] == [1, 5, 7, 8]
    changed = perturbed(lines, "between", random.Random(1))  # noqa: S311 - no secret
    assert len(changed) >= len(lines) + 12
    assert [line for line in changed if line in lines] == lines
