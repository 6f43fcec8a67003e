"""Causes in whole logs: how many are right, what harmless lines change, and hostile logs."""

from __future__ import annotations

import random
import re
import secrets
import time
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.diagnosis.find_cause import diagnose_logs, plain_lines
from agent.diagnosis.searched_log import Log
from causes.ordinary.lines import compose
from support.known_lines import find_known_lines
from tools.causes.__main__ import main
from tools.causes.cases import Result, diagnosis, judge, live_answer, load
from tools.causes.perturbed import between_records, count_changes, perturbed
from tools.causes.runs import Answer, Grade, diagnosed, grade_end, grade_live, load_runs

CASES = Path(__file__).parents[2] / "causes"


def log(text: str) -> Log:
    """Return a log of a job."""
    return Log("", "job.log", text)


# --- measured ------------------------------------------------------------------------------------


def test_causes_are_right_in_most_cases() -> None:
    """Right in nearly all of the corpus's seen cases, and hardly ever wrong."""
    counts = Counter(judge(case, diagnosis(case)) for _, case in load(CASES / "seen"))
    total = sum(counts.values())
    assert counts[Result.RIGHT] >= 0.94 * total
    assert counts[Result.WRONG] <= 0.015 * total


def test_no_cause_is_wrong_while_the_job_runs() -> None:
    """A cause is reported where a process ended; the rest only as seen."""
    counts = Counter(judge(case, live_answer(case)) for _, case in load(CASES / "seen"))
    total = sum(counts.values())
    assert counts[Result.RIGHT] >= 0.55 * total
    assert counts[Result.WRONG] <= 0.01 * total


def test_seen_runs_are_explained() -> None:
    """The cause or the true line of nearly all, and no false cause.

    No run is made around a log: that a case goes the way of a run is a test of held-out cases.
    """
    end = Counter[Grade]()
    live = Counter[Grade]()
    for case in load_runs(CASES / "seen_runs"):
        found, named = diagnosed(case, case.texts())
        answer = Answer(found.remedy() if case.exit else "", named)
        end[grade_end(case, answer)] += 1
        live[grade_live(case, answer)] += 1
    assert end[Grade.RIGHT] >= 0.65 * end.total()
    assert end[Grade.RIGHT] + end[Grade.LINE] >= 0.95 * end.total()
    assert end[Grade.WRONG] == 0
    assert live[Grade.WRONG] == 0


def test_ordinary_lines_have_no_cause() -> None:
    """Logs of successful runs match no row, at the end of a run and while it runs."""
    lines = compose(20_000)
    began = time.process_time()
    found = diagnose_logs([log("\n".join(lines))])
    assert time.process_time() - began < 5  # some 0.5 s on an idle machine
    assert found.row is None
    live = find_known_lines(lines)
    assert [known.key for known in live if not known.is_noise] == []


def test_the_figures_are_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`scripts/causes` counts the cases of a folder, and shows the misses of it."""
    (tmp_path / "own.toml").write_text(
        '[[case]]\nid = "one"\ncause = "disk_full"\nalso_acceptable = []\nevidence = "x"\n'
        '[case.logs]\nhead = ["OSError: [Errno 122] Disk quota exceeded"]\n'
    )
    assert main([str(tmp_path), "-v"]) == 0
    printed = capsys.readouterr().out
    assert "wrong: one is disk_full, answered disk_quota" in printed
    assert re.search(r"all +0 +1 +0   of 1", printed)


# --- harmless lines in a log ----------------------------------------------------------------------

STILL_CHANGES = 0.001
"""The part of the answers that still changes: what a row reads of the lines before an error."""


def test_harmless_lines_change_hardly_an_answer() -> None:
    """Before, behind and between the records of a twentieth of the logs, with a fresh seed."""
    _measure(part=20, most=6 * STILL_CHANGES)  # a part varies more from seed to seed


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_harmless_lines_change_hardly_an_answer_of_any_log() -> None:
    """The same for all logs."""
    _measure(part=1, most=STILL_CHANGES)


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


# --- hostile input -------------------------------------------------------------------------------

HOSTILE = [
    "a" * 9_000,
    "a " * 4_000,
    "batch " * 2_000,
    "(Error: " * 1_000,
    "Error data " * 1_000,
    "heads " * 2_000,
    "world_size checkpoint " * 500,
    "'" * 9_000,
    "/a" * 4_000,
    " " * 9_000,
    "[rank0]:" * 1_000,
    "(a pid=1) " * 1_000,
    "Error placement group " * 500,
    "Max retries exceeded with url: /reward " * 300,
    "\x1b[31m" * 2_000,
    "\ufffd\x00\u202e" * 2_000,
]


@pytest.mark.timeout(120)
def test_hostile_logs_are_searched_in_passing() -> None:
    """Long lines, control characters and floods of look-alikes cost little."""
    began = time.process_time()
    diagnose_logs([log("\n".join(HOSTILE * 5))])
    find_known_lines(HOSTILE * 5)
    diagnose_logs([log("OSError: Error data x does batch not " * 30 + "\nCUDA out of memory")])
    assert time.process_time() - began < 30


@given(st.lists(st.text(max_size=200), max_size=8))
def test_any_log_has_a_diagnosis(lines: list[str]) -> None:
    """Whatever a log holds, the search for its cause does not fail."""
    found = diagnose_logs([log("\n".join(lines))])
    assert isinstance(found.remedy(), str)
    assert all("\n" not in line for line in plain_lines("\n".join(lines)))
