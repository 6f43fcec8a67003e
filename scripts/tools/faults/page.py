"""The table of docs/faults.md: each row with the scenarios that prove it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tools.faults.rows import Row

_BEGIN, _END = "<!-- rows -->\n", "<!-- /rows -->"


def table(rows: Sequence[Row]) -> str:
    """Render the rows, one scenario per line."""
    lines = ["| fault | result | scenarios |", "| --- | --- | --- |"]
    for row in rows:
        shown = "<br>".join(_link(test) for test in row.tests)
        lines.append(f"| {row.event} | {row.outcome} | {shown} |")
    return "\n".join(lines) + "\n"


def _link(test: str) -> str:
    file, _, name = test.partition("::")
    return f"[{name.removeprefix('test_').replace('_', ' ')}](../{file})"


def with_table(text: str, rows: Sequence[Row]) -> str:
    """Insert the table between its markers."""
    pattern = re.compile(f"{re.escape(_BEGIN)}.*?{re.escape(_END)}", re.DOTALL)
    if not pattern.search(text):
        raise ValueError("docs/faults.md has no place for the table of rows")
    return pattern.sub(lambda _: f"{_BEGIN}{table(rows)}{_END}", text)
