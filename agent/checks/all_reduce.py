"""What the all-reduce before the job tells (AGENT_PREFLIGHT): weighed purely, told by node."""

from __future__ import annotations

import json
from statistics import median
from typing import TYPE_CHECKING

from agent.base.value import dataclass
from agent.base.words import listed
from agent.checks.finding import Finding, Level

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

NAME = "AGENT_PREFLIGHT"
_SLOWER = 0.5
"""Of what most nodes have: one that has less at its best is told."""
_MOST_NAMED = 3
_FOLLOWS = ("connection", "reset by peer", "broken pipe", "closed", "timed out", "timeout")
"""Words of errors that follow from another rank's end."""
_REMEDY = "Take another node in its place: all wait for the slowest"


@dataclass(frozen=True)
class Share:
    """A node that takes part, by its name, and its GPUs."""

    node: str
    gpus: int


@dataclass(frozen=True)
class Judged:
    """What it came to."""

    said: str = ""
    """How fast it was."""
    warning: Finding | None = None
    failure: str = ""
    """Why it failed; '' where it did not."""


def judged(words: str, shares: Sequence[Share]) -> Judged:
    """Weigh what the program on the head wrote."""
    try:
        told = json.loads(words)
    except ValueError:
        told = None
    if not isinstance(told, dict):
        return Judged(failure="it left no word of how it went; preflight.log has its output")
    if "error" in told:
        return Judged(failure=f"it could not begin on {shares[0].node}: {told['error']}")
    nodes = _nodes_of_ranks(shares)
    failed = _failure(told["failed"], nodes)
    if failed:
        return Judged(failure=failed)
    reduced = told["all_reduce"]
    if not told["in_time"] or reduced is None:
        return Judged(failure=_stuck(told["at"], nodes))
    rates = {(shares[a].node, shares[b].node): float(rate) for a, b, rate in told["ways"]}
    return Judged(_speed(reduced, shares, rates), _slow_node(rates))


def _nodes_of_ranks(shares: Sequence[Share]) -> list[str]:
    """Return the node of each rank: one a GPU, or one a node where there are no GPUs."""
    if not any(share.gpus for share in shares):
        return [share.node for share in shares]
    return [share.node for share in shares for _ in range(share.gpus)]


def _failure(failed: Sequence[tuple[int, str]], nodes: Sequence[str]) -> str:
    """Name the rank whose error is a cause; others lose their connection by it."""
    if not failed:
        return ""
    causes = [(r, w) for r, w in failed if not any(word in w.lower() for word in _FOLLOWS)]
    rank, words = (causes or failed)[0]
    return f"rank {rank} on {nodes[rank]}: {words}"


def _stuck(stages: Sequence[str], nodes: Sequence[str]) -> str:
    """Say which nodes never came, and where the others stood."""
    absent = [node for node, stage in zip(nodes, stages, strict=True) if not stage]
    where: dict[str, list[str]] = {}
    for node, stage in zip(nodes, stages, strict=True):
        if stage:
            where.setdefault(stage, []).append(node)
    parts = [f"no word from {_named(absent)}"] if absent else []
    parts += [f"{_named(found)} stood at {stage!r}" for stage, found in where.items()]
    return "; ".join(["it did not end in time", *parts])


def _named(nodes: Sequence[str]) -> str:
    names = [*dict.fromkeys(nodes)]
    more = len(names) - _MOST_NAMED
    return listed(names if more <= 0 else [*names[:_MOST_NAMED], f"{more} more"])


def _speed(
    reduced: Mapping[str, float], shares: Sequence[Share], rates: Mapping[tuple[str, str], float]
) -> str:
    gpus, parts = sum(share.gpus for share in shares), sum(share.gpus > 0 for share in shares)
    over = f"{gpus} GPUs on {parts} node(s)" if gpus else f"{len(shares)} node(s) by CPU"
    size, ms = round(reduced["bytes"] / (1 << 20)), reduced["seconds"] * 1000
    said = f"{NAME}: an all-reduce of {size} MiB over {over} takes {ms:.3g} ms"
    slowest = sorted(rates.items(), key=lambda way: way[1])[:_MOST_NAMED]
    ways = [f"{_gbps(rate)} between {one} and {other}" for (one, other), rate in slowest]
    more = len(rates) - len(ways)
    return "; ".join([said, *ways, *([f"{more} more, all faster"] if more else [])])


def _slow_node(rates: Mapping[tuple[str, str], float]) -> Finding | None:
    """Name the node that is slow with all its neighbours; of two nodes nobody can tell which."""
    best: dict[str, float] = {}
    for way, rate in rates.items():
        for node in way:
            best[node] = max(rate, best.get(node, 0.0))
    if len(best) < 3:
        return None
    node, rate = min(best.items(), key=lambda one: one[1])
    usual = median([other for name, other in best.items() if name != node])
    if rate >= _SLOWER * usual:
        return None
    what = f"{node} is slow: {_gbps(rate)} at best to its neighbours, {_gbps(usual)} elsewhere"
    return Finding(NAME, Level.WARN, what, _REMEDY)


def _gbps(rate: float) -> str:
    return f"{rate / 1e9:.2g} Gbps" if rate < 1e10 else f"{rate / 1e9:.0f} Gbps"
