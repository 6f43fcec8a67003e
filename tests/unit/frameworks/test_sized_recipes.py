"""`recipe NAME --gpu-memory --model-size`: what each recipe sets by memory, without a GPU."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agent.base.errors import PreflightError
from agent.cli.command_line import main
from agent.cli.options import model_size
from agent.cli.recipe_verb import node_sizes
from agent.frameworks import recipe_of
from agent.frameworks.recipe import JobBasis, RecipeInput
from agent.settings.jobs import RECIPES
from support.framework_defaults import parsed
from support.sized_commands import ENVIRON, sized

SIZED = {"openrlhf", "openrlhf-m", "verl", "search-r1", "trl"}
TP, SHARE = "vllm.tensor_parallel_size", "vllm.gpu_memory_utilization"
TOKENS, STAGE, OFFLOAD = "train.max_tokens_per_gpu", "ds.zero_stage", "ds.adam_offload"

VERL_TP = "actor_rollout_ref.rollout.tensor_model_parallel_size"
VERL_SHARE = "actor_rollout_ref.rollout.gpu_memory_utilization"
VERL_TOKENS = "actor_rollout_ref.actor.ppo_max_token_len_per_gpu"
FSDP = "actor_rollout_ref.actor.fsdp_config"


@pytest.mark.parametrize(
    ("recipe", "shape", "size", "settings"),
    [
        ("openrlhf-grpo", "1x8x80", "7B", {TP: "1", SHARE: "0.6", STAGE: "3", OFFLOAD: None}),
        ("openrlhf-grpo", "2x8x80", "32B", {TP: "4", SHARE: "0.6", TOKENS: "12288"}),
        ("openrlhf-grpo", "1x8x80", "32B", {TP: "4", OFFLOAD: "on", STAGE: "3"}),
        ("openrlhf-grpo", "1x4x24", "7B", {TP: "4", OFFLOAD: "on", TOKENS: "4096"}),
        ("openrlhf-ppo", "1x8x80", "8B", {TP: "1", SHARE: "0.5", OFFLOAD: None}),
        ("openrlhf-m-grpo", "2x8x80", "7B", {"vllm_tensor_parallel_size": "1"}),
        ("openrlhf-sft", "1x8x80", "8B", {STAGE: "2", OFFLOAD: None}),
        ("openrlhf-sft", "2x8x80", "32B", {STAGE: "3", OFFLOAD: None}),
        ("openrlhf-sft", "1x8x80", "32B", {STAGE: "3", OFFLOAD: "on"}),
        ("openrlhf-dpo", "1x8x80", "14B", {STAGE: "3", OFFLOAD: None}),
        ("verl-grpo", "1x8x80", "7B", {VERL_TP: "1", VERL_SHARE: "0.6", VERL_TOKENS: "24576"}),
        ("verl-grpo", "1x8x80", "7B", {f"{FSDP}.param_offload": None, f"{FSDP}.fsdp_size": None}),
        ("verl-grpo", "4x8x80", "72B", {VERL_TP: "8", VERL_SHARE: "0.55", VERL_TOKENS: "11264"}),
        ("verl-grpo", "1x2x80", "7B", {f"{FSDP}.param_offload": "True", VERL_SHARE: "0.6"}),
        ("verl-grpo", "1x4x24", "7B", {f"{FSDP}.offload_policy": "True", VERL_TP: "4"}),
        ("verl-grpo", "1x4x24", "7B", {"actor_rollout_ref.actor.strategy": "fsdp2"}),
        ("verl-ppo", "2x8x80", "32B", {"critic.fsdp.optimizer_offload": "True", VERL_TP: "4"}),
        ("search-r1-ppo", "2x8x80", "7B", {VERL_TP: "1", f"{FSDP}.grad_offload": None}),
        ("search-r1-ppo", "1x8x80", "7B", {VERL_SHARE: "0.6", f"{FSDP}.grad_offload": "True"}),
        ("search-r1-grpo", "4x8x80", "32B", {VERL_TP: "4", f"{FSDP}.param_offload": None}),
        ("trl-grpo", "1x8x80", "7B", {"shard": "fsdp", "vllm-tensor-parallel-size": "1"}),
        ("trl-grpo", "2x8x80", "32B", {"shard": "fsdp", "vllm-tensor-parallel-size": "4"}),
        ("trl-grpo", "1x8x80", "32B", {"shard": "offload", "vllm-gpu-memory-utilization": None}),
        ("verl-ppo", "1x8x80", "8B", {"critic.fsdp.optimizer_offload": None, VERL_SHARE: "0.55"}),
    ],
)
def test_settings_follow_from_memory(
    recipe: str, shape: str, size: str, settings: dict[str, str | None]
) -> None:
    """Tensor parallel, ZeRO stage, offload, token caps and engine share follow from memory."""
    command = sized(recipe, shape, size)
    found = parsed(command)
    assert {name: found.get(name) for name in settings} == settings
    assert command.warnings == ()


@pytest.mark.parametrize(
    ("recipe", "shape", "size", "remedy"),
    [
        ("openrlhf-ppo", "1x8x24", "72B", "from 21×8 on"),
        ("openrlhf-grpo", "1x1x24", "7B", "from 1×4 on"),
        ("openrlhf-sft", "1x1x24", "8B", "from 1×8 on"),
        ("verl-grpo", "1x8x80", "72B", "from 2×8 on"),
        ("verl-ppo", "1x8x24", "72B", "from 3×8 on"),
        ("search-r1-ppo", "1x8x80", "72B", "from 4×8 on"),
        ("trl-grpo", "1x1x80", "7B", "from 1×2 on, or with GPUs of 141 GB"),
    ],
)
def test_what_cannot_fit_is_refused(recipe: str, shape: str, size: str, remedy: str) -> None:
    """78 with the smallest nodes that fit; also with engines of the user's, which are counted."""
    for own in ({}, {"AGENT_TENSOR_PARALLEL": "1"}):
        with pytest.raises(PreflightError) as caught:
            sized(recipe, shape, size, environ=own)
        assert caught.value.end.exit_code == 78
        assert remedy in caught.value.sentence()


