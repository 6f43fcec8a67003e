"""The exchange with a checker in another environment: cases on stdin, results in a file."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from tools.frameworks.faults import Case

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tools.frameworks.faults import Fault


def answer(judge: Callable[[Path, Sequence[Case]], dict[str, list[Fault]]]) -> None:
    """Check the cases on stdin; write the results into the file that argv names."""
    out = Path(sys.argv[1])  # before argv is replaced by that of a checked program
    asked = json.load(sys.stdin)
    cases = [
        Case(c["name"], tuple(c["argv"]), tuple((g, n) for g, n in c["nodes"]), c["module"])
        for c in asked["cases"]
    ]
    found = judge(Path(asked["package"]), cases)
    faults_by_name = {name: [asdict(fault) for fault in faults] for name, faults in found.items()}
    out.write_text(json.dumps(faults_by_name), encoding="utf-8")
