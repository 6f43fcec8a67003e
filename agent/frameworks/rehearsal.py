"""The rehearsal: a small GRPO on CPUs that takes every path that a real job takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.base.text import own_command
from agent.frameworks.recipe import Command
from agent.frameworks.table import read_table

if TYPE_CHECKING:
    from agent.frameworks.recipe import RecipeInput

REHEARSAL = read_table("rehearsal")
FRAMEWORK = REHEARSAL.framework
VERSIONS = REHEARSAL.versions
ABOUT = REHEARSAL.about
PRESETS = REHEARSAL.presets


def make(asked: RecipeInput) -> Command:
    """Make the command, which depends on no size; placeholders stand for what is known later."""
    own = ("--reward-url", "{reward_url}", "--nodes", "{nodes}", "--out", "{log_dir}")
    return Command((*own_command(asked.python, "rehearsal", *own), *asked.args), {}, {})