PAIRS = (
    "--train.colocate_actor_ref --train.colocate_critic_reward --actor.num_nodes 1 "
    "--actor.num_gpus_per_node 4 --critic.num_nodes 1 --critic.num_gpus_per_node 4 "
    "--reward.num_nodes 1 --reward.num_gpus_per_node 4 --vllm.num_engines"
)
"""The placement of OpenRLHF's document for two nodes."""


@pytest.mark.parametrize(
    ("size", "engines", "settings", "why"),
    [
        ("7B", "8", {TP: "1", OFFLOAD: None}, "ZeRO-3: 7 B × 18 bytes / 4 GPUs = 31.5 GB"),
        ("14B", "2", {TP: "2", OFFLOAD: "on"}, "14 B × 6 bytes / 4 GPUs = 21.0 GB"),
        ("70B", "1", {TP: "8", OFFLOAD: "on"}, "takes the least memory"),
    ],
)
def test_pairs_are_sized_on_their_own_gpus(
    size: str, engines: str, settings: dict[str, str | None], why: str
) -> None:
    """Not over the GPUs of engines and of the other pair; a misfit is a warning."""
    model = {"AGENT_REWARD_MODEL": "org/rm", "AGENT_REWARD": "off"}
    command = sized("openrlhf-ppo", "2x8x80", size, f"{PAIRS} {engines}", environ=model)
    found = parsed(command)
    assert {name: found.get(name) for name in settings} == settings
    assert SHARE not in found, "engines have their GPUs alone"
    assert why in command.why["--ds.zero_stage"]
    assert any("70 B on 1×4×80 GB: no" in text for text in command.warnings) == (size == "70B")


