"""Commands of recipes for a model's size on nodes × GPUs × GB, as `recipe` makes them."""

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


def sized(  # noqa: PLR0913 - a test says only what it is about
    recipe: str,
    shape: str,
    size: str,
    args: str = "",
    *,
    host: int | None = None,
    version: str | None = None,
    environ: Mapping[str, str] | None = None,
) -> Command:
    """Return the command; `host` is the GB of a node. PreflightError if it is refused."""
    count, gpus, memory = map(int, shape.split("x"))
    given = {**ENVIRON, **(environ or {})}
    if not recipe.endswith(("grpo", "ppo")) or recipe.startswith("search"):
        del given["AGENT_REWARD"]
    if args:
        given["AGENT_JOB_ARGS"] = args
    nodes = node_sizes(count, [gpus], None, memory, host)
    return recipe_command(given, recipe, nodes, version, model_size(size))[0]
