"""OpenRLHF by torchrun, and OpenRLHF-M: sized for every GPU, in each version's own flags."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.frameworks import openrlhf, openrlhf_m, openrlhf_train
from agent.frameworks.recipe import MisfitError, NodeSize, RecipeInput
from support.recipe_words import flags_of

if TYPE_CHECKING:
    from agent.base.versions import Version

OLDER = ((0, 8, 0), (0, 8, 10), (0, 9, 2), (0, 10, 1), (0, 10, 2))
VERSIONS: tuple[Version, ...] = (*OLDER, *openrlhf_train.VERSIONS)
PROGRAMS = {"openrlhf-sft": "sft", "openrlhf-rm": "rm", "openrlhf-dpo": "dpo"}
SHAPES = {
    "1x1": ((1,), "1 GPU = 1 process; batch 256 = 1 × 256"),
    "1x8": ((8,), "8 GPUs = 8 processes; batch 256 = 8 × 32"),
    "2x8": ((8, 8), "16 GPUs = 16 processes; batch 256 = 16 × 16"),
    "3x8": ((8, 8, 8), "24 GPUs = 24 processes; batch 264 = 24 × 11"),
    "16x8": ((8,) * 16, "128 GPUs = 128 processes; batch 256 = 128 × 2"),
    "uneven": ((8, 8, 4), "20 GPUs = 20 processes; batch 260 = 20 × 13"),
}


def asked(
    recipe: str,
    gpus: tuple[int, ...],
    version: Version = (0, 11, 2),
    *args: str,
    tensor_parallel: int = 1,
    eval_data: str = "",
) -> RecipeInput:
    """Return what is asked for on nodes of so many GPUs."""
    return RecipeInput(
        recipe,
        tuple(NodeSize(count) for count in gpus),
        version,
        "Qwen/Qwen2.5-7B",
        "/data/train.jsonl",
        eval_data=eval_data,
        checkpoints="/ckpt",
        tensor_parallel=tensor_parallel,
        args=args,
        scores=True,
        wandb=True,
    )


@pytest.mark.parametrize("recipe", PROGRAMS)
@pytest.mark.parametrize(
    ("version", "shape"),
    [*((VERSIONS[-1], shape) for shape in SHAPES), *((old, "uneven") for old in VERSIONS[:-1])],
)
def test_every_version_and_every_shape(version: Version, shape: str, recipe: str) -> None:
    """Flags are those of the version, ranks are equal, and the note has the arithmetic."""
    gpus, note = SHAPES[shape]
    command = openrlhf_train.make(asked(recipe, gpus, version, eval_data="/data/eval.jsonl"))
    assert command.argv[:3] == ("python3", "-m", f"openrlhf.cli.train_{PROGRAMS[recipe]}")
    known = openrlhf.flags_of(PROGRAMS[recipe], version)[0]
    flags = flags_of(command)
    for flag, words in flags.items():
        assert known[flag][0] == str(len(words)), f"{version} takes --{flag} otherwise"
    assert command.notes[0] == note
    assert "/ckpt/state" in command.argv, "a folder of its own, whose old neighbors it deletes"
    assert ("data.output_key" in flags or "output_key" in flags) == (recipe == "openrlhf-sft")
    assert ("data.chosen_key" in flags or "chosen_key" in flags) == (recipe != "openrlhf-sft")
    assert "by-WANDB_API_KEY" in command.argv


@pytest.mark.parametrize(
    ("what", "said"),
    [
        (asked("openrlhf-sft", (0, 0)), "no node has one"),
        (asked("openrlhf-sft", (0, 8)), "torchrun uses all nodes, and node 0 has no GPU"),
        (asked("openrlhf-rm", (8,), (0, 11, 2), "--train.batch_size", "100"), "that is: 104"),
        (asked("openrlhf-dpo", (8,), (0, 9, 10), "--loss", "x"), "train_dpo of OpenRLHF 0.9.10"),
    ],
)
def test_refusals(what: RecipeInput, said: str) -> None:
    """A node without GPUs would start a process that no collective includes."""
    with pytest.raises(MisfitError) as misfit:
        openrlhf_train.make(what)
    assert said in str(misfit.value)


def test_plain_answers_need_no_template() -> None:
    """Preferences are lists of messages unless the user leaves out the template."""
    command = openrlhf_train.make(asked("openrlhf-dpo", (8,)))
    assert "--no-data.apply_chat_template" in command.why["--data.apply_chat_template"]
    plain = asked("openrlhf-dpo", (8,), (0, 11, 2), "--no-data.apply_chat_template")
    assert "data.apply_chat_template" not in flags_of(openrlhf_train.make(plain))


M_SHAPES = {
    "1x1": ((1,), 1, "1 GPU = 1 engine × 1; batch 128 = 1 × 128; rollout 128 prompts × 4"),
    "2x8": ((8, 8), 2, "16 GPUs = 8 engines × 2; batch 128 = 16 × 8; rollout 128 prompts × 4"),
    "3x8": ((8, 8, 8), 1, "24 GPUs = 24 engines × 1; batch 120 = 24 × 5; rollout 120 prompts"),
    "16x8": ((8,) * 16, 1, "128 GPUs = 128 engines × 1; batch 128 = 128 × 1; rollout 128"),
    "2x4 TP 4": ((4, 4), 4, "8 GPUs = 2 engines × 4; batch 128 = 8 × 16; rollout 128"),
    "uneven": ((8, 8, 4), 1, "nodes of 8, 8, 4 GPUs: 20 GPUs = 20 engines × 1; batch 120"),
    "CPU-only head": ((0, 8, 8), 2, "16 GPUs = 8 engines × 2; batch 128 = 16 × 8"),
}


@pytest.mark.parametrize("shape", M_SHAPES)
def test_the_fork_on_every_shape(shape: str) -> None:
    """OpenRLHF-M has each flag, and the actor's GPUs divide a rollout's prompts."""
    gpus, tensor_parallel, note = M_SHAPES[shape]
    command = openrlhf_m.make(asked("openrlhf-m-grpo", gpus, tensor_parallel=tensor_parallel))
    known = openrlhf.flags_of("m", openrlhf_m.VERSIONS[-1])[0]
    flags = flags_of(command)
    for flag, words in flags.items():
        assert known[flag][0] == str(len(words)), f"--{flag} takes something else"
    assert note in command.notes[0]
    assert int(flags["rollout_batch_size"][0]) % sum(gpus) == 0
    assert flags["input_key"] == ("message",)
    assert command.env["NCCL_IB_DISABLE"] == "1"
    fast = replace(asked("openrlhf-m-grpo", gpus), infiniband=True)
    assert "NCCL_IB_DISABLE" not in openrlhf_m.make(fast).env
    assert "NCCL_SOCKET_IFNAME" not in command.env, "the agent chooses the interface"


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
    given = replace(asked("openrlhf-m-grpo", (8, 8)), platform=platform, infiniband=infiniband)
    assert openrlhf_m.make(given).env == env


@given(
    st.lists(st.sampled_from([1, 2, 3, 4, 6, 7, 8]), min_size=1, max_size=16),
    st.integers(1, 9),
    st.integers(1, 9),
)
def test_every_rank_gets_the_same_number_of_prompts(
    gpus: list[int], micro: int, samples: int
) -> None:
    """OpenRLHF-M asserts it, and DeepSpeed asserts that a batch is whole steps of every rank."""
    args = ("--micro_train_batch_size", str(micro), "--n_samples_per_prompt", str(samples))
    what = asked("openrlhf-m-grpo", tuple(gpus), (0, 6, 1), *args)
    flags = flags_of(openrlhf_m.make(what))
    rollout, train = (int(flags[f"{part}_batch_size"][0]) for part in ("rollout", "train"))
    assert rollout % sum(gpus) == 0
    assert train % (micro * sum(gpus)) == 0
    assert rollout * samples % train == 0


def test_notes_on_the_fork() -> None:
    """It has no evaluation data, and sends labels only if their column is named."""
    what = asked("openrlhf-m-grpo", (8,), eval_data="/data/eval.jsonl")
    notes = " ".join(openrlhf_m.make(what).notes)
    assert "AGENT_EVAL_DATA is not read" in notes
    assert "--label_key" in notes
    named = asked("openrlhf-m-grpo", (8,), (0, 6, 1), "--label_key", "answer")
    assert "--label_key" not in " ".join(openrlhf_m.make(named).notes)


@pytest.mark.parametrize(
    ("recipe", "columns", "template", "output"),
    [
        ("openrlhf-sft", None, True, True),
        ("openrlhf-sft", {"input": False, "output": False}, False, True),
        ("openrlhf-sft", {"input": True, "output": True}, True, True),
        ("openrlhf-sft", {"input": True}, True, False),
        ("openrlhf-dpo", {"chosen": False, "rejected": False}, False, False),
        ("openrlhf-rm", {"chosen": True, "rejected": True}, True, False),
    ],
)
def test_the_data_decide_on_the_template(
    recipe: str, columns: dict[str, bool] | None, *, template: bool, output: bool
) -> None:
    """Rows of messages need it, plain text does not; whole conversations have no answer column."""
    flags = flags_of(openrlhf_train.make(replace(asked(recipe, (8,)), columns=columns)))
    assert ("data.apply_chat_template" in flags) == template
    assert ("data.output_key" in flags) == output


def test_data_without_the_columns_are_refused() -> None:
    """The refusal names the columns that there are."""
    what = replace(asked("openrlhf-dpo", (8,)), columns={"prompt": False, "answer": False})
    with pytest.raises(MisfitError, match=r"--data.chosen_key chosen and .* only prompt, answer"):
        openrlhf_train.make(what)
