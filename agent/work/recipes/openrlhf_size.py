"""Sizes of an OpenRLHF job: groups of processes, rollout engines and batches that fit the GPUs.

OpenRLHF places every process by itself, packed, with one GPU and one CPU each: of the nodes and
the GPUs on each it only uses the product. So nodes of 8, 8 and 4 GPUs are 5 groups of 4, and none
stays idle. What does not fit a placement group waits for ever, hence the errors here.
"""

from __future__ import annotations

from math import gcd, lcm
from typing import TYPE_CHECKING

from agent.base.value import dataclass
from agent.work.recipes.recipe import MisfitError, many

if TYPE_CHECKING:
    from agent.work.recipes.arguments import Arguments
    from agent.work.recipes.recipe import Asked, NodeSize

STEPS_A_ROLLOUT = 8
"""Batches that one rollout is trained in: 1,024 samples in batches of 128."""


@dataclass(frozen=True)
class Groups:
    """How many groups of GPUs there are, and how many GPUs each has, within one node."""

    groups: int
    gpus: int

    @property
    def world(self) -> int:
        """Return the GPUs of all groups together."""
        return self.groups * self.gpus


def groups_of(nodes: tuple[NodeSize, ...]) -> Groups:
    """Return the nodes' GPUs as equal groups, as large as the nodes let them be."""
    counts = [node.gpus for node in nodes]
    if not any(counts):
        raise MisfitError("OpenRLHF trains on GPUs only, and no node has one")
    each = gcd(*counts)
    return Groups(sum(counts) // each, each)


def shapes(nodes: tuple[NodeSize, ...]) -> str:
    """Return what the nodes are, in words: 2 nodes of 8 GPUs, nodes of 8 and 4 GPUs."""
    counts = [node.gpus for node in nodes]
    if len(set(counts)) > 1:
        return f"nodes of {', '.join(map(str, counts[:-1]))} and {counts[-1]} GPUs"
    return f"{many(len(counts), 'node')} of {many(counts[0], 'GPU')}"


def check_cpus(asked: Asked, *, spare: bool) -> None:
    """Refuse nodes on which a process would wait for a CPU: each GPU's place takes one.

    With `spare`, one more is needed anywhere: for the calls of the reward server, which are Ray
    tasks of a CPU each (an actor without a number of CPUs starts without any).
    """
    for index, node in enumerate(asked.nodes):
        if node.gpus and node.cpus is not None and node.cpus < node.gpus:
            raise MisfitError(
                f"node {index} has {node.gpus} GPUs and only {node.cpus} CPUs, and OpenRLHF takes "
                f"one CPU for each GPU: raise AGENT_NUM_CPUS there, or set "
                f"AGENT_NUM_GPUS={node.cpus}"
            )
    known = [node.cpus for node in asked.nodes if node.cpus is not None]
    gpus = sum(node.gpus for node in asked.nodes)
    if spare and len(known) == len(asked.nodes) and sum(known) <= gpus:
        raise MisfitError(
            f"the {gpus} GPUs take one CPU each and there are {sum(known)} CPUs, but calls of the "
            "reward server take one more: raise AGENT_NUM_CPUS on a node by one"
        )


def check_engine(nodes: tuple[NodeSize, ...], tensor_parallel: int) -> str:
    """Refuse engines that would lie across nodes in part; return what to say where they do whole.

    An engine's GPUs talk in every layer, so they belong in one node, or fill whole ones.
    """
    counts = [node.gpus for node in nodes]
    if all(count % tensor_parallel == 0 for count in counts):
        return ""
    whole_nodes = len(set(counts)) == 1 and tensor_parallel % counts[0] == 0
    if whole_nodes and sum(counts) % tensor_parallel == 0:
        return f"each engine spans {tensor_parallel // counts[0]} nodes, over the network"
    largest = gcd(*counts)
    fitting = [str(size) for size in range(1, largest + 1) if largest % size == 0]
    raise MisfitError(
        f"{shapes(nodes)} cannot hold engines of {tensor_parallel} GPUs without one lying across "
        f"nodes: set AGENT_TENSOR_PARALLEL to {' or '.join(fitting)}"
    )


def nearest(target: int, step: int) -> int:
    """Return the multiple of a step nearest to a target, at least one step."""
    return max(1, (target + step // 2) // step) * step


@dataclass(frozen=True)
class TrainBatch:
    """Samples of one update: `size` = `micro` × steps × `ranks`, as DeepSpeed asserts."""

    size: int
    micro: int
    """Samples that a rank takes at once."""
    ranks: int
    """Processes that each get data of their own."""
    gpus: int

    def told(self) -> str:
        """Return the arithmetic, for a person."""
        steps = self.size // (self.micro * self.ranks)
        factors = [self.ranks, *([self.micro] if self.micro > 1 else []), steps]
        apart = self.gpus // self.ranks
        ranks = "" if apart == 1 else f" ({many(self.ranks, 'rank')} of {apart} GPUs)"
        return f"batch {self.size} = {' × '.join(map(str, factors))}{ranks}"


@dataclass(frozen=True)
class Batches:
    """How samples are cut: a rollout is whole batches, and every rank gets as many samples."""

    train: TrainBatch
    rollout: int
    """Prompts of a rollout."""
    micro_rollout: int
    samples: int
    """Answers to each prompt."""

    def told(self) -> str:
        """Return the arithmetic, for a person."""
        batches = self.rollout * self.samples // self.train.size
        return (
            f"{self.train.told()}; rollout {self.rollout} prompts × {self.samples} = "
            f"{many(batches, 'batch')}"
        )


def train_batch(arguments: Arguments, gpus: int, target: int) -> TrainBatch:
    """Return a batch that the ranks divide, as near to a target as it can be."""
    apart = arguments.count("ds.ring_attn_size") * arguments.count("ds.tensor_parallel_size")
    if gpus % apart:
        raise MisfitError(
            f"{gpus} GPUs cannot be cut into ranks of {apart}: ring attention times DeepSpeed's "
            "tensor parallel must divide them"
        )
    ranks = gpus // apart
    micro = arguments.count("train.micro_batch_size")
    size = arguments.count("train.batch_size", nearest(target, micro * ranks))
    _divides(arguments, "train.batch_size", size, micro * ranks, f"{ranks} ranks × micro {micro}")
    return TrainBatch(size, micro, ranks, gpus)


def batches_of(
    arguments: Arguments, gpus: int, samples: int, *, prompts_by_rank: bool = False
) -> Batches:
    """Return batches that fit the ranks, or refuse the user's own that do not.

    Where a rollout's samples are no whole batches, or one rank has more than another, ranks wait
    for each other in a collective until NCCL gives up. With `prompts_by_rank` every rank also gets
    as many prompts.
    """
    train = train_batch(arguments, gpus, 128)
    micro = arguments.count("rollout.micro_batch_size")
    samples = arguments.count("rollout.n_samples_per_prompt", samples)
    unit = lcm(train.size, micro * train.ranks)
    step = unit // gcd(unit, samples)
    if prompts_by_rank:
        step = lcm(step, gpus)
    target = STEPS_A_ROLLOUT * train.size // samples
    rollout = arguments.count("rollout.batch_size", nearest(target, step))
    _divides(arguments, "rollout.batch_size", rollout, step, f"{samples} samples a prompt")
    return Batches(train, rollout, micro, samples)


def _divides(arguments: Arguments, flag: str, size: int, step: int, of: str) -> None:
    if size % step:
        raise MisfitError(
            f"AGENT_JOB_ARGS: {arguments.shown(flag)} {size} is no multiple of {step} ({of}); "
            f"the nearest that is: {nearest(size, step)}"
        )
