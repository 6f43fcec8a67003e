"""verl's recipes: sized for the nodes in each version's keys, or refused with what fits."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.frameworks.recipe import (
    Command,
    JobBasis,
    MisfitError,
    ModelShape,
    NodeSize,
    RecipeInput,
)
from agent.frameworks.verl import REWARD_FUNCTION, make
from agent.frameworks.verl_keys import SAMPLES, VERL
from support.model_shapes import QWEN2_5_7B, QWEN2_5_7B_CONFIG, QWEN2_5_32B
from support.recipe_words import arguments
from support.verl_asked import MINI, RELEASES, TENSOR, asked, on

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.base.versions import Version

STORES = "transfer_queue.backend.SimpleStorage.num_data_storage_units"


@pytest.mark.parametrize("version", [RELEASES[0], RELEASES[-1]])
@pytest.mark.parametrize("recipe", ["verl-grpo", "verl-ppo"])
@pytest.mark.parametrize(
    ("shape", "tensor_parallel", "groups", "batches", "said"),
    [
        ("1x1", 1, (1, 1), (1024, 256), "1 GPU = 1 engine × 1; batch 1024 = 4 × 256"),
        ("1x8", 1, (1, 8), (1024, 256), "8 GPUs = 8 engines × 1; batch 1024 = 4 × 256"),
        ("2x8", 2, (2, 8), (1024, 256), "16 GPUs = 8 engines × 2; batch 1024 = 4 × 256"),
        ("3x8", 1, (3, 8), (1056, 264), "24 GPUs = 24 engines × 1; batch 1056 = 4 × 264"),
        ("16x8", 8, (16, 8), (1024, 256), "128 GPUs = 16 engines × 8; batch 1024 = 4 × 256"),
        ("2x4", 4, (2, 4), (1024, 256), "8 GPUs = 2 engines × 4; batch 1024 = 4 × 256"),
        ("2x4", 8, (2, 4), (1024, 256), "8 GPUs = 1 engine × 8; batch 1024 = 4 × 256"),
        ("8,8,4", 2, (5, 4), (1040, 260), "20 GPUs = 10 engines × 2; batch 1040 = 4 × 260"),
        ("8,6", 2, (7, 2), (1008, 252), "14 GPUs = 7 engines × 2; batch 1008 = 4 × 252"),
        ("0/8,8,8", 4, (2, 8), (1024, 256), "16 GPUs = 4 engines × 4; batch 1024 = 4 × 256"),
    ],
)
def test_sizes_follow_the_nodes(  # noqa: PLR0913 - columns of a table
    version: Version,
    recipe: str,
    shape: str,
    tensor_parallel: int,
    groups: tuple[int, int],
    batches: tuple[int, int],
    said: str,
) -> None:
    """GPUs form equal groups, and batches are divisible by all of them."""
    what = asked(shape, version, recipe=recipe, tensor_parallel=tensor_parallel)
    if version < (0, 6) and shape in {"8,8,4", "8,6"}:
        with pytest.raises(MisfitError, match="places one group on a node"):
            make(what)
        return
    command = make(what)
    found = arguments(command)
    assert (int(found["trainer.nnodes"]), int(found["trainer.n_gpus_per_node"])) == groups
    assert (int(found["data.train_batch_size"]), int(found[MINI])) == batches
    assert int(found[TENSOR]) == tensor_parallel
    assert command.notes[0] == said
    assert set(command.why) == set(found)
    assert all(command.why.values())


def test_it_saves_and_resumes() -> None:
    """Checkpoints are saved, which verl's default does not do, and resumed."""
    found = arguments(make(asked()))
    assert found["trainer.default_local_dir"] == "/data/checkpoints"
    assert found["trainer.resume_mode"] == "auto"
    assert int(found["trainer.save_freq"]) > 0


def test_without_eval_data_nothing_is_evaluated() -> None:
    """Verl requires a validation file: it gets the training data and does not use it."""
    command = make(asked())
    found = arguments(command)
    assert found["data.val_files"] == "/data/train.parquet"
    assert found["trainer.val_before_train"] == "False"
    assert "trainer.test_freq" not in found
    assert any("AGENT_EVAL_DATA" in note for note in command.notes)
    found = arguments(make(asked(eval_data="/data/test.parquet")))
    assert found["data.val_files"] == "/data/test.parquet"
    assert int(found["trainer.test_freq"]) > 0


