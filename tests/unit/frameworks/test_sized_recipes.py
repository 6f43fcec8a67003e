"""`recipe NAME --gpu-memory --model-size`: what each recipe sets by memory, without a GPU."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.base.errors import PreflightError
from agent.cli.command_line import main
from agent.cli.options import model_size
from agent.frameworks.pace import HOUR, StepWork, step_seconds, steps_between_saves
from agent.frameworks.recipe import JobBasis, NodeSize
from agent.settings.jobs import RECIPES
from support.asked_recipes import ACTOR, FSDP, REF, ROLLOUT, asked, differing, expected, made
from support.asked_recipes import SHARE as VERL_SHARE
from support.asked_recipes import TENSOR as VERL_TP
from support.framework_defaults import parsed
from support.sized_commands import ENVIRON, sized

SIZED = {"openrlhf", "openrlhf-m", "verl", "search-r1", "trl"}
TP, SHARE = "vllm.tensor_parallel_size", "vllm.gpu_memory_utilization"
TOKENS, STAGE, OFFLOAD = "train.max_tokens_per_gpu", "ds.zero_stage", "ds.adam_offload"
VERL_TOKENS = f"{ACTOR}.ppo_max_token_len_per_gpu"
CRITIC = "critic.fsdp.optimizer_offload"


@pytest.mark.parametrize(
    ("line", "sets"),
    [
        ("openrlhf-grpo 1x8x80 7B", f"{TP}=1 {SHARE}=0.6 {STAGE}=3 !{OFFLOAD}"),
        ("openrlhf-grpo 2x8x80 32B", f"{TP}=4 {SHARE}=0.6 {TOKENS}=12288"),
        ("openrlhf-grpo 1x8x80 32B", f"{TP}=4 {OFFLOAD}=on {STAGE}=3"),
        ("openrlhf-grpo 1x4x24 7B", f"{TP}=4 {OFFLOAD}=on {TOKENS}=4096"),
        ("openrlhf-ppo 1x8x80 8B", f"{TP}=1 {SHARE}=0.5 !{OFFLOAD}"),
        ("openrlhf-m-grpo 2x8x80 7B", "vllm_tensor_parallel_size=1"),
        ("openrlhf-sft 1x8x80 8B", f"{STAGE}=2 !{OFFLOAD}"),
        ("openrlhf-sft 2x8x80 32B", f"{STAGE}=3 !{OFFLOAD}"),
        ("openrlhf-sft 1x8x80 32B", f"{STAGE}=3 {OFFLOAD}=on"),
        ("openrlhf-sft 1x1x80 8B --ds.lora.rank 16 --adam.lr 1e-4", ""),
        ("openrlhf-dpo 1x8x80 14B", f"{STAGE}=3 !{OFFLOAD}"),
        ("verl-grpo 1x8x80 7B", f"{VERL_TP}=1 {VERL_SHARE}=0.6 {VERL_TOKENS}=24576"),
        ("verl-grpo 1x8x80 7B", f"!{FSDP}.param_offload !{FSDP}.fsdp_size"),
        ("verl-grpo 4x8x80 72B", f"{VERL_TP}=8 {VERL_SHARE}=0.55 {VERL_TOKENS}=11264"),
        ("verl-grpo 1x2x80 7B", f"{FSDP}.param_offload=True {VERL_SHARE}=0.6"),
        ("verl-grpo 1x4x24 7B", f"{FSDP}.offload_policy=True {VERL_TP}=4 {ACTOR}.strategy=fsdp2"),
        ("verl-ppo 2x8x80 32B", f"{CRITIC}=True {VERL_TP}=4"),
        ("verl-ppo 1x8x80 8B", f"!{CRITIC} {VERL_SHARE}=0.55"),
        ("search-r1-ppo 2x8x80 7B", f"{VERL_TP}=1 !{FSDP}.grad_offload"),
        ("search-r1-ppo 1x8x80 7B", f"{VERL_SHARE}=0.6 {FSDP}.grad_offload=True"),
        ("search-r1-grpo 4x8x80 32B", f"{VERL_TP}=4 !{FSDP}.param_offload"),
        ("trl-grpo 1x8x80 7B", "shard=fsdp vllm-tensor-parallel-size=1"),
        ("trl-grpo 2x8x80 32B", "shard=fsdp vllm-tensor-parallel-size=4"),
        ("trl-grpo 1x8x80 32B", "shard=offload !vllm-gpu-memory-utilization"),
    ],
)
def test_settings_follow_from_memory(line: str, sets: str) -> None:
    """Tensor parallel, ZeRO stage, offload, token caps and engine share follow from memory."""
    command = sized(line)
    assert differing(command, sets) == {}
    assert command.warnings == ()


PAIRS = (
    "--train.colocate_actor_ref --train.colocate_critic_reward --actor.num_nodes 1 "
    "--actor.num_gpus_per_node 4 --critic.num_nodes 1 --critic.num_gpus_per_node 4 "
    "--reward.num_nodes 1 --reward.num_gpus_per_node 4 --vllm.num_engines"
)
"""The placement of OpenRLHF's document for two nodes."""
REWARD_MODEL = {"AGENT_REWARD_MODEL": "org/rm", "AGENT_REWARD": "off"}
ASYNC = "--train.async_enable"
LONG = "--rollout.max_new_tokens 30000 --data.max_len 31000"
TWO_ENGINES = "--vllm.num_engines 2 --vllm.tensor_parallel_size 4"


