"""How fast the ways between nodes are, and what a slow one means for the job: weighed purely."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.base.value import dataclass
from agent.base.words import listed
from agent.checks.finding import Finding, Level

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

CHECK = "network"
SLOW = 300e6
"""Bits a second below which a model's weights take minutes to reach the other nodes."""
EXAMPLE = 15_000_000_000
"""Bytes of a model of 7 billion parameters, where the job's own is not known."""
_MOST_NAMED = 4
_APART = 1.5
_REMEDY = "Take nodes with a faster network between them, or fewer and larger ones"


@dataclass(frozen=True)
class Link:
    """A way between two nodes, by their names, as far as it was measured."""

    one: str
    other: str
    rate: float
    """In bits a second; of several samples the best."""


def slow_links(links: Sequence[Link], weights: int = 0, platform: str = "") -> Finding | None:
    """Say in one sentence which ways are slow, and what that means; `weights` in bytes, or 0."""
    rates: dict[frozenset[str], float] = {}
    for link in links:
        pair = frozenset((link.one, link.other))
        rates[pair] = min(link.rate, rates.get(pair, link.rate))  # both ways count
    slow = {pair: rate for pair, rate in rates.items() if rate < SLOW}
    if not slow:
        return None
    low, high = min(slow.values()), max(slow.values())
    told = _mbps(low) if high < _APART * low else f"{_mbps(low)} to {_mbps(high)}"
    synced = f"the model's {_gb(weights)}" if weights else f"{_gb(EXAMPLE)}"
    example = "" if weights else " (a model of 7B, for one)"
    what = (
        f"{told} Mbps between {_between(slow, len(rates))}: syncing {synced} of weights{example} "
        f"takes {_duration((weights or EXAMPLE) * 8 / low)}"
    )
    if platform == "runpod":
        what += "; Instant Clusters have faster links"
    return Finding(CHECK, Level.WARN, what, _REMEDY)


def _between(slow: Mapping[frozenset[str], float], measured: int) -> str:
    """Name who is on the slow ways: the one node that is on all of them first."""
    pairs = sorted(slow, key=lambda pair: (slow[pair], sorted(pair)))
    if len(pairs) == 1:
        return listed(sorted(pairs[0]))
    common = frozenset.intersection(*pairs)
    names = sorted(frozenset.union(*pairs))
    if common:
        (one,) = common
        return f"{one} and {_shortened([name for name in names if name != one])}"
    if len(pairs) == measured:
        return f"all {len(names)} nodes"
    return _shortened([f"{a} and {b}" for a, b in map(sorted, pairs)], "; ")


def _shortened(words: Sequence[str], between: str = "") -> str:
    more = len(words) - _MOST_NAMED
    shown = [*words] if more <= 0 else [*words[:_MOST_NAMED], f"{more} more"]
    return between.join(shown) if between else listed(shown)


def _mbps(rate: float) -> str:
    """Write megabits: no more than two digits of it are worth telling."""
    return f"{float(f'{rate / 1e6:.2g}'):g}"


def _gb(size: int) -> str:
    return f"{size / 1e9:.2g} GB" if size < 1e11 else f"{size / 1e9:.0f} GB"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{round(seconds)} s"
    if seconds < 7200:
        return f"{round(seconds / 60)} min"
    return f"{round(seconds / 3600)} h"