@pytest.mark.parametrize(
    ("wandb", "logger"), [(True, '["console","wandb"]'), (False, '["console"]')]
)
def test_wandb_needs_a_key(*, wandb: bool, logger: str) -> None:
    """W&B is used only with a key; verl's default fails without a login."""
    assert arguments(make(asked(wandb=wandb)))["trainer.logger"] == logger


@pytest.mark.parametrize("version", RELEASES[1:])
def test_the_reward_function_asks_the_server(version: Version) -> None:
    """Its keys moved in 0.7.1, and 0.6 awaits it only in asynchronous rollouts."""
    command = make(asked(version=version, scores=True))
    root = "custom_reward_function" if version < (0, 7, 1) else "reward.custom_reward_function"
    found = arguments(command)
    assert found[f"{root}.path"] == REWARD_FUNCTION
    assert found[f"{root}.name"] == "compute_score"
    assert f"+{root}.reward_kwargs.url='{{reward_url}}'" in command.argv
    mode = found.get("actor_rollout_ref.rollout.mode")
    assert mode == ("async" if version < (0, 7) else None)
    assert not [key for key in arguments(make(asked(version=version))) if "reward" in key]


def test_a_reward_server_needs_asynchronous_rollouts_in_0_6() -> None:
    """Synchronous rollouts would use the coroutine as the reward."""
    with pytest.raises(MisfitError, match="only in async"):
        make(asked("2x8", (0, 6, 1), "actor_rollout_ref.rollout.mode=sync", scores=True))


@pytest.mark.parametrize(
    ("shape", "tensor_parallel", "said"),
    [
        ("0/8,0/8", 1, "no node has one"),
        ("1x8", 16, "engines of 16 GPUs do not fit nodes of 8 GPUs"),
        ("1x6", 4, "engines of 4 GPUs do not fit nodes of 6 GPUs"),
        ("2x6", 4, "engines of 4 GPUs do not fit nodes of 6, 6 GPUs"),
        ("8,4", 16, "engines of 16 GPUs do not fit nodes of 8, 4 GPUs"),
        ("4,2", 6, "engines of 6 GPUs do not fit nodes of 4, 2 GPUs"),
    ],
)
def test_engines_that_do_not_fit_are_refused(shape: str, tensor_parallel: int, said: str) -> None:
    """The refusal names the nodes."""
    with pytest.raises(MisfitError, match=said):
        make(asked(shape, tensor_parallel=tensor_parallel))


@pytest.mark.parametrize(
    ("version", "shape", "tensor_parallel", "scores", "needs"),
    [
        ((0, 6, 1), "2x8", 2, False, 9),
        ((0, 6, 1), "2x8", 2, True, 13),
        ((0, 7, 0), "2x8", 2, False, 29),
        ((0, 7, 0), "2x4", 8, False, 14),
        ((0, 7, 1), "2x8", 2, False, 25),
        ((0, 8, 0), "2x8", 2, True, 25),
        ((0, 8, 0), "1x1", 1, False, 4),
    ],
)
def test_too_few_cpus_are_refused(
    version: Version, shape: str, tensor_parallel: int, *, scores: bool, needs: int
) -> None:
    """The exact number of CPUs is accepted; one less is refused with the node's name."""

    def made(cpus: int) -> Command:
        return make(
            asked(shape, version, tensor_parallel=tensor_parallel, scores=scores, cpus=cpus)
        )

    assert made(needs)
    with pytest.raises(MisfitError) as refusal:
        made(needs - 1)
    assert f"node 0 has {needs - 1} of {needs} CPUs" in str(refusal.value)
    assert "AGENT_NUM_CPUS" in str(refusal.value)


@pytest.mark.parametrize(
    ("shape", "cpus", "stores"),
    [
        ("2x8", 29, None),
        ("2x8", 28, "6"),
        ("2x8", 26, "2"),
        ("1x8", 33, None),
        ("1x8", 32, "7"),
        ("16x8", 26, None),
        ("0/5,8", 28, None),
        ("0/4,8", 28, "6"),
        ("0/2,8", 25, "2"),
    ],
)
def test_the_transfer_queue_uses_free_cpus(shape: str, cpus: int, stores: str | None) -> None:
    """0.9 places eight stores on all nodes; with fewer free CPUs there are fewer stores."""
    assert arguments(make(asked(shape, cpus=cpus))).get(STORES) == stores


