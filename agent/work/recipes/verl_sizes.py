"""What fits of verl on which nodes: groups of GPUs, batches, and the CPUs that placement needs.

verl asks Ray for `trainer.nnodes` groups of `trainer.n_gpus_per_node` GPUs, each group on one node
(STRICT_PACK), and compares only the total: a group that fits nowhere is waited for without end, and
so is a process that is pinned to a node without a free CPU. All of that is reckoned here, before
anything is submitted.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from agent.base.value import dataclass
from agent.work.recipes.recipe import MisfitError, many

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from agent.work.recipes.recipe import NodeSize, Version

STORES = 8
"""TransferQueue's processes that hold data, by default; one CPU each."""
_BATCH, _MINI_BATCH = 1024, 256
_TENSOR_PARALLEL = "AGENT_TENSOR_PARALLEL"


@dataclass(frozen=True)
class Groups:
    """Into how many groups of how many GPUs the nodes are cut."""

    count: int
    gpus: int

    @property
    def total(self) -> int:
        """Return how many GPUs train."""
        return self.count * self.gpus


def groups(
    nodes: tuple[NodeSize, ...],
    tensor_parallel: int,
    *,
    count: int | None = None,
    gpus: int | None = None,
) -> Groups:
    """Cut the nodes into equal groups; a user's own `count` and `gpus` are checked."""
    sizes = [node.gpus for node in nodes if node.gpus]
    if not sizes:
        raise MisfitError(f"it trains on GPUs, and none of {len(nodes)} nodes has one")
    if tensor_parallel > sum(sizes):
        raise MisfitError(
            f"{_TENSOR_PARALLEL}={tensor_parallel} is more than the {sum(sizes)} GPUs that joined"
        )
    even = min(sizes) == max(sizes)
    if gpus is None and even:
        gpus = sizes[0]
    if gpus is None:
        candidates = [size for size in range(1, max(sizes) + 1) if size % tensor_parallel == 0]
        candidates = [size for size in candidates if _places(sizes, size) >= (count or 1)]
        if not candidates:
            raise MisfitError(
                f"no node of {_named(sizes)} holds an engine of {tensor_parallel} GPUs"
                + (f" {count} times" if count else "")
                + f": set {_TENSOR_PARALLEL} to {_divisors_of(max(sizes))}"
            )
        gpus = max(candidates, key=lambda size: ((count or _places(sizes, size)) * size, size))
    places = _places(sizes, gpus)
    if (count or 1) > places:
        raise MisfitError(
            f"trainer.nnodes={count or 1} groups of {gpus} GPUs, each on one node, do not fit on "
            f"nodes of {_named(sizes)} GPUs, which hold {places}: verl would wait without end"
        )
    cut = Groups(count or places, gpus)
    _check_engines(cut, tensor_parallel, whole_nodes=even and gpus == sizes[0])
    return cut


def _check_engines(cut: Groups, tensor_parallel: int, *, whole_nodes: bool) -> None:
    if cut.gpus % tensor_parallel == 0:
        return
    spans = tensor_parallel % cut.gpus == 0 and cut.total % tensor_parallel == 0 and whole_nodes
    if not spans:
        raise MisfitError(
            f"{_TENSOR_PARALLEL}={tensor_parallel} does not divide the {cut.gpus} GPUs of a node: "
            f"an engine would lie across parts of nodes; {_divisors_of(cut.gpus)} fits"
        )


