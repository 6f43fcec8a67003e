"""The real runs of scripts/frameworks: what they read in the frameworks' output."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tools.frameworks import pretended, started_openrlhf, started_verl, trl_on_pods
from tools.frameworks.training import NotTrainedError

FIRST = "no checkpoint yet: from step 0, 2 processes\nstep 1/50 mean reward 0.062 tokens 1\n"
AGAIN = "going on from /x/checkpoint-5, 2 processes\nstep 6/50 mean reward 0.500 tokens 1\n"


def test_attempts_have_separate_results() -> None:
    """The second begins with the line that names its checkpoint."""
    first, again = trl_on_pods.halves(FIRST + AGAIN)
    assert trl_on_pods.last_step(first) == "1"
    assert trl_on_pods.last_step(again) == "6"
    assert trl_on_pods.gone_on(again) == 5


@pytest.mark.parametrize("output", ["", FIRST, AGAIN.replace("step 6/", "step 1/")])
def test_an_attempt_that_went_not_on_is_found(output: str) -> None:
    """No line about a checkpoint, or another step than the one after it."""
    with pytest.raises(NotTrainedError):
        trl_on_pods.gone_on(output)


def test_one_attempt_is_not_two() -> None:
    """A lost pod without another attempt is an error."""
    with pytest.raises(NotTrainedError, match="no attempt resumed"):
        trl_on_pods.halves(FIRST)


def test_how_far_verl_came_is_read_off_its_output() -> None:
    """Up to the point where it was ended."""
    out = (
        "[validate_config] All configuration checks passed successfully!\n"
        "(TaskRunnerV1 pid=5)   'path': '/opt/agent/bundled/verl_reward.py',\n"
        "(TaskRunnerV1 pid=5) INFO: train and validate dataloader initialized, "
        "train dataset size: 100, val dataset size: 100\n"
    )
    names = [name for name, _ in started_verl.STATIONS]
    assert pretended.not_reached(started_verl.STATIONS, out) == names[3:]
    assert pretended.not_reached(started_verl.STATIONS, "") == names


def test_how_far_openrlhf_came_is_read_off_its_output() -> None:
    """The same, with other texts."""
    out = (
        "namespace(ref=namespace(num_nodes=1, num_gpus_per_node=2, offload=False), …)\n"
        "(RolloutRayActor pid=5) stand-in for vLLM's engine: model=/m, max_model_len=64, …\n"
    )
    names = [name for name, _ in started_openrlhf.STATIONS]
    assert pretended.not_reached(started_openrlhf.STATIONS, out) == names[3:]
    words = started_openrlhf.arguments(Path("/ground"))
    assert words[words.index("--reward.remote_url") + 1] == "{reward_url}"
    assert words[words.index("--actor.num_gpus_per_node") + 1] == "2"


def test_what_is_started_is_the_recipes_own() -> None:
    """The reward function is ours, the agent fills in its URL, the sizes are those of the part."""
    words = started_verl.overrides(Path("/ground"))
    assert "actor_rollout_ref.model.path=/ground/model" in words
    assert "data.train_batch_size=8" in words
    assert any("{reward_url}" in word for word in words)
    assert any(word.endswith("verl_reward.py") for word in words)


def test_ports_are_taken_only_where_those_behind_them_are_free() -> None:
    """A listener on the last port of a row excludes its first."""
    first, second = pretended.free_ports(2)
    assert second - first >= pretended.APART
    with socket.socket() as held:
        held.bind(("", first + pretended.BEHIND - 1))
        assert not pretended.is_free(first)
        assert first not in pretended.free_ports(1)
