"""Interprets the result of the all-reduce before the job (AGENT_PREFLIGHT)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from agent.base.text import first_names
from agent.base.value import Value

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

NAME = "AGENT_PREFLIGHT"
_MOST_NAMED = 3
_CONSEQUENCES = ("connection", "reset by peer", "broken pipe", "closed", "timed out", "timeout")
"""Words in errors that another rank's failure causes."""


class AllReduceShare(Value):
    """A node of the all-reduce and its GPUs."""

    node: str
    gpus: int


class AllReduceResult(Value):
    """The result of the all-reduce."""

    summary: str = ""
    """Its speed, in one line."""
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
    return AllReduceResult(_speed(reduced, shares))


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


def _speed(reduced: Mapping[str, float], shares: Sequence[AllReduceShare]) -> str:
    gpus, parts = sum(share.gpus for share in shares), sum(share.gpus > 0 for share in shares)
    over = f"{gpus} GPUs on {parts} node(s)" if gpus else f"{len(shares)} node(s) by CPU"
    size, ms = round(reduced["bytes"] / (1 << 20)), reduced["seconds"] * 1000
    return f"{NAME}: an all-reduce of {size} MiB over {over} takes {ms:.3g} ms"
