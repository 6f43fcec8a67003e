"""`pod-agent recipes`: the recipes, one a line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agent.base.text import Line
from agent.base.versions import version_text
from agent.cli.options import JSON
from agent.cli.printing import print_json, terminal_of
from agent.frameworks import recipe_of
from agent.settings.jobs import RECIPES

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping

    from agent.settings.jobs import RecipeInfo

OPTIONS = (JSON,)
_TRAINS = {
    "rehearsal": "GRPO, on CPUs",
    "grpo": "GRPO",
    "ppo": "PPO",
    "sft": "fine-tuning",
    "rm": "a reward model",
    "dpo": "DPO",
    "rl": "GRPO",
}
"""What a recipe trains, by the last word of its name."""
_WIDTHS = (16, 15, 17, 9, 0)  # of the cells of a line; the last one needs none


def run(environ: Mapping[str, str], options: argparse.Namespace) -> None:
    """Print the list."""
    if options.json:
        print_json([*recipe_rows()], str)
    else:
        print(terminal_of(environ).render(recipe_lines(), str))


def recipe_rows() -> Iterator[dict[str, Any]]:
    """Yield what each recipe is: name, framework, versions, needs, reward server, launcher."""
    for known in RECIPES:
        recipe = recipe_of(known)
        yield {
            "name": known.name,
            "framework": known.framework,
            "versions": [version_text(version) for version in recipe.VERSIONS],
            "needs": [*known.needs],
            "reward": known.reward,
            "launcher": known.launcher,
            "about": recipe.ABOUT,
        }


def recipe_lines() -> Iterator[Line]:
    """Yield a line for each recipe, below a heading."""
    yield Line(_row("recipe", "trains by", "rewards from", "launcher", "framework"), tone="dim")
    for known in RECIPES:
        versions = [".".join(map(str, version[:2])) for version in recipe_of(known).VERSIONS]
        framework = known.framework or "none"
        if versions:
            framework += f" {versions[0]}"
        if len({*versions}) > 1:
            framework += f" to {versions[-1]}"
        trains = _TRAINS[known.name.rpartition("-")[2]]
        yield Line(_row(known.name, trains, _rewards_of(known), known.launcher, framework))
    yield Line("", "All but rehearsal need AGENT_MODEL and AGENT_TRAIN_DATA.")
    yield Line("", "`pod-agent recipe NAME --nodes N --gpus G` prints the command, with reasons.")


def _row(*cells: str) -> str:
    return "".join(f"{cell:<{width}}" for cell, width in zip(cells, _WIDTHS, strict=True)).rstrip()


def _rewards_of(known: RecipeInfo) -> str:
    """Return where its rewards come from; '-' where it learns from the data alone."""
    if known.launcher == "torchrun" and known.reward == "unused":
        return "-"
    return {"needed": "a server", "possible": "own, or a server", "unused": "own"}[known.reward]
