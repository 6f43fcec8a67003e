"""trl-grpo fits the nodes, and its program accepts the recipe's arguments."""

from __future__ import annotations

import argparse

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.bundled import trl_grpo
from agent.frameworks import trl
from agent.frameworks.recipe import JobBasis, MisfitError, NodeSize, RecipeInput
from support.model_shapes import QWEN3_8B
from support.recipe_words import flags_of

SHAPES = {
    "1x1": ((1,), 1, "1 GPU = 1 process; batch 128 = 1 × 8 × 16; 16 prompts × 8"),
    "1x8": ((8,), 1, "8 GPUs = 8 processes; batch 128 = 8 × 8 × 2; 16 prompts × 8"),
    "2x8": ((8, 8), 2, "16 GPUs = 16 processes; batch 128 = 16 × 8 × 1; 16 prompts × 8"),
    "3x8": ((8, 8, 8), 1, "24 GPUs = 24 processes; batch 192 = 24 × 8 × 1; 24 prompts × 8"),
    "16x8": ((8,) * 16, 1, "128 GPUs = 128 processes; batch 1024 = 128 × 8 × 1"),
    "2x4 TP 4": ((4, 4), 4, "8 GPUs = 8 processes; batch 128 = 8 × 8 × 2"),
    "uneven": ((8, 8, 4), 4, "20 GPUs = 20 processes; batch 160 = 20 × 8 × 1"),
    "CPUs": ((0, 0), 1, "each process; batch 8 = 8 × 1; 1 prompt × 8"),
}


THREES = ("--per-device-train-batch-size", "3", "--gradient-accumulation-steps", "5")


def asked(
    gpus: tuple[int, ...],
    *args: str,
    tensor_parallel: int = 1,
    scores: bool = True,
    eval_data: str = "",
) -> RecipeInput:
    """Return what is asked for on nodes of so many GPUs."""
    return RecipeInput(
        "trl-grpo",
        tuple(NodeSize(count) for count in gpus),
        trl.VERSIONS[-1],
        "Qwen/Qwen2.5-0.5B",
        "/data/train.jsonl",
        eval_data=eval_data,
        checkpoints="/ckpt",
        tensor_parallel=tensor_parallel,
        args=args,
        scores=scores,
        wandb=True,
        python="/env/bin/python",
    )


def test_the_release_without_cpu_training() -> None:
    """TRL 1.15.0 fails in its first step on CPUs: it is refused, and others are named."""
    for gpus, args in (((0, 0), ()), ((8,), ("--cpu",))):
        what = replace(asked(gpus, *args), version=(1, 15, 0))
        with pytest.raises(MisfitError, match=r"TRL 1\.15\.0 trains on GPUs only"):
            trl.make(what)
        trl.make(replace(what, version=(1, 14, 2)))
    trl.make(replace(asked((8,)), version=(1, 15, 0)))


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape(shape: str) -> None:
    """The program's parser accepts the command, and an update is whole groups of answers."""
    gpus, tensor_parallel, note = SHAPES[shape]
    what = asked(gpus, tensor_parallel=tensor_parallel, eval_data="/data/eval.jsonl")
    command = trl.make(what)
    assert command.argv[0] == "/env/bin/python"
    assert command.argv[1] == trl_grpo.__file__, "torchrun starts it by its file"
    taken = trl_grpo.parser().parse_args(command.argv[2:])
    assert note in command.notes[0]
    assert taken.cpu == (not any(gpus))
    assert taken.vllm_tensor_parallel_size == (tensor_parallel if any(gpus) else 0)
    assert taken.shard == ("fsdp" if sum(gpus) > 1 else "none")
    assert taken.chat
    assert taken.run_name == "trl-grpo-Qwen2.5-0.5B-{run_id}"
    assert (taken.reward_url, taken.checkpoints) == ("{reward_url}", "/ckpt")
    assert taken.wandb
    assert set(command.why) == {f"--{flag}" for flag in flags_of(command, after=2)}


