"""TRL's program requests rewards until they arrive, and never invents them."""

from __future__ import annotations

import gc
import importlib
import os
from typing import TYPE_CHECKING

import pytest

from agent.bundled import trl_grpo
from agent.bundled.trl_grpo import Rewards, TrainerSetupError
from support.fake_server import Answer, Asked, FakeServer, fake_server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

RewardError = vars(trl_grpo)["rehearsal"].RewardError


BUSY = Answer(b"overloaded", 503, {"Retry-After": "60"})


def scored(asked: Asked) -> Answer:
    """Reward each answer by its length."""
    return Answer({"rewards": [len(text) for text in asked.body["query"]]})


@pytest.fixture
def server() -> Iterator[FakeServer]:
    """Serve for one test."""
    with fake_server(scored) as running:
        yield running


def test_every_answer_gets_its_reward(server: FakeServer) -> None:
    """The text is prompt and answer, with labels; many answers take several requests."""
    rewards = Rewards(server.url, 5, "label")
    answers = ["x" * number for number in range(130)]
    got = rewards(prompts=["ab"] * 130, completions=answers, label=["7"] * 130, trainer_state=None)
    assert got == [float(2 + number) for number in range(130)]
    assert [len(asked.body["query"]) for asked in server.asked] == [64, 64, 2]
    assert server.asked[2].body == {
        "query": ["ab" + answers[128], "ab" + answers[129]],
        "prompts": ["ab", "ab"],
        "labels": ["7", "7"],
    }


def test_a_chat_is_scored_by_its_text(server: FakeServer) -> None:
    """Messages are joined; without a label column no labels are sent."""
    chat = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "1+1"}]
    answer = [{"role": "assistant", "content": "2"}]
    Rewards(server.url, 5, "")(prompts=[chat], completions=[answer], label=["2"])
    (asked,) = server.asked
    assert asked.body == {"query": ["be brief\n1+12"], "prompts": ["be brief\n1+1"]}


def test_a_lost_server_ends_the_job_in_time(server: FakeServer) -> None:
    """By the client of the rehearsal, whose tests have its other replies; no reward is guessed."""
    url = server.url
    rewards = Rewards(url, 0.5, "")
    assert rewards(prompts=["a"], completions=["b"]) == [2.0]
    server.answer = lambda _asked: BUSY
    with pytest.raises(RewardError, match=r"no rewards for 0\.5 s: 503 overloaded"):
        rewards(prompts=["a"], completions=["b"])


def test_the_newest_complete_checkpoint(tmp_path: Path) -> None:
    """By number, not by name; an incomplete one is ignored."""
    assert trl_grpo.last_checkpoint(tmp_path / "none") is None
    for name, state in (
        ("checkpoint-9", '{"global_step": 9}'),
        ("checkpoint-10", '{"global_step": 10}'),
        ("checkpoint-11", '{"global_st'),
        ("checkpoint-x", '{"global_step": 99}'),
        ("checkpoint-12", None),
    ):
        (tmp_path / name).mkdir()
        if state is not None:
            (tmp_path / name / "trainer_state.json").write_text(state)
    assert trl_grpo.last_checkpoint(tmp_path) == str(tmp_path / "checkpoint-10")


def test_a_model_of_a_shorter_training_is_not_kept(tmp_path: Path) -> None:
    """Its tokenizer is saved last, after the last checkpoint."""
    model = tmp_path / "model"
    checkpoint = tmp_path / "checkpoint-3"
    for folder, name in ((model, "tokenizer_config.json"), (checkpoint, "trainer_state.json")):
        assert not trl_grpo.has_saved(model, checkpoint)
        folder.mkdir()
        (folder / name).write_text("{}")
    os.utime(checkpoint / "trainer_state.json", (1000, 1000))
    for at, is_kept in ((999, False), (1000, True), (1001, True)):
        os.utime(model / "tokenizer_config.json", (at, at))
        assert trl_grpo.has_saved(model, checkpoint) == is_kept


@pytest.mark.parametrize(
    ("steps", "epochs", "said"),
    [
        (-1, 1.0, ""),
        (3, 0.0, ""),
        (0, 1.0, "--max-steps 0: expected a positive number of steps, or -1 for"),
        (-5, 1.0, "--max-steps -5: expected a positive number"),
        (-1, 0.0, "--num-train-epochs 0: expected a positive number"),
    ],
)
def test_a_number_of_steps_that_trl_would_ignore(steps: int, epochs: float, said: str) -> None:
    """0 would train one step, and -5 by the epochs."""
    if not said:
        trl_grpo.check_steps(steps, epochs)
        return
    with pytest.raises(TrainerSetupError, match=said):
        trl_grpo.check_steps(steps, epochs)


def test_all_metrics_of_a_step_are_printed() -> None:
    """The agent reads them; transformers 5 has numbers as texts."""
    logs = {"loss": "0.0187", "reward": 0.96875, "rewards/a b/mean": 1, "note": "x", "kl": None}
    assert trl_grpo.metrics_of(logs) == ["loss=0.0187", "reward=0.96875", "rewards/a_b/mean=1"]


def test_config_pairs() -> None:
    """Values are JSON if valid; a name that GRPOConfig lacks is refused."""
    known = {"epsilon", "use_vllm", "loss_type", "top_k"}
    pairs = ["epsilon=0.2", "use_vllm=True", "loss_type=dapo", "top_k=null"]
    read = trl_grpo.further(pairs, known)
    assert read == {"epsilon": 0.2, "use_vllm": True, "loss_type": "dapo", "top_k": None}
    for wrong in ("epsilom=0.2", "epsilon"):
        with pytest.raises(TrainerSetupError, match=f"--config {wrong}: expected NAME=VALUE"):
            trl_grpo.further([wrong], known)


def test_data_without_rows_is_refused(tmp_path: Path) -> None:
    """`datasets` ends with a StopIteration for an empty file, which says nothing."""
    needed = ["--model", "m", "--data", "d", "--reward-url", "http://r/", "--checkpoints", "/c"]
    options = trl_grpo.parser().parse_args(needed)
    data = tmp_path / "train.jsonl"
    with pytest.raises(TrainerSetupError, match=f"no file {data} on "):
        trl_grpo.prompts_of(options, str(data), "train")
    data.touch()
    with pytest.raises(TrainerSetupError, match=f"{data} has no rows"):
        trl_grpo.prompts_of(options, str(data), "train")


LOADING = "FSDP_CPU_RAM_EFFICIENT_LOADING"


@pytest.mark.parametrize(
    ("flags", "loading"),
    [
        ("--shard fsdp", "true"),
        ("--shard offload", "true"),
        ("--shard fsdp --beta 0.04", "false"),
        ("--shard none", None),
    ],
)
def test_one_process_of_a_node_loads_the_model(flags: str, loading: str | None) -> None:
    """As TRL's own fsdp2.yaml: else 32B takes half a TB; a reference model needs all to load."""
    needed = "--model m --data d --reward-url http://r/ --checkpoints /c"
    options = trl_grpo.parser().parse_args(f"{needed} {flags}".split())
    assert trl_grpo.sharding_of(options).get(LOADING) == loading


def test_imports_search_for_no_garbage() -> None:
    """What they make is left out of later searches, which go on, also after a failed import."""
    frozen = gc.get_freeze_count()
    try:
        with trl_grpo.without_collections():
            assert not gc.isenabled()
        assert gc.isenabled()
        assert gc.get_freeze_count() > frozen
        with pytest.raises(ImportError), trl_grpo.without_collections():
            importlib.import_module("a_package_that_is_missing")
        assert gc.isenabled()
    finally:
        gc.unfreeze()
