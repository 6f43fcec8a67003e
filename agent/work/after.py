"""What waits for what: the names that `after` takes, a circle among them, and the longest waits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.work.prepare import MODEL, PREPARE, PREPARE_EACH
from agent.work.services import REWARD

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from agent.work.prepare import PrepareStep
    from agent.work.services import ServiceSpec

CALLED = {
    "model": MODEL,
    "reward": REWARD,
    "AGENT_REWARD": REWARD,
    **{name: name for name in (MODEL, PREPARE, PREPARE_EACH)},
}
"""What `after` may name that no table of a file has made, with the name that it has in a run.

One that a run lacks, such as the fetch of a model that is a path, is not waited for.
"""


def circle(after: Mapping[str, Iterable[str]]) -> list[str]:
    """Return names of which each waits for the next, and the last for the first; [] for none."""
    from graphlib import CycleError, TopologicalSorter  # noqa: PLC0415 - for files alone

    try:
        TopologicalSorter(after).prepare()
    except CycleError as error:
        found: list[str] = error.args[1]
        return found[:0:-1]
    return []


def longest_waits(rows: Iterable[PrepareStep | ServiceSpec]) -> dict[str, float]:
    """Return by name how long each may wait for others before it starts, where any waits at all."""
    known = {row.name: row for row in rows}
    after = {row.name: [name for name in row.after if name in known] for row in known.values()}
    if not any(after.values()):
        return {}
    from graphlib import TopologicalSorter  # noqa: PLC0415 - most runs need none of it

    found: dict[str, float] = {}
    for name in TopologicalSorter(after).static_order():
        found[name] = max((found[one] + known[one].within for one in after[name]), default=0.0)
    return found
