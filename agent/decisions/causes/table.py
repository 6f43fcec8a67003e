"""All rows in order, and the search for them in the job's output while it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.decisions.causes.gpus import GPUS
from agent.decisions.causes.hub import FILES
from agent.decisions.causes.inputs import INPUTS
from agent.decisions.causes.limits import ACCESS, CRASHES, LIMITS, TAKEN
from agent.decisions.causes.lines import Rows, matches, plain_lines, rank_of
from agent.decisions.causes.machine import MEMORY, STORAGE
from agent.decisions.causes.network import NETWORK, SYMPTOMS
from agent.decisions.causes.ray import NOISE, PLACEMENT, START
from agent.decisions.causes.services import SERVICES
from agent.decisions.causes.versions import VERSIONS, WEIGHED_LESS
from agent.decisions.values import Known

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = [
    "ALL_ROWS",
    "CAUSES",
    "CAUSE_KEYS",
    "KEYS",
    "NOISE",
    "NOISE_ROWS",
    "SYMPTOMS",
    "SYMPTOM_ROWS",
    "find_known_lines",
]

CAUSES = (
    *GPUS,
    *STORAGE,
    *LIMITS,
    *MEMORY,
    *ACCESS,
    *TAKEN,
    *NETWORK,
    *PLACEMENT,
    *START,
    *VERSIONS,
    *SERVICES,
    *INPUTS,
    *FILES,
    *CRASHES,
    *WEIGHED_LESS,
)
"""Of several rows that match a line, the first one counts."""
_ALL = (*NOISE, *CAUSES, *SYMPTOMS)
ALL_ROWS = Rows(_ALL)
NOISE_ROWS, SYMPTOM_ROWS = Rows(NOISE), Rows(SYMPTOMS)
CAUSE_KEYS = frozenset(row.key for row in CAUSES)
KEYS = frozenset(row.key for row in _ALL if row.is_live)
"""The keys of the rows that are reported while the job runs."""


def find_known_lines(
    lines: Sequence[bytes], reported: Iterable[str] = (), before: Sequence[str] = ()
) -> list[Known]:
    """Return the known lines among these, each row once, without rows already reported.

    `before` are the lines before them, which may show what an error is about.
    """
    texts = [*before, *plain_lines(b"\n".join(lines).decode(errors="replace"))]
    found, seen = [], {*reported}
    for at, row in sorted(matches(texts, ALL_ROWS).items(), key=lambda one: one[0]):
        if at < len(before) or row.key in seen or row.key not in KEYS:
            continue
        seen.add(row.key)
        cause, what_to_do = row.filled(texts[at])
        line, rank = texts[at].strip(), rank_of(texts[at])
        found.append(Known(row.key, line, cause, what_to_do, row in NOISE, row in SYMPTOMS, rank))
    return found
