"""TRL, slime, prime-rl and Search-R1: what starts their programs, and any nodes."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.bundled import trl_grpo
from agent.frameworks import trl
from agent.frameworks.recipe import MisfitError
from support.asked_recipes import ACTOR, MINI, ROLLOUT, asked, made, refusal, settings, settings_of
from support.model_shapes import QWEN2_5_7B

TRL_SHAPES = [
    ("1x1", 1, "1 GPU = 1 process; batch 128 = 1 × 8 × 16; 16 prompts × 8"),
    ("1x8", 1, "8 GPUs = 8 processes; batch 128 = 8 × 8 × 2; 16 prompts × 8"),
    ("2x8", 2, "16 GPUs = 16 processes; batch 128 = 16 × 8 × 1; 16 prompts × 8"),
    ("3x8", 1, "24 GPUs = 24 processes; batch 192 = 24 × 8 × 1; 24 prompts × 8"),
    ("16x8", 1, "128 GPUs = 128 processes; batch 1024 = 128 × 8 × 1"),
    ("2x4", 4, "8 GPUs = 8 processes; batch 128 = 8 × 8 × 2"),
    ("8,8,4", 4, "20 GPUs = 20 processes; batch 160 = 20 × 8 × 1"),
    ("0,0", 1, "each process; batch 8 = 8 × 1; 1 prompt × 8"),
]


@pytest.mark.parametrize(("shape", "size", "note"), TRL_SHAPES)
def test_trl_on_every_shape(shape: str, size: int, note: str) -> None:
    """The program's parser accepts the command, and an update is whole groups of answers."""
    what = asked(f"trl-grpo {shape}", tensor_parallel=size, wandb=True, python="/env/bin/python")
    command = made(what, eval_data="/data/eval.jsonl")
    gpus = sum(node.gpus for node in what.nodes)
    assert command.argv[0] == "/env/bin/python"
    assert command.argv[1] == trl_grpo.__file__, "torchrun starts it by its file"
    taken = trl_grpo.parser().parse_args(command.argv[2:])
    assert note in command.notes[0]
    assert taken.cpu == (not gpus)
    assert taken.vllm_tensor_parallel_size == (size if gpus else 0)
    assert taken.shard == ("fsdp" if gpus > 1 else "none")
    assert taken.chat
    assert taken.run_name == "trl-grpo-Qwen2.5-0.5B-{run_id}"
    assert (taken.reward_url, taken.checkpoints) == ("{reward_url}", "/v/run")
    assert taken.wandb
    assert set(command.why) == {f"--{flag}" for flag in settings_of(command)}


def test_trls_recipe_has_its_programs_flags() -> None:
    """The recipe's flags, values and types are those of the program's parser."""
    kinds: dict[object, str] = {int: "i", float: "f"}
    words = {
        action.option_strings[0][2:]: (
            "0" if action.nargs == 0 else f"{action.nargs or 1}{kinds.get(action.type, '')}"
        )
        for action in trl_grpo.parser()._actions  # noqa: SLF001 - argparse has no other way
        if not isinstance(action, argparse._HelpAction)  # noqa: SLF001 - same
    }
    assert words == trl.TRL.words_of_flags


@given(
    st.lists(st.integers(1, 8), min_size=1, max_size=16),
    st.integers(2, 9),
    st.one_of(st.none(), st.integers(1, 9)),
)
def test_an_update_of_trl_is_whole_groups(gpus: list[int], group: int, each: int | None) -> None:
    """GRPOConfig refuses other sizes, but only after every process has imported TRL."""
    own = "" if each is None else f"--per-device-train-batch-size {each}"
    line = f"trl-grpo {','.join(map(str, gpus))} --num-generations {group} {own}"
    try:
        command = made(line)
    except MisfitError:
        assert each is not None, "the recipe's own sizes always fit"
        return
    taken = trl_grpo.parser().parse_args(command.argv[2:])
    batch = taken.per_device_train_batch_size * taken.gradient_accumulation_steps * sum(gpus)
    assert batch % group == 0


