"""OpenRLHF's recipes fit the nodes in each version's flags, or name what does not fit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.frameworks import openrlhf
from agent.frameworks.recipe import JobBasis, MisfitError, NodeSize, RecipeInput
from support.model_shapes import QWEN2_5_7B
from support.recipe_words import flags_of

if TYPE_CHECKING:
    from agent.base.versions import Version
    from agent.frameworks.recipe import Command

EVERY = ((0, 8, 0), (0, 8, 10), (0, 9, 1), (0, 9, 2), (0, 9, 8), (0, 10, 1), (0, 10, 2))
VERSIONS: tuple[Version, ...] = (*EVERY, *openrlhf.VERSIONS)
SHAPES = {
    "1x1": ((1,), 1, "1 GPU = 1 engine × 1; batch 128 = 1 × 128"),
    "1x8": ((8,), 1, "8 GPUs = 8 engines × 1; batch 128 = 8 × 16"),
    "2x8": ((8, 8), 2, "16 GPUs = 8 engines × 2; batch 128 = 16 × 8"),
    "3x8": ((8, 8, 8), 1, "24 GPUs = 24 engines × 1; batch 120 = 24 × 5"),
    "16x8": ((8,) * 16, 8, "128 GPUs = 16 engines × 8; batch 128 = 128 × 1"),
    "2x4 TP 4": ((4, 4), 4, "8 GPUs = 2 engines × 4; batch 128 = 8 × 16"),
    "2x4 TP 8": ((4, 4), 8, "nodes of 4, 4 GPUs: 8 GPUs = 1 engine × 8"),
    "uneven": ((8, 8, 4), 2, "nodes of 8, 8, 4 GPUs: 20 GPUs = 10 engines × 2"),
    "CPU-only head": ((0, 8, 8), 2, "16 GPUs = 8 engines × 2; batch 128 = 16 × 8"),
}


def asked(  # noqa: PLR0913 - as many as a table varies
    gpus: tuple[int, ...],
    version: Version = (0, 11, 2),
    *args: str,
    recipe: str = "openrlhf-grpo",
    tensor_parallel: int = 1,
    cpus: int | None = None,
    scores: bool = True,
    wandb: bool = False,
) -> RecipeInput:
    """Return what is asked for on nodes of so many GPUs."""
    return RecipeInput(
        recipe,
        tuple(NodeSize(count, cpus) for count in gpus),
        version,
        "Qwen/Qwen2.5-7B",
        "/data/train.jsonl",
        checkpoints="/ckpt",
        tensor_parallel=tensor_parallel,
        args=args,
        scores=scores,
        wandb=wandb,
    )


FLAT = openrlhf.arguments_of("train_ppo_ray of OpenRLHF", "ppo", asked((8,), (0, 9, 10)))
"""A release whose flags have no dots."""


def number(command: Command, flag: str) -> int:
    """Return the number of a flag by its dotted name, whatever the version calls it."""
    flags = flags_of(command)
    words = flags[flag] if flag in flags else flags[FLAT.name_of(flag)]
    return int(words[0])


def check_sizes(command: Command, gpus: int) -> None:
    """Hold a command against what OpenRLHF and DeepSpeed assert, and what would wait for ever."""
    world = number(command, "actor.num_nodes") * number(command, "actor.num_gpus_per_node")
    engines = number(command, "vllm.num_engines") * number(command, "vllm.tensor_parallel_size")
    assert world == engines == gpus
    assert world == number(command, "ref.num_nodes") * number(command, "ref.num_gpus_per_node")
    train = number(command, "train.batch_size")
    assert train % (number(command, "train.micro_batch_size") * world) == 0
    flags = flags_of(command)
    answers = flags.get("rollout.n_samples_per_prompt", flags.get("n_samples_per_prompt", ("1",)))
    samples = number(command, "rollout.batch_size") * int(answers[0])
    assert samples % train == 0
    assert samples % (world * number(command, "rollout.micro_batch_size")) == 0


@pytest.mark.parametrize("recipe", ["openrlhf-grpo", "openrlhf-ppo"])
@pytest.mark.parametrize(
    ("version", "shape"),
    [*((VERSIONS[-1], shape) for shape in SHAPES), *((old, "uneven") for old in VERSIONS[:-1])],
)
def test_every_version_and_every_shape(version: Version, shape: str, recipe: str) -> None:
    """Flags are those of the version, sizes are divisible, and the note has the arithmetic."""
    gpus, tensor_parallel, note = SHAPES[shape]
    command = openrlhf.make(asked(gpus, version, recipe=recipe, tensor_parallel=tensor_parallel))
    known = openrlhf.flags_of("ppo", version)[0]
    for flag, words in flags_of(command).items():
        assert known[flag][0] == str(len(words)), f"{version} takes --{flag} otherwise"
    check_sizes(command, sum(gpus))
    assert note in command.notes[0]
    assert set(command.why) <= {f"--{flag}" for flag in flags_of(command)}


NODES = st.lists(st.sampled_from([0, 1, 2, 4, 6, 7, 8]), min_size=1, max_size=16)


@given(
    NODES,
    st.sampled_from([1, 2, 3, 4, 8, 16]),
    st.sampled_from(VERSIONS),
    st.sampled_from(["openrlhf-grpo", "openrlhf-ppo"]),
    st.integers(0, 5),
    st.integers(0, 20),
)
def test_sizes_divide_or_are_refused(  # noqa: PLR0913 - one for each thing that varies
    gpus: list[int],
    tensor_parallel: int,
    version: Version,
    recipe: str,
    micro: int,
    samples: int,
) -> None:
    """Any nodes and batches of the user give a command that fits, or a refusal."""
    program = openrlhf.arguments_of("train_ppo_ray of OpenRLHF", "ppo", asked((8,), version))
    flags = ("train.micro_batch_size", micro), ("rollout.n_samples_per_prompt", samples)
    args = [
        word
        for flag, value in flags
        if value
        for word in (f"--{program.name_of(flag)}", str(value))
    ]
    what = asked(tuple(gpus), version, *args, recipe=recipe, tensor_parallel=tensor_parallel)
    having = [count for count in gpus if count]
    whole = all(count % tensor_parallel == 0 for count in having)
    spans = len({*having}) == 1 and tensor_parallel % having[0] == 0
    if having and (whole or (spans and sum(having) % tensor_parallel == 0)):
        check_sizes(openrlhf.make(what), sum(gpus))
    else:
        with pytest.raises(MisfitError, match=r"AGENT_TENSOR_PARALLEL|no node has one"):
            openrlhf.make(what)


@pytest.mark.parametrize(
    ("what", "said"),
    [
        (asked((0, 0)), "no node has one"),
        (
            asked((6, 6), tensor_parallel=4),
            "engines of 4 GPUs do not fit nodes of 6, 6 GPUs: set AGENT_TENSOR_PARALLEL",
        ),
        (asked((8, 4), tensor_parallel=8), "engines of 8 GPUs do not fit nodes of 8, 4 GPUs"),
        (asked((4, 4, 4), tensor_parallel=8), "engines of 8 GPUs do not fit nodes of 4, 4, 4 GPUs"),
        (asked((8,), cpus=6), "node 0 has 6 of 8 CPUs"),
        (asked((8,), (0, 8, 11), cpus=8), "calls of the reward server take one more CPU"),
        (asked((8,), scores=False), "no source of rewards"),
        (asked((8,), (0, 11, 2), "--train.batch_size", "100"), "nearest that is: 104"),
        (asked((8,), (0, 9, 10), "--rollout_batch_size", "100"), "no multiple of 16"),
        (asked((8,), (0, 11, 2), "--train_batch_size", "128"), "did you mean --train.batch_size?"),
        (asked((8,), (0, 9, 10), "--bf16"), "train_ppo_ray of OpenRLHF 0.9.10 has no flag"),
        (asked((8,), (0, 11, 2), "--ref.num_nodes", "2"), "give both the same number"),
        (
            asked((8,), (0, 11, 2), "--vllm.num_engines", "4"),
            "the actor has 8, the engines 4: leave out --vllm.num_engines",
        ),
        (asked((8,), (0, 11, 2), "--actor.num_nodes", "2"), "16 GPUs are needed (actor 16) and 8"),
        (
            asked((8,), (0, 11, 2), "--no-train.colocate_all"),
            "24 GPUs are needed (actor 8, ref 8, engines 8) and 8 joined",
        ),
        (
            asked((8,), (0, 9, 10), "--async_train", "--vllm_enable_sleep"),
            "its engines never sleep: leave out --vllm_enable_sleep",
        ),
        (
            asked((8,), (0, 9, 10), "--async_train", "--vllm_num_engines", "8"),
            "the engines take 8 of 8 GPUs, and none trains",
        ),
        (asked((1,), (0, 11, 2), "--train.async_enable"), "the engines take 1 of 1 GPUs"),
        (asked((8,), (0, 11, 2), "--ds.ring_attn_size", "3"), "8 GPUs cannot form ranks"),
    ],
)
def test_refusals(what: RecipeInput, said: str) -> None:
    """A refusal names the reason, and sizes that fit if there are any."""
    with pytest.raises(MisfitError) as misfit:
        openrlhf.make(what)
    assert said in str(misfit.value)


@pytest.mark.parametrize(
    ("what", "flags"),
    [
        (asked((8,), cpus=8), {}),  # 0.9.1 and later ask the reward server without Ray tasks
        (asked((0, 8), (0, 8, 11), cpus=8), {}),  # the head has CPUs to spare
        (asked((8,), (0, 11, 2), "--train.batch_size", "64"), {"rollout.batch_size": "64"}),
        (
            asked((8,), (0, 11, 2), "--ds.ring_attn_size", "2", "--train.batch_size", "4"),
            {"rollout.batch_size": "4"},
        ),
        (
            asked((8, 8), (0, 11, 2), "--actor.num_nodes", "1"),
            {"ref.num_nodes": "1", "vllm.num_engines": "8"},
        ),
        (
            asked((8,), (0, 11, 2), "--reward.model_name_or_path", "R", scores=False),
            {"reward.num_nodes": "1", "reward.num_gpus_per_node": "8"},
        ),
        (asked((8,), wandb=True), {"logger.wandb.key": "by-WANDB_API_KEY"}),
        (asked((8,), (0, 8, 11), wandb=True), {"use_wandb": "by-WANDB_API_KEY"}),
        (
            asked(
                *((16,), (0, 11, 2), "--no-train.colocate_all", "--train.colocate_actor_ref"),
                *("--actor.num_gpus_per_node=8", "--vllm.num_engines=8"),
                *("--no-vllm.enable_sleep", "--no-ds.enable_sleep"),
            ),
            {"ref.num_gpus_per_node": "8"},
        ),
    ],
)
def test_sizes_follow_the_user(what: RecipeInput, flags: dict[str, str]) -> None:
    """Sizes that depend on a value of the user follow it."""
    found = flags_of(openrlhf.make(what))
    assert {flag: found[flag] for flag in flags} == {flag: (v,) for flag, v in flags.items()}


def test_the_whole_command() -> None:
    """Model, data, rewards and checkpoints are in the flags of the version."""
    command = openrlhf.make(asked((8, 8), (0, 9, 1), tensor_parallel=2))
    assert command.argv[:3] == ("python3", "-m", "openrlhf.cli.train_ppo_ray")
    flags = flags_of(command)
    assert flags["pretrain"] == ("Qwen/Qwen2.5-7B",)
    assert flags["prompt_data"] == ("/data/train.jsonl",)
    assert flags["remote_rm_url"] == ("{reward_url}",)
    assert flags["ckpt_path"] == ("/ckpt",)
    assert flags["save_path"] == ("/ckpt/model",)
    assert flags["load_checkpoint"] == ()
    assert flags["bf16"] == ()
    assert flags["prompt_max_len"] == ("1024",)
    assert "flash_attn" not in flags
    assert "use_wandb" not in flags
    assert command.why["--vllm_num_engines"] == "16 GPUs = 8 engines × 2"
    assert command.why["--input_key"] == "column of the prompt"


@pytest.mark.parametrize(
    ("version", "args", "said"),
    [
        ((0, 11, 2), ("--train.seed", "two"), "--train.seed takes a whole number, not 'two'"),
        ((0, 11, 2), ("--train.seed=1.5",), "--train.seed takes a whole number, not '1.5'"),
        ((0, 11, 2), ("--actor.adam.lr", "fast"), "--actor.adam.lr takes a number, not 'fast'"),
        ((0, 9, 10), ("--seed", "two"), "--seed takes a whole number, not 'two'"),
        ((0, 11, 2), ("--actor.adam.betas", "0.9", "x"), "--actor.adam.betas takes a number"),
    ],
)
def test_text_for_a_number_is_refused(version: Version, args: tuple[str, ...], said: str) -> None:
    """The refusal names the variable and the flag."""
    what = asked((8,), version, *args)
    with pytest.raises(MisfitError, match=f"AGENT_JOB_ARGS: {said}"):
        openrlhf.make(what)


def test_numbers_of_argparse() -> None:
    """Exponents, signs, grouped digits and placeholders are accepted."""
    args = ("--actor.adam.lr", "5e-7", "--data.max_samples", "1_000", "--train.seed", "{attempt}")
    argv = openrlhf.make(asked((8,), (0, 11, 2), *args)).argv
    assert {"5e-7", "1_000", "{attempt}"} <= {*argv}


def test_batches_by_tokens_give_way_to_micro_batches() -> None:
    """The user's micro batches would not be used beside batches by tokens."""
    flags = flags_of(openrlhf.make(asked((8,))))
    assert flags["train.max_tokens_per_gpu"] == ("16384",)
    longer = flags_of(openrlhf.make(asked((8,), (0, 11, 2), "--data.max_len", "32768")))
    assert longer["train.max_tokens_per_gpu"] == ("32768",)
    micro = flags_of(openrlhf.make(asked((8,), (0, 11, 2), "--train.micro_batch_size", "4")))
    assert "train.dynamic_batch_enable" not in micro
    assert "ds.packing_samples" in micro
    images = flags_of(openrlhf.make(asked((8,), (0, 11, 2), "--data.max_images_per_prompt", "2")))
    assert "ds.packing_samples" not in images, "OpenRLHF packs no images"


