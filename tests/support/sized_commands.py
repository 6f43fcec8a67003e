"""Commands of recipes for a model's size on nodes × GPUs × GB, as `recipe` makes them.

    verl-grpo==0.5.0 2x8x80 7B trainer.nnodes=1

is a recipe, its framework's release (the newest without one), nodes, the model's size and the
user's arguments.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.cli.options import model_size
from agent.cli.recipe_verb import node_sizes, recipe_command

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.frameworks.recipe import Command

ENVIRON = {
    "AGENT_MODEL": "org/a-model",
    "AGENT_TRAIN_DATA": "/data/train.parquet",
    "AGENT_CHECKPOINTS": "/volume/checkpoints",
    "AGENT_REWARD": "http://rewards:5000/get_reward",
    "PATH": "/usr/bin:/bin",
}


def sized(line: str, host: int | None = None, environ: Mapping[str, str] | None = None) -> Command:
    """Return the command; `host` is the GB of a node. PreflightError if it is refused."""
    words, shape, size, *args = line.split()
    recipe, _, version = words.partition("==")
    count, gpus, memory = map(int, shape.split("x"))
    given = {**ENVIRON, **(environ or {})}
    if not recipe.endswith(("grpo", "ppo")) or recipe.startswith("search"):
        del given["AGENT_REWARD"]
    if args:
        given["AGENT_JOB_ARGS"] = " ".join(args)
    nodes = node_sizes(count, [gpus], None, memory, host)
    return recipe_command(given, recipe, nodes, version or None, model_size(size))[0]
