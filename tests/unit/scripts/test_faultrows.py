"""The rows of faults, their page, and the promises: every scenario exists."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from promises import MORE, OFTEN, QUICK
from tools.faults.rows import PAGE, read_rows, with_table

LAB = Path(__file__).parents[2] / "lab"
MARK = "@pytest.mark.fault"


def scenarios() -> set[str]:
    """Return all tests of the pod lab, and their files, as pytest takes them."""
    found = set()
    for file in LAB.glob("test_*.py"):
        name = f"tests/lab/{file.name}"
        functions = [
            one.name for one in ast.parse(file.read_text()).body if isinstance(one, ast.FunctionDef)
        ]
        tests = [function for function in functions if function.startswith("test_")]
        found |= {name, *(f"{name}::{test}" for test in tests)}
    return found


def test_every_promised_scenario_exists() -> None:
    """A promise with a missing test would have no proof."""
    promised = {f"tests/lab/{promise.scenario.partition('[')[0]}" for promise in (*OFTEN, *MORE)}
    assert sorted(promised - scenarios()) == []


def test_every_promise_has_a_scenario_of_its_own() -> None:
    """The run of all promises repeats none; the quick run's scenario is one of them."""
    names = [promise.scenario for promise in (*OFTEN, *MORE)]
    assert len(set(names)) == len(names)
    assert QUICK in names


def test_the_page_is_made_from_the_markers() -> None:
    """docs/faults.md has the rows of today's scenarios: a scenario that is gone shows here."""
    text = PAGE.read_text()
    assert with_table(text, read_rows()) == text, "run ./scripts/faults --page"
    with pytest.raises(ValueError, match="no place"):
        with_table("nothing", [])


def test_all_markers_are_on_tests() -> None:
    """A marker elsewhere, on a helper or a class, would prove nothing."""
    written = sum(file.read_text().count(MARK) for file in LAB.rglob("*.py"))
    tests = [test for row in read_rows() for test in row.tests]
    assert len(tests) == written
    assert sorted(set(tests) - scenarios()) == []


def test_a_row_is_described_once(tmp_path: Path) -> None:
    """One of its scenarios has the fault and the result; the others have the row's name."""
    file = tmp_path / "test_links.py"
    file.write_text(
        f'{MARK}("link", "a cut", "it heals")\ndef test_a() -> None: ...\n'
        f'{MARK}("link")\ndef test_b() -> None: ...\n'
    )
    (row,) = read_rows(tmp_path)
    assert (row.event, row.result) == ("a cut", "it heals")
    assert row.tests == ("tests/lab/test_links.py::test_a", "tests/lab/test_links.py::test_b")
    file.write_text(f'{MARK}("link")\ndef test_b() -> None: ...\n')
    with pytest.raises(ValueError, match="link: not one"):
        read_rows(tmp_path)
