"""Checkpoints about every hour: by an estimate of a step, on any shape."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.cli.options import model_size
from agent.frameworks.pace import HOUR, StepWork, step_seconds, steps_between_saves
from agent.frameworks.recipe import JobBasis, NodeSize, RecipeInput
from support.framework_defaults import parsed
from support.sized_commands import sized

SAVES = {
    "verl": "trainer.save_freq",
    "openrlhf-m": "save_steps",
    "openrlhf": "ckpt.save_steps",
    "trl": "save-steps",
}


def key_of(recipe: str) -> str:
    """Return the key or flag of the steps between checkpoints."""
    return next(key for start, key in SAVES.items() if recipe.startswith(start))


@pytest.mark.parametrize(
    ("recipe", "shape", "size", "steps"),
    [
        ("verl-grpo", "1x1x24", "1.5B", 6),
        ("verl-grpo", "1x1x80", "3B", 7),
        ("verl-grpo", "1x8x80", "7B", 6),
        ("verl-grpo", "4x8x80", "7B", 20),
        ("verl-ppo", "1x8x80", "7B", 20),
        ("openrlhf-grpo", "1x1x24", "1.5B", 5),
        ("openrlhf-grpo", "2x8x80", "7B", 20),
        ("openrlhf-m-grpo", "2x8x80", "7B", 5),
        ("openrlhf-sft", "1x2x80", "8B", 47),
        ("openrlhf-sft", "2x8x80", "8B", 100),
        ("trl-grpo", "1x2x80", "7B", 20),
    ],
)
def test_checkpoints_are_about_an_hour_apart(
    recipe: str, shape: str, size: str, steps: int
) -> None:
    """As often as usual, or fewer steps where a step takes long; the reason has the estimate."""
    command = sized(recipe, shape, size, host=2048)
    key = key_of(recipe)
    assert parsed(command)[key] == str(steps)
    flag = key if recipe.startswith("verl") else f"--{key}"
    assert re.search(r"every .*about \d+ (s|min|h).* a step, estimated", command.why[flag])


@pytest.mark.parametrize(
    ("shape", "size", "batch"),
    [
        ("1x1x24", "0.5B", 512),
        ("1x1x24", "1.5B", 128),
        ("1x1x24", "3B", 64),
        ("1x2x24", "7B", 64),
        ("2x2x24", "7B", 128),
        ("1x4x48", "4B", 512),
    ],
)
def test_few_cards_get_a_batch_of_a_quarter_of_an_hour(shape: str, size: str, batch: int) -> None:
    """They take hours for the 1,024 prompts × 8 answers that verl trains on."""
    command = sized("verl-grpo", shape, size, host=2048)
    found = parsed(command)
    assert found["data.train_batch_size"] == str(batch)
    assert found["actor_rollout_ref.actor.ppo_mini_batch_size"] == str(batch // 4)
    assert "since a step of 1024 would take about" in command.why["data.train_batch_size"]


def test_a_step_has_no_fewer_answers_than_a_group_learns_from() -> None:
    """However long it takes: 256 answers, also of PPO with one for each prompt."""
    long = "data.max_response_length=16384"
    for recipe, batch in (("verl-grpo", 32), ("verl-ppo", 256)):
        command = sized(recipe, "1x2x80", "7B", long, host=2048)
        assert parsed(command)["data.train_batch_size"] == str(batch)


def test_states_in_cpu_memory_count_in_every_recipe() -> None:
    """A step of 7B on two small cards moves all weights, and its optimizer works on the CPUs."""
    why = sized("trl-grpo", "1x2x24", "7B", host=2048).why["--save-steps"]
    seconds = re.search(r"about (\d+) s a step, estimated: .*, with states in CPU memory", why)
    assert seconds is not None
    assert 45 <= int(seconds[1]) <= 75  # Without those states about 31 s


def test_the_users_steps_stay() -> None:
    """What the user sets is not estimated."""
    own = sized(
        "verl-grpo", "1x1x24", "1.5B", "trainer.save_freq=7 data.train_batch_size=1024", host=2048
    )
    assert parsed(own)["trainer.save_freq"] == "7"
    assert parsed(own)["data.train_batch_size"] == "1024"


def asked(gpus: int, memory: int | None, size: str | None) -> RecipeInput:
    """Return the input of a recipe for one node."""
    basis = JobBasis(None if size is None else model_size(size))
    nodes = (NodeSize(gpus, gpu_memory=memory),)
    return RecipeInput("x", nodes, (), "m", "/data", checkpoints="/c", basis=basis)


@pytest.mark.parametrize(("gpus", "size"), [(8, None), (0, "7B")])
def test_without_an_estimate_it_is_as_usual(gpus: int, size: str | None) -> None:
    """An unknown model, or training on CPUs."""
    assert steps_between_saves(asked(gpus, 80, size), StepWork(1024, 4096), 20) == (20, "")


@given(
    st.integers(1, 16),
    st.sampled_from([None, 16, 24, 48, 80, 192]),
    st.sampled_from(["0.5B", "7B", "30B-A3B", "235B-A22B"]),
    st.builds(StepWork, st.integers(1, 10_000), st.integers(16, 130_000), st.integers(1, 2)),
    st.integers(1, 100),
)
def test_never_more_than_an_hour_but_for_one_step(
    gpus: int, memory: int | None, size: str, step: StepWork, usual: int
) -> None:
    """A checkpoint costs at most an hour, or one step."""
    given_nodes = asked(gpus, memory, size)
    steps, why = steps_between_saves(given_nodes, step, usual)
    seconds = step_seconds(given_nodes, step)
    assert seconds is not None
    assert 1 <= steps <= usual
    assert steps == 1 or steps * seconds <= (1.5 if steps == usual else 1) * HOUR
    assert steps == usual or (steps + 1) * seconds > HOUR
    assert "a step, estimated" in why
