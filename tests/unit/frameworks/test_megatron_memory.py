"""How Megatron divides a model: whole heads, layers and experts, and memory that suffices."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.frameworks.layouts import CPU_OPTIMIZER, MEGATRON, OFFLOAD, RESIDENT, Split
from agent.frameworks.megatron_memory import (
    CONTEXT,
    EXPERT,
    PIPELINE,
    TENSOR,
    Fixed,
    MegatronFit,
    stages_of,
)
from agent.frameworks.recipe import MisfitError, ModelShape, NodeSize
from agent.frameworks.sizing import Host, Sizing, Workload, engine_sizes, sizing_of
from support.model_shapes import QWEN2_5_7B, QWEN2_5_32B, QWEN3_8B, QWEN3_30B, QWEN3_235B

MODELS = {
    "7B": QWEN2_5_7B,
    "8B": QWEN3_8B,
    "30B-A3B": QWEN3_30B,
    "32B": QWEN2_5_32B,
    "235B-A22B": QWEN3_235B,
}


def load_of(
    model: ModelShape | None,
    shape: str,
    memory: int = 2 << 40,
    sizes: dict[str, int] | None = None,
    tokens: int = 3072,
) -> Workload:
    """Return the workload of GRPO on nodes × GPUs × GB."""
    count, gpus, gpu_memory = map(int, shape.split("x"))
    return Workload(
        layouts=MEGATRON,
        tokens=tokens,
        nodes=(NodeSize(gpus, 64, memory, gpu_memory),) * count,
        model=model,
        share=0.6,
        in_nodes=Host(frozen=Split(own=2), loading=2),
        ways=Fixed(sizes or {}).ways,
        spans=True,
    )


def fit_of(sizing: Sizing) -> MegatronFit:
    """Return how a model was divided."""
    assert isinstance(sizing.fit, MegatronFit)
    return sizing.fit


@pytest.mark.parametrize(
    ("model", "shape", "layout", "said"),
    [
        ("8B", "1x8x80", RESIDENT, "8 GPUs = TP 2 × PP 1 × DP 4"),
        ("7B", "2x8x80", RESIDENT, "16 GPUs = TP 2 × PP 1 × DP 8"),
        ("32B", "1x8x80", OFFLOAD, "8 GPUs = TP 8 × PP 1 × DP 1"),
        ("30B-A3B", "1x8x80", OFFLOAD, "8 GPUs = TP 2 × PP 1 × DP 4 = EP 8 × PP 1 × 1"),
        ("30B-A3B", "1x8x96", OFFLOAD, "8 GPUs = TP 1 × PP 1 × DP 8 = EP 8 × PP 1 × 1"),
        ("235B-A22B", "4x8x96", CPU_OPTIMIZER, "= TP 1 × PP 4 × DP 8 = EP 8 × PP 4 × 1"),
        ("235B-A22B", "8x8x80", OFFLOAD, "64 GPUs = TP 2 × PP 8 × DP 4 = EP 8 × PP 8 × 1"),
    ],
)
def test_shapes_of_verls_scripts_fit(model: str, shape: str, layout: object, said: str) -> None:
    """What verl's own scripts train is accepted, as are their GPUs and the parts they have."""
    sizing = sizing_of(load_of(MODELS[model], shape))
    assert sizing.layout == layout
    assert said in sizing.why["layout"]
    assert all("is tight: a step with one longest sample fills" in w for w in sizing.warnings)


@pytest.mark.parametrize(
    ("layers", "pipeline", "expected"),
    [
        (48, 4, (12, 12, 12)),
        (94, 8, (11, 12, 11)),  # as verl's script for 235B
        (94, 2, (47, 47, 47)),
        (61, 16, (3, 4, 2)),
        (61, 2, (31, 31, 30)),
        (9, 8, None),
        (1, 2, None),
    ],
)
def test_stages(layers: int, pipeline: int, expected: tuple[int, int, int] | None) -> None:
    """Only the first and the last stage may have fewer layers."""
    stages = stages_of(layers, pipeline)
    found = None if stages is None else (stages.first, stages.middle, stages.last)
    assert found == expected


@given(layers=st.integers(1, 200), pipeline=st.integers(1, 64))
def test_stages_have_all_layers(layers: int, pipeline: int) -> None:
    """No layer is lost or doubled, and no stage is empty."""
    stages = stages_of(layers, pipeline)
    if stages is None:
        return
    ends = stages.first + stages.last
    total = stages.first if pipeline == 1 else ends + (pipeline - 2) * stages.middle
    assert total == layers
    assert min(stages.first, stages.middle, stages.last) >= 1
    assert stages.most == max(stages.first, stages.last, stages.middle)


SHAPES = st.builds(
    ModelShape,
    parameters=st.integers(10**8, 10**12),
    layers=st.integers(1, 120),
    hidden=st.sampled_from([1024, 2048, 4096, 7168]),
    wide=st.sampled_from([2048, 8192, 28672]),
    cached=st.integers(1000, 400_000),
    vocabulary=st.sampled_from([32_000, 151_936]),
    heads=st.sampled_from([0, 14, 28, 32, 64, 128]),
    kv_heads=st.sampled_from([1, 2, 4, 8, 128]),
    tied=st.booleans(),
    experts=st.sampled_from([0, 0, 8, 128, 160]),
)


