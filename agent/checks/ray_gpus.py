"""The GPUs that each node has against those that Ray counts there: a job is placed by Ray's count.

Ray asks the driver's library by itself and takes its silence for "none": a job then waits for GPUs
for ever, with `No available node types can fulfill resource request {'GPU': 1.0}`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.base.value import dataclass
from agent.base.words import listed
from agent.checks.finding import Finding, Level

if TYPE_CHECKING:
    from collections.abc import Sequence

CHECK = "Ray's GPUs"
_MOST_NAMED = 4
_REMEDY = (
    "`pod-agent doctor` there asks the driver itself; set AGENT_NUM_GPUS to the number that Ray is "
    "to have on each node (0: none)"
)


@dataclass(frozen=True)
class Counted:
    """A node's GPUs."""

    node: str
    here: int
    """Those whose device files it has, as far as its environment shows them, or AGENT_NUM_GPUS."""
    ray: int
    """Those that Ray has there."""


def counted_by_ray(nodes: Sequence[Counted]) -> tuple[Finding, ...]:
    """Find the nodes of which Ray misses GPUs; where it sees none at all, no job can have one."""
    groups: dict[tuple[int, int], list[str]] = {}
    for one in nodes:
        if one.ray < one.here:
            groups.setdefault((one.ray, one.here), []).append(one.node)
    return tuple(_finding(ray, here, names) for (ray, here), names in sorted(groups.items()))


def _finding(ray: int, here: int, names: list[str]) -> Finding:
    more = len(names) - _MOST_NAMED
    where = listed(names if more <= 0 else [*names[:_MOST_NAMED], f"{more} more"])
    level = Level.WARN if ray else Level.FAIL
    return Finding(CHECK, level, f"Ray counts {ray or 'none'} of the {here} on {where}", _REMEDY)