@pytest.mark.parametrize(
    ("shape", "cpus", "args", "said"),
    [
        ("2x8", 25, (), "node 0 has 25 of 29 CPUs"),
        ("0/0,8", 64, (), "node 0 has 0 of 4 CPUs"),
        ("0/1,8", 64, (), "node 0 has 1 of 5 CPUs"),
        ("2x8", 28, (f"{STORES}=8",), "node 0 has 28 of 29 CPUs"),
    ],
)
def test_a_transfer_queue_without_cpus_is_refused(
    shape: str, cpus: int, args: tuple[str, ...], said: str
) -> None:
    """Verl would wait for it forever."""
    with pytest.raises(MisfitError) as refusal:
        make(asked(shape, (0, 9, 1), *args, cpus=cpus))
    assert said in str(refusal.value)


@pytest.mark.parametrize("version", [version for version in RELEASES if version < (0, 9)])
def test_a_head_without_cpus_is_accepted_before_0_9(version: Version) -> None:
    """TaskRunner then runs on a node with GPUs."""
    assert arguments(make(asked("0/0,8/33", version)))["trainer.nnodes"] == "1"


def test_notes_on_idle_gpus() -> None:
    """Idle GPUs are noted."""
    notes = make(asked("8,8,6", tensor_parallel=4)).notes
    assert notes[0].startswith("20 GPUs = 5 engines × 4")
    assert "2 of 22 GPUs stay idle" in notes


def test_unknown_cpus_are_noted() -> None:
    """If the CPUs of a node are unknown, the needed number is noted."""
    notes = make(asked(cpus=None)).notes
    assert "a node needs up to 29 CPUs; the CPUs of the nodes are not known here" in notes


SIZES = st.lists(
    st.builds(NodeSize, st.integers(0, 9), st.none() | st.integers(0, 40)), min_size=1, max_size=6
)


