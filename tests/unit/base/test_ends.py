"""The table of ends: every outcome and exit code of a run comes from one of its rows."""

from __future__ import annotations

import ast
import string
from typing import TYPE_CHECKING

import pytest

from agent.base import ends
from agent.base.ends import BY_CALLER, Kind, Outcome
from agent.processes import parent
from support.sources import ROOT, nodes, trees

if TYPE_CHECKING:
    from collections.abc import Iterator

CODES: dict[Kind, set[int]] = {
    Kind.DONE: {0},
    Kind.JOB_FAILED: {BY_CALLER, 75},
    Kind.STOPPED: {BY_CALLER, 143, 78},
    Kind.REFUSED: {78},
    Kind.UNAVAILABLE: {69},
    Kind.LOST: {75},
    Kind.BUG: {70},
}
"""The exit codes of each kind; BY_CALLER where the job or a signal decides."""
QUOTES = {
    *("reason", "evidence", "details", "message", "error", "words", "why", "failure", "refusal"),
    *("loss", "before", "suspects", "last", "cause"),
}
"""Words of an outcome that may quote the output of a program."""
ENDS = {name: row for name, row in vars(ends).items() if isinstance(row, Outcome)}


def calls_of_rows() -> Iterator[tuple[str, str, ast.Call]]:
    """Yield (place, name of the row, call) for each call that makes an outcome."""
    for path, tree in trees().items():
        for node in nodes(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                row = node.func.value
                if node.func.attr == "outcome" and isinstance(row, ast.Attribute):
                    yield f"{path}:{node.lineno}", row.attr, node
                elif node.func.attr == "outcome" and isinstance(row, ast.Name):
                    yield f"{path}:{node.lineno}", row.id, node


def words_of(row: Outcome) -> set[str]:
    """Return the names in the templates of a row."""
    return {
        name for text in (row.reason, row.culprit, row.remedy, row.plain) for name in names_in(text)
    }


def names_in(template: str) -> set[str]:
    """Return the names in a template."""
    return {name for _, name, _, _ in string.Formatter().parse(template) if name}


@pytest.mark.parametrize("name", ENDS)
def test_the_code_of_each_row_belongs_to_its_kind(name: str) -> None:
    """A kind has the exit codes that docs/reference/exit-codes.md lists."""
    row = ENDS[name]
    assert row.exit_code in CODES[row.kind]


@pytest.mark.parametrize("name", ENDS)
def test_a_plain_reason_has_no_words_of_logs(name: str) -> None:
    """Readers without the token get it: evidence, messages and causes may quote an output."""
    row = ENDS[name]
    assert names_in(row.plain or row.reason) & QUOTES == set()
    assert row.outcome(code=1, **dict.fromkeys(words_of(row), 1)).plain


def test_all_codes_are_documented() -> None:
    """The table has every fixed exit code, and the docs explain each of them."""
    codes = {row.exit_code for row in ENDS.values()} - {BY_CALLER, 0}
    assert codes == {69, 70, 75, 78, 143}
    page = (ROOT / "docs/reference/exit-codes.md").read_text()
    assert not [code for code in codes if f"| {code}" not in page]


def test_outcomes_are_made_from_rows_only() -> None:
    """No other module calls `Outcome(...)`."""
    found = [
        f"{path}:{node.lineno}"
        for path, tree in trees().items()
        for node in nodes(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "Outcome"
    ]
    assert [place.partition(":")[0] for place in found] == ["agent/base/ends.py"]


def test_each_call_fills_the_templates_of_its_row() -> None:
    """The arguments are the names in the templates, and `code` where the row has none."""
    wrong = []
    used = set()
    for place, name, call in calls_of_rows():
        row = ENDS.get(name)
        if row is None:
            continue
        used.add(name)
        given = {keyword.arg for keyword in call.keywords}
        expected = words_of(row) | ({"code"} if row.exit_code == BY_CALLER else set())
        if given != expected:
            wrong.append(f"{place}: {name} has {sorted(map(str, given))}, not {sorted(expected)}")
    assert wrong == []
    named = {
        node.attr
        for tree in trees().values()
        for node in nodes(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "ends"
    }
    unused = ENDS.keys() - used - named
    assert unused == {"NO_PROCESS"}  # the parent prints it


def test_the_parents_codes_are_in_the_table() -> None:
    """The parent imports nothing of the agent, and has the codes of its rows itself."""
    assert ends.AGENT_KILLED.exit_code == parent.GAVE_UP
    assert ends.NO_PROCESS.exit_code == parent.NO_PROCESS


def test_no_code_is_written_elsewhere() -> None:
    """No decision names 69, 70, 75 or 78; the codes of verbs that only ask are their own."""
    codes = {69, 70, 75, 78}
    runs = ("agent/decisions/", "agent/run/", "agent/plan/", "agent/record/", "agent/bridge/")
    found = [
        f"{path}:{node.lineno}"
        for path, tree in trees().items()
        if path.startswith(runs)
        for node in nodes(tree)
        if isinstance(node, ast.Constant) and type(node.value) is int and node.value in codes
    ]
    assert found == []
