"""Each recipe's settings beside those of its framework's scripts, with the reason to differ."""

from __future__ import annotations

import importlib
import re
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from agent.boot.recipe_verb import RecipeQuery, show
from agent.bundled import trl_grpo
from agent.settings.jobs import JOBS

FOLDER = Path(__file__).parent / "framework_defaults"
RECIPES = [job.name for job in JOBS if job.framework]
ENVIRON = {
    "AGENT_MODEL": "Qwen/Qwen2.5-7B-Instruct",
    "AGENT_TRAIN_DATA": "/data/train.parquet",
    "AGENT_CHECKPOINTS": "/volume/checkpoints",
    "PATH": "/usr/bin:/bin",
}
COMMIT = re.compile(r"[0-9a-f]{40}")
KINDS = {"script", "documentation", "defaults"}
UNSET = "unset"
"""The script leaves the setting to the framework's default."""


@cache
def load(name: str) -> dict[str, Any]:
    """Read one of the files."""
    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    loaded: dict[str, Any] = toml.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
    return loaded


@cache
def settings_of(recipe: str, release: str, shape: str) -> dict[str, str]:
    """Return each flag, key or environment variable (`env:NAME`) that the recipe sets."""
    nodes, gpus = shape.split("x")
    command = show(ENVIRON, RecipeQuery(recipe, nodes, gpus, None, release or None)).command
    found = {f"env:{name}": value for name, value in command.env.items()}
    flag = ""
    for word in command.argv:
        if word.startswith("--"):
            flag = word[2:]
            found[flag] = ""
        elif flag:
            found[flag] = f"{found[flag]} {word}".strip()
        elif "=" in word:
            key, value = word.split("=", 1)
            found[key.lstrip("+")] = value
    if recipe == "trl-grpo":  # a program of this project, whose own defaults count
        options = vars(trl_grpo.parser().parse_args(command.argv[2:]))
        return {
            name: "on" if value is True else str(value)
            for name, value in options.items()
            if value is not None and value is not False and value != ""
        }
    return {name: value or "on" for name, value in found.items()}


def plain(value: object) -> str:
    """Return a value in a form in which equal values are equal: 1e-06 is 1e-6."""
    text = str(value).strip().strip("'\"")
    try:
        return repr(float(text))
    except ValueError:
        return text.lower().replace(" ", "")


def releases_of(recipe: dict[str, Any], setting: dict[str, Any]) -> list[str]:
    """Return the releases that a row is about."""
    return setting.get("releases") or recipe["releases"] or [""]


def default_of(setting: dict[str, Any], release: str) -> str | None:
    """Return what the framework takes if nobody sets the setting."""
    default = setting.get("default")
    if isinstance(default, list):
        return next((one["value"] for one in default if release in one["releases"]), None)
    return default


def ours_of(setting: dict[str, Any], shape: str) -> str | None:
    """Return what the row says that the recipe sets; None if it leaves the default."""
    ours: str | dict[str, str] | None = setting.get("ours")
    return ours.get(shape) if isinstance(ours, dict) else ours


def theirs_of(setting: dict[str, Any]) -> list[str]:
    """Return the values of the framework's scripts."""
    theirs = setting["theirs"]
    return [theirs] if isinstance(theirs, str) else [one["value"] for one in theirs]


def is_equal(recipe: dict[str, Any], setting: dict[str, Any]) -> bool:
    """Tell whether the recipe sets what every script sets, or leaves the same default."""
    for release in releases_of(recipe, setting):
        default = default_of(setting, release)
        for shape in recipe["shapes"]:
            ours = ours_of(setting, shape)
            for theirs in theirs_of(setting):
                their = default if theirs == UNSET else theirs
                if plain(default if ours is None else ours) != plain(their):
                    return False
    return True


def test_every_recipe_has_a_file() -> None:
    """Each recipe with a framework is compared with that framework's scripts."""
    assert RECIPES
    assert [name for name in RECIPES if not (FOLDER / f"{name}.toml").is_file()] == []


@pytest.mark.parametrize("name", RECIPES)
def test_sources(name: str) -> None:
    """Each source names a repository, a file and a commit; rows refer to sources of the file."""
    recipe = load(name)
    assert recipe["recipe"] == name
    ids = [source["id"] for source in recipe["source"]]
    assert len(set(ids)) == len(ids)
    for source in recipe["source"]:
        assert COMMIT.fullmatch(source["commit"]), source
        assert source["kind"] in KINDS
        assert re.fullmatch(r"[\w.-]+/[\w.-]+", source["repository"])
        assert source["file"]
        assert source["about"]
    for setting in recipe["setting"]:
        theirs = setting["theirs"]
        for one in theirs if isinstance(theirs, list) else []:
            assert set(one["in"]) <= set(ids), setting["name"]


@pytest.mark.parametrize("name", RECIPES)
def test_differences_have_reasons(name: str) -> None:
    """A setting that differs from a script has a reason, or the value that is wanted instead."""
    recipe = load(name)
    unexplained = [
        setting["name"]
        for setting in recipe["setting"]
        if not is_equal(recipe, setting)
        and not setting.get("why")
        and setting.get("wanted") is None
    ]
    assert unexplained == []


@pytest.mark.parametrize("name", RECIPES)
def test_wanted_values_are_still_missing(name: str) -> None:
    """A row whose recipe already sets the wanted value has no `wanted`."""
    recipe = load(name)
    done = [
        setting["name"]
        for setting in recipe["setting"]
        if "wanted" in setting
        and all(
            plain(ours_of(setting, shape) or "") == plain(setting["wanted"])
            for shape in recipe["shapes"]
        )
    ]
    assert done == []


@pytest.mark.parametrize("name", RECIPES)
def test_our_values_are_those_of_the_recipe(name: str) -> None:
    """`ours` is what the recipe's command sets, in each release and shape that the row names."""
    recipe = load(name)
    wrong = []
    for setting in recipe["setting"]:
        names = [setting["name"], *setting.get("formerly", [])]
        for release in releases_of(recipe, setting):
            for shape in recipe["shapes"]:
                found = settings_of(name, release, shape)
                value = next((found[one] for one in names if one in found), None)
                said = ours_of(setting, shape)
                if (value is None) != (said is None) or plain(value) != plain(said):
                    wrong.append((setting["name"], release, shape, value, said))
    assert wrong == []


@pytest.mark.parametrize("name", RECIPES)
def test_rows_are_named_once(name: str) -> None:
    """No setting has two rows for the same release."""
    recipe = load(name)
    seen = [
        (setting["name"], release)
        for setting in recipe["setting"]
        for release in releases_of(recipe, setting)
    ]
    assert len(set(seen)) == len(seen)
