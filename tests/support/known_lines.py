"""The lines of tests/data/known_lines.txt, with the row that each is an example of."""

from __future__ import annotations

from pathlib import Path

FILE = Path(__file__).parents[1] / "data" / "known_lines.txt"
ROWS = [row.partition(" :: ") for row in FILE.read_text().splitlines() if not row.startswith("#")]
LINES = [(key, line) for key, _, line in ROWS if key != "noise"]
NOISY = [line for key, _, line in ROWS if key == "noise"]