@given(
    SIZES,
    st.sampled_from(RELEASES),
    st.sampled_from(["verl-grpo", "verl-ppo"]),
    st.integers(1, 9),
    st.none() | st.integers(1, 300),
    st.none() | st.integers(1, 100),
)
def test_any_nodes_fit_or_are_refused(  # noqa: PLR0913 - what a run may differ in
    sizes: list[NodeSize],
    version: Version,
    recipe: str,
    tensor_parallel: int,
    train: int | None,
    mini: int | None,
) -> None:
    """Every command meets verl's own conditions."""
    given_args = [f"data.train_batch_size={train}"] * bool(train) + [f"{MINI}={mini}"] * bool(mini)
    try:
        command = make(
            RecipeInput(
                recipe,
                tuple(sizes),
                version,
                "m",
                "/d",
                checkpoints="/c",
                tensor_parallel=tensor_parallel,
                args=tuple(given_args),
            )
        )
    except MisfitError:
        return
    found = arguments(command)
    count, gpus = int(found["trainer.nnodes"]), int(found["trainer.n_gpus_per_node"])
    total, samples = count * gpus, int(found[VERL.spelled(SAMPLES, version)])
    batch, part = int(found["data.train_batch_size"]), int(found[MINI])
    assert (train or batch, mini or part) == (batch, part)
    assert sum(node.gpus // gpus for node in sizes) >= count
    assert total % tensor_parallel == 0
    assert gpus % tensor_parallel == 0 or tensor_parallel % gpus == 0
    assert batch * samples % total == 0
    assert part * samples % total == 0
    assert batch % part == 0
    assert version >= (0, 9) or batch * samples % 8 == 0
    stores = int(found.get(STORES, 8))
    each = 3 if version >= (0, 7) else 1
    for node in sizes:
        if node.cpus is not None:
            queue = math.ceil(stores / len(sizes)) if version >= (0, 9) else 0
            assert node.cpus >= node.gpus // gpus * gpus * each + queue


MICRO = "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4"


def test_micro_batches_turn_off_batches_by_tokens() -> None:
    """Beside them micro batches are ignored; the parts without any keep them."""
    found = arguments(make(asked("2x8", (0, 9, 1), MICRO, recipe="verl-ppo")))
    assert found["actor_rollout_ref.actor.use_dynamic_bsz"] == "False"
    assert found["actor_rollout_ref.rollout.log_prob_use_dynamic_bsz"] == "True"
    assert found["actor_rollout_ref.ref.log_prob_use_dynamic_bsz"] == "True"
    assert found["critic.use_dynamic_bsz"] == "True"
    assert "critic.use_dynamic_bsz" not in arguments(make(asked("2x8", (0, 9, 1), MICRO)))


def test_tokens_hold_the_longest_sample() -> None:
    """It is asserted in the first update, after a whole rollout."""
    tokens = "actor_rollout_ref.actor.ppo_max_token_len_per_gpu"
    assert arguments(make(asked()))[tokens] == "24576"
    long = asked("2x8", (0, 9, 1), "data.max_response_length=40000", recipe="verl-ppo")
    found = arguments(make(long))
    assert found[tokens] == found["critic.ppo_max_token_len_per_gpu"] == "41024"


@pytest.mark.parametrize(
    ("version", "wanted"),
    [
        ((0, 6, 1), {"reward_model.enable": "True", "reward_model.model.path": "org/rm"}),
        ((0, 7, 0), {"reward_model.model.path": "org/rm", "reward_model.rollout.name": "vllm"}),
        (
            (0, 9, 1),
            {
                "reward.reward_model.model_path": "org/rm",
                "reward.num_workers": "8",
                "reward.reward_model.rollout.prompt_length": "4096",
            },
        ),
    ],
)
def test_a_reward_model(version: Version, wanted: dict[str, str]) -> None:
    """Its keys moved twice; PPO stays near its reference by the reward, GRPO by its loss."""
    ppo = arguments(make(replace(asked(version=version, recipe="verl-ppo"), reward_model="org/rm")))
    assert {key: ppo[key] for key in wanted} == wanted
    assert ppo["algorithm.use_kl_in_reward"] == "True"
    grpo = arguments(make(replace(asked(version=version), reward_model="org/rm")))
    assert "algorithm.use_kl_in_reward" not in grpo


@pytest.mark.parametrize(
    ("recipe", "model", "share", "size"),
    [
        ("verl-grpo", "org/RM-8B", "0.7", "1"),
        ("verl-ppo", "org/RM-8B", "0.6", "1"),  # beside the critic's states, too
        ("verl-ppo", "org/RM-70B", "0.6", "8"),
        ("verl-ppo", "org/rm", "0.6", "1"),
    ],
)
def test_a_reward_models_engines_fit_beside_the_states(
    recipe: str, model: str, share: str, size: str
) -> None:
    """They wake up while those stay on the GPU: with 0.8, as in verl's scripts, they lack room."""
    node = NodeSize(8, 64, 2 << 40, 80)
    what = replace(asked(recipe=recipe), nodes=(node,), basis=JobBasis(QWEN2_5_7B))
    found = arguments(make(replace(what, reward_model=model)))
    rollout = "reward.reward_model.rollout"
    assert found[f"{rollout}.gpu_memory_utilization"] == share
    assert found[f"{rollout}.tensor_model_parallel_size"] == size


def test_verl_0_5_awaits_no_server() -> None:
    """The refusal says which release does."""
    make(asked(version=(0, 5, 0)))
    with pytest.raises(MisfitError, match=r"verl 0\.5 .* install 0\.6\.1"):
        make(asked(version=(0, 5, 0), scores=True))


def test_verl_0_5_places_one_group_on_a_node() -> None:
    """It counts a node once; the user may choose groups that fit, and later releases place all."""
    what = asked("8,8,4", (0, 5, 0))
    with pytest.raises(MisfitError, match=r"8, 8, 4 GPUs are groups of 4: install 0\.6\.1"):
        make(what)
    chosen = ("trainer.nnodes=2", "trainer.n_gpus_per_node=8")
    assert arguments(make(replace(what, args=chosen)))["trainer.nnodes"] == "2"
    assert arguments(make(replace(what, version=(0, 6, 1))))["trainer.nnodes"] == "5"


def test_data_without_prompts_are_refused() -> None:
    """The scripts of verl write a column prompt; another is named by its key."""
    what = replace(asked(), columns={"question": False, "answer": False})
    with pytest.raises(MisfitError, match=r"no column for data\.prompt_key prompt, only question"):
        make(what)
    make(replace(what, args=("data.prompt_key=question",)))


FSDP = "actor_rollout_ref.actor.fsdp_config"
BUCKET = "actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes"
SEVEN_B: dict[str, object] = {**QWEN2_5_7B_CONFIG}
SEVENTY_TWO_B = SEVEN_B | {
    "hidden_size": 8192,
    "intermediate_size": 29568,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
}
LLAMA_8B = SEVEN_B | {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128_256,
    "tie_word_embeddings": False,
}
SMALL_GEMMA = SEVEN_B | {
    "hidden_size": 2048,
    "vocab_size": 262_400,
    "vocab_size_per_layer_input": 262_144,
    "hidden_size_per_layer_input": 256,
    "num_hidden_layers": 30,
}
GPT_OSS = {
    "model_type": "gpt_oss",
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_hidden_layers": 24,
    "num_attention_heads": 64,
    "head_dim": 64,
    "num_key_value_heads": 8,
    "num_local_experts": 128,
    "num_experts_per_tok": 4,
    "vocab_size": 201_088,
}
THIRTY_B_A3B = {
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "head_dim": 128,
    "num_key_value_heads": 4,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "vocab_size": 151_936,
}
WIDER_EXPERTS = THIRTY_B_A3B | {"hidden_size": 4096, "moe_intermediate_size": 1536}


@pytest.mark.parametrize(
    ("config", "backend", "args", "bucket"),
    [
        (SEVEN_B, "", (), 2304),  # 2,079 MiB in float32
        (SEVEN_B, "", ("actor_rollout_ref.actor.fsdp_config.model_dtype=bf16",), None),
        (SEVEN_B, "", (f"{BUCKET}=4096",), 4096),
        (SEVEN_B | {"vocab_size": 32_000}, "", (), None),
        (SEVEN_B, "megatron", (), None),
        (SEVENTY_TWO_B, "megatron", (), 2560),  # 2,376 MiB in bf16
        (SMALL_GEMMA, "", (), 7680),  # the embeddings of all layers in one tensor
        (GPT_OSS, "", (), 8192),  # the experts of a layer in one tensor
        (THIRTY_B_A3B, "", (), None),
        (WIDER_EXPERTS, "", (), 6144),  # as transformers 5 loads them
        (WIDER_EXPERTS, "megatron", (), None),  # as the checkpoint has them
        (None, "", (), 5632),
    ],
)
def test_the_bucket_holds_the_largest_tensor(
    config: dict[str, object] | None, backend: str, args: tuple[str, ...], bucket: int | None
) -> None:
    """The sender of 0.7.1 asserts that, which would end the job at its first weight sync."""
    model = None if config is None else ModelShape.from_config(config)
    plain = replace(asked("16x8", (0, 7, 1), *args), backend=backend, basis=JobBasis(model))
    found = arguments(make(plain))
    assert found.get(BUCKET) == (None if bucket is None else str(bucket))
    for other in ((0, 7, 0), (0, 8, 0), (0, 9, 1)):
        assert args or BUCKET not in arguments(make(replace(plain, version=other)))


@pytest.mark.parametrize(
    ("version", "args", "size", "key"),
    [
        ((0, 7, 1), (), "2", "actor_rollout_ref.actor.ulysses_sequence_parallel_size"),
        ((0, 9, 1), (), "2", f"{FSDP}.ulysses_sequence_parallel_size"),
        # the user's own, by either key
        (
            (0, 9, 1),
            ("actor_rollout_ref.actor.ulysses_sequence_parallel_size=8",),
            "8",
            "actor_rollout_ref.actor.ulysses_sequence_parallel_size",
        ),
    ],
)
def test_long_answers_are_divided_before_states_go_to_the_cpus(
    version: Version, args: tuple[str, ...], size: str, key: str
) -> None:
    """Ulysses: 32 B with samples of 22k tokens on 2×8; a batch divides over the copies."""
    lengths = ("data.max_prompt_length=2048", "data.max_response_length=20480")
    what = asked("2x8", version, *lengths, *args)
    nodes = tuple(replace(node, gpu_memory=80, memory=2 << 40) for node in what.nodes)
    what = replace(what, nodes=nodes, basis=JobBasis(QWEN2_5_32B), tensor_parallel=None)
    made = make(what)
    found = arguments(made)
    assert found[key] == size
    assert f"{FSDP}.offload_policy" not in found
    tokens = int(found["actor_rollout_ref.actor.ppo_max_token_len_per_gpu"]) * int(size)
    assert tokens >= 22_528
    assert f"it is divisible by {16 // int(size)} data-parallel ranks" in made.why[MINI]
    short = arguments(make(replace(what, args=())))
    assert not [name for name in short if "ulysses" in name]


@pytest.mark.parametrize(
    ("own", "said"),
    [
        (("3",), "=3: it does not divide 16 GPUs"),
        (("16",), "=16: each GPU gets whole heads of attention, and the model has 40"),
        (("2", "actor_rollout_ref.model.use_remove_padding=False"), "use_remove_padding=True only"),
    ],
)
def test_samples_that_verl_cannot_divide_are_refused(own: tuple[str, ...], said: str) -> None:
    """It would end by its mesh of GPUs, or by an assertion on the model's heads."""
    args = f"actor_rollout_ref.actor.ulysses_sequence_parallel_size={own[0]}", *own[1:]
    what = replace(asked("2x8", (0, 7, 1), *args), basis=JobBasis(QWEN2_5_32B))
    with pytest.raises(MisfitError) as refusal:
        make(what)
    assert said in str(refusal.value)
    assert "AGENT_BACKEND" not in str(refusal.value)


def on_cards(version: Version, shape: str, config: Mapping[str, object], *args: str) -> RecipeInput:
    """Return what is asked with a model on nodes × GPUs × GB of 2 TB each."""
    return on(ModelShape.from_config(config), shape, version, *args)


@pytest.mark.parametrize(
    ("version", "shape", "positions", "longest"),
    [
        ((0, 9, 1), "1x2x24", 131_072, "3072"),
        ((0, 7, 1), "1x2x24", 131_072, "3072"),
        ((0, 9, 1), "1x8x80", 131_072, None),
        ((0, 9, 1), "1x2x24", 32_768, None),
        ((0, 6, 1), "1x2x24", 131_072, None),  # its engines get the length of prompt and answer
    ],
)
def test_engines_start_on_small_cards(
    version: Version, shape: str, positions: int, longest: str | None
) -> None:
    """For Llama 3.1 they lack a cache for one text of the model's length, which vLLM wants."""
    llama = LLAMA_8B | {"max_position_embeddings": positions}
    found = arguments(make(on_cards(version, shape, llama)))
    assert found.get("actor_rollout_ref.rollout.max_model_len") == longest


def test_texts_longer_than_the_models() -> None:
    """They end verl 0.6 by an assertion; in later ones answers end there."""
    mathematical = SEVEN_B | {"max_position_embeddings": 4096}
    long = "data.max_response_length=8192"
    with pytest.raises(MisfitError, match=r"texts of 9216 tokens: .* has 4096 positions"):
        make(on_cards((0, 6, 1), "1x8x80", mathematical, long))
    made = make(on_cards((0, 9, 1), "1x8x80", mathematical, long))
    assert "answers end at the model's 4096 positions" in made.warnings[0]
    stretched = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}
    for more in ({}, {"rope_scaling": stretched, "max_position_embeddings": 16_384}):
        own = (
            ()
            if more
            else ("+actor_rollout_ref.model.override_config.max_position_embeddings=9216",)
        )
        assert make(on_cards((0, 6, 1), "1x8x80", mathematical | more, long, *own)).warnings == ()


