"""The groups and services that a recipe brings, filled in with its settings."""

from __future__ import annotations

from typing import Any

import pytest

from agent.frameworks.recipe import ModelShape
from agent.frameworks.sizing import least_engine
from agent.job.recipe_services import recipe_tables
from agent.job.services_file import parse
from support.worlds import settings_of

NEEDED = {"AGENT_JOB": "slime-grpo", "AGENT_MODEL": "/v/my model", "AGENT_TRAIN_DATA": "/v/t.jsonl"}


def engine(model: ModelShape | None = None, **more: str) -> dict[str, Any]:
    """Return the table of slime's engine."""
    tables = recipe_tables(settings_of({**NEEDED, **more}), None, model)
    found: dict[str, Any] = tables["services"]["engine"]
    return found


def test_the_engine_has_the_models_words() -> None:
    """A shell reads the model as one word; a pinned revision stands beside it."""
    assert "--model-path '/v/my model' --host {node_ip} --port {port} --tp 1" in engine()["command"]
    pinned = engine(AGENT_MODEL="org/m", AGENT_MODEL_REVISION="abc")["command"]
    assert "--model-path org/m --revision abc --host" in pinned


@pytest.mark.parametrize(
    ("name", "given", "gpus"),
    [
        ("Qwen3-8B", {}, 1),
        ("Qwen3-32B", {}, 2),
        ("Qwen2.5-72B", {}, 4),
        ("Qwen3-235B-A22B", {}, 8),
        ("unknown", {}, 1),
        ("Qwen3-8B", {"AGENT_TENSOR_PARALLEL": "4"}, 4),
    ],
)
def test_the_gpus_of_an_engine(name: str, given: dict[str, str], gpus: int) -> None:
    """AGENT_TENSOR_PARALLEL, else by the size of the model; a number, not a text."""
    found = engine(ModelShape.from_name(name), **given)
    assert found["gpus"] == gpus
    assert f"--tp {gpus} " in found["command"]


def test_the_largest_engine_is_a_node() -> None:
    """A model of any size has an engine of eight GPUs at most."""
    assert least_engine(ModelShape.from_name("Kimi-K2-1000B")) == 8


def test_its_tables_are_valid() -> None:
    """They are a file of AGENT_SERVICES, with half of the nodes."""
    settings = settings_of(NEEDED)
    file, problems = parse("", "", settings, recipe_tables(settings, None, None))
    assert problems == []
    (group,) = file.groups
    (spec,) = file.services
    assert (group.name, group.part) == ("rollout", (1, 2))
    assert (spec.weights, spec.keep, spec.after) == ("sglang", 2, ("AGENT_MODEL",))


@pytest.mark.parametrize("job", ["verl-grpo", "trl-grpo", "openrlhf-sft"])
def test_most_recipes_bring_none(job: str) -> None:
    """Nor does a command of one's own."""
    assert recipe_tables(settings_of({**NEEDED, "AGENT_JOB": job}), None, None) == {}
    assert recipe_tables(settings_of({}), ("python", "train.py"), None) == {}