@pytest.mark.parametrize(
    ("line", "sets", "why"),
    [
        # verl: 32 B over the 8 GPUs that train, not over 16
        (
            "verl-grpo 2x8x80 32B trainer.nnodes=1",
            f"trainer.nnodes=1 {FSDP}.optimizer_offload=True",
            "32 B × 16 bytes / 8 GPUs",
        ),
        (
            "verl-grpo 2x8x80 32B trainer.n_gpus_per_node=4",
            "trainer.nnodes=4",
            "32 B × 16 bytes / 16 GPUs",
        ),
        # OpenRLHF's engines have the other node, or half of the GPUs of the only one; more for
        # long answers, as long as the trainer keeps what holds the model
        (
            f"openrlhf-grpo 2x8x80 32B {ASYNC}",
            f"actor.num_nodes=1 ref.num_nodes=1 vllm.num_engines=2 {TP}=4",
            "/ 8 GPUs",
        ),
        (
            f"openrlhf-grpo 4x8x80 7B {ASYNC} {LONG}",
            "actor.num_nodes=1 vllm.num_engines=24",
            "/ 8 GPUs",
        ),
        (
            f"openrlhf-grpo 4x8x80 70B {ASYNC} {LONG}",
            "actor.num_nodes=3 vllm.num_engines=1",
            "/ 24 GPUs",
        ),
        (
            f"openrlhf-grpo 1x8x80 7B {ASYNC} --no-vllm.enable_sleep",
            f"actor.num_gpus_per_node=4 vllm.num_engines=4 {SHARE}=0.95",
            "/ 4 GPUs",
        ),
        (
            f"openrlhf-grpo 4x8x80 32B {ASYNC} {TWO_ENGINES}",
            "actor.num_nodes=3 vllm.num_engines=2",
            "/ 24 GPUs",
        ),
        (
            "openrlhf-grpo 2x8x80 14B --actor.num_nodes 1",
            f"actor.num_nodes=1 ref.num_nodes=1 vllm.num_engines=4 {TP}=2",
            "/ 8 GPUs",
        ),
        (
            "openrlhf-grpo 1x8x80 7B --data.max_len 34816 --ds.ring_attn_size 4",
            f"{TOKENS}=16384 rollout.max_tokens_per_gpu=16384",
            "/ 8 GPUs",
        ),
        # pairs of models on GPUs of their own: engines have theirs alone
        (
            f"openrlhf-ppo 2x8x80 7B {PAIRS} 8",
            f"{TP}=1 !{OFFLOAD} !{SHARE}",
            "ZeRO-3: 7 B × 18 bytes / 4 GPUs = 31.5 GB",
        ),
        (
            f"openrlhf-ppo 2x8x80 14B {PAIRS} 2",
            f"{TP}=2 {OFFLOAD}=on !{SHARE}",
            "14 B × 6 bytes / 4 GPUs = 21.0 GB",
        ),
        (
            f"openrlhf-ppo 2x8x80 70B {PAIRS} 1",
            f"{TP}=8 {OFFLOAD}=on !{SHARE}",
            "takes the least memory",
        ),
    ],
)
def test_memory_is_counted_over_the_gpus_that_train(line: str, sets: str, why: str) -> None:
    """The user's own keys say how many train, and in OpenRLHF which engines have their own."""
    command = sized(line, environ=REWARD_MODEL if PAIRS in line else None)
    assert differing(command, sets) == {}
    assert why in command.why[VERL_SHARE if line.startswith("verl") else f"--{STAGE}"]
    misfit = any("70 B on 1×4×80 GB: no" in warning for warning in command.warnings)
    assert misfit is line.startswith("openrlhf-ppo 2x8x80 70B")
    assert " 70B " in line or all("is tight" in warning for warning in command.warnings)
    assert ("idle" in command.notes[0]) is line.endswith("--actor.num_nodes 1")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        # the smallest nodes that fit
        ("openrlhf-ppo 1x8x24 72B", "from 21×8 on"),
        ("openrlhf-grpo 1x1x24 7B", "from 1×4 on"),
        ("openrlhf-sft 1x1x24 8B", "from 1×8 on"),
        ("verl-grpo 1x8x80 72B", "from 2×8 on"),
        ("verl-ppo 1x8x24 72B", "from 3×8 on"),
        ("search-r1-ppo 1x8x80 72B", "from 4×8 on"),
        ("trl-grpo 1x1x80 7B", "from 1×2 on, or with GPUs of 141 GB"),
        # what the user gave is counted exactly, so that a misfit is no mere warning
        ("verl-grpo 4x8x80 70B trainer.nnodes=1", "70 B on 1×8×80 GB: no"),
        (f"verl-grpo 2x8x80 70B {ROLLOUT}.nnodes=1", "on the training GPUs"),
        (f"verl-grpo 4x8x80 70B {VERL_TP}=1", "with engines of 8 GPUs that have 0.55 of each"),
        ("openrlhf-grpo 4x8x80 70B --actor.num_nodes 1", "70 B on 1×8×80 GB: no"),
        (f"openrlhf-grpo 2x8x80 70B {ASYNC}", "70 B on 1×8×80 GB: no"),
        (f"openrlhf-grpo 16x1x80 70B {ASYNC}", "an engine of 1 GPU of 80 GB lacks room"),
        ("openrlhf-grpo 4x8x80 70B --ds.zero_stage 2", "70 B × 4 bytes = 280 GB"),
        # adapters are a remedy where they fit, of full training with verl-grpo
        ("verl-grpo 1x4x80 70B", "or with AGENT_LORA_RANK=32"),
    ],
)
def test_what_cannot_fit_is_refused(line: str, said: str) -> None:
    """78 with the reason and a remedy; also with engines of the user's, which are counted."""
    for own in ({}, {"AGENT_TENSOR_PARALLEL": "1"} if "from " in said else {}):
        with pytest.raises(PreflightError) as caught:
            sized(line, environ=own)
        assert caught.value.end.exit_code == 78
        assert said in caught.value.sentence()