@pytest.mark.parametrize(
    ("args", "least"),
    [
        (("actor_rollout_ref.actor.ppo_max_token_len_per_gpu=2048",), 3072),
        (("actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu=3071",), 3072),
        (
            (
                "actor_rollout_ref.ref.log_prob_max_token_len_per_gpu=1500",
                f"{FSDP}.ulysses_sequence_parallel_size=2",
            ),
            1536,
        ),
        (("actor_rollout_ref.actor.ppo_max_token_len_per_gpu=3072",), None),
        (
            (
                "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=2048",
                "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4",
            ),
            None,
        ),
    ],
)
def test_micro_batches_hold_the_longest_sample(args: tuple[str, ...], least: int | None) -> None:
    """An assertion of verl in each batch by tokens, for what a GPU gets of a sample."""
    what = on_cards((0, 9, 1), "1x4x80", SEVEN_B, *args)
    if least is None:
        assert make(what).argv
        return
    with pytest.raises(MisfitError, match=f"the longest takes {least} of a GPU"):
        make(what)


def test_a_bucket_that_is_too_small_is_refused() -> None:
    """It would end every attempt before its first step."""
    basis = JobBasis(ModelShape.from_config(SEVEN_B))
    with pytest.raises(MisfitError, match=r"is too small: .* = 2,079 MiB"):
        make(replace(asked("2x8", (0, 7, 1), f"{BUCKET}=2048"), basis=basis))


