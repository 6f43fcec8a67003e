"""The rehearsal: a small GRPO on CPUs that takes every path that a real job takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.base.text import own_command
from agent.frameworks.framework import FrameworkInfo, Preset
from agent.frameworks.recipe import Command
from agent.frameworks.step_format import MEAN_REWARD, KeyMeaning, StepFormat

if TYPE_CHECKING:
    from agent.frameworks.recipe import RecipeInput, Version

FRAMEWORK = FrameworkInfo(
    steps=StepFormat(
        lines=(MEAN_REWARD,), meaning=KeyMeaning(reward=("reward",)), shown=("reward",)
    )
)
VERSIONS: tuple[Version, ...] = ()
ABOUT = "a small GRPO on CPUs, to try out a cluster: no GPU, no model, no data"

PRESETS = {
    "rehearsal": Preset(
        about="The rehearsal: a small GRPO on CPUs that takes every path that a real job takes",
        image="python:3.12-slim",
        install=("pip install --quiet 'ray[default]==2.52.0'",),
        imports="ray",
    )
}


def make(asked: RecipeInput) -> Command:
    """Make the command, which depends on no size; placeholders stand for what is known later."""
    own = ("--reward-url", "{reward_url}", "--nodes", "{nodes}", "--out", "{log_dir}")
    return Command((*own_command(asked.python, "rehearsal", *own), *asked.args), {}, {})