def test_trl_counts_no_reference_beside_adapters() -> None:
    """With a KL term the model without its adapters is the reference: no second one is counted."""
    line, fields = "trl-grpo 1x8x80", {"lora_rank": 32, "shape": QWEN2_5_7B}
    plain = made(line, **fields)
    assert made(f"{line} --beta 0.04", **fields).notes == plain.notes
    assert plain.format == {"sharding": "none", "rank of adapters": "32"}


def test_trls_server_on_a_node_of_a_group() -> None:
    """The group's server gives the command that its address gives by hand, on GPUs only."""
    group = "{addresses:generation|url}"
    usual = {"tensor_parallel": None}
    of_group = settings("trl-grpo 8,8", generation=group, **usual)
    assert of_group == settings(f"trl-grpo 8,8 --vllm-server {group}", **usual)
    without = settings("trl-grpo 8,8 --no-vllm-server", generation=group, **usual)
    assert without == settings("trl-grpo 8,8", **usual)
    said = refusal("trl-grpo 1x0", generation=group, **usual)
    assert "[services.generation]: --vllm-server: " in said
    assert " from GPUs" in said


@pytest.mark.parametrize(
    ("model", "args", "file"),
    [
        # the longest name of slime's scripts/models that the model's name begins with
        ("/v/Qwen2.5-7B-Instruct", "", "scripts/models/qwen2.5-7B.sh"),
        ("/v/Qwen3-4B", "", "scripts/models/qwen3-4B.sh"),
        ("Qwen/Qwen3-4B-Instruct-2507", "", "scripts/models/qwen3-4B-Instruct-2507.sh"),
        ("Qwen/Qwen3-4B-Base", "", "scripts/models/qwen3-4B.sh"),
        ("/v/Qwen3-30B-A3B/", "", "scripts/models/qwen3-30B-A3B.sh"),
        ("THUDM/GLM4-9B-0414", "", "scripts/models/glm4-9B.sh"),
        ("/v/our-model-7B", "--model-args own.sh", "own.sh"),
        ("/v/our-model-7B", "--model-args=own.sh", "own.sh"),
    ],
)
def test_what_describes_a_model_to_slime(model: str, args: str, file: str) -> None:
    """A shell adds what a script says of the model, or the user's file, or the user's flags."""
    command = made(f"slime-grpo 2x8x80 {args}", model=model)
    shell = ("bash", "-c", 'source "$0" && exec "$@" "${MODEL_ARGS[@]}"')
    assert command.argv[:6] == (*shell, file, "python3", "train.py")
    assert set(command.why) <= {word.partition("=")[0] for word in command.argv}
    bare = made("slime-grpo 2x8x80 --num-layers 28", model="/v/our-model-7B")
    assert bare.argv[:2] == ("python3", "train.py")


def test_slimes_other_program_and_evaluation() -> None:
    """The same arguments to `train_async.py`; two words name the evaluation's data."""
    apart = made("slime-grpo 2x8x80 --train-async")
    assert apart.argv[5] == "train_async.py"
    assert apart.argv[6:] == made("slime-grpo 2x8x80").argv[6:]
    found = settings("slime-grpo 2x8x80", eval_data="/v/e.jsonl")
    assert found["eval-prompt-data"] == "eval /v/e.jsonl"


def test_slime_keeps_the_division_of_its_checkpoints() -> None:
    """A run that resumes divides the model as the one before."""
    first = asked("slime-grpo 2x8x80")
    kept = {**made(first).format, "tensor_model_parallel_size": "4"}
    later = settings(first, basis=replace(first.basis, kept=kept))
    assert later["tensor-model-parallel-size"] == "4"


