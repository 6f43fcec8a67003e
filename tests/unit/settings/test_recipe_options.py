"""AGENT_LORA_RANK, AGENT_ROLLOUT and AGENT_BACKEND: refused where the job would ignore them."""

from __future__ import annotations

import pytest

from agent.base.errors import SettingsError
from agent.settings import load
from agent.settings.jobs import RECIPES

GIVEN = {"AGENT_MODEL": "a/b", "AGENT_TRAIN_DATA": "/data", "AGENT_REWARD": "builtin"}
VALUES = {"AGENT_LORA_RANK": "32", "AGENT_ROLLOUT": "sglang", "AGENT_BACKEND": "megatron"}


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


@pytest.mark.parametrize(
    "wrong",
    [
        *({"AGENT_LORA_RANK": rank} for rank in ("0", "-1", "many", "5000")),
        {"AGENT_BACKEND": "deepspeed"},
    ],
)
def test_a_wrong_value_is_refused(wrong: dict[str, str]) -> None:
    """Any other text is refused with what is expected."""
    with pytest.raises(SettingsError, match=next(iter(wrong))):
        load({**GIVEN, "AGENT_JOB": "verl-grpo", **wrong})