@pytest.mark.parametrize(
    ("columns", "needs_labels", "label"),
    [
        (None, True, ("label",)),
        (None, False, ("label",)),
        ({"input": True, "label": False}, False, ("label",)),
        ({"input": True}, False, None),
    ],
)
def test_a_label_is_asked_for_where_the_data_have_one(
    columns: dict[str, bool] | None, label: tuple[str, ...] | None, *, needs_labels: bool
) -> None:
    """OpenRLHF ends with KeyError where the column is missing."""
    what = replace(asked((8,)), columns=columns, needs_labels=needs_labels)
    assert flags_of(openrlhf.make(what)).get("data.label_key") == label


def test_data_without_the_columns_are_refused() -> None:
    """The refusal names the flags, and the columns that there are."""
    what = replace(asked((8,)), columns={"question": False, "answer": False}, needs_labels=True)
    with pytest.raises(MisfitError) as misfit:
        openrlhf.make(what)
    assert "no column for --data.input_key input and --data.label_key label" in str(misfit.value)
    assert "only question, answer" in str(misfit.value)
    named = ("--data.input_key", "question", "--data.label_key=answer")
    openrlhf.make(replace(what, args=named))


def test_a_reward_model() -> None:
    """It is on all GPUs, and evaluation needs a server."""
    what = replace(asked((8, 8), scores=False, recipe="openrlhf-ppo"), reward_model="org/rm")
    flags = flags_of(openrlhf.make(what))
    assert flags["reward.model_name_or_path"] == ("org/rm",)
    assert flags["reward.num_nodes"] == ("2",)
    assert "reward.remote_url" not in flags
    assert "data.label_key" not in flags
    with pytest.raises(MisfitError, match="wants a reward server"):
        openrlhf.make(replace(what, eval_data="/data/eval.jsonl"))


