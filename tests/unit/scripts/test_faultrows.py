"""The tables of faults and promises: their scenarios exist; results are stored and printed."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from promises import MORE, OFTEN, QUICK
from tools.faults import cli, page
from tools.faults.results import FAILED, HELD, SKIPPED, Seen, load, read_junit, save, table
from tools.faults.rows import ROWS, Row

ROOT = Path(__file__).parents[3]
CASE = '<testsuites><testsuite><testcase name="a" time="2.0">{}</testcase></testsuite></testsuites>'


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


def test_names_of_rows_differ() -> None:
    """Each can be tried alone."""
    assert len({row.name for row in ROWS}) == len(ROWS)


@pytest.mark.parametrize(
    ("inside", "seen"),
    [
        ("", Seen(HELD, 2.0)),
        ('<failure message="assert 7 == 75"/>', Seen(FAILED, 2.0, "a: assert 7 == 75")),
        ('<error message="no lab"/>', Seen(FAILED, 2.0, "a: no lab")),
        ("<skipped/>", Seen(SKIPPED, 2.0)),
    ],
)
def test_what_pytest_wrote_is_summed_up(inside: str, seen: Seen) -> None:
    """One failure fails the row; a skip does not count as a pass."""
    assert read_junit(CASE.format(inside)) == seen


def test_no_scenario_at_all_is_no_success() -> None:
    """A row whose tests were not found has failed."""
    assert read_junit("<testsuites/>").word == SKIPPED


def test_results_are_stored(tmp_path: Path) -> None:
    """Between runs, by the row's name."""
    path = tmp_path / "seen.json"
    assert load(path) == {}
    save(path, {"link": Seen(HELD, 41.2)})
    assert load(path) == {"link": Seen(HELD, 41.2)}


def test_only_what_did_not_hold_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A resumed run skips rows that passed, except for rows named in the arguments."""
    tried: list[str] = []

    def attempt(row: Row) -> Seen:
        tried.append(row.name)
        return Seen(HELD, 1.0)

    monkeypatch.setattr(cli, "FOLDER", tmp_path)
    monkeypatch.setattr(cli, "attempt", attempt)
    monkeypatch.setattr("tools.lab.missing", lambda: None)
    save(tmp_path / "seen.json", {row.name: Seen(HELD, 1.0) for row in ROWS[2:]})
    assert cli.main([]) == 0
    assert cli.main(["chaos"]) == 0
    assert tried == [ROWS[0].name, ROWS[1].name, "chaos"]
    assert "| link |" in capsys.readouterr().out


def test_the_table_shows_every_row() -> None:
    """Including rows that were never run."""
    said = table(ROWS, {"link": Seen(FAILED, 3.0, "why")}).splitlines()
    assert len(said) == 2 + len(ROWS)
    assert sum("not run" in line for line in said) == len(ROWS) - 1
    assert any("failed, 3 s: why" in line for line in said)
