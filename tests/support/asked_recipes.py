"""What is asked of a recipe, written as one line, and what its command sets.

    verl-grpo==0.9.0 2x8x80 trainer.nnodes=1

is a recipe, its framework's release (the newest without one), nodes and the user's arguments.
Nodes are `2x8`, `2x8/29` (of 29 CPUs), `8,8,4` or `0/2,8` (the first has two CPUs and no GPU);
`2x8x80` have GPUs of 80 GB and 2 TiB of memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from agent.base.versions import release_of
from agent.frameworks import recipe_of, verl
from agent.frameworks.recipe import JobBasis, MisfitError, NodeSize, RecipeInput
from agent.settings.jobs import BY_NAME
from support.framework_defaults import parsed
from support.model_shapes import QWEN2_5_7B

if TYPE_CHECKING:
    from agent.frameworks.recipe import Command

ACTOR = "actor_rollout_ref.actor"
FSDP = f"{ACTOR}.fsdp_config"
MEGATRON = f"{ACTOR}.megatron"
MINI = f"{ACTOR}.ppo_mini_batch_size"
MODEL = "actor_rollout_ref.model"
REF = "actor_rollout_ref.ref"
ROLLOUT = "actor_rollout_ref.rollout"
SHARE = f"{ROLLOUT}.gpu_memory_utilization"
TENSOR = f"{ROLLOUT}.tensor_model_parallel_size"
RELEASES = verl.VERSIONS
USUAL: dict[str, dict[str, Any]] = {
    "openrlhf": {"train_data": "/data/train.jsonl", "scores": True},
    "openrlhf-m": {"scores": True},
    "trl": {"model": "Qwen/Qwen2.5-0.5B", "scores": True},
    "slime": {"model": "/v/Qwen2.5-7B-Instruct", "scores": True, "shape": QWEN2_5_7B},
    "prime-rl": {"model": "/v/Qwen3-8B", "train_data": "reverse-text", "shape": QWEN2_5_7B},
}
"""What a test of a framework asks unless it says otherwise."""


def nodes_of(text: str) -> tuple[NodeSize, ...]:
    """Parse the nodes of a line."""
    if "x" not in text:
        parts = [part.partition("/") for part in text.split(",")]
        return tuple(NodeSize(int(gpus), int(cpus or 64)) for gpus, _, cpus in parts)
    sizes, _, cpus = text.partition("/")
    count, gpus, *memory = map(int, sizes.split("x"))
    node = NodeSize(gpus, 128, 2 << 40, memory[0]) if memory else NodeSize(gpus, int(cpus or 64))
    return (node,) * count


def asked(line: str, **fields: Any) -> RecipeInput:  # noqa: ANN401 - fields of RecipeInput
    """Return what a line asks, with the shape of its model and further fields."""
    words, shape, *args = line.split()
    recipe, _, release = words.partition("==")
    known = BY_NAME[recipe]
    sized = "x" in shape.partition("x")[2]
    usual = {
        "model": "Qwen/Qwen2.5-7B",
        "train_data": "/data/train.parquet",
        "tensor_parallel": None if sized or known.framework in {"slime", "prime-rl"} else 1,
        "shape": None,
        **USUAL.get(known.framework, {}),
        **fields,
    }
    model = usual.pop("shape")
    return RecipeInput(
        recipe,
        version=release_of(release) or (recipe_of(known).VERSIONS or ((),))[-1],
        args=tuple(args),
        checkpoints="/v/run",
        **{"nodes": nodes_of(shape), "basis": JobBasis(model), **usual},
    )


def made(what: RecipeInput | str, **fields: Any) -> Command:  # noqa: ANN401 - same
    """Return the command that a recipe makes."""
    given = asked(what, **fields) if isinstance(what, str) else replace(what, **fields)
    return recipe_of(BY_NAME[given.recipe]).make(given)


def settings(what: RecipeInput | str, **fields: Any) -> dict[str, str]:  # noqa: ANN401 - same
    """Return the flags and keys that a recipe sets; none may occur twice."""
    return settings_of(made(what, **fields))


def settings_of(command: Command) -> dict[str, str]:
    """Return the flags and keys of a command; none may occur twice."""
    found = parsed(command)
    words = [word for word in command.argv if word.startswith("--")]
    if not words and command.argv[2].startswith("verl."):
        words = [word.lstrip("+") for word in command.argv[3:]]
    names = [word.partition("=")[0] for word in words]
    assert len(names) == len(set(names)), "a flag or key stands twice"
    return {name: value for name, value in found.items() if not name.startswith("env:")}


def refusal(what: RecipeInput | str, **fields: Any) -> str:  # noqa: ANN401 - same
    """Return why a recipe refuses."""
    with pytest.raises(MisfitError) as misfit:
        made(what, **fields)
    return str(misfit.value)


def said_by(command: Command) -> str:
    """Return the notes, warnings and reasons of a command; a reason begins with its setting."""
    reasons = [f"{name}: {why}" for name, why in command.why.items()]
    return "\n".join((*command.notes, *command.warnings, *reasons))


def expected(text: str) -> dict[str, str | None]:
    """Parse settings that a command has to have: `KEY=VALUE`, and `!KEY` for one that it lacks."""
    pairs = [word.partition("=") for word in text.split()]
    return {key.lstrip("!"): None if key.startswith("!") else value for key, _, value in pairs}


def differing(command: Command, text: str) -> dict[str, str | None]:
    """Return the expected settings of which a command has another value, with that value."""
    found = {**parsed(command), **settings_of(command)}
    return {key: found.get(key) for key, value in expected(text).items() if found.get(key) != value}
