"""The corpus of failure logs in tests/causes has the shape that its README promises."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from agent.base.text import parse_toml
from agent.diagnosis.rows import table
from causes.ordinary.lines import TEMPLATES, compose
from tools.causes.cases import load
from tools.causes.runs import load_runs

CAUSES = Path(__file__).parents[2] / "causes"
UNKNOWN = "unknown"
FIELDS = {"id", "thread", "framework", "cause", "also_acceptable", "evidence", "logs"}
OPTIONAL = {"ambiguous", "symptom_hides_cause", "node", "rank"}
LABELS = {
    row["label"]: row
    for row in parse_toml((CAUSES / "labels.toml").read_text(encoding="utf-8"))["label"]
}
CASES = [case for _, case in load(CAUSES / "seen")]


def test_labels_are_complete() -> None:
    """Each label has a class, says whether the cause is temporary, and explains itself."""
    for row in LABELS.values():
        assert set(row) == {"label", "class", "temporary", "meaning"}
        assert row["temporary"] in {True, False, "either"}
        assert row["meaning"].endswith(".")


def test_each_label_is_used() -> None:
    """No label is listed without a case or a row, and no case has another one."""
    of_rows = {label for row in table().values() for label in row.labels}
    of_cases = {case["cause"] for case in CASES}
    assert of_cases <= set(LABELS)
    assert of_cases | of_rows == set(LABELS)


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_case_has_its_fields(case: dict[str, Any]) -> None:
    """A case has known labels, logs of 10 to 60 lines, and an evidence line from them."""
    lines = [line for node in case["logs"].values() for line in node]

    assert set(case) >= FIELDS
    assert set(case) <= FIELDS | OPTIONAL
    assert {case["cause"], *case["also_acceptable"]} <= set(LABELS)
    assert case["cause"] not in case["also_acceptable"]
    assert bool(case["also_acceptable"]) >= case.get("ambiguous", False)
    assert all(case["logs"].values())
    assert 10 <= len(lines) <= 60
    assert any(case["evidence"] in line for line in lines)


def test_cases_are_unique() -> None:
    """No two cases have the same id, or the same logs."""
    names = Counter(case["id"] for case in CASES)
    assert [name for name, count in names.items() if count > 1] == []
    assert len({str(case["logs"]) for case in CASES}) == len(CASES)


def test_held_out_threads_are_in_no_seen_case() -> None:
    """No seen case, and no source of a row, is from a thread that is locked."""
    listed = (CAUSES / "held_out_threads.txt").read_text().splitlines()
    locked = {line for line in listed if not line.startswith("#")}
    used = {case["thread"] for case in CASES}
    used |= {source for row in table().values() for source in row.sources}

    assert len(locked) >= 150
    assert not locked & used


def test_corpus_is_large_enough() -> None:
    """The corpus has enough cases of each hard kind."""
    assert len(CASES) >= 150
    assert sum(case.get("symptom_hides_cause", False) for case in CASES) >= 25
    assert sum(case.get("ambiguous", False) for case in CASES) >= 10
    assert sum(case["cause"] == UNKNOWN for case in CASES) >= 10


def test_ordinary_logs_are_large_enough() -> None:
    """Ordinary logs have 20,000 lines from at least 300 templates, the same each time."""
    lines = compose(20_000)

    assert len(lines) == 20_000
    assert len(set(TEMPLATES)) == len(TEMPLATES) >= 300
    assert lines == compose(20_000)


def test_templates_have_no_misspelled_name() -> None:
    """Each `<name>` of a template is replaced by a value."""
    left = {name for line in compose(len(TEMPLATES)) for name in re.findall(r"<[a-z]+\d*>", line)}

    assert left == {"<search>"}  # Search-R1 prints it


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
