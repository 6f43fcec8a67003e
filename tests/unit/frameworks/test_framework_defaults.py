"""Each recipe's settings beside those of its framework's scripts, with the reason to differ."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import pytest

from agent.base.errors import AgentError
from agent.bundled import trl_grpo
from agent.cli.options import whole_numbers
from agent.cli.recipe_verb import node_sizes, recipe_command
from support.framework_defaults import (
    NAMES,
    UNSET,
    command_of_seed,
    default_of,
    load,
    parsed,
    releases_of,
)

if TYPE_CHECKING:
    from pathlib import Path


ENVIRON = {
    "AGENT_MODEL": "Qwen/Qwen2.5-7B-Instruct",
    "AGENT_TRAIN_DATA": "/data/train.parquet",
    "AGENT_CHECKPOINTS": "/volume/checkpoints",
    "PATH": "/usr/bin:/bin",
}


@cache
def settings_of(name: str, release: str, shape: str) -> dict[str, str]:
    """Return each flag, key or environment variable (`env:NAME`) that the recipe sets."""
    nodes, gpus = shape.split("x")
    sizes = node_sizes(int(nodes), whole_numbers(gpus), None)
    table = load(name)
    environ = ENVIRON | table.get("environment", {})
    recipe = table["recipe"]
    command, _ = recipe_command(environ, recipe, sizes, release or None)
    if recipe == "trl-grpo":  # a program of this project, whose own defaults count
        options = vars(trl_grpo.parser().parse_args(command.argv[2:]))
        return {
            name: "on" if value is True else str(value)
            for name, value in options.items()
            if value is not None and value is not False and value != ""
        }
    return parsed(command)


def plain(value: object) -> str:
    """Return a value in a form in which equal values are equal: 1e-06 is 1e-6."""
    text = str(value).strip().strip("'\"")
    try:
        return repr(float(text))
    except ValueError:
        return text.lower().replace(" ", "")


def ours_of(setting: dict[str, Any], shape: str) -> str | None:
    """Return what the row says that the recipe sets; None if it leaves the default."""
    ours: str | dict[str, str] | None = setting.get("ours")
    return ours.get(shape) if isinstance(ours, dict) else ours


def theirs_of(setting: dict[str, Any]) -> list[str]:
    """Return the values of the framework's scripts."""
    theirs = setting["theirs"]
    return [theirs] if isinstance(theirs, str) else [one["value"] for one in theirs]


def is_equal(recipe: dict[str, Any], setting: dict[str, Any]) -> bool:
    """Return whether the recipe sets what every script sets, or leaves the same default."""
    for release in releases_of(recipe, setting):
        default = default_of(setting, release)
        for shape in recipe["shapes"]:
            ours = ours_of(setting, shape)
            for theirs in theirs_of(setting):
                their = default if theirs == UNSET else theirs
                if plain(default if ours is None else ours) != plain(their):
                    return False
    return True


@pytest.mark.parametrize("name", NAMES)
def test_differences_have_reasons(name: str) -> None:
    """A setting that differs from a script has a reason."""
    recipe = load(name)
    unexplained = [
        setting["name"]
        for setting in recipe["setting"]
        if not is_equal(recipe, setting) and not setting.get("why")
    ]
    assert unexplained == []


@pytest.mark.parametrize("name", NAMES)
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
    for release in recipe["releases"] or [""]:
        for shape in recipe["shapes"]:
            found = settings_of(name, release, shape)
            for key, said in recipe.get("same", {}).items():
                if plain(found.get(key)) != plain(said):
                    wrong.append((key, release, shape, found.get(key), said))
            wrong += [
                (key, release, shape, found[key], None)
                for key in set(recipe.get("defaults", ())) & set(found)
            ]
    assert wrong == []


SEEDS = load("seeds")["seed"]
PROBES = [
    pytest.param(seed, probe, id=f"{seed['id']}-{number}")
    for seed in SEEDS
    for number, probe in enumerate(seed.get("check", []))
]


@pytest.mark.parametrize(("seed", "probe"), PROBES)
def test_what_the_seeds_give(tmp_path: Path, seed: dict[str, Any], probe: dict[str, Any]) -> None:
    """A row's command or refusal is the program's own, as long as the row stands."""
    ours = seed["ours"]
    own = dict(probe.get("environment", {}))
    if "data" in probe:
        own["AGENT_TRAIN_DATA"] = str(tmp_path / "train.jsonl")
        (tmp_path / "train.jsonl").write_text(probe["data"])
    given = {} if probe.get("only") else ours["environment"]
    environ = {"AGENT_CHECKPOINTS": "/volume/checkpoints", "PATH": "/usr/bin:/bin"}
    nodes = node_sizes(
        int(probe.get("nodes", seed["nodes"])), whole_numbers(str(seed["gpus"])), None
    )
    release = probe.get("release", ours.get("release"))
    try:
        whole = {**environ, **given, **own}
        command, _ = recipe_command(whole, ours["recipe"], nodes, release)
        found = (0, " ".join(command.argv))
    except AgentError as error:
        found = (error.end.exit_code, error.sentence())
    assert found[0] == probe["exit"], found[1]
    for words in [*probe.get("has", []), *([probe["says"]] if "says" in probe else [])]:
        assert words in found[1]
    for words in probe.get("lacks", []):
        assert words not in found[1]


@pytest.mark.parametrize("seed", SEEDS, ids=lambda seed: seed["id"])
def test_the_job_of_a_seed(seed: dict[str, Any]) -> None:
    """Each flag or key of the document's job comes out as typed, or `differs` gives the reason."""
    if "check" not in seed:
        return
    found = parsed(command_of_seed(seed))
    other = {
        key
        for key, value in seed["job"].items()
        if plain(found.get(key.lstrip("+"))) != plain(value)
    }
    assert other == set(seed.get("differs", {}))


def test_the_last_assignment_of_a_variable_counts() -> None:
    """A script that assigns a variable several times runs with the last value."""
    seeds = [seed for seed in SEEDS if "assigned" in seed]
    assert seeds
    for seed in seeds:
        for variable, values in seed["assigned"].items():
            assert {seed["job"][key] for key in seed["uses"][variable]} == {values[-1]}


def test_nothing_is_typed_that_saves_nothing() -> None:
    """A document that never saves is not followed in silence: a further attempt resumes."""
    for seed in SEEDS:
        typed = seed.get("ours", {}).get("environment", {}).get("AGENT_JOB_ARGS", "")
        assert "save_freq=-1" not in typed, seed["id"]
        assert "--save_steps -1" not in typed, seed["id"]


def test_a_rate_far_above_the_recipes_is_doubtful() -> None:
    """The page warns of a learning rate more than five times the recipe's own."""
    for seed in [seed for seed in SEEDS if "check" in seed]:
        ours = seed["ours"]["environment"]
        bare = {**seed["ours"], "environment": {**ours, "AGENT_JOB_ARGS": ""}}
        if "critic_num_nodes" in seed["job"]:  # its models apart need their arguments
            continue
        own, typed = (parsed(command_of_seed({**seed, "ours": x})) for x in (bare, seed["ours"]))
        for key in [key for key in typed if key.endswith(("learning_rate", "optim.lr"))]:
            far = key in own and float(typed[key]) > 5 * float(own[key])
            assert far == (key in seed.get("doubtful", {})), (seed["id"], key)
