"""Groups of nodes beside the trainer, with services of their own: `[groups.NAME]`.

Which node is in which group follows from its rank: the trainer has the first ranks, the head among
them, and each group has the next ones, in the order of the file. A node of a group joins Ray only
where the group says so. `trainer` is the name of all nodes in no group.

A service of a group runs on each of its nodes, with `gpus` as often as they fit: each of these
processes is a member. As long as at least `min` members serve, the group is whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from msgspec.structs import replace

from agent.base.value import Value

if TYPE_CHECKING:
    from collections.abc import Iterable

Lost = Literal["wait", "retry", "end"]


class NodeGroup(Value):
    """One group: its nodes, and what follows when too few of its members serve."""

    name: str
    nodes: int
    ray: bool = False  # whether its nodes join Ray
    min: int | None = None
    """The serving members of each of its services from which the job starts; None for all."""
    lost: Lost = "wait"
    """What follows below that: nothing, another attempt, or the end of the run."""
    part: tuple[int, int] | None = None
    """Its nodes as a part of all, as (1, 2); None for a fixed number of them."""
    first_rank: int = 0  # known once the number of nodes is

    @property
    def ranks(self) -> range:
        """Return the ranks of its nodes."""
        return range(self.first_rank, self.first_rank + self.nodes)

    def sentence(self) -> str:
        """Return its nodes in words."""
        last = self.ranks[-1]
        ranks = f"rank {last}" if self.nodes == 1 else f"ranks {self.first_rank} to {last}"
        return f"{self.name}: {self.nodes} node(s), {ranks}"


def place_groups(groups: Iterable[NodeGroup], nodes: int) -> tuple[NodeGroup, ...]:
    """Return the groups with their ranks in a run of so many nodes: together the last ones.

    A part of the nodes is rounded down, and has at least one.
    """
    groups = tuple(_with_part(group, nodes) for group in groups)
    first = nodes - sum(group.nodes for group in groups)
    placed = []
    for group in groups:
        placed.append(replace(group, first_rank=first))
        first += group.nodes
    return tuple(placed)


def _with_part(group: NodeGroup, nodes: int) -> NodeGroup:
    if group.part is None:
        return group
    part, whole = group.part
    return replace(group, nodes=max(1, nodes * part // whole))


def group_of(groups: Iterable[NodeGroup], rank: int | None) -> NodeGroup | None:
    """Return the group of a rank; None for the trainer's, or an unknown one."""
    return next((group for group in groups if rank in group.ranks), None)


def is_kept_from_ray(groups: Iterable[NodeGroup], name: str, rank: int | None) -> bool:
    """Return whether a node joins no Ray by the group that it names.

    Either none of the group does, or the node is a spare: its rank, once known, is not the group's.
    """
    named = next((group for group in groups if group.name == name), None)
    if named is None:
        return False
    is_spare = rank is not None and rank not in named.ranks
    return not named.ray or is_spare


def nodes_in_ray(groups: Iterable[NodeGroup]) -> int:
    """Return how many nodes of groups join Ray."""
    return sum(group.nodes for group in groups if group.ray)
