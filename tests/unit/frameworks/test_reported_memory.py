"""Cases that users of the frameworks reported: what ran out of memory there is not accepted."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pytest

from agent.base.errors import PreflightError
from support.sized_commands import sized

if TYPE_CHECKING:
    from agent.frameworks.recipe import Command


class Case(NamedTuple):
    """A job on some nodes, and what is said of it."""

    recipe: str
    shape: str  # Nodes × GPUs × GB of a GPU
    host: int | None  # GB of a node
    size: str
    args: str = ""
    version: str | None = None


def made(case: Case) -> Command:
    """Make the command of a case; PreflightError if it is refused."""
    recipe, shape, host, size, args, version = case
    return sized(recipe, shape, size, args, host=host, version=version)


HOST_TOO_SMALL = {
    "verl#224: 7B on 8 GPUs and 96 GB": Case("verl-grpo", "1x8x80", 96, "7.6B"),
    "verl#224 with the verl of then": Case("verl-grpo", "1x8x80", 96, "7.6B", version="0.5.0"),
    "verl#1964: 32B and 400 GB, one node": Case("verl-grpo", "1x8x80", 400, "32.8B"),
    "7.6B on one GPU": Case("verl-grpo", "1x1x80", 128, "7.6B"),
    "72B on 2x8 with the reference in float32": Case("verl-grpo", "2x8x80", 768, "72.7B"),
}


@pytest.mark.parametrize("name", HOST_TOO_SMALL)
def test_too_little_memory_of_the_nodes_is_refused_as_that(name: str) -> None:
    """The refusal names the nodes' memory, its phases and a remedy, and no memory of GPUs."""
    with pytest.raises(PreflightError) as caught:
        made(HOST_TOO_SMALL[name])
    text = caught.value.sentence()
    assert "the GPUs suffice, the nodes' memory does not" in text
    for words in (" to load, ", " to train, ", " to save)", "GiB of memory on each node"):
        assert words in text


ENOUGH = {
    "verl#224: with 1 TB": Case("verl-grpo", "1x8x80", 1024, "7.6B"),
    "verl#1964: 32B and 1 TB": Case("verl-grpo", "2x8x80", 1024, "32.8B"),
    "7.6B on one GPU": Case("verl-grpo", "1x1x80", 256, "7.6B"),
    "72B on 2x8": Case("verl-grpo", "2x8x80", 1536, "72.7B"),
    "Search-R1 at 32B": Case("search-r1-ppo", "4x8x80", 1024, "32.8B"),
    "Search-R1 at 72B": Case("search-r1-grpo", "4x8x80", 1024, "72.7B"),
    "TRL at 32B": Case("trl-grpo", "2x8x80", 256, "32.8B"),
    "small models on small nodes": Case("openrlhf-grpo", "1x4x16", 64, "0.5B"),
    "OpenRLHF#1013 without ZeRO-1": Case("openrlhf-grpo", "2x8x80", 512, "7.6B"),
}


@pytest.mark.parametrize("name", ENOUGH)
def test_enough_memory_is_accepted(name: str) -> None:
    """What runs is not refused, and needs no warning."""
    assert made(ENOUGH[name]).warnings == ()


ZERO1 = "--ds.zero_stage 1 --data.max_len 7096 --vllm.tensor_parallel_size 1"


@pytest.mark.parametrize(
    ("args", "fits"), [(ZERO1, False), (f"{ZERO1} --no-vllm.enable_sleep", True)]
)
def test_whole_models_and_sleeping_engines(args: str, *, fits: bool) -> None:
    """OpenRLHF#1013: 7B on 2×8 with 512 GB fails while models load, and not with engines awake."""
    case = Case("openrlhf-grpo", "2x8x80", 512, "7.6B", args)
    if fits:
        assert made(case).warnings == ()
        return
    with pytest.raises(PreflightError) as refusal:
        made(case)
    assert "the nodes' memory does not" in refusal.value.sentence()


def test_long_answers_are_warned_of() -> None:
    """OpenRLHF#887: 37k tokens of 7B on 3×8×80 run out of memory."""
    long = made(Case("openrlhf-grpo", "3x8x80", None, "7.6B", "--data.max_len 37888"))
    assert any("37888 tokens may run out" in text or "tight" in text for text in long.warnings)
    usual = made(Case("openrlhf-grpo", "3x8x80", None, "7.6B"))
    assert usual.warnings == ()


def argument(command: Command, key: str) -> str:
    """Return the value of a key of hydra."""
    found = dict(word.split("=", 1) for word in command.argv if "=" in word)
    return found.get(key, "")


ACTOR = "actor_rollout_ref.actor"