def _places(sizes: Iterable[int], gpus: int) -> int:
    return sum(size // gpus for size in sizes)


def _named(sizes: Iterable[int]) -> str:
    return ", ".join(map(str, sizes))


def _divisors_of(number: int) -> str:
    found = [str(part) for part in range(1, number + 1) if number % part == 0]
    return found[0] if len(found) == 1 else f"{', '.join(found[:-1])} or {found[-1]}"


def arithmetic(cut: Groups, tensor_parallel: int) -> str:
    """Say how many engines there are, as `16 GPUs = 8 engines × 2`."""
    engines = cut.total // tensor_parallel
    return f"{many(cut.total, 'GPU')} = {many(engines, 'engine')} × {tensor_parallel}"


@dataclass(frozen=True)
class Batches:
    """The prompts of a step, and of one update within it."""

    train: int
    mini: int


@dataclass(frozen=True)
class BatchRules:
    """What verl asserts of batches: the samples of each are dealt out in equal parts."""

    gpus: int
    samples: int
    """Answers to each prompt (`rollout.n`)."""
    loops: int = 1
    """Agent-loop workers that take equal parts of a step; 1 where they need not be equal."""

    def mini_fits(self, mini: int) -> bool:
        """Tell whether an update's samples can be dealt to all GPUs."""
        return mini * self.samples % self.gpus == 0

    def train_fits(self, train: int) -> bool:
        """Tell whether a step's samples can be dealt to all GPUs and all agent-loop workers."""
        samples = train * self.samples
        return samples % self.gpus == 0 and samples % self.loops == 0

    def fit(self, train: int | None = None, mini: int | None = None) -> Batches:
        """Return batches near verl's own 1024 and 256, or near what the user gave of the two."""
        if train is not None and not self.train_fits(train):
            raise MisfitError(self._refusal("data.train_batch_size", train, self.train_fits))
        if mini is not None and not self.mini_fits(mini):
            raise MisfitError(self._refusal(_MINI_KEY, mini, self.mini_fits))
        if train is not None and mini is not None:
            if train % mini:
                raise MisfitError(
                    f"data.train_batch_size={train} is no multiple of {_MINI_KEY}={mini}"
                )
            return Batches(train, mini)
        if train is not None:
            parts = (part for part in range(1, train + 1) if train % part == 0)
            return Batches(train, nearest(train / 4, filter(self.mini_fits, parts)))
        if mini is not None:
            steps = range(mini, (_BATCH // mini + self.loops + 1) * mini + 1, mini)
            return Batches(nearest(_BATCH, filter(self.train_fits, steps)), mini)
        share = range(self.gpus, _MINI_BATCH + (self.loops + 1) * self.gpus, self.gpus)
        mini = nearest(_MINI_BATCH, (part for part in share if self.train_fits(4 * part)))
        return Batches(4 * mini, mini)

    def _refusal(self, key: str, value: int, fits: Callable[[int], bool]) -> str:
        near = range(1, value + self.gpus * self.loops + 1)
        loops = f" and {self.loops} agent loops" if self.loops > 1 else ""
        return (
            f"{key}={value} × {self.samples} answers cannot be dealt out evenly to {self.gpus} GPUs"
            f"{loops}: {nearest(value, filter(fits, near))} would do"
        )


_MINI_KEY = "actor_rollout_ref.actor.ppo_mini_batch_size"


def nearest(aim: float, numbers: Iterable[int]) -> int:
    """Return the number next to the aim, the larger of two that are as near."""
    return min(numbers, key=lambda number: (abs(number - aim), -number))


@dataclass(frozen=True)
class Placement:
    """What a version of verl starts on the nodes, as far as it takes CPUs."""

    version: Version
    cut: Groups
    tensor_parallel: int
    served: bool = True
    """Whether engines are servers of their own, as in verl's asynchronous rollout."""
    stores: int = STORES
    name: str = "verl"
    main: str = "TaskRunner"
    """The process that directs the others, as a person knows it."""

    @property
    def _queue(self) -> bool:
        return self.version >= (0, 9)

    def needs(self, node: NodeSize, nodes: tuple[NodeSize, ...]) -> dict[str, int]:
        """Return for what a node needs how many CPUs."""
        groups_here = min(node.gpus // self.cut.gpus, self.cut.count)
        each = 3 if self.version >= (0, 7) else 1
        needs = {}
        if groups_here:
            gpus = groups_here * self.cut.gpus
            needs[f"{many(gpus, 'GPU')} × {each}"] = gpus * each
        if groups_here and self.served and self.version < (0, 7, 1):
            # up to 0.7.0 each engine's server takes a CPU on its node, beside the groups
            engines = groups_here * max(1, self.cut.gpus // self.tensor_parallel)
            needs[many(engines, "engine")] = engines
        if self._queue and self.stores:
            here = -(-self.stores // len(nodes))
            needs[f"{here} of TransferQueue's {self.stores} stores"] = here
        # Ray leaves what needs no GPU to nodes without one, where there are any with CPUs
        quiet = [other for other in nodes if not other.gpus and other.cpus != 0]
        if node in (quiet or [other for other in nodes if other.cpus != 0]):
            needs["TransferQueue's controller" if self._queue else self.main] = 1
        return needs

    def cpus(self, node: NodeSize, nodes: tuple[NodeSize, ...]) -> int:
        """Return how many CPUs a node needs."""
        return sum(self.needs(node, nodes).values())

    def fewer_stores(self, nodes: tuple[NodeSize, ...]) -> int:
        """Return how many of TransferQueue's stores find a CPU, at most verl's own number."""
        if not self._queue:
            return 0
        bare = replace(self, stores=0)
        known = [(node.cpus, bare.cpus(node, nodes)) for node in nodes]
        spare = [cpus - taken for cpus, taken in known if cpus is not None]
        fitting = min(spare, default=STORES) * len(nodes)
        return min(STORES, fitting) if fitting > 0 else STORES

    def missing(self, nodes: tuple[NodeSize, ...]) -> str:
        """Say which nodes have too few CPUs for what would be put there; '' where none has."""
        short = []
        for index, node in enumerate(nodes):
            needs = self.needs(node, nodes)
            total = self.cpus(node, nodes)
            if node.cpus is not None and node.cpus < total:
                name = f"node {index + 1}" if index else "the head"
                what = " + ".join(needs)
                short.append(f"{name} has {node.cpus} of {total} CPUs ({what})")
        if not short:
            return ""
        return (
            f"{self.name} would wait without end for CPUs: {'; '.join(short)}. Ray only counts "
            "CPUs: AGENT_NUM_CPUS on such a node says that it has more"
        )

    def unknown(self, nodes: tuple[NodeSize, ...]) -> Iterable[str]:
        """Say how many CPUs are needed, where it is not known how many there are."""
        if any(node.cpus is None for node in nodes):
            most = max(self.cpus(node, nodes) for node in nodes)
            yield f"a node needs up to {most} CPUs, and how many they have is not known here"
