"""The rehearsal: a small GRPO on CPUs that takes every path a real job would take."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.base.text import own_command
from agent.work.recipes.recipe import Command

if TYPE_CHECKING:
    from agent.work.recipes.recipe import RecipeInput, Version

VERSIONS: tuple[Version, ...] = ()
ABOUT = "a small GRPO on CPUs, to try out a cluster: no GPU, no model, no data"


def make(asked: RecipeInput) -> Command:
    """Make the command; placeholders stand for what is known later, nothing here has a size."""
    own = ("--reward-url", "{reward_url}", "--nodes", "{nodes}", "--out", "{log_dir}")
    return Command((*own_command(asked.python, "rehearsal", *own), *asked.args), {}, {})