@pytest.mark.parametrize(
    ("case", "settings"),
    [
        (
            Case("search-r1-ppo", "4x8x80", 1024, "32.8B"),
            {
                f"{ACTOR}.optim.lr": "2e-7",
                f"{ACTOR}.ppo_micro_batch_size": "32",
                "actor_rollout_ref.rollout.log_prob_micro_batch_size": "32",
                f"{ACTOR}.fsdp_config.optimizer_offload": "True",
                "critic.model.fsdp_config.optimizer_offload": "True",
                f"{ACTOR}.fsdp_config.param_offload": "",
                "actor_rollout_ref.rollout.gpu_memory_utilization": "0.5",
            },
        ),
        (
            Case("search-r1-grpo", "4x8x80", 1024, "32.8B"),
            {
                f"{ACTOR}.optim.lr": "2e-7",
                f"{ACTOR}.ppo_micro_batch_size": "64",
                "actor_rollout_ref.rollout.log_prob_micro_batch_size": "128",
                f"{ACTOR}.fsdp_config.optimizer_offload": "",
            },
        ),
        (
            Case("search-r1-grpo", "4x8x80", 1024, "72.7B"),
            {
                f"{ACTOR}.optim.lr": "1e-7",
                f"{ACTOR}.ppo_micro_batch_size": "32",
                "actor_rollout_ref.rollout.log_prob_micro_batch_size": "32",
                f"{ACTOR}.fsdp_config.param_offload": "True",
                "actor_rollout_ref.ref.fsdp_config.param_offload": "True",
            },
        ),
        (
            Case("search-r1-ppo", "2x2x24", 128, "1.5B"),
            {
                f"{ACTOR}.optim.lr": "",
                f"{ACTOR}.ppo_micro_batch_size": "4",
                "actor_rollout_ref.rollout.log_prob_micro_batch_size": "8",
            },
        ),
    ],
)
def test_search_r1_runs_as_its_authors_do(case: Case, settings: dict[str, str]) -> None:
    """Rates, samples and offload of their scripts by size, and fewer samples on small GPUs."""
    command = made(case)
    assert {key: argument(command, key) for key in settings} == settings


@pytest.mark.parametrize(("size", "whole"), [("7.6B", True), ("14.8B", False), ("72.7B", False)])
def test_large_models_are_saved_in_shards(size: str, *, whole: bool) -> None:
    """One node would gather them: 6 bytes of each parameter."""
    command = made(Case("verl-grpo", "4x8x80", 2048, size))
    assert ("hf_model" in argument(command, f"{ACTOR}.checkpoint.save_contents")) is whole
    assert any("verl.model_merger" in note for note in command.notes) is not whole


@pytest.mark.parametrize(("host", "whole"), [(64, True), (44, False)])
def test_a_whole_model_is_not_worth_a_refusal(host: int, *, whole: bool) -> None:
    """A small node saves shards only, rather than that the job is refused."""
    command = made(Case("verl-grpo", "1x1x24", host, "1.5B"))
    assert ("hf_model" in argument(command, f"{ACTOR}.checkpoint.save_contents")) is whole


def test_sleeping_engines_count_unless_they_are_turned_off() -> None:
    """The flag itself, given by the user, changes nothing."""
    case = Case("openrlhf-grpo", "2x8x80", 512, "7.6B")
    usual = made(case).notes[-1]
    assert made(case._replace(args="--vllm.enable_sleep")).notes[-1] == usual
    assert made(case._replace(args="--no-vllm.enable_sleep")).notes[-1] != usual


@pytest.mark.parametrize(
    ("recipe", "args", "warned"),
    [
        ("verl-grpo", "actor_rollout_ref.model.lora_rank=32", True),
        ("verl-grpo", "actor_rollout_ref.model.lora_rank=0", False),
        ("verl-grpo", f"actor_rollout_ref.model.lora_rank=32 {ACTOR}.optim.lr=1e-5", False),
        ("openrlhf-grpo", "--ds.lora.rank 16", True),
        ("openrlhf-grpo", "--ds.lora.rank 16 --actor.adam.lr 1e-5", False),
        ("openrlhf-sft", "--ds.lora.rank 16", True),
        ("openrlhf-sft", "", False),
    ],
)
def test_adapters_at_the_rate_of_full_training(recipe: str, args: str, *, warned: bool) -> None:
    """LoRA learns hardly anything at it."""
    warnings = made(Case(recipe, "1x8x80", 2048, "7.6B", args)).warnings
    assert any("adapters (LoRA) train at" in text for text in warnings) is warned


@pytest.mark.parametrize(
    ("recipe", "args", "text"),
    [
        (
            "verl-ppo",
            "critic.model.path=Qwen/Qwen2.5-14B",
            "Qwen2.5-14B has 14 B: memory is",
        ),
        ("verl-ppo", "critic.model.path=Qwen/Qwen2.5-3B", ""),
        ("verl-grpo", "critic.model.path=Qwen/Qwen2.5-14B", ""),
        ("search-r1-ppo", "critic.model.path=our/critic", "critic has an unknown size: memory"),
        ("openrlhf-ppo", "--critic.model_name_or_path our/rm-70B", "rm-70B has 70 B: memory is"),
    ],
)
def test_a_critic_that_may_be_larger(recipe: str, args: str, text: str) -> None:
    """Memory is counted for a critic of the actor's size: another one is warned of."""
    warnings = made(Case(recipe, "1x8x80", 2048, "7.6B", args)).warnings
    about = [one for one in warnings if "memory is counted for a critic" in one]
    assert len(about) == bool(text)
    assert all("`recipe --model-size` sizes for a larger one" in one for one in about)
    assert text in "".join(about)
