"""A model of Ray's placement: a request without a fitting node would wait for ever."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tools.frameworks.faults import Fault

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

GRAIN = 1e-6
"""Shares of a GPU such as 0.2 have rounding errors; Ray counts in ten-thousandths."""

Bundle = dict[str, float]


class WaitsForEverError(Exception):
    """The request fits nowhere, and no resources will be freed."""


@dataclass
class Node:
    """One node's free resources."""

    gpus: float
    cpus: float
    total_cpus: float = field(init=False)

    def __post_init__(self) -> None:
        self.total_cpus = self.cpus

    def has(self, bundle: Mapping[str, float]) -> bool:
        """Check whether there is room; no node here has resources except GPU and CPU."""
        other = any(v > 0 for k, v in bundle.items() if k not in {"GPU", "CPU"})
        gpus, cpus = bundle.get("GPU", 0), bundle.get("CPU", 0)
        return not other and self.gpus >= gpus - GRAIN and self.cpus >= cpus - GRAIN

    def take(self, bundle: Mapping[str, float]) -> None:
        """Reserve it."""
        self.gpus -= bundle.get("GPU", 0)
        self.cpus -= bundle.get("CPU", 0)


@dataclass
class Group:
    """A placement group: the node of each bundle, and the bundle's free resources."""

    free: list[Bundle]
    where: list[int]


class Cluster:
    """The nodes of one run.

    Ray does not specify which of several fitting nodes it takes: the emptiest first, or the fullest
    first. A valid request must fit in both orders.
    """

    def __init__(self, nodes: Sequence[tuple[int, int]], *, roomy: bool) -> None:
        self.nodes = [Node(gpus, cpus) for gpus, cpus in nodes]
        self.roomy = roomy

    def order(self) -> list[int]:
        """List the nodes in the order in which they are tried."""
        return sorted(
            range(len(self.nodes)),
            key=lambda i: (self.nodes[i].gpus, self.nodes[i].cpus),
            reverse=self.roomy,
        )

    def group(self, bundles: Sequence[Mapping[str, float]], strategy: str) -> Group:
        """Reserve a placement group, as a whole or not at all."""
        if strategy == "STRICT_PACK":
            whole: Bundle = {}
            for bundle in bundles:
                for name, amount in bundle.items():
                    whole[name] = whole.get(name, 0) + amount
            place = self.place(
                whole, f"{len(bundles)} bundles of {described(bundles[0])} on one node"
            )
            return Group([dict(bundle) for bundle in bundles], [place] * len(bundles))
        if strategy != "PACK":
            raise ValueError(f"no model of a placement group's strategy {strategy!r}")
        before = [(node.gpus, node.cpus) for node in self.nodes]
        where: list[int] = []
        for count, bundle in enumerate(bundles):
            last = where[-1:]  # as many as fit on one node
            fits = [i for i in (*last, *self.order()) if self.nodes[i].has(bundle)]
            if not fits:
                for node, (gpus, cpus) in zip(self.nodes, before, strict=True):
                    node.gpus, node.cpus = gpus, cpus
                raise WaitsForEverError(
                    f"of {len(bundles)} bundles of {described(bundle)} only {count} fit on {self}"
                )
            self.nodes[fits[0]].take(bundle)
            where.append(fits[0])
        return Group([dict(bundle) for bundle in bundles], where)

    def place(self, wanted: Mapping[str, float], what: str = "") -> int:
        """Reserve resources of one node; return the node."""
        for i in self.order():
            if self.nodes[i].has(wanted):
                self.nodes[i].take(wanted)
                return i
        raise WaitsForEverError(f"no room for {what or described(wanted)} on {self}")

    def place_on(self, number: int, wanted: Mapping[str, float], what: str) -> None:
        """Reserve resources of a given node."""
        if not self.nodes[number].has(wanted):
            raise WaitsForEverError(f"no room on node {number} for {what} on {self}")
        self.nodes[number].take(wanted)

    def start_small(self, what: str) -> None:
        """Start an actor without a CPU request: Ray requires a free CPU to place it."""
        if not any(node.total_cpus >= 1 for node in self.nodes):
            raise WaitsForEverError(f"no node has a CPU for {what}")

    def inside(self, group: Group, index: int, wanted: Mapping[str, float], what: str) -> None:
        """Reserve a part of a group's bundle."""
        free = group.free[index]
        if any(free.get(name, 0) < amount - GRAIN for name, amount in wanted.items()):
            raise WaitsForEverError(
                f"bundle {index} of its placement group has {described(free)} left, not the "
                f"{described(wanted)} of {what}"
            )
        for name, amount in wanted.items():
            free[name] = free.get(name, 0) - amount

    def __str__(self) -> str:
        """List the free resources."""
        free = [f"{node.gpus:g} GPUs and {node.cpus:g} CPUs" for node in self.nodes]
        return "nodes with " + ", ".join(free) + " free"


def waits(nodes: Sequence[tuple[int, int]], place: Callable[[Cluster], None]) -> list[Fault]:
    """Place a request with the emptiest node first and with the fullest; list those that wait."""
    found = []
    for roomy in (True, False):
        found += waits_once(Cluster(nodes, roomy=roomy), place)
    return list(dict.fromkeys(found))


def waits_once(cluster: Cluster, place: Callable[[Cluster], None]) -> list[Fault]:
    """Place a request on one cluster."""
    try:
        place(cluster)
    except WaitsForEverError as error:
        return [Fault("waits", str(error))]
    return []


def described(amounts: Mapping[str, float]) -> str:
    """Format an amount of resources."""
    return " and ".join(f"{amount:g} {name}" for name, amount in amounts.items()) or "nothing"
