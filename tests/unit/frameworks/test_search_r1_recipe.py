"""Search-R1's recipe: its authors' values, shared evenly by the GPUs that joined."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.frameworks.recipe import MisfitError, NodeSize, RecipeInput
from agent.frameworks.search_r1 import make
from support.recipe_words import arguments

ACTOR = "actor_rollout_ref.actor"
MINI, MICRO = f"{ACTOR}.ppo_mini_batch_size", f"{ACTOR}.ppo_micro_batch_size"
CRITIC = "critic.ppo_micro_batch_size"
LOG_PROB = "actor_rollout_ref.rollout.log_prob_micro_batch_size"


def asked(
    gpus: tuple[int, ...] = (8, 8),
    *args: str,
    cpus: int | None = 64,
    tensor_parallel: int = 1,
    eval_data: str = "",
    recipe: str = "search-r1-ppo",
) -> RecipeInput:
    """Return what is asked of the recipe, by default PPO on 2×8."""
    return RecipeInput(
        recipe=recipe,
        nodes=tuple(NodeSize(each, cpus) for each in gpus),
        version=(),
        model="Qwen/Qwen2.5-7B",
        train_data="/data/nq/train.parquet",
        eval_data=eval_data,
        checkpoints="/data/checkpoints",
        tensor_parallel=tensor_parallel,
        args=args,
    )


@pytest.mark.parametrize(
    ("gpus", "tensor_parallel", "train", "mini", "micro", "said"),
    [
        ((1,), 1, 512, 256, 4, "1 GPU = 1 engine × 1; batch 512 = 2 × 256"),
        ((8,), 1, 512, 256, 32, "8 GPUs = 8 engines × 1; batch 512 = 2 × 256"),
        ((8, 8), 2, 512, 256, 64, "16 GPUs = 8 engines × 2; batch 512 = 2 × 256"),
        ((8, 8, 8), 1, 576, 288, 96, "24 GPUs = 24 engines × 1; batch 576 = 2 × 288"),
        ((8,) * 16, 8, 512, 256, 256, "128 GPUs = 16 engines × 8; batch 512 = 2 × 256"),
        ((4, 4), 4, 512, 256, 32, "8 GPUs = 2 engines × 4; batch 512 = 2 × 256"),
        ((8, 8, 4), 2, 480, 240, 80, "20 GPUs = 10 engines × 2; batch 480 = 2 × 240"),
        ((0, 8), 1, 512, 256, 32, "8 GPUs = 8 engines × 1; batch 512 = 2 × 256"),
    ],
)
def test_sizes_follow_the_nodes(  # noqa: PLR0913 - columns of a table
    gpus: tuple[int, ...], tensor_parallel: int, train: int, mini: int, micro: int, said: str
) -> None:
    """The authors' 512, 256 and 64 on 16 GPUs; on others the nearest divisible sizes."""
    command = make(asked(gpus, tensor_parallel=tensor_parallel))
    found = arguments(command)
    sizes = tuple(int(found[key]) for key in ("data.train_batch_size", MINI, MICRO))
    assert sizes == (train, mini, micro)
    assert command.notes[0] == said
    assert set(command.why) == set(found)


def test_it_searches_and_saves_and_cannot_resume() -> None:
    """No argument asks it to resume, since it would be refused."""
    command = make(asked())
    found = arguments(command)
    assert found["retriever.url"] == "'http://{head_ip}:8000/retrieve'"
    assert found["trainer.default_local_dir"] == "/data/checkpoints"
    assert found["trainer.default_hdfs_dir"] == "null"
    assert found["trainer.logger"] == '["console"]'
    assert int(found["trainer.save_freq"]) > 0
    assert not [key for key in found if "resume" in key]
    assert any("cannot resume" in note for note in command.notes)
    assert command.env["VLLM_ATTENTION_BACKEND"] == "XFORMERS"


