"""Interprets the result of the all-reduce before the job (AGENT_PREFLIGHT)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from agent.base.text import first_names
from agent.base.value import Value
from agent.checks.finding import Finding, Level

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

NAME = "AGENT_PREFLIGHT"
_SLOW_SHARE = 0.5
"""Share of the median rate below which a node's best rate is reported as slow."""
_MOST_NAMED = 3
_CONSEQUENCES = ("connection", "reset by peer", "broken pipe", "closed", "timed out", "timeout")
"""Words in errors that another rank's failure causes."""
_REMEDY = "Replace this node: all others wait for the slowest"


class AllReduceShare(Value):
    """A node of the all-reduce and its GPUs."""

    node: str
    gpus: int


class AllReduceResult(Value):
    """The result of the all-reduce."""

    summary: str = ""
    """Its speed, in one line."""
    warning: Finding | None = None
    failure: str = ""
    """Why it failed, or ''."""


def all_reduce_result(text: str, shares: Sequence[AllReduceShare]) -> AllReduceResult:
    """Read the file that the program on the head wrote."""
    try:
        data = json.loads(text)
    except ValueError:
        data = None
    if not isinstance(data, dict):
        return AllReduceResult(failure="it wrote no result; preflight.log has its output")
    if "error" in data:
        return AllReduceResult(failure=f"it could not start on {shares[0].node}: {data['error']}")
    nodes = _nodes_of_ranks(shares)
    failed = _failure(data["failed"], nodes)
    if failed:
        return AllReduceResult(failure=failed)
    reduced = data["all_reduce"]
    if not data["in_time"] or reduced is None:
        return AllReduceResult(failure=_stuck(data["at"], nodes))
    rates = {(shares[a].node, shares[b].node): float(rate) for a, b, rate in data["ways"]}
    return AllReduceResult(_speed(reduced, shares, rates), _slow_node(rates))


def _nodes_of_ranks(shares: Sequence[AllReduceShare]) -> list[str]:
    """Return the node of each rank: one rank per GPU, or per node without GPUs."""
    if not any(share.gpus for share in shares):
        return [share.node for share in shares]
    return [share.node for share in shares for _ in range(share.gpus)]


def _failure(failed: Sequence[tuple[int, str]], nodes: Sequence[str]) -> str:
    """Describe the error of the first rank that failed by itself."""
    if not failed:
        return ""
    causes = [(r, e) for r, e in failed if not any(word in e.lower() for word in _CONSEQUENCES)]
    rank, error = (causes or failed)[0]
    return f"rank {rank} on {nodes[rank]}: {error}"


def _stuck(stages: Sequence[str], nodes: Sequence[str]) -> str:
    """Describe which nodes sent nothing, and the last stage of the others."""
    absent = [node for node, stage in zip(nodes, stages, strict=True) if not stage]
    where: dict[str, list[str]] = {}
    for node, stage in zip(nodes, stages, strict=True):
        if stage:
            where.setdefault(stage, []).append(node)
    parts = [f"no result from {_named(absent)}"] if absent else []
    parts += [f"last stage of {_named(found)}: {stage!r}" for stage, found in where.items()]
    return "; ".join(["it did not end in time", *parts])


def _named(nodes: Sequence[str]) -> str:
    return first_names(dict.fromkeys(nodes), _MOST_NAMED)


def _speed(
    reduced: Mapping[str, float],
    shares: Sequence[AllReduceShare],
    rates: Mapping[tuple[str, str], float],
) -> str:
    gpus, parts = sum(share.gpus for share in shares), sum(share.gpus > 0 for share in shares)
    over = f"{gpus} GPUs on {parts} node(s)" if gpus else f"{len(shares)} node(s) by CPU"
    size, ms = round(reduced["bytes"] / (1 << 20)), reduced["seconds"] * 1000
    total = f"{NAME}: an all-reduce of {size} MiB over {over} takes {ms:.3g} ms"
    slowest = sorted(rates.items(), key=lambda link: link[1])[:_MOST_NAMED]
    links = [f"{_gbps(rate)} between {one} and {other}" for (one, other), rate in slowest]
    more = len(rates) - len(links)
    return "; ".join([total, *links, *([f"{more} more, all faster"] if more else [])])


def _slow_node(rates: Mapping[tuple[str, str], float]) -> Finding | None:
    """Find a node that is slow with all its neighbors; this needs at least three nodes."""
    best: dict[str, float] = {}
    for link, rate in rates.items():
        for node in link:
            best[node] = max(rate, best.get(node, 0.0))
    if len(best) < 3:
        return None
    node, rate = min(best.items(), key=lambda one: one[1])
    others = sorted(other for name, other in best.items() if name != node)
    usual = others[len(others) // 2]
    if rate >= _SLOW_SHARE * usual:
        return None
    what = f"{node} is slow: {_gbps(rate)} at best to its neighbors, {_gbps(usual)} elsewhere"
    return Finding(NAME, Level.WARN, what, _REMEDY)


def _gbps(rate: float) -> str:
    return f"{rate / 1e9:.2g} Gbps" if rate < 1e10 else f"{rate / 1e9:.0f} Gbps"