def test_the_recipe_has_its_programs_flags() -> None:
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


@pytest.mark.parametrize(
    ("what", "said"),
    [
        (asked((0, 8)), "node 0 has no GPU"),
        (asked((8,), scores=False), "no source of rewards"),
        (asked((8,), "--num-generations", "1"), "--num-generations must be at least 2"),
        (asked((8,), "--num-generations", "0"), "must be at least 1"),
        (asked((1,), "--num_generations", "4"), "did you mean --num-generations?"),
        (asked((1,), *THREES), "is no multiple of 8"),
        (asked((0,), "--per-device-train-batch-size", "4"), "is no multiple of 8"),
        (asked((4, 6), tensor_parallel=4), "do not fit nodes of 4, 6 GPUs"),
        (asked((0,), tensor_parallel=2), "engines of vLLM need GPUs (AGENT_TENSOR_PARALLEL)"),
    ],
)
def test_refusals(what: RecipeInput, said: str) -> None:
    """Rewards, whole groups, engines within nodes and processes of one kind are required."""
    with pytest.raises(MisfitError) as misfit:
        trl.make(what)
    assert said in str(misfit.value)


@pytest.mark.parametrize(
    ("nodes", "answer", "at_once", "steps"), [(1, 1024, 8, 2), (1, 8192, 4, 4), (2, 16384, 2, 4)]
)
def test_a_process_takes_as_many_answers_as_fit(
    nodes: int, answer: int, at_once: int, steps: int
) -> None:
    """Long ones in parts of a group: an update has as many answers, and is whole groups."""
    what = replace(
        asked((8,), "--max-completion-length", str(answer)),
        nodes=(NodeSize(8, gpu_memory=80),) * nodes,
        basis=JobBasis(QWEN3_8B),
    )
    command = trl.make(what)
    found = trl_grpo.parser().parse_args(command.argv[2:])
    assert found.per_device_train_batch_size == at_once
    assert found.gradient_accumulation_steps == steps
    assert command.warnings == ()


def test_prompt_and_answer_fit_into_the_models_positions() -> None:
    """Prompts are limited to what answers leave; longer answers are refused."""
    short = replace(asked((8,)), basis=JobBasis(replace(QWEN3_8B, positions=4096)))
    found = trl_grpo.parser().parse_args(trl.make(short).argv[2:])
    assert found.vllm_prompt_tokens == 4096 - 1024
    for own in (("--max-completion-length", "4096"), ("--vllm-prompt-tokens", "3073")):
        with pytest.raises(MisfitError, match="has 4096 positions"):
            trl.make(replace(short, args=own))
    assert trl.make(replace(short, args=(*own, "--no-vllm-tensor-parallel-size"))).argv


@pytest.mark.parametrize(
    "args", [("--vllm-tensor-parallel-size", "0"), ("--no-vllm-tensor-parallel-size",), ("--cpu",)]
)
def test_engines_that_the_user_turns_off(args: tuple[str, ...]) -> None:
    """AGENT_TENSOR_PARALLEL neither starts vLLM nor refuses the nodes."""
    for nodes in ((8, 8), (4, 6)):
        command = trl.make(asked(nodes, *args, tensor_parallel=4))
        assert not trl_grpo.parser().parse_args(command.argv[2:]).vllm_tensor_parallel_size


@given(
    st.lists(st.integers(1, 8), min_size=1, max_size=16),
    st.integers(2, 9),
    st.one_of(st.none(), st.integers(1, 9)),
)
def test_an_update_is_whole_groups(gpus: list[int], group: int, each: int | None) -> None:
    """GRPOConfig refuses other sizes, but only after every process has imported TRL."""
    args = ["--num-generations", str(group)]
    args += [] if each is None else ["--per-device-train-batch-size", str(each)]
    try:
        command = trl.make(asked(tuple(gpus), *args))
    except MisfitError:
        assert each is not None, "the recipe's own sizes always fit"
        return
    taken = trl_grpo.parser().parse_args(command.argv[2:])
    batch = taken.per_device_train_batch_size * taken.gradient_accumulation_steps * sum(gpus)
    assert batch % group == 0


