"""The results of each row: stored between runs, printed as a table."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from tools.faults.rows import Row

HELD, FAILED, SKIPPED = "held", "failed", "skipped"


@dataclass(frozen=True)
class Seen:
    """The result of one row's scenarios."""

    word: str
    seconds: float
    what: str = ""
    """The failure, as pytest describes it."""


def read_junit(text: str) -> Seen:
    """Read pytest's report of a row's scenarios."""
    cases = list(ET.fromstring(text).iter("testcase"))  # noqa: S314 - pytest of ours wrote it
    seconds = round(sum(float(case.get("time", "0")) for case in cases), 1)
    for case in cases:
        for bad in (*case.iter("failure"), *case.iter("error")):
            return Seen(FAILED, seconds, f"{case.get('name')}: {bad.get('message', '')[:300]}")
    if not cases or any(case.find("skipped") is not None for case in cases):
        return Seen(SKIPPED, seconds)
    return Seen(HELD, seconds)


def load(path: Path) -> dict[str, Seen]:
    """Read the results of earlier runs, by row name."""
    if not path.exists():
        return {}
    return {name: Seen(**seen) for name, seen in json.loads(path.read_text()).items()}


def save(path: Path, seen: Mapping[str, Seen]) -> None:
    """Write the file atomically for the next run."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps({name: asdict(one) for name, one in seen.items()}, indent=1) + "\n")
    new.replace(path)


def table(rows: Sequence[Row], seen: Mapping[str, Seen]) -> str:
    """Render all rows with their results as Markdown."""
    lines = ["| row | fault | result | seen |", "| --- | --- | --- | --- |"]
    for row in rows:
        one = seen.get(row.name)
        word = "not run" if one is None else f"{one.word}, {one.seconds:.0f} s"
        why = f": {one.what}" if one is not None and one.what else ""
        lines.append(f"| {row.name} | {row.event} | {row.outcome} | {word}{why} |")
    return "\n".join(lines)
