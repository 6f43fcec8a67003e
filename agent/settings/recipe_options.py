"""Rules of the variables that only some recipes have a use for, such as AGENT_LORA_RANK."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.base.errors import Problem
from agent.settings.jobs import RECIPES, recipe_info
from agent.settings.model import FIELD_OF, Settings

if TYPE_CHECKING:
    from collections.abc import Iterator

_OPTIONS = tuple(dict.fromkeys(name for recipe in RECIPES for name in recipe.takes))


def check_recipe_options(settings: Settings, command: tuple[str, ...] | None) -> Iterator[Problem]:
    """Find variables that the job would ignore."""
    job = recipe_info(settings, command)
    name_of_job = "a command" if command is not None else settings.job or "no recipe"
    for name in _OPTIONS:
        value = getattr(settings, FIELD_OF[name])
        if value is None or (job is not None and name in job.takes):
            continue
        taking = ", ".join(recipe.name for recipe in RECIPES if name in recipe.takes)
        yield Problem(name, f"{value} beside {name_of_job}", f"unset, or one of {taking}")
