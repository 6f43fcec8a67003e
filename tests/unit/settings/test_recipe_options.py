"""AGENT_LORA_RANK, AGENT_ROLLOUT and AGENT_BACKEND: refused where the job would ignore them."""

from __future__ import annotations

import pytest

from agent.base.errors import SettingsError
from agent.settings import load
from agent.settings.jobs import RECIPES

GIVEN = {"AGENT_MODEL": "a/b", "AGENT_TRAIN_DATA": "/data", "AGENT_REWARD": "builtin"}
VALUES = {"AGENT_LORA_RANK": "32", "AGENT_ROLLOUT": "sglang", "AGENT_BACKEND": "fsdp"}


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_a_recipe_takes_a_variable_or_refuses_it(recipe: object, name: str) -> None:
    """A recipe without the choice refuses the variable, and names those that have it."""
    known = next(one for one in RECIPES if one is recipe)
    given = {key: text for key, text in GIVEN.items() if known.needs or key == "AGENT_REWARD"}
    if known.reward == "unused":
        del given["AGENT_REWARD"]
    environ = {**given, "AGENT_JOB": known.name, name: VALUES[name]}
    if name in known.takes:
        assert load(environ).settings
        return
    with pytest.raises(SettingsError) as caught:
        load(environ)
    text = str(caught.value)
    assert f"{name}: got {VALUES[name]} beside {known.name}" in text
    assert "verl-grpo" in text


def test_a_command_takes_none_of_them() -> None:
    """A command of one's own would ignore the variable."""
    with pytest.raises(SettingsError, match="AGENT_LORA_RANK: got 32 beside a command"):
        load({"AGENT_LORA_RANK": "32"}, ["python", "train.py"])


@pytest.mark.parametrize("rank", ["0", "-1", "many", "5000"])
def test_a_rank_is_a_number_from_one_on(rank: str) -> None:
    """Any other text is refused with what is expected."""
    with pytest.raises(SettingsError, match="AGENT_LORA_RANK"):
        load({**GIVEN, "AGENT_JOB": "verl-grpo", "AGENT_LORA_RANK": rank})


@pytest.mark.parametrize("backend", ["fsdp", "megatron"])
def test_a_backend(backend: str) -> None:
    """Both are accepted; another one is refused with what there is."""
    given = {**GIVEN, "AGENT_JOB": "verl-grpo", "AGENT_BACKEND": backend}
    assert load(given).settings.backend == backend
    with pytest.raises(SettingsError, match="AGENT_BACKEND"):
        load({**given, "AGENT_BACKEND": "deepspeed"})
