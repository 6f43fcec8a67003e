"""The recipes: a job's command, sized for the nodes that joined. One module per framework."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, cast

from agent.base.text import own_command
from agent.frameworks.recipe import Command

if TYPE_CHECKING:
    from agent.frameworks.recipe import Recipe, RecipeInput, Version
    from agent.settings.jobs import RecipeInfo


class Rehearsal:
    """A small GRPO on CPUs that takes every path a real job would take; it has no size."""

    VERSIONS: tuple[Version, ...] = ()
    ABOUT = "a small GRPO on CPUs, to try out a cluster: no GPU, no model, no data"

    @staticmethod
    def make(asked: RecipeInput) -> Command:
        """Make the command; placeholders stand for what is known later."""
        own = ("--reward-url", "{reward_url}", "--nodes", "{nodes}", "--out", "{log_dir}")
        return Command((*own_command(asked.python, "rehearsal", *own), *asked.args), {}, {})


def recipe_of(known: RecipeInfo) -> Recipe:
    """Return a recipe; the module of a framework's recipe is imported by its name."""
    if not known.module:
        return Rehearsal()
    return cast("Recipe", importlib.import_module(f"{__name__}.{known.module}"))
