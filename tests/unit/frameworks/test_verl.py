"""verl's recipes: sizes on any nodes, separate engines, adapters, and Megatron's tree."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.base.versions import version_text
from agent.frameworks.megatron_memory import stages_of
from agent.frameworks.recipe import JobBasis, MisfitError, ModelShape, NodeSize
from agent.frameworks.verl_keys import SAMPLES, VERL
from agent.frameworks.verl_published import PUBLISHED
from support.asked_recipes import (
    ACTOR,
    MEGATRON,
    MINI,
    MODEL,
    RELEASES,
    ROLLOUT,
    SHARE,
    TENSOR,
    asked,
    made,
    refusal,
    settings_of,
)
from support.model_shapes import (
    DEEPSEEK_V3,
    QWEN2_5_7B,
    QWEN2_5_32B,
    QWEN3_8B,
    QWEN3_30B,
    QWEN3_235B,
)

NAMES = [version_text(version) for version in RELEASES]
STORES = "transfer_queue.backend.SimpleStorage.num_data_storage_units"


@pytest.mark.parametrize("version", [NAMES[0], NAMES[-1]])
@pytest.mark.parametrize("recipe", ["verl-grpo", "verl-ppo"])
@pytest.mark.parametrize(
    ("shape", "size", "groups", "batches", "said"),
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
    version: str,
    recipe: str,
    shape: str,
    size: int,
    groups: tuple[int, int],
    batches: tuple[int, int],
    said: str,
) -> None:
    """GPUs form equal groups, and batches are divisible by all of them."""
    if version == "0.5.0" and shape in {"8,8,4", "8,6"}:
        return  # a row of test_refusals
    command = made(f"{recipe}=={version} {shape}", tensor_parallel=size)
    found = settings_of(command)
    assert (int(found["trainer.nnodes"]), int(found["trainer.n_gpus_per_node"])) == groups
    assert (int(found["data.train_batch_size"]), int(found[MINI])) == batches
    assert int(found[TENSOR]) == size
    assert command.notes[0] == said
    assert set(command.why) == set(found)
    assert all(command.why.values())


@given(
    st.lists(
        st.builds(NodeSize, st.integers(0, 9), st.none() | st.integers(0, 40)),
        min_size=1,
        max_size=6,
    ),
    st.sampled_from(RELEASES),
    st.sampled_from(["verl-grpo", "verl-ppo"]),
    st.integers(1, 9),
    st.none() | st.integers(1, 300),
    st.none() | st.integers(1, 100),
)
def test_any_nodes_fit_or_are_refused(  # noqa: PLR0913 - what a run may differ in
    sizes: list[NodeSize],
    version: tuple[int, ...],
    recipe: str,
    size: int,
    train: int | None,
    mini: int | None,
) -> None:
    """Every command meets verl's own conditions."""
    own = [f"data.train_batch_size={train}"] * bool(train) + [f"{MINI}={mini}"] * bool(mini)
    line = f"{recipe}=={version_text(version)} 1x8 {' '.join(own)}"
    try:
        command = made(line, nodes=tuple(sizes), tensor_parallel=size)
    except MisfitError:
        return
    found = settings_of(command)
    count, gpus = int(found["trainer.nnodes"]), int(found["trainer.n_gpus_per_node"])
    total, samples = count * gpus, int(found[VERL.spelled(SAMPLES, version)])
    batch, part = int(found["data.train_batch_size"]), int(found[MINI])
    assert (train or batch, mini or part) == (batch, part)
    assert sum(node.gpus // gpus for node in sizes) >= count
    assert total % size == 0
    assert gpus % size == 0 or size % gpus == 0
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


OPTIM = f"{ACTOR}.optim"
CACHE = f"{ROLLOUT}.engine_kwargs.vllm.disable_mm_preprocessor_cache"


@pytest.mark.parametrize(
    "line",
    [
        "==0.6.1 2x8 custom_reward_function.path=/x.py reward_model.reward_manager=dapo",
        "==0.8.0 2x8 reward_model.num_workers=2",
        "==0.7.1 2x8 critic.model.fsdp_config.param_offload=True",
        " 2x8 trainer.v1.trainer_mode=sync hydra.run.dir=/tmp/x",
        " 2x8 ++algorithm.adv_estimator=mine",
        " 2x8 ++trainer.of_tomorrow=1 +ray_kwargs.ray_init.x=1",
        " 2x8 +data.apply_chat_template_kwargs.x=1 +trainer.of_tomorrow=1",
        f" 2x8 model_engine=veomni {ACTOR}.veomni.x=1",
        f" 2x8 actor@{ACTOR}=megatron_actor critic.megatron.x=1",
        f" 2x8 {OPTIM}.lr=1e-6 trainer.total_epochs=3",
        f" 2x8 +{ROLLOUT}.engine_kwargs.vllm.mine=1 ++{OPTIM}.lrr=1",
        f" 2x8 {ACTOR}.profiler.of_tomorrow=1",
    ],
)
def test_valid_keys_stay_as_they_are_typed(line: str) -> None:
    """Keys of the version, insisted keys and keys outside the tables are accepted."""
    what = asked(f"verl-grpo{line}")
    assert {*what.args} <= {*made(what).argv}


@pytest.mark.parametrize(("version", "prefix"), [("0.5.0", ""), ("0.6.1", "+"), ("0.7.1", "+")])
def test_a_key_that_a_release_lacks_is_added(version: str, prefix: str) -> None:
    """Hydra refuses a new key without a sign, and one that it has with it."""
    command = made(f"verl-grpo=={version} 2x8x80", model="Qwen/Qwen2.5-VL-7B-Instruct")
    assert f"{prefix}{CACHE}=True" in command.argv


MODE = "trainer.v1.trainer_mode=separate_async"


@pytest.mark.parametrize("recipe", ["verl-grpo", "verl-ppo"])
@pytest.mark.parametrize(
    ("shape", "own", "trainer", "engines", "said"),
    [
        ("1x8", "", (1, 4), (1, 4), "4 GPUs for training, 4 GPUs = 4 engines × 1"),
        ("2x8", "", (1, 8), (1, 8), "8 GPUs for training, 8 GPUs = 8 engines × 1"),
        ("3x8", "", (2, 8), (1, 8), "16 GPUs for training, 8 GPUs = 8 engines × 1"),
        ("4x8", f"{ROLLOUT}.nnodes=3", (1, 8), (3, 8), "8 GPUs for training, 24 GPUs = 24"),
        ("4x8", "trainer.nnodes=3", (3, 8), (1, 8), "24 GPUs for training, 8 GPUs = 8 engines"),
        ("4x8", f"{TENSOR}=4", (2, 8), (2, 8), "16 GPUs for training, 16 GPUs = 4 engines × 4"),
        ("1x8", f"{ROLLOUT}.n_gpus_per_node=6", (1, 2), (1, 6), "2 GPUs for training, 6 GPUs = 6"),
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
    command = made(f"{recipe} {shape} {MODE} {own}")
    found = settings_of(command)
    sizes = [
        (int(found[f"{side}.nnodes"]), int(found[f"{side}.n_gpus_per_node"]))
        for side in ("trainer", ROLLOUT)
    ]
    assert sizes == [trainer, engines]
    assert found["actor_rollout_ref.hybrid_engine"] == "False"
    assert found[SHARE] == "0.8"
    steps = int(found["trainer.v1.separate_async.parameter_sync_step"])
    assert steps * int(found[MINI]) == int(found["data.train_batch_size"])
    assert command.notes[0].startswith(said)
    split = command.split
    nodes = None if split is None else (split.trainer, split.engines)
    assert nodes == (None if shape == "1x8" else (trainer[0], engines[0]))


FULLY_ASYNC = "async_training.staleness_threshold=0.5"
TAKEN, TRIGGER = "async_training.require_batches", "async_training.trigger_parameter_sync_step"


@pytest.mark.parametrize(
    ("line", "trainer", "engines", "sync", "said"),
    [
        (f"1x8 {FULLY_ASYNC}", (1, 4), (1, 4), "4", "batch 1024 = 4 × 256"),
        (f"4x8 {FULLY_ASYNC} rollout.nnodes=3", (1, 8), (3, 8), "4", "batch 1024 = 4 × 256"),
        (f"4x8 {FULLY_ASYNC} trainer.nnodes=3", (3, 8), (1, 8), "4", "batch 1056 = 4 × 264"),
        (f"1x8 rollout.n_gpus_per_node=6 {FULLY_ASYNC}", (1, 2), (1, 6), "4", "= 4 × 256"),
        ("0/23,8/24,8/16 async_training.partial_rollout=True", (1, 8), (1, 8), "4", "= 4 × 256"),
        ("0/22,8/47,8/39 async_training.partial_rollout=True", (1, 8), (1, 8), "4", "= 4 × 256"),
        (f"1x8/43 {FULLY_ASYNC}", (1, 4), (1, 4), "4", "batch 1024 = 4 × 256"),
        # a step has the prompts of an update as often as the user says
        (f"2x8 {TAKEN}=2", (1, 8), (1, 8), "2", "batch 1024 = 4 × 256"),
        (f"2x8 {TAKEN}=8", (1, 8), (1, 8), "1", "batch 2048 = 8 × 256"),
        (f"2x8 {TAKEN}=2 {TRIGGER}=3 {MINI}=64", (1, 8), (1, 8), "3", "batch 384 = 6 × 64"),
    ],
)
@pytest.mark.parametrize("version", ["0.8.0", "0.9.1"])
def test_the_fully_async_trainer(  # noqa: PLR0913 - columns of a table
    version: str,
    line: str,
    trainer: tuple[int, int],
    engines: tuple[int, int],
    sync: str,
    said: str,
) -> None:
    """Any of its keys chooses its program, whose own keys count the engines' nodes and a step."""
    command = made(f"verl-grpo=={version} {line}")
    assert command.argv[2] == "verl.experimental.fully_async_policy.fully_async_main"
    found = settings_of(command)
    sizes = [
        (int(found[f"{side}.nnodes"]), int(found[f"{side}.n_gpus_per_node"]))
        for side in ("trainer", "rollout")
    ]
    assert sizes == [trainer, engines]
    assert (found[TRIGGER], found["data.train_batch_size"]) == (sync, "0")
    assert found["rollout.total_rollout_steps"] == "null"
    assert STORES not in found
    assert command.notes[0].endswith(said)


def test_the_fully_async_trainers_memory() -> None:
    """It keeps copies of the weights only for probabilities that it computes itself."""
    line = f"verl-grpo 2x8x80 {FULLY_ASYNC}"
    split = made(line).split
    assert split is not None
    assert split.setting == "rollout.nnodes={engines}"
    nodes = (NodeSize(8, 128, 700 << 30, 80),) * 2
    own = "algorithm.rollout_correction.bypass_mode=False"
    assert made(line, shape=QWEN2_5_32B, nodes=nodes).split == split
    assert "nodes' memory does not" in refusal(f"{line} {own}", shape=QWEN2_5_32B, nodes=nodes)


@pytest.mark.parametrize(
    ("own", "nodes", "setting"),
    [
        ("", (2, 2), f"{ROLLOUT}.nnodes={{engines}}"),
        ("trainer.n_gpus_per_node=4", (2, 2), f"{ROLLOUT}.nnodes={{engines}}"),
        (
            f"trainer.nnodes=1 {ROLLOUT}.nnodes=1",
            (1, 1),
            f"trainer.nnodes={{trainer}} {ROLLOUT}.nnodes={{engines}}",
        ),
    ],
)
def test_the_split_is_the_commands(own: str, nodes: tuple[int, int], setting: str) -> None:
    """It counts the nodes that train by the command; its setting changes all that the user set."""
    split = made(f"verl-grpo 4x8 {MODE} {own}").split
    assert split is not None
    assert (split.trainer, split.engines, split.setting) == (*nodes, setting)


def test_fewer_engines_for_a_model_that_half_of_the_nodes_cannot_hold() -> None:
    """The trainer gets the nodes that it needs; the reason says so, and a misfit what it counts."""
    model = replace(QWEN2_5_32B, parameters=140_000_000_000)
    node = NodeSize(8, 128, 1640 << 30, 80)
    command = made(f"verl-grpo 4x8x80 {MODE}", shape=model, nodes=(node,) * 4)
    found = settings_of(command)
    assert (found["trainer.nnodes"], found[f"{ROLLOUT}.nnodes"]) == ("3", "1")
    why = command.why[f"{ROLLOUT}.nnodes"]
    assert why == "1 of 4 nodes generate; the others are as few as can hold the model"
    said = refusal(f"verl-grpo 2x8x80 {MODE}", shape=model, nodes=(node,) * 2)
    assert "140 B on 1×8×80 GB" in said
    assert "these are the nodes that train" in said


@pytest.mark.parametrize("version", NAMES)
@pytest.mark.parametrize("recipe", ["verl-grpo", "verl-ppo"])
def test_adapters_and_sglang_change_nothing_else(version: str, recipe: str) -> None:
    """The keys of verl's own script for adapters are added, and sizes; SGLang has vLLM's keys."""
    line = f"{recipe}=={version} 2x8"
    plain = settings_of(made(line))
    command = made(line, lora_rank=64)
    found = settings_of(command)
    script = {
        f"{MODEL}.lora_rank": "64",
        f"{MODEL}.lora_alpha": "32",
        f"{ACTOR}.optim.lr": "3e-6",
        f"{ROLLOUT}.load_format": "safetensors",
        f"{ROLLOUT}.layered_summon": "True",
    }
    assert script.items() <= found.items()
    saved, strategy = f"{ACTOR}.checkpoint.save_contents", f"{ACTOR}.strategy"
    by_fsdp2 = {strategy} if version >= "0.9" else set()
    changed = {key for key in found if found[key] != plain.get(key)}
    assert changed == {*script, saved, *by_fsdp2}
    assert found.get(strategy, "fsdp") == command.format[strategy]
    assert "hf_model" not in found[saved]  # its weights would have the names of adapters
    assert set(command.why) == set(found)
    assert command.format[f"{MODEL}.lora_rank"] == "64"
    assert not any("want a higher one" in warning for warning in command.warnings)
    assert any("adapters.md merges it" in note for note in command.notes)

    other = made(line, rollout="sglang")
    changed = {key for key, value in settings_of(other).items() if value != plain.get(key)}
    assert changed == {f"{ROLLOUT}.name"}
    assert other.why[f"{ROLLOUT}.name"] == "AGENT_ROLLOUT"
    scored = settings_of(made(line, rollout="sglang", reward_model="/reward"))
    assert {v for k, v in scored.items() if k.endswith("rollout.name")} == {"sglang"}


def test_adapters_need_little_memory_and_it_is_counted() -> None:
    """A model that is too large in full fits with adapters; their own bytes are in the reason."""
    large = replace(QWEN2_5_7B, parameters=72_700_000_000, layers=80, hidden=8192, wide=29568)
    fields = {"nodes": (NodeSize(8, 128, 900 << 30, 80),), "shape": replace(large, heads=64)}
    assert "nodes' memory does not" in refusal("verl-grpo 1x8x80", **fields)
    why = made("verl-grpo 1x8x80", lora_rank=64, **fields).why[SHARE]
    assert "× 4 bytes / 8 GPUs" in why
    assert "adapters of rank 64: 0.92 B × 16 bytes / 8 GPUs = 1.8 GB" in why


WITH_IMAGES = replace(QWEN3_30B, has_vision=True, parameters=31_070_000_000)
TP = f"{MEGATRON}.tensor_model_parallel_size"
EP = f"{MEGATRON}.expert_model_parallel_size"
CONFIG = "ppo_megatron_trainer"
ON_MEGATRON = {"backend": "megatron", "shape": QWEN3_8B}


@pytest.mark.parametrize("version", NAMES[1:])
@pytest.mark.parametrize("recipe", ["verl-grpo", "verl-ppo"])
def test_keys_of_megatrons_tree(version: str, recipe: str) -> None:
    """The tree is chosen as the version does it, and no key of FSDP's tree is set."""
    command = made(f"{recipe}=={version} 1x8x80", **ON_MEGATRON)
    found = settings_of(command)
    by_key = version >= "0.8"
    assert found.get("model_engine") == ("megatron" if by_key else None)
    assert (f"--config-name={CONFIG}" in command.argv) is not by_key
    assert not [key for key in found if "fsdp" in key or key.endswith("strategy")]
    assert found["actor_rollout_ref.ref.megatron.param_offload"] == "True"
    assert found[f"{MEGATRON}.override_transformer_config.recompute_granularity"] == "full"
    of_0_6 = version < "0.7"
    assert (f"{MEGATRON}.use_mbridge" in found) is of_0_6
    assert ("actor_rollout_ref.ref.megatron.tensor_model_parallel_size" in found) is of_0_6
    critic = {key for key in found if key.startswith("critic.megatron")}
    actor = {key for key in found if key.startswith(MEGATRON)}
    assert {f"{ACTOR}{key.removeprefix('critic')}" for key in critic} == (
        actor if recipe == "verl-ppo" else set()
    )
    assert set(command.why) == {key for key in found if key != "config-name"}
    assert command.format[f"{ACTOR}.strategy"] == "megatron"


@pytest.mark.parametrize(
    ("version", "own"),
    [
        ("0.9.1", "model_engine=megatron"),
        ("0.6.1", f"--config-name={CONFIG}"),
        ("0.7.1", f"--config-name {CONFIG}.yaml --config-path=config"),
        ("0.7.1", f"-cn {CONFIG}"),
    ],
)
def test_megatrons_tree_is_chosen_once(version: str, own: str) -> None:
    """The user's arguments and AGENT_BACKEND choose the same one; `--config-path` stays."""
    argv = made(f"verl-grpo=={version} 1x8x80 {own}", **ON_MEGATRON).argv
    chosen = [word for word in argv if CONFIG in word or "model_engine" in word]
    assert len(chosen) == 1
    assert argv.index(chosen[0]) >= 3
    assert ("--config-path=config" in argv) is ("--config-path=config" in own)


def test_checkpoints_keep_their_division_and_strategy() -> None:
    """A later attempt divides the model as the one that saved, and FSDP cannot resume it."""
    first = made(f"verl-grpo 1x8x80 {TP}=4", **ON_MEGATRON)
    basis = JobBasis(QWEN3_8B, kept=first.format)
    later = made("verl-grpo 1x8x80", backend="megatron", basis=basis)
    assert settings_of(later)[TP] == "4"
    assert later.format == first.format
    assert first.format[EP] == "1"
    strategy = {f"{ACTOR}.strategy": "fsdp", f"{MODEL}.lora_rank": "32"}
    resumed = made("verl-grpo 2x8", lora_rank=32, basis=JobBasis(kept=strategy))
    assert resumed.format[f"{ACTOR}.strategy"] == "fsdp"
    adapters = made("verl-grpo 1x8x80", lora_rank=32, **ON_MEGATRON)
    assert adapters.format[f"{MODEL}.lora.rank"] == "32"


@given(
    st.sampled_from([QWEN3_30B, WITH_IMAGES, QWEN3_235B, DEEPSEEK_V3]),
    st.sampled_from([16, 24, 40, 48, 64, 80]),
    st.sampled_from([1, 2, 4, 12, 32, 64]),
)
def test_smaller_gpus_are_divided_or_refused(model: ModelShape, memory: int, count: int) -> None:
    """No more of the optimizer than all of it can be on the CPUs, on however small GPUs."""
    what = asked(f"verl-grpo {count}x8x{memory}", shape=model)
    try:
        made(what, backend="megatron")
    except MisfitError as misfit:
        assert f"{count}×8×{memory} GB: no: " in str(misfit)  # noqa: PT017 - refused or made


FRACTION = f"{OPTIM}.override_optimizer_config.optimizer_offload_fraction"


@pytest.mark.parametrize(
    ("model", "nodes", "sizes", "fraction", "timeout"),
    [
        (QWEN3_30B, "1x8x80", (1, 1, 1, 8), "1.0", None),
        (QWEN3_30B, "2x8x80", (1, 1, 1, 8), "1.0", None),
        (WITH_IMAGES, "1x8x80", (2, 1, 2, 8), "1.0", None),
        (QWEN3_235B, "4x8x96", (4, 8, 1, 4), "1.0", "7200"),
        (QWEN3_235B, "8x8x96", (4, 8, 1, 4), "0.5", "7200"),
        (QWEN3_235B, "8x8x80", (4, 8, 1, 4), "1.0", "7200"),  # published for 96 GB
        (QWEN3_235B, "16x8x96", (4, 8, 1, 4), None, "7200"),
        (DEEPSEEK_V3, "12x8x80", (8, 12, 1, 8), "1.0", "7200"),
        (DEEPSEEK_V3, "32x8x80", (8, 16, 1, 8), "0.5", "7200"),
    ],
)
def test_sizes_start_from_published_ones(
    model: ModelShape,
    nodes: str,
    sizes: tuple[int, ...],
    fraction: str | None,
    timeout: str | None,
) -> None:
    """TP, PP, CP and EP of verl's scripts and docs/perf, with a GPU's rest to spare."""
    command = made(f"verl-grpo {nodes}", backend="megatron", shape=model)
    found = settings_of(command)
    names = ("tensor_model", "pipeline_model", "context", "expert_model")
    keys = [f"{MEGATRON}.{name}_parallel_size" for name in names]
    assert tuple(int(found.get(key, "1")) for key in keys) == sizes
    assert found.get(FRACTION) == fraction
    assert found.get("actor_rollout_ref.nccl_timeout") == timeout
    assert any("divided as verl publishes it" in note for note in command.notes)


def test_published_rows_divide_their_gpus() -> None:
    """Each row is whole copies of a model on its own number of GPUs."""
    assert all(row.parallel(row.gpus) is not None for row in PUBLISHED)
    assert stages_of(61, 12, 6) is not None
    assert stages_of(61, 12, 7) is None


def test_fsdp_says_what_trains_so_many_experts_better() -> None:
    """It gathers them all for each layer; verl's scripts of FSDP end at 80 B."""
    (warning, *_) = made("verl-grpo 32x8x80", shape=QWEN3_235B).warnings
    assert "AGENT_BACKEND=megatron divides them" in warning
    assert made("verl-grpo 32x8x80", shape=QWEN3_30B).warnings == ()
