"""The tables of faults and promises: their scenarios exist; results are stored and printed."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from promises import MORE, OFTEN, QUICK
from tools.faults import cli, page
from tools.faults.results import FAILED, HELD, SKIPPED, Seen, read_junit
from tools.faults.rows import ROWS

ROOT = Path(__file__).parents[3]


def scenarios() -> set[str]:
    """Return all tests of the pod lab, and their files, as pytest takes them."""
    found = set()
    for file in (ROOT / "tests/lab").glob("test_*.py"):
        name = str(file.relative_to(ROOT))
        tests = [
            one for one in ast.parse(file.read_text()).body if isinstance(one, ast.FunctionDef)
        ]
        found |= {name, *(f"{name}::{test.name}" for test in tests)}
    return found


def test_every_scenario_of_the_tables_exists() -> None:
    """A row with a missing test would promise something without proof."""
    rows = [test for row in ROWS for test in row.tests]
    promised = [f"tests/lab/{promise.scenario.partition('[')[0]}" for promise in (*OFTEN, *MORE)]
    assert sorted({*rows, *promised} - scenarios()) == []
    assert [row.name for row in ROWS if not row.tests] == []


def test_every_promise_has_a_scenario_of_its_own() -> None:
    """The run of all promises repeats none; the quick run's scenario is one of them."""
    names = [promise.scenario for promise in (*OFTEN, *MORE)]
    assert len(set(names)) == len(names)
    assert QUICK in names


def test_the_page_has_all_rows() -> None:
    """docs/faults.md is written by `./scripts/faults --page`."""
    text = cli.PAGE.read_text()
    assert page.with_table(text, ROWS) == text, "run ./scripts/faults --page"
    with pytest.raises(ValueError, match="no place"):
        page.with_table("nothing", ROWS)


@pytest.mark.parametrize(
    ("cases", "seen"),
    [
        ('<testcase name="a" time="2.0"/>', Seen(HELD, 2.0)),
        (
            '<testcase name="a" time="2.0"><failure message="7 == 75"/></testcase>',
            Seen(FAILED, 2.0, "a: 7 == 75"),
        ),
        (
            '<testcase name="a" time="2.0"><error message="no lab"/></testcase>',
            Seen(FAILED, 2.0, "a: no lab"),
        ),
        ('<testcase name="a" time="2.0"><skipped/></testcase>', Seen(SKIPPED, 2.0)),
        ("", Seen(SKIPPED, 0.0)),  # its tests were not found
    ],
)
def test_what_pytest_wrote_is_summed_up(cases: str, seen: Seen) -> None:
    """One failure fails the row; a skip, or no test at all, does not count as a pass."""
    assert read_junit(f"<testsuites><testsuite>{cases}</testsuite></testsuites>") == seen