SEPARATE = "trainer.v1.trainer_mode=separate_async"
ENGINES = "actor_rollout_ref.rollout"


@pytest.mark.parametrize("recipe", ["verl-grpo", "verl-ppo"])
@pytest.mark.parametrize(
    ("shape", "own", "trainer", "engines", "said"),
    [
        ("1x8", "", (1, 4), (1, 4), "4 GPUs for training, 4 GPUs = 4 engines × 1"),
        ("2x8", "", (1, 8), (1, 8), "8 GPUs for training, 8 GPUs = 8 engines × 1"),
        ("3x8", "", (2, 8), (1, 8), "16 GPUs for training, 8 GPUs = 8 engines × 1"),
        ("4x8", f"{ENGINES}.nnodes=3", (1, 8), (3, 8), "8 GPUs for training, 24 GPUs = 24"),
        ("4x8", "trainer.nnodes=3", (3, 8), (1, 8), "24 GPUs for training, 8 GPUs = 8 engines"),
        ("4x8", f"{TENSOR}=4", (2, 8), (2, 8), "16 GPUs for training, 16 GPUs = 4 engines × 4"),
        ("1x8", f"{ENGINES}.n_gpus_per_node=6", (1, 2), (1, 6), "2 GPUs for training, 6 GPUs = 6"),
        ("0,8,8", "", (1, 8), (1, 8), "8 GPUs for training, 8 GPUs = 8 engines × 1"),
    ],
)
def test_engines_on_gpus_of_their_own(  # noqa: PLR0913 - columns of a table
    recipe: str,
    shape: str,
    own: str,
    trainer: tuple[int, int],
    engines: tuple[int, int],
    said: str,
) -> None:
    """Half of the nodes generate, or as many as the user says; the batch follows the others."""
    args = (SEPARATE, own) if own else (SEPARATE,)
    command = make(asked(shape, (0, 9, 1), *args, recipe=recipe))
    found = arguments(command)
    sizes = [
        (int(found[f"{side}.nnodes"]), int(found[f"{side}.n_gpus_per_node"]))
        for side in ("trainer", ENGINES)
    ]
    assert sizes == [trainer, engines]
    assert found["actor_rollout_ref.hybrid_engine"] == "False"
    assert found[f"{ENGINES}.gpu_memory_utilization"] == "0.8"
    steps = int(found["trainer.v1.separate_async.parameter_sync_step"])
    assert steps * int(found[MINI]) == int(found["data.train_batch_size"])
    assert command.notes[0].startswith(said)
    split = command.split
    nodes = None if split is None else (split.trainer, split.engines)
    assert nodes == (None if shape == "1x8" else (trainer[0], engines[0]))


