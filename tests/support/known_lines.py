"""The lines of tests/data/known_lines.txt, with the row that each is an example of."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from agent.diagnosis.live_errors import LiveErrors

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agent.decisions.shared import Known

FILE = Path(__file__).parents[1] / "data" / "known_lines.txt"
ROWS = [row.partition(" :: ") for row in FILE.read_text().splitlines() if not row.startswith("#")]
LINES = [(key, line) for key, _, line in ROWS if key != "noise"]
NOISY = [line for key, _, line in ROWS if key == "noise"]


def find_known_lines(lines: Iterable[str]) -> list[Known]:
    """Return what is reported of a job that prints these lines."""
    return LiveErrors().read(lines)
