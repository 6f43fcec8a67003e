"""The frameworks: all that is known about each, and its commands, sized for the nodes.

A module has the recipes of one framework (`Recipe` lists its contents); `RECIPES` in
settings/jobs.py names it. It is imported when one of its recipes is used, since loading all of
them would delay `ray start`.
"""

from __future__ import annotations

import importlib
from functools import cache
from typing import TYPE_CHECKING, cast

from agent.frameworks.framework import FrameworkInfo
from agent.settings.jobs import RECIPES

if TYPE_CHECKING:
    from agent.frameworks.framework import Recipe
    from agent.settings.jobs import RecipeInfo


def recipe_of(known: RecipeInfo) -> Recipe:
    """Return the module of a recipe."""
    return cast("Recipe", importlib.import_module(f"{__name__}.{known.module}"))


def framework_named(name: str) -> FrameworkInfo:
    """Return what is known about a framework; defaults for a job without one."""
    for known in RECIPES:
        if known.framework == name:
            return recipe_of(known).FRAMEWORK
    return FrameworkInfo()


@cache
def all_frameworks() -> tuple[FrameworkInfo, ...]:
    """Return what is known about every framework, for a job that may use any: a command."""
    return tuple(dict.fromkeys(recipe_of(known).FRAMEWORK for known in RECIPES))
