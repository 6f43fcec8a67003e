"""The results of each row, stored between runs."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

HELD, FAILED, SKIPPED = "held", "failed", "skipped"


@dataclass(frozen=True)
class Result:
    """The result of one row's scenarios."""

    word: str
    seconds: float
    what: str = ""
    """The failure, as pytest describes it."""


def read_junit(text: str) -> Result:
    """Read pytest's report of a row's scenarios."""
    cases = list(ET.fromstring(text).iter("testcase"))  # noqa: S314 - pytest of ours wrote it
    seconds = round(sum(float(case.get("time", "0")) for case in cases), 1)
    for case in cases:
        for bad in (*case.iter("failure"), *case.iter("error")):
            return Result(FAILED, seconds, f"{case.get('name')}: {bad.get('message', '')[:300]}")
    if not cases or any(case.find("skipped") is not None for case in cases):
        return Result(SKIPPED, seconds)
    return Result(HELD, seconds)


def load(path: Path) -> dict[str, Result]:
    """Read the results of earlier runs, by row name."""
    if not path.exists():
        return {}
    return {name: Result(**fields) for name, fields in json.loads(path.read_text()).items()}


def save(path: Path, results: Mapping[str, Result]) -> None:
    """Write the file atomically for the next run."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps({name: asdict(one) for name, one in results.items()}, indent=1))
    new.replace(path)
