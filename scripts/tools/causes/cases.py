"""Cases of failed runs with their true cause, and whether an answer is right."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any

from agent.base.text import parse_toml
from agent.diagnosis.find_cause import Diagnosis, diagnose_logs
from agent.diagnosis.live_errors import LiveErrors
from agent.diagnosis.rows import table
from agent.diagnosis.searched_log import Log

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

UNKNOWN = "unknown"


class Result(Enum):
    """The grade of an answer."""

    RIGHT = "right"
    WRONG = "wrong"
    SILENT = "silent"


def load(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the cases of a folder's files, each with its file's name."""
    for path in sorted(folder.glob("*.toml")):
        for case in parse_toml(path.read_text(encoding="utf-8"))["case"]:
            yield path.stem, case


def diagnosis(case: Mapping[str, Any]) -> Diagnosis:
    """Return the answer for a finished case."""
    logs = [Log(node, "job.log", "\n".join(lines)) for node, lines in case["logs"].items()]
    return diagnose_logs(logs)


def live_answer(case: Mapping[str, Any]) -> Diagnosis:
    """Return what is reported as a cause while the job runs: its logs, line by line."""
    best = Diagnosis()
    for node, lines in case["logs"].items():
        errors = LiveErrors()
        for line in lines:
            for known in errors.read([line]):
                row = table().get(known.key)
                if row is None or row.kind != "cause" or known.is_seen:
                    continue
                if best.row is None or row.weight > best.row.weight:
                    best = Diagnosis(known.line, node=node, row=row)
    return best


def judge(case: Mapping[str, Any], answer: Diagnosis) -> Result:
    """Grade an answer: see tests/causes/README.md."""
    right = {case["cause"], *case["also_acceptable"]}
    if answer.row is not None:
        is_right = bool(answer.row.labels) and right.issuperset(answer.row.labels)
        return Result.RIGHT if is_right else Result.WRONG
    if case["cause"] == UNKNOWN:
        evidence = case["evidence"].strip()
        has_line = bool(answer.line) and (evidence in answer.line or answer.line in evidence)
        return Result.RIGHT if has_line else Result.SILENT
    return Result.RIGHT if UNKNOWN in right else Result.SILENT
