"""How the suite and a judge in another environment talk: cases by stdin, faults by a file."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from judging.faults import Case

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from judging.faults import Fault


def answer(judge: Callable[[Path, Sequence[Case]], dict[str, list[Fault]]]) -> None:
    """Judge what stdin holds; the faults go into the file that is the first argument."""
    out = Path(sys.argv[1])  # before a program under judgement is given arguments of its own
    asked = json.load(sys.stdin)
    cases = [
        Case(c["name"], tuple(c["argv"]), tuple((g, n) for g, n in c["nodes"]), c["module"])
        for c in asked["cases"]
    ]
    found = judge(Path(asked["package"]), cases)
    told = {name: [asdict(fault) for fault in faults] for name, faults in found.items()}
    out.write_text(json.dumps(told), encoding="utf-8")
