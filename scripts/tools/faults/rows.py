"""The rows of faults, read from the scenarios' markers, and the table of docs/faults.md.

A scenario of a row has `@pytest.mark.fault("row")`; one of them also has the row's two sentences:
the fault, and its result.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

REPO = Path(__file__).parents[3]
SCENARIOS = REPO / "tests" / "lab"
PAGE = REPO / "docs" / "faults.md"
_BEGIN, _END = "<!-- rows -->\n", "<!-- /rows -->"


@dataclass(frozen=True)
class Row:
    """One kind of fault."""

    name: str
    """The argument of scripts/faults that runs only this row."""
    event: str
    result: str
    tests: tuple[str, ...]
    """The scenarios, by pytest's names."""


def read_rows(folder: Path = SCENARIOS) -> list[Row]:
    """Read the rows of all scenarios, by name."""
    tests: dict[str, list[str]] = defaultdict(list)
    sentences: dict[str, list[list[str]]] = defaultdict(list)
    for file in sorted(folder.glob("test_*.py")):
        for test, (name, *said) in _marks(file.read_text()):
            tests[name].append(f"tests/lab/{file.name}::{test}")
            if said:
                sentences[name].append(said)
    rows = []
    for name in sorted(tests):
        match sentences[name]:
            case [[event, result]]:
                rows.append(Row(name, event, result, tuple(tests[name])))
            case _:
                raise ValueError(f"{name}: not one scenario has its fault and result")
    return rows


def _marks(source: str) -> Iterator[tuple[str, list[str]]]:
    """Find the markers of a file: a test's name, and the marker's arguments."""
    functions = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
    for function in functions:
        for mark in function.decorator_list:
            if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.fault":
                yield function.name, [ast.literal_eval(argument) for argument in mark.args]


def with_table(text: str, rows: Sequence[Row]) -> str:
    """Insert the table of rows between its markers, one scenario per line."""
    lines = ["| row | fault | result | scenarios |", "| --- | --- | --- | --- |"]
    for row in rows:
        shown = "<br>".join(_link(test) for test in row.tests)
        lines.append(f"| {row.name} | {row.event} | {row.result} | {shown} |")
    table = "\n".join(lines) + "\n"
    found = re.subn(f"(?s)({_BEGIN}).*({_END})", lambda m: f"{m[1]}{table}{m[2]}", text)
    if found[1] != 1:
        raise ValueError("docs/faults.md has no place for the table of rows")
    return found[0]


def _link(test: str) -> str:
    file, _, name = test.partition("::")
    return f"[{name.removeprefix('test_').replace('_', ' ')}](../{file})"
