"""The recipes, one module each: a job's command, sized for the nodes that joined."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from agent.settings.jobs import KnownJob
    from agent.work.recipes.recipe import Recipe


def recipe_of(known: KnownJob) -> Recipe:
    """Import and return the module of a recipe."""
    return cast("Recipe", importlib.import_module(f"{__name__}.{known.module}"))
