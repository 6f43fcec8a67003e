"""Write out the logs of a held-out case: prefixes, ordinary lines, and frames that repeat."""

from __future__ import annotations

import json
import zlib
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from causes.ordinary.lines import compose

HELD_OUT = Path(__file__).resolve().parents[3] / "tests" / "causes" / "held_out"


class Text(NamedTuple):
    """The text of a log, and where the output of its last attempt begins."""

    text: str
    begins: int


def written(source: str, case: str) -> Text:
    """Write a case's log out: the directives are in tests/causes/README.md."""
    lines: list[str] = []
    prefixes: list[str] = []
    begins = 0
    for number, line in enumerate(source.strip("\n").split("\n")):
        word, _, rest = line.removeprefix("%% ").partition(" ")
        if not line.startswith("%% "):
            added = [line]
        elif word == "prefix":
            prefixes.append(json.loads(rest))
            continue
        elif word == "end":
            prefixes.pop()
            continue
        elif word == "attempt":
            begins = sum(len(one.encode()) + 1 for one in lines)
            continue
        elif word == "frames":
            added = _part("frames", rest)
        else:
            count, style = rest.split()
            seed = zlib.crc32(f"{case} {number}".encode())
            added = compose(int(count), seed, _part("noise", style))
        before = "".join(prefixes)
        lines += [before + one for one in added]
    return Text("\n".join(lines) + "\n", begins)


@lru_cache
def _part(kind: str, name: str) -> list[str]:
    """Return the lines of a file that cases share: ordinary lines, or frames of a traceback."""
    return (HELD_OUT / kind / f"{name}.txt").read_text(encoding="utf-8").splitlines()
