"""Findings of many nodes in one table: equal ones told once, with the nodes that they are of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.base.value import dataclass
from agent.base.words import listed
from agent.checks.finding import Finding, Level

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_ORDER = (Level.FAIL, Level.WARN, Level.OK)
_MOST_NAMED = 4


@dataclass(frozen=True)
class Row:
    """One finding, and the nodes of which it is true."""

    finding: Finding
    nodes: tuple[str, ...]


def folded(found: Iterable[tuple[str, Sequence[Finding]]]) -> tuple[Row, ...]:
    """Fold what was found on nodes, by their names: the worst first, then in the checks' order.

    What is well need not be told in every node's own numbers: there one check is one row.
    """
    rows: dict[tuple[str, ...], tuple[Finding, list[str]]] = {}
    places: dict[str, int] = {}
    for node, findings in found:
        for one in findings:
            places.setdefault(one.check, len(places))
            texts = () if one.level is Level.OK else (one.what, one.remedy)
            rows.setdefault((one.check, one.level.value, *texts), (one, []))[1].append(node)
    ordered = sorted(
        rows.values(), key=lambda row: (_ORDER.index(row[0].level), places[row[0].check])
    )
    return tuple(Row(one, tuple(nodes)) for one, nodes in ordered)


def whose(nodes: Sequence[str], count: int) -> str:
    """Name the nodes of a row, of so many in all."""
    if len(nodes) == count:
        return "all nodes" if count > 1 else nodes[0]
    more = len(nodes) - _MOST_NAMED
    return listed(nodes if more <= 0 else [*nodes[:_MOST_NAMED], f"{more} more"])