@pytest.mark.parametrize(
    ("what", "said"),
    [
        (asked("2x8", (0, 9, 0), SEPARATE), "install 0.9.1"),
        (asked("2x8", (0, 8, 0), SEPARATE), "verl 0.8.0 has no v1"),
        (asked("1x1", (0, 9, 1), SEPARATE), "one node of 1 GPU joined"),
        (asked("8,4", (0, 9, 1), SEPARATE), "divides equal nodes, and these have 8, 4 GPUs"),
        (asked("2x8", (0, 9, 1), SEPARATE, f"{ENGINES}.nnodes=2"), "engines on 2 nodes of 8 GPUs"),
        (asked("2x8", (0, 9, 1), f"{ENGINES}.nnodes=1"), f"unless {SEPARATE} is set"),
        (
            asked("2x8", (0, 9, 1), SEPARATE, "actor_rollout_ref.hybrid_engine=True"),
            "the recipe has no engines on the training GPUs",
        ),
        (
            asked("2x8", (0, 9, 1), SEPARATE, "trainer.v1.separate_async.parameter_sync_step=3"),
            "verl ends where it is not data.train_batch_size",
        ),
        (replace(asked("2x8", (0, 9, 1), SEPARATE), lora_rank=64), "AGENT_LORA_RANK"),
        (replace(asked("2x8", (0, 9, 1), SEPARATE), reward_model="RM-7B"), "AGENT_REWARD_MODEL"),
        (replace(asked("2x8", (0, 9, 1), SEPARATE), backend="megatron"), "with Megatron"),
        (asked("2x8", (0, 9, 1), SEPARATE, f"{TENSOR}=3"), "3"),
        (
            asked("3x6", (0, 9, 1), SEPARATE, f"{ENGINES}.nnodes=2", f"{TENSOR}=4"),
            "engines of 4 GPUs do not fit nodes of 6, 6 GPUs",
        ),
        (
            asked("4x4", (0, 9, 1), SEPARATE, f"{ENGINES}.nnodes=3", f"{TENSOR}=6"),
            "engines of 6 GPUs do not fit nodes of 4, 4, 4 GPUs",
        ),
        (
            asked("4x8", (0, 9, 1), SEPARATE, "trainer.nnodes=5"),
            "trainer.nnodes=5: 4 nodes of 8 GPUs joined, and some of them have to generate",
        ),
        (
            asked("2x8", (0, 9, 1), SEPARATE, f"{ENGINES}.checkpoint_engine.backend=naive"),
            "checkpoint_engine.backend=naive: verl ends with",
        ),
        (replace(asked("2x8", (0, 9, 1), SEPARATE, cpus=12)), "Ray would wait forever for CPUs"),
    ],
)
def test_what_does_not_go_with_separate_engines(what: RecipeInput, said: str) -> None:
    """What verl would end with at its start, or was not tried, is refused with the reason."""
    with pytest.raises(MisfitError) as refusal:
        make(what)
    assert said in str(refusal.value)