def test_eval_data_is_evaluated() -> None:
    """With evaluation data regularly, without it once at the end, which cannot be turned off."""
    with_it, without = arguments(make(asked(eval_data="/data/test"))), arguments(make(asked()))
    assert with_it["data.val_files"] == "/data/test"
    assert int(with_it["trainer.test_freq"]) > 0
    assert without["data.val_files"] == "/data/nq/train.parquet"
    assert "trainer.test_freq" not in without


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("trainer.resume_mode=auto", "no such key; +trainer.resume_mode would add one"),
        ("trainer.balance_batch=True", "no such key; +trainer.balance_batch would add one"),
        ("custom_reward_function.path=/x", "no such key"),
        ("data.train_batch_size=100", "no multiple of 16"),
        (f"{MINI}=100", "no multiple of 16"),
        (f"{MICRO}=8", "no multiple of 16"),
        (f"{MICRO}=96", "no multiple of"),
        (f"{CRITIC}=8", "no multiple of 16"),
        (f"{LOG_PROB}=40", "no multiple of 16"),
        ("data.train_batch_size=320", "no multiple of"),
        ("trainer.nnodes=3", "would wait forever"),
        ("retriever.url=http://h/?a=b", "without quotes"),
    ],
)
def test_wrong_arguments_are_refused(argument: str, said: str) -> None:
    """Search-R1 itself would crash after the first step, or wait."""
    with pytest.raises(MisfitError) as refusal:
        make(asked((8, 8), argument))
    assert said in str(refusal.value)


@pytest.mark.parametrize(
    ("argument", "key", "value"),
    [
        ("retriever.url='http://10.0.0.9:8000/retrieve'", "retriever.url", None),
        ("+trainer.val_before_train=True", "trainer.val_before_train", "True"),
        ("trainer.val_before_train=True", "trainer.val_before_train", "True"),
        ("max_turns=2", "max_turns", "2"),
        (f"{MICRO}=32", MICRO, "32"),
    ],
)
def test_a_users_argument_replaces_the_recipes(argument: str, key: str, value: str | None) -> None:
    """The key occurs once, with the prefix that it needs."""
    command = make(asked((8, 8), argument))
    assert arguments(command)[key] == (value or argument.partition("=")[2])
    assert command.why[key] == "AGENT_JOB_ARGS"
    assert "+trainer.val_before_train" in "".join(command.argv)


@pytest.mark.parametrize(("cpus", "fits"), [(9, True), (8, False), (None, True)])
def test_cpus_are_counted(*, cpus: int | None, fits: bool) -> None:
    """One for each GPU, and one for the main task on any node."""
    if fits:
        assert make(asked(cpus=cpus))
    else:
        with pytest.raises(MisfitError, match=r"Ray would wait.*8 of 9 CPUs"):
            make(asked(cpus=cpus))


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6), st.integers(1, 9), st.integers(0, 300))
def test_any_nodes_fit_or_are_refused(gpus: list[int], tensor_parallel: int, mini: int) -> None:
    """Every GPU gets the same whole number of samples of each batch, at least one."""
    own = (f"{MINI}={mini}",) if mini else ()
    try:
        command = make(asked(tuple(gpus), *own, tensor_parallel=tensor_parallel))
    except MisfitError:
        return
    found = {key: value for key, value in arguments(command).items() if value.isdigit()}
    total = int(found["trainer.nnodes"]) * int(found["trainer.n_gpus_per_node"])
    assert total % tensor_parallel == 0
    for key in ("data.train_batch_size", MINI, MICRO, CRITIC, LOG_PROB):
        assert int(found[key]) % total == 0
    assert int(found["data.train_batch_size"]) % int(found[MINI]) == 0
    assert int(found[MINI]) % int(found[MICRO]) == 0
    assert int(found[MINI]) % int(found[CRITIC]) == 0


@pytest.mark.parametrize(("recipe", "count"), [("search-r1-ppo", 7), ("search-r1-grpo", 4)])
def test_one_node_offloads(recipe: str, count: int) -> None:
    """Its authors keep models and optimizer in the host's memory there, and not on two nodes."""
    one = arguments(make(asked((0, 8), recipe=recipe)))
    two = arguments(make(asked(recipe=recipe)))
    assert [one[key] for key in one if key.endswith("_offload")] == ["True"] * count
    assert not [key for key in two if key.endswith("_offload")]
