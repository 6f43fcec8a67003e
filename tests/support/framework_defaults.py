"""The tables of tests/data/framework_defaults, and the settings of recipes in their form."""

from __future__ import annotations

import importlib
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent.cli.options import whole_numbers
from agent.cli.recipe_verb import node_sizes, recipe_command
from agent.settings.jobs import RECIPES

if TYPE_CHECKING:
    from agent.frameworks.recipe import Command

FOLDER = Path(__file__).parents[1] / "data" / "framework_defaults"
_OPTIONS = ("verl-grpo-megatron", "verl-grpo-images")
NAMES = [*(job.name for job in RECIPES if job.framework), *_OPTIONS]
"""The recipes, and those with an option that changes most of the command."""
UNSET = "unset"
"""The script leaves the setting to the framework's default."""


@cache
def load(name: str) -> dict[str, Any]:
    """Read one of the files."""
    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    loaded: dict[str, Any] = toml.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
    return loaded


def parsed(command: Command) -> dict[str, str]:
    """Return the flags, keys and environment variables of a command; a switch is `on`."""
    found = {f"env:{name}": value for name, value in command.env.items()}
    flag = ""
    for word in command.argv:
        if word.startswith("--") and "=" in word:
            name, value = word[2:].split("=", 1)
            found[name] = value
        elif word.startswith("--"):
            flag = word[2:]
            found[flag] = ""
        elif flag:
            found[flag] = f"{found[flag]} {word}".strip()
        elif "=" in word:
            key, value = word.split("=", 1)
            found[key.lstrip("+")] = value
    return {name: value or "on" for name, value in found.items()}


def releases_of(recipe: dict[str, Any], setting: dict[str, Any]) -> list[str]:
    """Return the releases that a row is about."""
    return setting.get("releases") or recipe["releases"] or [""]


def default_of(setting: dict[str, Any], release: str) -> str | None:
    """Return what the framework takes if nobody sets the setting."""
    default = setting.get("default")
    if isinstance(default, list):
        return next((one["value"] for one in default if release in one["releases"]), None)
    return default


def command_of_seed(seed: dict[str, Any]) -> Command:
    """Return the command that the environment beside a document's job gives."""
    full = [one for one in seed["check"] if one["exit"] == 0 and not one.get("only")]
    ours = seed["ours"]
    environ = {"AGENT_CHECKPOINTS": "/volume/checkpoints", "PATH": "/usr/bin:/bin"}
    release = full[0].get("release", ours.get("release"))
    nodes = node_sizes(int(seed["nodes"]), whole_numbers(str(seed["gpus"])), None)
    return recipe_command({**environ, **ours["environment"]}, ours["recipe"], nodes, release)[0]