@pytest.mark.parametrize(
    ("recipe", "shape", "size", "own", "settings", "said"),
    [
        # verl: 32 B over the 8 GPUs that train, not over 16
        (
            "verl-grpo",
            "2x8x80",
            "32B",
            "trainer.nnodes=1",
            {"trainer.nnodes": "1", f"{FSDP}.optimizer_offload": "True"},
            "32 B × 16 bytes / 8 GPUs",
        ),
        (
            "verl-grpo",
            "2x8x80",
            "32B",
            "trainer.n_gpus_per_node=4",
            {"trainer.nnodes": "4"},
            "32 B × 16 bytes / 16 GPUs",
        ),
        # OpenRLHF's engines have the other node, or half of the GPUs of the only one; more for long
        # answers
        (
            "openrlhf-grpo",
            "2x8x80",
            "32B",
            "--train.async_enable",
            {"actor.num_nodes": "1", "ref.num_nodes": "1", "vllm.num_engines": "2", TP: "4"},
            "/ 8 GPUs",
        ),
        (
            "openrlhf-grpo",
            "4x8x80",
            "7B",
            "--train.async_enable --rollout.max_new_tokens 30000 --data.max_len 31000",
            {"actor.num_nodes": "1", "vllm.num_engines": "24"},
            "/ 8 GPUs",
        ),
        (
            "openrlhf-grpo",
            "1x8x80",
            "7B",
            "--train.async_enable --no-vllm.enable_sleep",
            {"actor.num_gpus_per_node": "4", "vllm.num_engines": "4", SHARE: "0.95"},
            "/ 4 GPUs",
        ),
        (
            "openrlhf-grpo",
            "4x8x80",
            "32B",
            "--train.async_enable --vllm.num_engines 2 --vllm.tensor_parallel_size 4",
            {"actor.num_nodes": "3", "vllm.num_engines": "2"},
            "/ 24 GPUs",
        ),
        (
            "openrlhf-grpo",
            "2x8x80",
            "14B",
            "--actor.num_nodes 1",
            {"actor.num_nodes": "1", "ref.num_nodes": "1", "vllm.num_engines": "4", TP: "2"},
            "/ 8 GPUs",
        ),
        (
            "openrlhf-grpo",
            "1x8x80",
            "7B",
            "--data.max_len 34816 --ds.ring_attn_size 4",
            {TOKENS: "16384", "rollout.max_tokens_per_gpu": "16384"},
            "/ 8 GPUs",
        ),
    ],
)
def test_memory_is_counted_over_the_gpus_that_train(  # noqa: PLR0913 - columns of a table
    recipe: str, shape: str, size: str, own: str, settings: dict[str, str], said: str
) -> None:
    """The user's own keys say how many train, and in OpenRLHF which engines have their own."""
    command = sized(recipe, shape, size, own)
    found = parsed(command)
    assert {name: found.get(name) for name in settings} == settings
    layout = {"verl-grpo": VERL_SHARE}.get(recipe, f"--{STAGE}")
    assert said in command.why[layout]
    assert all("is tight" in warning for warning in command.warnings)
    assert ("idle" in command.notes[0]) is (own == "--actor.num_nodes 1")


def test_engines_leave_the_trainer_what_holds_the_model() -> None:
    """Long answers would take three of four nodes, and 70 B takes three to train."""
    own = "--train.async_enable --rollout.max_new_tokens 30000 --data.max_len 31000"
    found = parsed(sized("openrlhf-grpo", "4x8x80", "70B", own))
    assert (found["actor.num_nodes"], found["vllm.num_engines"]) == ("3", "1")