@pytest.mark.parametrize("line", ["verl-grpo 1x1x24 70B", "openrlhf-grpo 1x4x80 70B"])
def test_adapters_are_no_remedy_where_they_do_not_fit(line: str) -> None:
    """Nor where the recipe has none."""
    with pytest.raises(PreflightError) as refusal:
        sized(line)
    assert "AGENT_LORA_RANK" not in refusal.value.why


TIGHT = "32 B on 1×8×80 GB is tight: a step with one longest sample fills"
CRITIC_14B = "critic.model.path=Qwen/Qwen2.5-14B"
LORA = "actor_rollout_ref.model.lora_rank"
BY_LORA = "adapters (LoRA) train at"


@pytest.mark.parametrize(
    ("line", "warned"),
    [
        ("verl-grpo 1x8x80 7B", ""),
        ("verl-grpo 1x8x80 32B", TIGHT),
        ("verl-grpo 1x2x24 7B", ""),
        # a flag that changes the memory turns the refusal into a warning
        ("openrlhf-sft 1x1x24 8B --ds.load_in_4bit", "Not refused: --ds.load_in_4bit set"),
        # LoRA learns hardly anything at the rate of full training
        (f"verl-grpo 1x8x80 7.6B {LORA}=32", BY_LORA),
        (f"verl-grpo 1x8x80 7.6B {LORA}=0", ""),
        (f"verl-grpo 1x8x80 7.6B {LORA}=32 {ACTOR}.optim.lr=1e-5", ""),
        ("openrlhf-grpo 1x8x80 7.6B --ds.lora.rank 16", BY_LORA),
        ("openrlhf-grpo 1x8x80 7.6B --ds.lora.rank 16 --actor.adam.lr 1e-5", ""),
        ("openrlhf-sft 1x8x80 7.6B --ds.lora.rank 16", BY_LORA),
        ("openrlhf-sft 1x8x80 7.6B", ""),
        # memory is counted for a critic of the actor's size
        (f"verl-ppo 1x8x80 7.6B {CRITIC_14B}", "Qwen2.5-14B has 14 B: memory is counted for"),
        (f"verl-ppo 1x8x80 7.6B {CRITIC_14B}", "`recipe --model-size` sizes for a larger one"),
        ("verl-ppo 1x8x80 7.6B critic.model.path=Qwen/Qwen2.5-3B", ""),
        (f"verl-grpo 1x8x80 7.6B {CRITIC_14B}", ""),
        ("search-r1-ppo 1x8x80 7.6B critic.model.path=our/critic", "critic has an unknown size: m"),
        ("openrlhf-ppo 1x8x80 7.6B --critic.model_name_or_path our/rm-70B", "rm-70B has 70 B: mem"),
        # OpenRLHF#887: 37k tokens of 7B on 3×8×80 run out of memory
        ("openrlhf-grpo 3x8x80 7.6B --data.max_len 37888", "tight"),
        ("openrlhf-grpo 3x8x80 7.6B", ""),
    ],
)
def test_warnings(line: str, warned: str) -> None:
    """One warning with what would help, or none."""
    host = 2048 if "7.6B" in line and "3x8" not in line else None
    warnings = sized(line, host).warnings
    assert bool(warnings) is bool(warned)
    assert warned in "\n".join(warnings)


