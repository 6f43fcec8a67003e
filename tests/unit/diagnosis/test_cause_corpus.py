"""The corpus of failure logs in tests/causes has the shape that its README promises."""

from __future__ import annotations

import importlib
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from agent.diagnosis.rows import table
from causes.ordinary.lines import TEMPLATES, compose

CAUSES = Path(__file__).parents[2] / "causes"
UNKNOWN = "unknown"
FIELDS = {"id", "thread", "framework", "cause", "also_acceptable", "evidence", "logs"}
OPTIONAL = {"ambiguous", "symptom_hides_cause", "node", "rank"}


def _load(path: Path) -> dict[str, Any]:
    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    loaded: dict[str, Any] = toml.loads(path.read_text(encoding="utf-8"))
    return loaded


def _labels() -> dict[str, dict[str, Any]]:
    return {row["label"]: row for row in _load(CAUSES / "labels.toml")["label"]}


def _cases() -> list[tuple[Path, dict[str, Any]]]:
    paths = sorted((CAUSES / "seen").glob("*.toml"))
    return [(path, case) for path in paths for case in _load(path)["case"]]


LABELS = _labels()
CASES = _cases()


def _name(case: tuple[Path, dict[str, Any]]) -> str:
    return str(case[1]["id"])


def test_labels_are_complete() -> None:
    """Each label has a class, says whether the cause is temporary, and explains itself."""
    for row in LABELS.values():
        assert set(row) == {"label", "class", "temporary", "meaning"}
        assert row["temporary"] in {True, False, "either"}
        assert row["meaning"].endswith(".")


def test_each_label_is_used() -> None:
    """No label is listed without a case or a row, and no case has another one."""
    of_rows = {label for row in table().values() for label in row.labels}
    of_cases = {case["cause"] for _, case in CASES}
    assert of_cases <= set(LABELS)
    assert of_cases | of_rows == set(LABELS)


@pytest.mark.parametrize("row", CASES, ids=_name)
def test_case_has_its_fields(row: tuple[Path, dict[str, Any]]) -> None:
    """A case has known labels, logs of 10 to 60 lines, and an evidence line from them."""
    _, case = row
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
    names = Counter(case["id"] for _, case in CASES)
    assert [name for name, count in names.items() if count > 1] == []
    assert len({str(case["logs"]) for _, case in CASES}) == len(CASES)


def test_held_out_threads_are_in_no_seen_case() -> None:
    """No seen case, and no source of a row, is from a thread that is locked."""
    listed = (CAUSES / "held_out_threads.txt").read_text().splitlines()
    locked = {line for line in listed if not line.startswith("#")}
    used = {case["thread"] for _, case in CASES}
    used |= {source for row in table().values() for source in row.sources}

    assert len(locked) >= 150
    assert not locked & used


def test_corpus_is_large_enough() -> None:
    """The corpus has enough cases of each hard kind."""
    cases = [case for _, case in CASES]

    assert len(cases) >= 150
    assert sum(case.get("symptom_hides_cause", False) for case in cases) >= 25
    assert sum(case.get("ambiguous", False) for case in cases) >= 10
    assert sum(case["cause"] == UNKNOWN for case in cases) >= 10


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