@pytest.mark.parametrize(
    ("recipe", "shape", "own", "said"),
    [
        ("verl-grpo", "4x8x80", "trainer.nnodes=1", "70 B on 1×8×80 GB: no"),
        ("verl-grpo", "2x8x80", "actor_rollout_ref.rollout.nnodes=1", "on the training GPUs"),
        ("openrlhf-grpo", "4x8x80", "--actor.num_nodes 1", "70 B on 1×8×80 GB: no"),
        ("openrlhf-grpo", "2x8x80", "--train.async_enable", "70 B on 1×8×80 GB: no"),
        ("openrlhf-grpo", "16x1x80", "--train.async_enable", "an engine of 1 GPU of 80 GB lacks"),
        ("openrlhf-grpo", "4x8x80", "--ds.zero_stage 2", "70 B × 4 bytes = 280 GB"),
        ("verl-grpo", "4x8x80", f"{VERL_TP}=1", "with engines of 8 GPUs that have 0.55 of each"),
    ],
)
def test_too_few_gpus_that_train_are_refused(recipe: str, shape: str, own: str, said: str) -> None:
    """What the user gave is counted exactly, so that a misfit is no mere warning."""
    with pytest.raises(PreflightError) as refusal:
        sized(recipe, shape, "70B", own)
    assert said in refusal.value.why


@pytest.mark.parametrize(
    ("shape", "size", "tight", "slow"),
    [
        ("1x8x80", "7B", "", ""),
        (
            "1x8x80",
            "32B",
            "32 B on 1×8×80 GB is tight: a step with one longest sample fills",
            "slow: a micro batch is one longest sample",
        ),
        ("1x2x24", "7B", "", "slow: the optimizer works on the CPUs"),
    ],
)
def test_tight_and_slow_are_said(shape: str, size: str, tight: str, slow: str) -> None:
    """One line each, with what would help."""
    command = sized("verl-grpo", shape, size)
    assert [text for text in command.warnings if "tight" in text and tight in text] or not tight
    assert bool(command.warnings) is bool(tight)
    assert bool([note for note in command.notes if note.startswith("slow:")]) is bool(slow)
    assert not slow or any(note.startswith(slow) for note in command.notes)


def test_adapters_are_a_remedy_where_they_fit() -> None:
    """A refusal of full training names them, and only if they would be accepted."""
    for shape, has_remedy in (("1x4x80", True), ("1x1x24", False)):
        with pytest.raises(PreflightError) as refusal:
            sized("verl-grpo", shape, "70B")
        assert ("or with AGENT_LORA_RANK=32" in refusal.value.why) is has_remedy
    with pytest.raises(PreflightError) as refusal:
        sized("openrlhf-grpo", "1x4x80", "70B")
    assert "AGENT_LORA_RANK" not in refusal.value.why


def test_own_memory_arguments_are_named_in_the_warning() -> None:
    """A flag of AGENT_JOB_ARGS that changes the memory turns the refusal into a warning."""
    own = sized("openrlhf-sft", "1x1x24", "8B", "--ds.load_in_4bit")
    assert "Not refused: --ds.load_in_4bit set" in own.warnings[0]
    own_rate = "--ds.lora.rank 16 --adam.lr 1e-4"
    assert sized("openrlhf-sft", "1x1x80", "8B", own_rate).warnings == ()