@pytest.mark.parametrize(
    ("line", "slow"),
    [
        ("verl-grpo 1x8x80 7B", ""),
        ("verl-grpo 1x8x80 32B", "slow: a micro batch is one longest sample"),
        ("verl-grpo 1x2x24 7B", "slow: the optimizer works on the CPUs"),
    ],
)
def test_slow_training_is_noted(line: str, slow: str) -> None:
    """One line, with the reason."""
    notes = [note for note in sized(line).notes if note.startswith("slow:")]
    assert [note[: len(slow)] for note in notes] == [slow] * bool(slow)


def test_the_command_line(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`recipe --gpu-memory --model-size` prints the sizes, or refuses them with 78."""
    for name, text in ENVIRON.items():
        monkeypatch.setenv(name, text)
    words = ["recipe", "openrlhf-ppo", "--nodes", "1", "--gpus", "8", "--json"]
    assert main([*words, "--gpu-memory", "80GB", "--model-size", "8B"]) == 0
    printed = json.loads(capfd.readouterr().out)
    assert "8 B × 20 bytes / 8 GPUs = 20.0 GB" in printed["why"][f"--{STAGE}"]
    assert main([*words, "--gpu-memory", "24", "--model-size", "72B"]) == 78
    assert "72 B on 1×8×24 GB: no: " in capfd.readouterr().err
    for wrong in (["--gpu-memory", "much"], ["--model-size", "large"]):
        with pytest.raises(SystemExit) as caught:
            main([*words, *wrong])
        assert caught.value.code == 2


@pytest.mark.parametrize("name", [job.name for job in RECIPES if job.framework in SIZED])
def test_an_unknown_model_is_named(name: str) -> None:
    """Without a size the recipe keeps its defaults, and says what it assumed."""
    command = made(f"{name} 1x8x80", model="org/a-model", tensor_parallel=None)
    assert "the model's size is not known" in "\n".join(command.notes)
    assert command.warnings == ()
    assert parsed(command).get(STAGE, "3") == "3"


@pytest.mark.parametrize(
    ("recipe", "sets"),
    [
        ("verl-grpo", f"{FSDP}.fsdp_size=8"),
        ("verl-ppo", f"{FSDP}.fsdp_size=8 critic.fsdp.fsdp_size=8"),
        ("openrlhf-grpo", "ds.zpg=8"),
        ("openrlhf-sft", f"!ds.zpg {STAGE}=2"),  # ZeRO-2 gathers no weights
    ],
)
def test_slow_networks(recipe: str, sets: str) -> None:
    """Weights are gathered within nodes where the measured network is slow."""
    for link in (None, 5e9, 1e8):
        basis = JobBasis(model_size("7B"), link)
        command = made(f"{recipe} 2x8x80", basis=basis, scores=True)
        slow = link == 1e8
        usual = [f"!{name}" for name in expected(sets) if name != STAGE]
        assert differing(command, sets if slow else " ".join(usual)) == {}
        said = "slow (100 Mbit/s)" in " ".join(command.why.values())
        assert said == (slow and "sft" not in recipe)


@pytest.mark.parametrize(
    ("recipe", "kept", "sets"),
    [
        ("openrlhf-sft", {}, f"{STAGE}=2"),
        ("openrlhf-sft", {"ZeRO stage": "3"}, f"{STAGE}=3"),
        ("verl-grpo", {f"{FSDP}.fsdp_size": "8"}, f"{FSDP}.fsdp_size=8"),
        ("verl-grpo", {f"{ACTOR}.strategy": "fsdp2"}, f"{FSDP}.offload_policy=True"),
    ],
)
def test_the_format_of_checkpoints_stays(recipe: str, kept: dict[str, str], sets: str) -> None:
    """A run that resumes keeps the ZeRO stage, the strategy and the partition."""
    basis = JobBasis(model_size("7B"), 1e10, kept)
    command = made(f"{recipe} 2x8x80", basis=basis)
    assert differing(command, sets) == {}
    assert kept.items() <= command.format.items()


def test_own_arguments_change_the_format() -> None:
    """What the user sets is not replaced: the run is refused with both values."""
    stage = sized("openrlhf-sft 1x8x80 7B --ds.zero_stage 1")
    assert stage.format["ZeRO stage"] == "1"
    dtype = sized(f"verl-grpo 1x8x80 7B {FSDP}.model_dtype=bf16")
    assert dtype.format[f"{FSDP}.model_dtype"] == "bf16"


# Cases that users of the frameworks reported: what ran out of memory there is not accepted.
ZERO1 = "--ds.zero_stage 1 --data.max_len 7096 --vllm.tensor_parallel_size 1"


@pytest.mark.parametrize(
    ("line", "host"),
    [
        ("verl-grpo 1x8x80 7.6B", 96),  # verl#224
        ("verl-grpo==0.5.0 1x8x80 7.6B", 96),  # with the verl of then
        ("verl-grpo 1x8x80 32.8B", 400),  # verl#1964
        ("verl-grpo 1x1x80 7.6B", 128),
        ("verl-grpo 2x8x80 72.7B", 768),  # with the reference in float32
        (f"openrlhf-grpo 2x8x80 7.6B {ZERO1}", 512),  # OpenRLHF#1013, while models load
    ],
)
def test_too_little_memory_of_the_nodes_is_refused_as_that(line: str, host: int) -> None:
    """The refusal names the nodes' memory, its phases and a remedy, and no memory of GPUs."""
    with pytest.raises(PreflightError) as caught:
        sized(line, host)
    text = caught.value.sentence()
    assert "the GPUs suffice, the nodes' memory does not" in text
    phases = (" to load, ", " to train, ", " to save)") if line.startswith("verl") else ()
    for words in (*phases, "GiB of memory on each node"):
        assert words in text


@pytest.mark.parametrize(
    ("line", "host"),
    [
        ("verl-grpo 1x8x80 7.6B", 1024),
        ("verl-grpo 2x8x80 32.8B", 1024),
        ("verl-grpo 1x1x80 7.6B", 256),
        ("verl-grpo 2x8x80 72.7B", 1536),
        ("search-r1-ppo 4x8x80 32.8B", 1024),
        ("search-r1-grpo 4x8x80 72.7B", 1024),
        ("trl-grpo 2x8x80 32.8B", 256),
        ("openrlhf-grpo 1x4x16 0.5B", 64),
        ("openrlhf-grpo 2x8x80 7.6B", 512),  # OpenRLHF#1013 without ZeRO-1, or with engines awake
        (f"openrlhf-grpo 2x8x80 7.6B {ZERO1} --no-vllm.enable_sleep", 512),
    ],
)
def test_enough_memory_of_the_nodes_is_accepted(line: str, host: int) -> None:
    """What runs is not refused, and needs no warning."""
    assert sized(line, host).warnings == ()


RATE, SAMPLES = f"{ACTOR}.optim.lr", f"{ACTOR}.ppo_micro_batch_size"
LOGS, SAVED = f"{ROLLOUT}.log_prob_micro_batch_size", f"{ACTOR}.checkpoint.save_contents"


@pytest.mark.parametrize(
    ("line", "host", "sets"),
    [
        (
            "search-r1-ppo 4x8x80 32.8B",
            1024,
            (
                f"{RATE}=2e-7 {SAMPLES}=32 {LOGS}=32 {FSDP}.optimizer_offload=True"
                f" critic.model.fsdp_config.optimizer_offload=True !{FSDP}.param_offload"
                f" {VERL_SHARE}=0.5"
            ),
        ),
        (
            "search-r1-grpo 4x8x80 32.8B",
            1024,
            f"{RATE}=2e-7 {SAMPLES}=64 {LOGS}=128 !{FSDP}.optimizer_offload",
        ),
        (
            "search-r1-grpo 4x8x80 72.7B",
            1024,
            (
                f"{RATE}=1e-7 {SAMPLES}=32 {LOGS}=32 {FSDP}.param_offload=True"
                f" {REF}.fsdp_config.param_offload=True"
            ),
        ),
        ("search-r1-ppo 2x2x24 1.5B", 128, f"!{RATE} {SAMPLES}=4 {LOGS}=8"),
    ],
)
def test_search_r1_runs_as_its_authors_do(line: str, host: int, sets: str) -> None:
    """Rates, samples and offload of their scripts by size, and fewer samples on small GPUs."""
    assert differing(sized(line, host), sets) == {}


@pytest.mark.parametrize(
    ("line", "host", "whole"),
    [
        # one node would gather them: 6 bytes of each parameter
        ("verl-grpo 4x8x80 7.6B", 2048, True),
        ("verl-grpo 4x8x80 14.8B", 2048, False),
        ("verl-grpo 4x8x80 72.7B", 2048, False),
        # a small node saves shards only, rather than that the job is refused
        ("verl-grpo 1x1x24 1.5B", 64, True),
        ("verl-grpo 1x1x24 1.5B", 44, False),
    ],
)
def test_large_models_are_saved_in_shards(line: str, host: int, *, whole: bool) -> None:
    """Then the notes name the program that merges them."""
    command = sized(line, host)
    assert ("hf_model" in parsed(command).get(SAVED, "")) is whole
    assert any("verl.model_merger" in note for note in command.notes) is not whole


def test_sleeping_engines_count_unless_they_are_turned_off() -> None:
    """The flag itself, given by the user, changes nothing."""
    line = "openrlhf-grpo 2x8x80 7.6B"
    usual = sized(line, 512).notes[-1]
    assert sized(f"{line} --vllm.enable_sleep", 512).notes[-1] == usual
    assert sized(f"{line} --no-vllm.enable_sleep", 512).notes[-1] != usual


# Checkpoints about every hour: by an estimate of a step.
SAVES = {
    "verl": "trainer.save_freq",
    "openrlhf-m": "save_steps",
    "openrlhf": "ckpt.save_steps",
    "trl": "save-steps",
}


@pytest.mark.parametrize(
    ("line", "steps"),
    [
        ("verl-grpo 1x1x24 1.5B", 6),
        ("verl-grpo 1x1x80 3B", 7),
        ("verl-grpo 1x8x80 7B", 6),
        ("verl-grpo 4x8x80 7B", 20),
        ("verl-ppo 1x8x80 7B", 20),
        ("openrlhf-grpo 1x1x24 1.5B", 5),
        ("openrlhf-grpo 2x8x80 7B", 20),
        ("openrlhf-m-grpo 2x8x80 7B", 5),
        ("openrlhf-sft 1x2x80 8B", 47),
        ("openrlhf-sft 2x8x80 8B", 100),
        ("trl-grpo 1x2x80 7B", 20),
    ],
)
def test_checkpoints_are_about_an_hour_apart(line: str, steps: int) -> None:
    """As often as usual, or fewer steps where a step takes long; the reason has the estimate."""
    command = sized(line, 2048)
    key = next(key for start, key in SAVES.items() if line.startswith(start))
    assert parsed(command)[key] == str(steps)
    flag = key if line.startswith("verl") else f"--{key}"
    assert re.search(r"every .*about \d+ (s|min|h).* a step, estimated", command.why[flag])


@pytest.mark.parametrize(
    ("line", "batch"),
    [
        # few cards get a batch of a quarter of an hour
        ("verl-grpo 1x1x24 0.5B", 512),
        ("verl-grpo 1x1x24 1.5B", 128),
        ("verl-grpo 1x1x24 3B", 64),
        ("verl-grpo 1x2x24 7B", 64),
        ("verl-grpo 2x2x24 7B", 128),
        ("verl-grpo 1x4x48 4B", 512),
        # 256 answers at least, from which a group learns, also of PPO with one for each prompt
        ("verl-grpo 1x2x80 7B data.max_response_length=16384", 32),
        ("verl-ppo 1x2x80 7B data.max_response_length=16384", 256),
    ],
)
def test_few_cards_get_smaller_batches(line: str, batch: int) -> None:
    """They take hours for the 1,024 prompts × 8 answers that verl trains on."""
    command = sized(line, 2048)
    found = parsed(command)
    assert found["data.train_batch_size"] == str(batch)
    assert found[f"{ACTOR}.ppo_mini_batch_size"] == str(batch // 4)
    assert "since a step of 1024 would take about" in command.why["data.train_batch_size"]


def test_states_in_cpu_memory_count_in_every_recipe() -> None:
    """A step of 7B on two small cards moves all weights, and its optimizer works on the CPUs."""
    why = sized("trl-grpo 1x2x24 7B", 2048).why["--save-steps"]
    seconds = re.search(r"about (\d+) s a step, estimated: .*, with states in CPU memory", why)
    assert seconds is not None
    assert 45 <= int(seconds[1]) <= 75  # Without those states about 31 s


def test_the_users_steps_stay() -> None:
    """What the user sets is not estimated."""
    own = "trainer.save_freq=7 data.train_batch_size=1024"
    assert differing(sized(f"verl-grpo 1x1x24 1.5B {own}", 2048), own) == {}


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
    node = NodeSize(gpus, gpu_memory=memory)
    what = asked("verl-grpo 1x8", nodes=(node,), shape=model_size(size))
    steps, why = steps_between_saves(what, step, usual)
    seconds = step_seconds(what, step)
    assert seconds is not None
    assert 1 <= steps <= usual
    assert steps == 1 or steps * seconds <= (1.5 if steps == usual else 1) * HOUR
    assert steps == usual or (steps + 1) * seconds > HOUR
    assert "a step, estimated" in why
    # without an estimate, of an unknown model or on CPUs, as usual
    assert steps_between_saves(asked("verl-grpo 1x8x80"), step, usual) == (usual, "")
    on_cpus = asked("verl-grpo 1x0x80", shape=model_size(size))
    assert steps_between_saves(on_cpus, step, usual) == (usual, "")
