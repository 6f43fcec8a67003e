"""`doctor --all`: every node's findings in one table, as the head of a running cluster has them."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from agent.base.words import all_escaped
from agent.checks.finding import Finding, Level
from agent.checks.folding import whose
from agent.control.ask import find_head
from agent.control.keyed import ask_with_key, why_not
from agent.plan.show import finding_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path


def show(environ: Mapping[str, str], log_root: Path, *, as_json: bool) -> int:
    """Print the table; return 0, 78 where something fails, 69 if no head answers."""
    found = find_head(environ)
    if found is None:
        return 69
    _, where, settings = found
    answer = ask_with_key(f"http://{where}/findings", settings, log_root)
    if answer.status != 200:
        why = why_not(answer, "findings are told")
        print(f"pod-agent: {where} told nothing: {why}", file=sys.stderr)
        return 69
    try:
        data = all_escaped(json.loads(answer.body))
        lines = list(_lines(data))
        failed = any(row["level"] == Level.FAIL.value for row in _rows(data))
    except (KeyError, TypeError, ValueError):
        print("pod-agent: an agent of another version answers", file=sys.stderr)
        return 69
    print(json.dumps({"ok": not failed, **data}, indent=2) if as_json else "\n".join(lines))
    return 78 if failed else 0


def _rows(data: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [*data["between"], *data["findings"]]


def _lines(data: Mapping[str, Any]) -> Iterator[str]:
    count = len(data["nodes"])
    for row in _rows(data):
        finding = Finding(row["check"], Level(row["level"]), row["what"], row["remedy"])
        of = whose(row["nodes"], count) if "nodes" in row else "between nodes"
        yield f"{finding_line(finding)} [{of}]"
    for name in data["unknown"]:
        yield f"   of {name} nothing is known: no agent runs there"
