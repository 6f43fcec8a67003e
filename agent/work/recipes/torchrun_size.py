"""How many processes torchrun starts of a job: one for each GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.work.recipes.recipe import MisfitError

if TYPE_CHECKING:
    from agent.work.recipes.recipe import NodeSize


def gpu_processes(nodes: tuple[NodeSize, ...]) -> int:
    """Return how many processes have a GPU each; 0 where no node has one.

    A node without GPUs among others with some would start processes all the same, by another
    backend, and the first collective would wait for them for ever.
    """
    bare = [f"rank {rank}" if rank else "the head" for rank, n in enumerate(nodes) if not n.gpus]
    if bare and len(bare) < len(nodes):
        raise MisfitError(
            f"torchrun starts processes on every node, and {' and '.join(bare)} "
            f"{'has' if len(bare) == 1 else 'have'} no GPU: let only nodes with GPUs join"
        )
    return sum(node.gpus for node in nodes)
