"""The rows of rows.toml, and the search for them in the job's output while it runs."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from agent.base.text import parse_toml
from agent.base.value import Value
from agent.decisions.causes.lines import Rows, matches, plain_lines, rank_of
from agent.decisions.causes.row import Cause, Weight
from agent.decisions.values import Known

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_FILE = Path(__file__).with_name("rows.toml")
_PATTERN = re.compile(r"<([a-z_]+)>")


class KnownRows(Value):
    """All rows; of several that match a line, the first one counts."""

    noise: tuple[Cause, ...]
    causes: tuple[Cause, ...]
    symptoms: tuple[Cause, ...]
    all_rows: Rows
    noise_rows: Rows
    symptom_rows: Rows
    cause_keys: frozenset[str]
    live_keys: frozenset[str]
    """The keys of the rows that are reported while the job runs."""


@cache
def table() -> KnownRows:
    """Return the table, read at its first use: most runs start before they need it."""
    data = parse_toml(_FILE.read_text(encoding="utf-8"))
    noise, causes, symptoms = (
        tuple(_row(row, data["patterns"]) for row in data[kind])
        for kind in ("noise", "cause", "symptom")
    )
    rows = (*noise, *causes, *symptoms)
    return KnownRows(
        *(noise, causes, symptoms, Rows(rows), Rows(noise), Rows(symptoms)),
        cause_keys=frozenset(row.key for row in causes),
        live_keys=frozenset(row.key for row in rows if row.is_live),
    )


def _row(row: Mapping[str, Any], patterns: Mapping[str, str]) -> Cause:
    def full(expression: str) -> str:
        return _PATTERN.sub(lambda found: patterns[found[1]], expression)

    words = [
        {name: full(v) if name in {"near", "only", "unless"} else v for name, v in one.items()}
        for one in row["words"]
    ]
    weight = Weight[row.get("weight", "cause").upper()]
    return msgspec.convert({**row, "words": words, "weight": weight}, Cause)


def find_known_lines(
    lines: Sequence[bytes], reported: Iterable[str] = (), before: Sequence[str] = ()
) -> list[Known]:
    """Return the known lines among these, each row once, without rows already reported.

    `before` are the lines before them, which may show what an error is about.
    """
    rows = table()
    texts = [*before, *plain_lines(b"\n".join(lines).decode(errors="replace"))]
    found, seen = [], {*reported}
    for at, row in sorted(matches(texts, rows.all_rows).items(), key=lambda one: one[0]):
        if at < len(before) or row.key in seen or row.key not in rows.live_keys:
            continue
        seen.add(row.key)
        cause, what_to_do = row.filled(texts[at])
        line, rank = texts[at].strip(), rank_of(texts[at])
        is_noise, is_symptom = row in rows.noise, row in rows.symptoms
        found.append(Known(row.key, line, cause, what_to_do, is_noise, is_symptom, rank))
    return found
