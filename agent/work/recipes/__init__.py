"""The recipes, one file each: a job's command, sized from what joined."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from agent.settings.jobs import KnownJob
    from agent.work.recipes.recipe import Recipe


def recipe_of(known: KnownJob) -> Recipe:
    """Return what a row names: its file is imported only where it is asked for."""
    return cast("Recipe", importlib.import_module(f"{__name__}.{known.module}"))
