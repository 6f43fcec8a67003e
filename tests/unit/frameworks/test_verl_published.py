"""The divisions that verl publishes for Megatron, and when a recipe departs from them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.frameworks import verl
from agent.frameworks.megatron_memory import stages_of
from agent.frameworks.recipe import JobBasis, MisfitError, ModelShape, NodeSize
from agent.frameworks.verl_published import PUBLISHED
from support.model_shapes import DEEPSEEK_V3, QWEN3_8B, QWEN3_30B, QWEN3_235B
from support.recipe_words import arguments
from support.verl_asked import asked, on

MEGATRON = "actor_rollout_ref.actor.megatron"
SIZES = ("tensor_model", "pipeline_model", "context", "expert_model")
FRACTION = "actor_rollout_ref.actor.optim.override_optimizer_config.optimizer_offload_fraction"
TIMEOUT = "actor_rollout_ref.nccl_timeout"
FIRST = "num_layers_in_first_pipeline_stage"
WITH_IMAGES = replace(QWEN3_30B, has_vision=True, parameters=31_070_000_000)


def made_on(nodes: str, model: ModelShape, *args: str) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the arguments and notes on nodes × GPUs × GB of 2 TB each."""
    command = verl.make(on(model, nodes, (0, 9, 1), *args, backend="megatron"))
    return arguments(command), command.notes


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
    found, notes = made_on(nodes, model)
    keys = [f"{MEGATRON}.{name}_parallel_size" for name in SIZES]
    assert tuple(int(found.get(key, "1")) for key in keys) == sizes
    assert found.get(FRACTION) == fraction
    assert found.get(TIMEOUT) == timeout
    assert any("divided as verl publishes it" in note for note in notes)


@given(
    st.sampled_from([QWEN3_30B, WITH_IMAGES, QWEN3_235B, DEEPSEEK_V3]),
    st.sampled_from([16, 24, 40, 48, 64, 80]),
    st.sampled_from([1, 2, 4, 12, 32, 64]),
)
def test_smaller_gpus_are_divided_or_refused(model: ModelShape, memory: int, count: int) -> None:
    """No more of the optimizer than all of it can be on the CPUs, on however small GPUs."""
    said = ""
    try:
        made_on(f"{count}x8x{memory}", model)
    except MisfitError as misfit:
        said = str(misfit)
    assert not said or f"{count}×8×{memory} GB: no: " in said


def test_a_departure_says_why() -> None:
    """What the GPUs do not divide into is searched by memory, with the reason as a note."""
    found, notes = made_on("6x8x96", QWEN3_235B)
    assert any(
        "departs from TP 4 × PP 8 × EP 4" in note and "48 GPUs are no whole copies" in note
        for note in notes
    )
    assert found[f"{MEGATRON}.expert_model_parallel_size"] == "8"
    assert not any("publish" in note for note in made_on("1x8x80", QWEN3_8B)[1])


@pytest.mark.parametrize(
    ("name", "nodes", "sizes", "first"),
    [
        ("Qwen3-235B-A22B", "8x8x96", (4, 8), "11"),  # of 94 layers
        ("DeepSeek-V3-671B-A37B", "12x8x80", (8, 12), "5"),  # of 61 layers, 6 in the last stage
        ("Qwen2.5-72B-Instruct", "4x8x80", (8, 1), None),
    ],
)
def test_a_name_says_nothing_of_layers(
    name: str, nodes: str, sizes: tuple[int, int], first: str | None
) -> None:
    """Stages would divide a number of layers that is only estimated: as published, or none."""
    model = ModelShape.from_name(name)
    assert model is not None
    found, _ = made_on(nodes, model)
    assert found[f"{MEGATRON}.tensor_model_parallel_size"] == str(sizes[0])
    assert found[f"{MEGATRON}.pipeline_model_parallel_size"] == str(sizes[1])
    assert found.get(f"{MEGATRON}.override_transformer_config.{FIRST}") == first


def test_a_pipeline_needs_the_number_of_layers() -> None:
    """Where only stages would make it fit, the refusal says what to fetch."""
    model = ModelShape.from_name("Llama-3.1-405B")
    assert model is not None
    with pytest.raises(MisfitError, match=r"hf download Qwen/Qwen2\.5-7B config\.json"):
        made_on("16x8x80", model)


@pytest.mark.parametrize(
    ("model", "nodes", "said"),
    [
        (QWEN3_235B, "4x8x80", "from 32 GPUs of 96 GB on"),
        (QWEN3_30B, "1x4x80", "from 8 GPUs of 80 GB on"),
        (DEEPSEEK_V3, "8x8x80", "from 96 GPUs of 80 GB on"),
    ],
)
def test_less_than_the_least_is_refused(model: ModelShape, nodes: str, said: str) -> None:
    """Nobody ran it on less; sizes of one's own are an experiment of one's own."""
    with pytest.raises(MisfitError, match=said):
        made_on(nodes, model)


def test_fsdp_says_what_trains_so_many_experts_better() -> None:
    """It gathers them all for each layer; verl's scripts of FSDP end at 80 B."""
    nodes = (NodeSize(8, 128, 2 << 40, 80),) * 32
    plain = replace(asked("1x8"), nodes=nodes, tensor_parallel=None, basis=JobBasis(QWEN3_235B))
    assert any("AGENT_BACKEND=megatron divides them" in text for text in verl.make(plain).warnings)
    smaller = replace(plain, basis=JobBasis(QWEN3_30B))
    assert verl.make(smaller).warnings == ()


def test_the_rows_divide_their_gpus() -> None:
    """Each row is whole copies of a model on its own number of GPUs."""
    assert all(row.parallel(row.gpus) is not None for row in PUBLISHED)
    assert stages_of(61, 12, 6) is not None
    assert stages_of(61, 12, 7) is None