def test_a_reward_model_has_its_own_size() -> None:
    """70 B beside a policy of 7 B: it is sharded over all GPUs, in bf16."""
    node = NodeSize(8, gpu_memory=24, memory=2 << 40)
    plain = replace(asked((8,), scores=False, tensor_parallel=4), nodes=(node,))
    what = replace(plain, basis=JobBasis(QWEN2_5_7B), reward_model="org/RM-7.6B")
    assert "× 8 bytes / 8 GPUs" in openrlhf.make(what).why["--ds.zero_stage"]
    with pytest.raises(MisfitError, match=r"7\.62 B × 24\.4 bytes / 8 GPUs = 23\.2 GB"):
        openrlhf.make(replace(what, reward_model="org/RM-70B"))


def test_the_run_has_a_name_in_wandb() -> None:
    """The user's, or one that no other run has."""
    what = replace(asked((8,), wandb=True), run_id="run-7")
    assert flags_of(openrlhf.make(what))["logger.wandb.run_name"] == (
        "openrlhf-grpo-Qwen2.5-7B-run-7",
    )
    named = flags_of(openrlhf.make(replace(what, run_name="mine")))
    assert named["logger.wandb.run_name"] == ("mine",)


@pytest.mark.parametrize(
    ("version", "model", "columns", "has_images"),
    [
        ((0, 11, 2), "Qwen/Qwen2.5-VL-7B-Instruct", None, True),
        ((0, 10, 4), "Qwen/Qwen2.5-VL-7B-Instruct", ("input", "label", "images"), True),
        ((0, 11, 2), "Qwen/Qwen2.5-VL-7B-Instruct", ("input", "label"), False),
        ((0, 9, 10), "Qwen/Qwen2.5-VL-7B-Instruct", None, False),  # it trains on text alone
        ((0, 11, 2), "Qwen/Qwen2.5-7B-Instruct", None, False),
    ],
)
def test_a_model_that_reads_images(
    version: Version,
    model: str,
    columns: tuple[str, ...] | None,
    has_images: bool,  # noqa: FBT001 - a row
) -> None:
    """From 0.10 on GRPO trains on images, without packing, as its script for them."""
    found = flags_of(openrlhf.make(replace(asked((8,), version), model=model, columns=columns)))
    images = {name for name in found if "image" in name or "visual" in name}
    names = ("data.image_key", "data.max_images_per_prompt", "actor.freeze_visual_encoder")
    assert images == (set(names) if has_images else set())
    assert ("ds.packing_samples" in found) is (not has_images and version >= (0, 10, 2))
