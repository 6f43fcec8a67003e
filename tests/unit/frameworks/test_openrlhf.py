"""OpenRLHF and its fork: flags of each release, and sizes that divide."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.frameworks import openrlhf, openrlhf_m
from agent.frameworks.recipe import MisfitError
from support.asked_recipes import asked, made, settings_of

if TYPE_CHECKING:
    from agent.frameworks.recipe import Command

RELEASES = tuple(".".join(map(str, version)) for version in openrlhf.VERSIONS)
OLDER = ("0.8.0", "0.8.10", "0.9.1", "0.9.2", "0.9.8", "0.10.1", "0.10.2", *RELEASES[:-1])
PROGRAMS = {"openrlhf-sft": "sft", "openrlhf-rm": "rm", "openrlhf-dpo": "dpo"}
FLAT = openrlhf.arguments_of("train_ppo_ray", "ppo", asked("openrlhf-grpo==0.9.10 1x8"))
"""A release whose flags have no dots."""


def number(command: Command, flag: str, default: int = 0) -> int:
    """Return the number of a flag by its dotted name, whatever the version calls it."""
    found = settings_of(command)
    return int(found.get(flag) or found.get(FLAT.name_of(flag)) or default)


def check_flags(command: Command, program: str, version: tuple[int, ...]) -> None:
    """Each flag is one of the version, with as many words as it takes."""
    known = openrlhf.flags_of(program, version)[0]
    for flag, words in settings_of(command).items():
        count = 0 if words == "on" else len(words.split())
        assert known[flag][0] == str(count), f"{version} takes --{flag} otherwise"
    assert set(command.why) <= {f"--{flag}" for flag in settings_of(command)}


def check_sizes(command: Command, gpus: int) -> None:
    """Hold a command against what OpenRLHF and DeepSpeed assert, and what would wait for ever."""
    world = number(command, "actor.num_nodes") * number(command, "actor.num_gpus_per_node")
    engines = number(command, "vllm.num_engines") * number(command, "vllm.tensor_parallel_size")
    assert world == engines == gpus
    assert world == number(command, "ref.num_nodes") * number(command, "ref.num_gpus_per_node")
    train = number(command, "train.batch_size")
    assert train % (number(command, "train.micro_batch_size") * world) == 0
    answers = number(command, "rollout.n_samples_per_prompt", 1)
    samples = number(command, "rollout.batch_size") * answers
    assert samples % train == 0
    assert samples % (world * number(command, "rollout.micro_batch_size")) == 0


SHAPES = [
    ("1x1", 1, "1 GPU = 1 engine × 1; batch 128 = 1 × 128"),
    ("1x8", 1, "8 GPUs = 8 engines × 1; batch 128 = 8 × 16"),
    ("2x8", 2, "16 GPUs = 8 engines × 2; batch 128 = 16 × 8"),
    ("3x8", 1, "24 GPUs = 24 engines × 1; batch 120 = 24 × 5"),
    ("16x8", 8, "128 GPUs = 16 engines × 8; batch 128 = 128 × 1"),
    ("2x4", 4, "8 GPUs = 2 engines × 4; batch 128 = 8 × 16"),
    ("2x4", 8, "nodes of 4, 4 GPUs: 8 GPUs = 1 engine × 8"),
    ("8,8,4", 2, "nodes of 8, 8, 4 GPUs: 20 GPUs = 10 engines × 2"),
    ("0,8,8", 2, "16 GPUs = 8 engines × 2; batch 128 = 16 × 8"),
]
NEWEST = RELEASES[-1]


@pytest.mark.parametrize("recipe", ["openrlhf-grpo", "openrlhf-ppo"])
@pytest.mark.parametrize(
    ("version", "shape", "size", "note"),
    [*((NEWEST, *row) for row in SHAPES), *((old, *SHAPES[7]) for old in OLDER)],
)
def test_every_version_and_every_shape(
    recipe: str, version: str, shape: str, size: int, note: str
) -> None:
    """Flags are those of the version, sizes are divisible, and the note has the arithmetic."""
    what = asked(f"{recipe}=={version} {shape}", tensor_parallel=size)
    command = made(what)
    assert command.argv[:3] == ("python3", "-m", "openrlhf.cli.train_ppo_ray")
    check_flags(command, "ppo", what.version)
    check_sizes(command, sum(node.gpus for node in what.nodes))
    assert note in command.notes[0]


@given(
    st.lists(st.sampled_from([0, 1, 2, 4, 6, 7, 8]), min_size=1, max_size=16),
    st.sampled_from([1, 2, 3, 4, 8, 16]),
    st.sampled_from([*OLDER, NEWEST]),
    st.sampled_from(["openrlhf-grpo", "openrlhf-ppo"]),
    st.integers(0, 5),
    st.integers(0, 20),
)
def test_sizes_divide_or_are_refused(  # noqa: PLR0913 - one for each thing that varies
    gpus: list[int], size: int, version: str, recipe: str, micro: int, samples: int
) -> None:
    """Any nodes and batches of the user give a command that fits, or a refusal."""
    nodes = ",".join(map(str, gpus))
    plain = asked(f"{recipe}=={version} {nodes}", tensor_parallel=size)
    program = openrlhf.arguments_of("train_ppo_ray", "ppo", plain)
    own: list[str] = []
    if micro:
        own += [f"--{program.name_of('train.micro_batch_size')}", str(micro)]
    if samples:
        own += [f"--{program.name_of('rollout.n_samples_per_prompt')}", str(samples)]
    having = [count for count in gpus if count]
    whole = all(count % size == 0 for count in having)
    spans = len({*having}) == 1 and size % having[0] == 0
    if having and (whole or (spans and sum(having) % size == 0)):
        check_sizes(made(plain, args=tuple(own)), sum(gpus))
    else:
        with pytest.raises(MisfitError, match=r"AGENT_TENSOR_PARALLEL|no node has one"):
            made(plain, args=tuple(own))


TRAIN_SHAPES = [
    ("1x1", "1 GPU = 1 process; batch 256 = 1 × 256"),
    ("1x8", "8 GPUs = 8 processes; batch 256 = 8 × 32"),
    ("2x8", "16 GPUs = 16 processes; batch 256 = 16 × 16"),
    ("3x8", "24 GPUs = 24 processes; batch 264 = 24 × 11"),
    ("16x8", "128 GPUs = 128 processes; batch 256 = 128 × 2"),
    ("8,8,4", "20 GPUs = 20 processes; batch 260 = 20 × 13"),
]


@pytest.mark.parametrize("recipe", PROGRAMS)
@pytest.mark.parametrize(
    ("version", "shape", "note"),
    [*((NEWEST, *row) for row in TRAIN_SHAPES), *((old, *TRAIN_SHAPES[5]) for old in OLDER)],
)
def test_torchrun_on_every_shape(recipe: str, version: str, shape: str, note: str) -> None:
    """Flags are those of the version, ranks are equal, and the note has the arithmetic."""
    line = f"{recipe}=={version} {shape}"
    what = asked(line, wandb=True, eval_data="/data/eval.jsonl", scores=False)
    command = made(what)
    assert command.argv[:3] == ("python3", "-m", f"openrlhf.cli.train_{PROGRAMS[recipe]}")
    check_flags(command, PROGRAMS[recipe], what.version)
    assert command.notes[0] == note
    assert "/v/run/state" in command.argv, "a folder of its own, whose old neighbors it deletes"
    flags = {flag.rpartition(".")[2] for flag in settings_of(command)}
    assert ("output_key" in flags) == (recipe == "openrlhf-sft")
    assert ("chosen_key" in flags) == (recipe != "openrlhf-sft")
    assert "by-WANDB_API_KEY" in command.argv


FORK_SHAPES = [
    ("1x1", 1, "1 GPU = 1 engine × 1; batch 128 = 1 × 128; rollout 128 prompts × 4"),
    ("2x8", 2, "16 GPUs = 8 engines × 2; batch 128 = 16 × 8; rollout 128 prompts × 4"),
    ("3x8", 1, "24 GPUs = 24 engines × 1; batch 120 = 24 × 5; rollout 120 prompts"),
    ("16x8", 1, "128 GPUs = 128 engines × 1; batch 128 = 128 × 1; rollout 128"),
    ("2x4", 4, "8 GPUs = 2 engines × 4; batch 128 = 8 × 16; rollout 128"),
    ("8,8,4", 1, "nodes of 8, 8, 4 GPUs: 20 GPUs = 20 engines × 1; batch 120"),
    ("0,8,8", 2, "16 GPUs = 8 engines × 2; batch 128 = 16 × 8"),
]


@pytest.mark.parametrize(("shape", "size", "note"), FORK_SHAPES)
def test_the_fork_on_every_shape(shape: str, size: int, note: str) -> None:
    """OpenRLHF-M has each flag, and the actor's GPUs divide a rollout's prompts."""
    what = asked(f"openrlhf-m-grpo {shape}", tensor_parallel=size, wandb=True)
    command = made(what)
    check_flags(command, "m", openrlhf_m.VERSIONS[-1])
    assert note in command.notes[0]
    assert number(command, "rollout_batch_size") % sum(node.gpus for node in what.nodes) == 0
    assert settings_of(command)["input_key"] == "message"


@given(
    st.lists(st.sampled_from([1, 2, 3, 4, 6, 7, 8]), min_size=1, max_size=16),
    st.integers(1, 9),
    st.integers(1, 9),
)
def test_every_rank_gets_the_same_number_of_prompts(
    gpus: list[int], micro: int, samples: int
) -> None:
    """OpenRLHF-M asserts it, and DeepSpeed asserts that a batch is whole steps of every rank."""
    own = f"--micro_train_batch_size {micro} --n_samples_per_prompt {samples}"
    command = made(f"openrlhf-m-grpo {','.join(map(str, gpus))} {own}")
    rollout, train = (number(command, f"{part}_batch_size") for part in ("rollout", "train"))
    assert rollout % sum(gpus) == 0
    assert train % (micro * sum(gpus)) == 0
    assert rollout * samples % train == 0


ON_PODS = {
    "NCCL_SOCKET_FAMILY": "AF_INET",
    "NCCL_LAUNCH_MODE": "GROUP",
    "NCCL_SOCKET_NTHREADS": "1",
    "NCCL_NSOCKS_PERTHREAD": "1",
}


@pytest.mark.parametrize(
    ("platform", "infiniband", "env"),
    [
        ("runpod", False, {**ON_PODS, "NCCL_IB_DISABLE": "1"}),
        ("runpod-cluster", True, {}),
        ("slurm", True, {}),
        ("slurm", False, {"NCCL_IB_DISABLE": "1"}),
    ],
)
def test_settings_for_slow_networks_stay_on_pods(
    platform: str, env: dict[str, str], *, infiniband: bool
) -> None:
    """One socket and one thread of NCCL are for RunPod's network between pods."""
    assert made("openrlhf-m-grpo 2x8", platform=platform, infiniband=infiniband).env == env


@pytest.mark.parametrize(
    ("version", "flags", "merges"),
    [
        ("0.8.11", ("lora_rank", "lora_alpha"), "--bf16"),
        ("0.9.10", ("lora_rank", "lora_alpha"), "--param_dtype bf16"),
        ("0.11.2", ("ds.lora.rank", "ds.lora.alpha"), "--ds.param_dtype bf16"),
    ],
)
@pytest.mark.parametrize("recipe", PROGRAMS)
def test_adapters(recipe: str, version: str, flags: tuple[str, str], merges: str) -> None:
    """Rank and alpha as in its script; the note has the release's command that merges."""
    command = made(f"{recipe}=={version} 1x8", lora_rank=16, scores=False)
    found = settings_of(command)
    assert [found[flag] for flag in flags] == ["16", "16"]
    (note,) = [note for note in command.notes if "lora_combiner" in note]
    assert merges in note
    assert ("--is_rm" in note) is (recipe == "openrlhf-rm")
    assert command.format["rank of adapters"] == "16"
    # only SFT has a script for adapters: the others' rates are those of full training
    warned = any("want a higher one" in warning for warning in command.warnings)
    assert warned is (recipe != "openrlhf-sft")
