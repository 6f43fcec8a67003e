"""Inputs of verl's recipes: a test sets only the values under test."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.frameworks import verl
from agent.frameworks.recipe import JobBasis, NodeSize, RecipeInput
from support.model_shapes import QWEN3_8B

if TYPE_CHECKING:
    from agent.base.versions import Version
    from agent.frameworks.recipe import ModelShape

RELEASES = verl.VERSIONS
MINI = "actor_rollout_ref.actor.ppo_mini_batch_size"
TENSOR = "actor_rollout_ref.rollout.tensor_model_parallel_size"


def nodes(text: str, cpus: int | None = 64) -> tuple[NodeSize, ...]:
    """Parse `2x8` or `8,8,4`; `0/2` is a node without GPUs and with two CPUs."""
    if "x" in text:
        count, gpus = map(int, text.split("x"))
        return (NodeSize(gpus, cpus),) * count
    parts = [part.partition("/") for part in text.split(",")]
    return tuple(NodeSize(int(gpus), int(own) if own else cpus) for gpus, _, own in parts)


def asked(  # noqa: PLR0913 - a test says only what it is about
    shape: str = "2x8",
    version: Version = (0, 9, 1),
    *args: str,
    recipe: str = "verl-grpo",
    tensor_parallel: int = 1,
    cpus: int | None = 64,
    eval_data: str = "",
    scores: bool = False,
    wandb: bool = False,
) -> RecipeInput:
    """Return what is asked of the recipe, by default GRPO on 2×8 of the newest version."""
    return RecipeInput(
        recipe=recipe,
        nodes=nodes(shape, cpus),
        version=version,
        model="Qwen/Qwen2.5-7B",
        train_data="/data/train.parquet",
        eval_data=eval_data,
        checkpoints="/data/checkpoints",
        tensor_parallel=tensor_parallel,
        args=args,
        scores=scores,
        wandb=wandb,
    )


def on(  # noqa: PLR0913 - same
    model: ModelShape | None = QWEN3_8B,
    shape: str = "1x8x80",
    version: Version = (0, 9, 1),
    *args: str,
    recipe: str = "verl-grpo",
    memory: int = 2 << 40,
    backend: str = "",
) -> RecipeInput:
    """Return what is asked for a model on nodes × GPUs × GB, each with so many bytes of memory."""
    count, gpus, gpu_memory = map(int, shape.split("x"))
    return replace(
        asked("1x8", version, *args, recipe=recipe),
        nodes=(NodeSize(gpus, 128, memory, gpu_memory),) * count,
        tensor_parallel=None,
        basis=JobBasis(model),
        backend=backend,
    )