@pytest.mark.parametrize(
    ("columns", "needs_labels", "label"),
    [
        (None, False, "label"),
        ({"input": True, "label": False}, True, "label"),
        ({"input": True}, False, ""),
    ],
)
def test_a_label_is_asked_for_where_the_data_have_one(
    columns: dict[str, bool] | None, label: str, *, needs_labels: bool
) -> None:
    """Without labels the server is sent none."""
    what = replace(asked((8,)), columns=columns, needs_labels=needs_labels)
    assert trl_grpo.parser().parse_args(trl.make(what).argv[2:]).label_key == label


def test_data_without_the_columns_are_refused() -> None:
    """The refusal names the columns that there are."""
    what = replace(asked((8,)), columns={"question": False}, needs_labels=True)
    with pytest.raises(
        MisfitError, match="--prompt-key input and --label-key label, only question"
    ):
        trl.make(what)


SERVER = ("--vllm-server", "http://{address:vllm}:8000")


def test_vllm_on_gpus_of_its_own() -> None:
    """Training has all GPUs that it sees, and no engine on them; the address is filled in later."""
    what = replace(asked((8, 6), *SERVER), tensor_parallel=None)
    made = trl.make(what)
    found = flags_of(made, after=2)
    assert found["vllm-server"] == ("http://{address:vllm}:8000",)
    assert not {flag for flag in found if flag.startswith("vllm-") and flag != "vllm-server"}
    assert "engine" not in made.why["--shard"]
    assert made.notes[0].startswith("14 GPUs = 14 processes")
    assert trl_grpo.parser().parse_args(made.argv[2:]).vllm_server == SERVER[1]


def test_vllm_on_a_node_of_a_group() -> None:
    """The recipe takes the server of the group, unless the user names another or leaves it out."""
    group = "{addresses:generation|url}"
    what = replace(asked((8, 8)), tensor_parallel=None, generation=group)
    made = trl.make(what)
    assert flags_of(made, after=2)["vllm-server"] == (group,)
    assert (
        made.why["--vllm-server"] == "[services.generation] of AGENT_SERVICES, in a group of nodes"
    )
    by_hand = trl.make(replace(what, generation="", args=("--vllm-server", group)))
    assert flags_of(made, after=2) == flags_of(by_hand, after=2)

    other = flags_of(trl.make(replace(what, args=SERVER)), after=2)
    assert other["vllm-server"] == (SERVER[1],)
    without = flags_of(trl.make(replace(what, args=("--no-vllm-server",))), after=2)
    assert without == flags_of(trl.make(replace(what, generation="")), after=2)
    with pytest.raises(MisfitError, match=r"\[services.generation\]: --vllm-server: .* from GPUs"):
        trl.make(replace(what, nodes=asked((0,)).nodes))


@pytest.mark.parametrize(
    ("gpus", "size", "args", "said"),
    [
        ((8,), 2, SERVER, "AGENT_TENSOR_PARALLEL beside --vllm-server"),
        ((8,), None, (*SERVER, "--vllm-tensor-parallel-size", "2"), "of the server's command"),
        ((8,), None, (*SERVER, "--vllm-gpu-memory-utilization", "0.5"), "of AGENT_JOB_ARGS beside"),
        ((0,), None, SERVER, "by NCCL, from GPUs"),
        ((8,), None, (*SERVER, "--cpu"), "by NCCL, from GPUs"),
    ],
)
def test_a_server_beside_engines_is_refused(
    gpus: tuple[int, ...], size: int | None, args: tuple[str, ...], said: str
) -> None:
    """Engines of the training GPUs have no use then; TRL has no server for CPUs."""
    with pytest.raises(MisfitError, match=said):
        trl.make(replace(asked(gpus, *args), tensor_parallel=size))