def test_prime_rls_script_and_sources() -> None:
    """A script starts the processes; the engines are those of the group, behind a router."""
    command = made("prime-rl 2x8x80", eval_data="aime24")
    assert command.argv[0] == "bash"
    assert Path(command.argv[1]).is_file()
    router, engines = "http://{address:router}:8000/v1", "{addresses:engine|url|space}"
    assert command.argv[2:5] == ("/v/run", router, engines)
    found = settings_of(command)
    for kind, name in (("train", "reverse-text"), ("eval", "aime24")):
        (source,) = json.loads(found[f"orchestrator.{kind}.source"])
        assert source["env"]["taskset"]["id"] == name
    own = made("prime-rl 2x8x80", train_data="/v/rl.toml")
    assert own.argv[5:7] == ("@", "/v/rl.toml")
    assert not [name for name in settings_of(own) if name.startswith("trainer.")]


MICRO, CRITIC = f"{ACTOR}.ppo_micro_batch_size", "critic.ppo_micro_batch_size"
LOG_PROB = f"{ROLLOUT}.log_prob_micro_batch_size"


@pytest.mark.parametrize(
    ("shape", "size", "batches", "said"),
    [
        ("1x1", 1, (512, 256, 4), "1 GPU = 1 engine × 1; batch 512 = 2 × 256"),
        ("1x8", 1, (512, 256, 32), "8 GPUs = 8 engines × 1; batch 512 = 2 × 256"),
        ("2x8", 2, (512, 256, 64), "16 GPUs = 8 engines × 2; batch 512 = 2 × 256"),
        ("3x8", 1, (576, 288, 96), "24 GPUs = 24 engines × 1; batch 576 = 2 × 288"),
        ("16x8", 8, (512, 256, 256), "128 GPUs = 16 engines × 8; batch 512 = 2 × 256"),
        ("2x4", 4, (512, 256, 32), "8 GPUs = 2 engines × 4; batch 512 = 2 × 256"),
        ("8,8,4", 2, (480, 240, 80), "20 GPUs = 10 engines × 2; batch 480 = 2 × 240"),
        ("0,8", 1, (512, 256, 32), "8 GPUs = 8 engines × 1; batch 512 = 2 × 256"),
    ],
)
def test_search_r1_on_every_shape(
    shape: str, size: int, batches: tuple[int, ...], said: str
) -> None:
    """Its authors' 512, 256 and 64 on 16 GPUs; on others the nearest divisible sizes."""
    command = made(f"search-r1-ppo {shape}", tensor_parallel=size)
    found = settings_of(command)
    assert tuple(int(found[key]) for key in ("data.train_batch_size", MINI, MICRO)) == batches
    assert command.notes[0] == said
    assert set(command.why) == set(found)


@pytest.mark.parametrize(("recipe", "count"), [("search-r1-ppo", 7), ("search-r1-grpo", 4)])
def test_search_r1_offloads_on_one_node(recipe: str, count: int) -> None:
    """Its authors keep models and optimizer in the host's memory there, and not on two nodes."""
    one, two = (settings(f"{recipe} {nodes}") for nodes in ("0,8", "2x8"))
    assert [one[key] for key in one if key.endswith("_offload")] == ["True"] * count
    assert not [key for key in two if key.endswith("_offload")]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6), st.integers(1, 9), st.integers(0, 300))
def test_search_r1_on_any_nodes(gpus: list[int], size: int, mini: int) -> None:
    """Every GPU gets the same whole number of samples of each batch, at least one."""
    own = f"{MINI}={mini}" if mini else ""
    try:
        found = settings(f"search-r1-ppo {','.join(map(str, gpus))} {own}", tensor_parallel=size)
    except MisfitError:
        return
    total = int(found["trainer.nnodes"]) * int(found["trainer.n_gpus_per_node"])
    assert total % size == 0
    for key in ("data.train_batch_size", MINI, MICRO, CRITIC, LOG_PROB):
        assert int(found[key]) % total == 0
        assert int(found[key])
    assert int(found["data.train_batch_size"]) % int(found[MINI]) == 0
    assert int(found[MINI]) % int(found[MICRO]) == 0
    assert int(found[MINI]) % int(found[CRITIC]) == 0