@pytest.mark.parametrize(
    ("own", "nodes", "setting"),
    [
        ((), (2, 2), f"{ENGINES}.nnodes={{engines}}"),
        (("trainer.n_gpus_per_node=4",), (2, 2), f"{ENGINES}.nnodes={{engines}}"),
        (
            ("trainer.nnodes=1", f"{ENGINES}.nnodes=1"),
            (1, 1),
            f"trainer.nnodes={{trainer}} {ENGINES}.nnodes={{engines}}",
        ),
    ],
)
def test_the_split_is_the_commands(
    own: tuple[str, ...], nodes: tuple[int, int], setting: str
) -> None:
    """It counts the nodes that train by the command; its setting changes all that the user set."""
    split = make(asked("4x8", (0, 9, 1), SEPARATE, *own)).split
    assert split is not None
    assert (split.trainer, split.engines) == nodes
    assert split.setting == setting


def test_an_engine_on_several_nodes() -> None:
    """An engine of two whole nodes fits: each has as many of its GPUs."""
    command = make(asked("4x4", (0, 9, 1), SEPARATE, f"{TENSOR}=8"))
    assert command.notes[0].startswith("8 GPUs for training, 8 GPUs = 1 engine × 8")


def test_memory_of_separate_engines() -> None:
    """Training GPUs hold no engine; an engine has as many GPUs as its weights take of their own."""
    command = make(on(QWEN2_5_32B, "4x8x80", (0, 9, 1), SEPARATE))
    assert arguments(command)[TENSOR] == "4"
    share = command.why["actor_rollout_ref.rollout.gpu_memory_utilization"]
    assert share == "the engines' GPUs do not train"
    with pytest.raises(MisfitError, match="an engine of 1 GPU of 48 GB lacks room"):
        make(on(QWEN2_5_32B, "2x1x48", (0, 9, 1), SEPARATE))


def test_fewer_engines_for_a_model_that_half_of_the_nodes_cannot_hold() -> None:
    """The trainer gets the nodes that it needs; the reason says so, and a misfit what it counts."""
    model = replace(QWEN2_5_32B, parameters=140_000_000_000)
    command = make(on(model, "4x8x80", (0, 9, 1), SEPARATE, memory=1640 << 30))
    found = arguments(command)
    assert (found["trainer.nnodes"], found[f"{ENGINES}.nnodes"]) == ("3", "1")
    why = command.why[f"{ENGINES}.nnodes"]
    assert why == "1 of 4 nodes generate; the others are as few as can hold the model"
    with pytest.raises(MisfitError, match=r"140 B on 1×8×80 GB.*these are the nodes that train"):
        make(on(model, "2x8x80", (0, 9, 1), SEPARATE, memory=1640 << 30))
