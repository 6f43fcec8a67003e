"""The processes of verl on the nodes: equal groups of GPUs, batches that divide, CPUs."""

from __future__ import annotations

from math import gcd, lcm
from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.base.value import Value
from agent.frameworks.recipe import (
    GpuGroups,
    MisfitError,
    check_cpus,
    check_multiple,
    engines_misfit,
    nearest,
)
from agent.frameworks.verl_keys import GPUS, MINI_BATCH, NODES, TRAIN_BATCH

if TYPE_CHECKING:
    from agent.frameworks.arguments import GivenKeys
    from agent.frameworks.recipe import NodeSize

STORES = 8  # TransferQueue's storage processes, by default; one CPU each


def groups_of(nodes: tuple[NodeSize, ...], tensor_parallel: int, given: GivenKeys) -> GpuGroups:
    """Divide the nodes into equal groups; those that the user gave are checked."""
    count = given.whole(NODES)
    gpus = given.whole(GPUS)
    sizes = [node.gpus for node in nodes if node.gpus]
    if not sizes:
        raise MisfitError("it trains on GPUs, and no node has one")

    # How large is a group? The user's size, whole nodes that are equal, or what uses most GPUs.
    fitting = {part: sum(size // part for size in sizes) for part in range(1, max(sizes) + 1)}
    shape = ", ".join(map(str, sizes))
    even = min(sizes) == max(sizes)
    if gpus is None and even:
        gpus = sizes[0]
    if gpus is None:
        candidates = [
            size
            for size, groups in fitting.items()
            if size % tensor_parallel == 0 and groups >= (count or 1)
        ]
        if not candidates:
            raise engines_misfit(tensor_parallel, sizes)
        gpus = max(candidates, key=lambda size: ((count or fitting[size]) * size, size))

    # Do so many groups fit, and the engines into them? One that would span parts of nodes does not.
    if (count or 1) > fitting.get(gpus, 0):
        what = f"trainer.nnodes={count or 1} groups of {gpus} GPUs do not fit nodes of {shape}"
        raise MisfitError(f"{what} GPUs: verl would wait forever")
    groups = GpuGroups(count or fitting[gpus], gpus)
    spans_nodes = tensor_parallel % gpus == 0 and groups.total % tensor_parallel == 0
    if gpus % tensor_parallel and not (spans_nodes and even and gpus == sizes[0]):
        raise engines_misfit(tensor_parallel, sizes)
    return groups


def equal_nodes(nodes: tuple[NodeSize, ...], given: GivenKeys) -> tuple[NodeSize, ...]:
    """Return the equal groups of GPUs over which a model is divided, as nodes."""
    groups = groups_of(nodes, 1, given)
    parts = [
        replace(node, gpus=groups.gpus, memory=_part(node, groups.gpus))
        for node in nodes
        for _ in range(node.gpus // groups.gpus)
    ]
    return tuple(parts[: groups.count])


def _part(node: NodeSize, gpus: int) -> int | None:
    """Return the memory of a node that so many of its GPUs may use."""
    return None if node.memory is None else node.memory * gpus // node.gpus


def batches(gpus: int, samples: int, loops: int, given: GivenKeys, near: int) -> tuple[int, int]:
    """Return the prompts of a step and of an update: near verl's own, or the user's.

    Each prompt has so many answers. verl divides the samples of an update by the GPUs, and those
    of a step also by its agent-loop workers (1 if their parts may be unequal).
    """
    train = given.whole(TRAIN_BATCH)
    mini = given.whole(MINI_BATCH)
    step = lcm(gpus, loops)
    for key, value, parts in ((TRAIN_BATCH, train, step), (MINI_BATCH, mini, gpus)):
        if value is not None:
            check_multiple(f"{key} × {samples} answers:", value * samples, parts)
    if train is None:
        unit = lcm(step // gcd(step, samples), mini or 4 * gpus)
        train = nearest(near, unit)
        mini = mini or train // 4
    if mini is None:
        parts_of = (part for part in range(1, train + 1) if train % part == 0)
        fitting = [part for part in parts_of if part * samples % gpus == 0]
        mini = min(fitting, key=lambda part: (abs(part - train / 4), -part))
    check_multiple(TRAIN_BATCH, train, mini)
    return train, mini


class Placement(Value):
    """The processes of verl on the nodes, and the CPUs that they take."""

    groups: GpuGroups
    tensor_parallel: int
    cpus_of_gpu: int = 1  # The processes of each GPU that take a CPU
    has_servers: bool = False  # Whether each engine is a process that takes a CPU of its own
    has_stores: bool = False  # Whether there are TransferQueue's processes
    main_cpus: int = 1  # Of the main process and others that need no GPU
    engine_cpus: int = 0  # Of engines on other GPUs of the same node

    def needs(self, node: NodeSize, nodes: tuple[NodeSize, ...], stores: int) -> int:
        """Return the CPUs that a node needs beside so many stores of TransferQueue in all."""
        groups_here = min(node.gpus // self.groups.gpus, self.groups.count)
        needs = groups_here * self.groups.gpus * self.cpus_of_gpu
        if groups_here:
            needs += self.engine_cpus
        if self.has_servers:
            needs += groups_here * max(1, self.groups.gpus // self.tensor_parallel)
        if self.has_stores:
            needs += -(-stores // len(nodes))
        return needs + (self.main_cpus if node in self.hosts_of_main(nodes) else 0)

    def hosts_of_main(self, nodes: tuple[NodeSize, ...]) -> list[NodeSize]:
        """Return the nodes on which Ray may place what needs no GPU, as a TransferQueue controller.

        It prefers nodes without GPUs, if any of those has the CPUs.
        """
        without_gpus = [
            node
            for node in nodes
            if not node.gpus and (node.cpus is None or node.cpus >= self.main_cpus)
        ]
        return without_gpus or [node for node in nodes if node.gpus and node.cpus != 0]

    def fitting_stores(self, nodes: tuple[NodeSize, ...]) -> int:
        """Return how many of TransferQueue's stores have a free CPU, at most the default."""
        free = [n.cpus - self.needs(n, nodes, 0) for n in nodes if n.cpus is not None]
        fitting = min(free, default=STORES) * len(nodes)
        return min(STORES, fitting) if fitting > 0 else STORES

    def check(self, nodes: tuple[NodeSize, ...], stores: int = 0) -> list[str]:
        """Refuse nodes with too few CPUs; return a note if it is unknown how many they have."""
        needs = [self.needs(node, nodes, stores) for node in nodes]
        check_cpus(nodes, needs)
        if all(node.cpus is not None for node in nodes):
            return []
        return [f"a node needs up to {max(needs)} CPUs; the CPUs of the nodes are not known here"]