def test_the_command_line(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`recipe --gpu-memory --model-size` prints the sizes, or refuses them with 78."""
    for name, text in ENVIRON.items():
        monkeypatch.setenv(name, text)
    words = ["recipe", "openrlhf-ppo", "--nodes", "1", "--gpus", "8", "--json"]
    assert main([*words, "--gpu-memory", "80GB", "--model-size", "8B"]) == 0
    made = json.loads(capfd.readouterr().out)
    assert "8 B × 20 bytes / 8 GPUs = 20.0 GB" in made["why"][f"--{STAGE}"]
    assert main([*words, "--gpu-memory", "24", "--model-size", "72B"]) == 78
    assert "72 B on 1×8×24 GB: no: " in capfd.readouterr().err
    for wrong in (["--gpu-memory", "much"], ["--model-size", "large"]):
        with pytest.raises(SystemExit) as caught:
            main([*words, *wrong])
        assert caught.value.code == 2


@pytest.mark.parametrize("name", [job.name for job in RECIPES if job.framework in SIZED])
def test_an_unknown_model_is_named(name: str) -> None:
    """Without a size the recipe keeps its defaults, and says what it assumed."""
    known = next(job for job in RECIPES if job.name == name)
    recipe = recipe_of(known)
    given: dict[str, Any] = {"scores": True, "checkpoints": "/c", "basis": JobBasis()}
    sizes = node_sizes(1, [8], None, 80)
    asked = RecipeInput(
        name, sizes, (recipe.VERSIONS or ((),))[-1], "org/a-model", "/data", **given
    )
    command = recipe.make(asked)
    assert "the model's size is not known" in "\n".join(command.notes)
    assert command.warnings == ()
    assert parsed(command).get(STAGE, "3") == "3"


@pytest.mark.parametrize(
    ("recipe", "settings"),
    [
        ("verl-grpo", {f"{FSDP}.fsdp_size": "8"}),
        ("verl-ppo", {f"{FSDP}.fsdp_size": "8", "critic.fsdp.fsdp_size": "8"}),
        ("openrlhf-grpo", {"ds.zpg": "8"}),
        ("openrlhf-sft", {"ds.zpg": None, STAGE: "2"}),  # ZeRO-2 gathers no weights
    ],
)
def test_slow_networks(recipe: str, settings: dict[str, str | None]) -> None:
    """Weights are gathered within nodes where the measured network is slow."""
    known = next(job for job in RECIPES if job.name == recipe)
    given: dict[str, Any] = {"scores": True, "checkpoints": "/c"}
    sizes = node_sizes(2, [8], None, 80)
    make, version = recipe_of(known).make, recipe_of(known).VERSIONS[-1]
    for link in (None, 5e9, 1e8):
        basis = JobBasis(model_size("7B"), link)
        command = make(RecipeInput(recipe, sizes, version, "m", "/data", basis=basis, **given))
        found = parsed(command)
        slow = link == 1e8
        expected = settings if slow else {name: None for name in settings if name != STAGE}
        assert {name: found.get(name) for name in expected} == expected
        assert ("slow (100 Mbit/s)" in " ".join(command.why.values())) == (
            slow and "sft" not in recipe
        )


@pytest.mark.parametrize(
    ("recipe", "kept", "settings"),
    [
        ("openrlhf-sft", {}, {STAGE: "2"}),
        ("openrlhf-sft", {"ZeRO stage": "3"}, {STAGE: "3"}),
        ("verl-grpo", {f"{FSDP}.fsdp_size": "8"}, {f"{FSDP}.fsdp_size": "8"}),
        (
            "verl-grpo",
            {"actor_rollout_ref.actor.strategy": "fsdp2"},
            {f"{FSDP}.offload_policy": "True"},
        ),
    ],
)
def test_the_format_of_checkpoints_stays(
    recipe: str, kept: dict[str, str], settings: dict[str, str]
) -> None:
    """A run that resumes keeps the ZeRO stage, the strategy and the partition."""
    known = next(job for job in RECIPES if job.name == recipe)
    make, version = recipe_of(known).make, recipe_of(known).VERSIONS[-1]
    sizes = node_sizes(2, [8], None, 80)
    basis = JobBasis(model_size("7B"), 1e10, kept)
    command = make(RecipeInput(recipe, sizes, version, "m", "/data", checkpoints="/c", basis=basis))
    found = parsed(command)
    assert {name: found.get(name) for name in settings} == settings
    assert all(command.format[name] == value for name, value in kept.items())


def test_own_arguments_change_the_format() -> None:
    """What the user sets is not replaced: the run is refused with both values."""
    own = sized("openrlhf-sft", "1x8x80", "7B", "--ds.zero_stage 1")
    assert own.format["ZeRO stage"] == "1"
    dtype = sized("verl-grpo", "1x8x80", "7B", f"{FSDP}.model_dtype=bf16")
    assert dtype.format[f"{FSDP}.model_dtype"] == "bf16"