@given(
    model=SHAPES,
    part=st.floats(0, 1),
    nodes=st.integers(1, 20),
    gpus=st.sampled_from([1, 2, 3, 4, 6, 8]),
    tokens=st.sampled_from([1024, 3072, 40_000]),
)
def test_every_division_is_one_that_megatron_accepts(
    model: ModelShape, part: float, nodes: int, gpus: int, tokens: int
) -> None:
    """Sizes multiply to the GPUs, and divide heads, layers and experts; no memory is negative."""
    in_experts = int(model.parameters * part) if model.experts else 0
    model = replace(model, in_experts=in_experts)
    load = load_of(model, f"{nodes}x{gpus}x80", tokens=tokens)
    world = nodes * gpus
    assert all(world % size == 0 for size in engine_sizes(load, model))
    last = None
    for fit in Fixed().ways(load, model):
        assert isinstance(fit, MegatronFit)
        parallel = fit.parallel
        last = fit
        assert parallel.tensor * parallel.pipeline * parallel.context * parallel.data == world
        experts = parallel.expert_tensor * parallel.expert * parallel.pipeline
        assert experts * parallel.expert_data == world
        assert gpus % parallel.tensor == 0
        assert (model.heads or gpus) % parallel.tensor == 0
        assert model.kv_heads % parallel.tensor == 0
        assert (model.experts or 1) % parallel.expert == 0
        assert stages_of(model.layers, parallel.pipeline) is not None
        assert 0 <= fit.parameters.shard <= fit.parameters.own
        assert fit.parameters.own >= model.parameters / world * 0.99
        assert 0 <= fit.generating <= fit.training
        assert fit.token > 0
        assert all(size >= 0 for size in fit.phases.values())
    assert last is not None


@given(model=st.sampled_from(sorted(MODELS)), nodes=st.integers(1, 12), more=st.integers(1, 3))
def test_larger_gpus_and_nodes_never_refuse_what_fits(model: str, nodes: int, more: int) -> None:
    """What fits on GPUs of 80 GB fits on larger ones, and with more memory of the nodes."""
    try:
        sizing_of(load_of(MODELS[model], f"{nodes}x8x80"))
    except MisfitError:
        return
    sizing_of(load_of(MODELS[model], f"{nodes}x8x{80 + 40 * more}", memory=(2 + more) << 40))


@pytest.mark.parametrize(
    "sizes",
    [{TENSOR: 4}, {PIPELINE: 2}, {TENSOR: 2, PIPELINE: 4}, {EXPERT: 4}, {CONTEXT: 2}],
)
def test_the_users_sizes_are_kept(sizes: dict[str, int]) -> None:
    """Sizes that the user fixes are those of the division; the others follow."""
    fit = fit_of(sizing_of(load_of(QWEN3_30B, "2x8x80", sizes=sizes)))
    found = fit.parallel.sizes()
    assert {name: found[name] for name in sizes} == sizes


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ({TENSOR: 3}, "no division of 16 GPUs"),
        ({TENSOR: 16}, "32 heads (4 of keys and values)"),
        ({TENSOR: 8}, "no division"),  # it has four heads of keys and values
        ({PIPELINE: 32}, "48 layers"),
        ({EXPERT: 3}, "128 experts"),
        ({TENSOR: 4, PIPELINE: 8}, f"{TENSOR}=4, {PIPELINE}=8: no division"),
    ],
)
def test_impossible_sizes_are_refused(sizes: dict[str, int], said: str) -> None:
    """Sizes that Megatron would refuse after minutes are refused with the model's numbers."""
    with pytest.raises(MisfitError) as refusal:
        sizing_of(load_of(QWEN3_30B, "2x8x80", sizes=sizes))
    assert said in str(refusal.value)


def test_what_does_not_fit_is_refused_with_figures() -> None:
    """The refusal has the arithmetic, and from which nodes on it fits."""
    with pytest.raises(MisfitError) as refusal:
        sizing_of(load_of(QWEN3_235B, "1x8x80"))
    assert "235 B on 1×8×80 GB: no" in str(refusal.value)
    assert "from " in str(refusal.value)
    with pytest.raises(MisfitError, match="the nodes' memory does not"):
        sizing_of(load_of(QWEN3_235B, "8x8x80", memory=256 << 30))


def test_a_long_text_is_divided() -> None:
    """Context parallel is taken where the tokens of the longest text do not fit on a GPU."""
    short = fit_of(sizing_of(load_of(QWEN2_5_7B, "1x8x80")))
    assert short.parallel.context == 1
    long = fit_of(sizing_of(load_of(QWEN2_5_7B, "1x8x80", tokens=131_072, sizes={TENSOR: 1})))
    assert long.parallel.context > 1
    assert long.tokens >= 131_072
