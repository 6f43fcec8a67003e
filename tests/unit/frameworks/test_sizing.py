"""Sizes by memory: models, the shapes of the frameworks' own scripts, refusals, monotony."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.frameworks import layouts as table
from agent.frameworks.recipe import MisfitError, ModelShape, NodeSize
from agent.frameworks.sizing import Workload, sizing_of
from agent.node.facts import Facts, NodeVersions
from support.framework_defaults import load
from support.model_shapes import DEEPSEEK_V3

if TYPE_CHECKING:
    from agent.frameworks.layouts import Layout

MODELS: list[dict[str, Any]] = load("shapes")["model"]
SHAPES: list[dict[str, Any]] = load("shapes")["shape"]
LAYOUTS = {
    "verl": table.VERL,
    "openrlhf": table.OPENRLHF,
    "openrlhf-m": table.OPENRLHF,
    "search-r1": table.SEARCH_R1,
    "trl": table.OPENRLHF_TRAIN,
}
WITHOUT_ENGINES = {"sft", "rm", "dpo"}


def config_of(model: dict[str, Any]) -> dict[str, object]:
    """Return the `config.json` of a model in shapes.toml."""
    config = {
        "hidden_size": model["hidden_size"],
        "num_hidden_layers": model["layers"],
        "num_attention_heads": model["heads"],
        "num_key_value_heads": model["kv_heads"],
        "head_dim": model["head_size"],
        "intermediate_size": model["intermediate_size"],
        "vocab_size": model["vocab_size"],
        "tie_word_embeddings": model["tied"],
    }
    if "experts" in model:
        config["num_experts"] = model["experts"]
        config["num_experts_per_tok"] = model["experts_per_token"]
        config["moe_intermediate_size"] = model["expert_intermediate_size"]
    return config


def by_name(name: str) -> ModelShape:
    """Return the shape that a name stands for."""
    found = ModelShape.from_name(name)
    assert found is not None
    return found


def workload(
    model: str = "7B",
    nodes: int = 1,
    gpus: int = 8,
    memory: int | None = 80,
    layouts: tuple[Layout, ...] = table.VERL,
    **more: Any,  # noqa: ANN401 - further fields
) -> Workload:
    """Return a workload on equal nodes."""
    sizes = (NodeSize(gpus, gpu_memory=memory),) * nodes
    shape = by_name(model)
    given = {"tokens": 4096, "share": 0.6, "model": shape, **more}
    return Workload(layouts, nodes=sizes, **given)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model["name"])
def test_models(model: dict[str, Any]) -> None:
    """`config.json` gives the parameters, and the name about as many."""
    exact = ModelShape.from_config(config_of(model))
    assert exact is not None
    assert exact.parameters == pytest.approx(model["parameters"], rel=1e-3)
    assert exact.cached == model["layers"] * 2 * model["kv_heads"] * model["head_size"]
    estimate = by_name(model["name"])
    assert estimate.parameters == pytest.approx(exact.parameters, rel=0.2)
    assert estimate.token() == pytest.approx(exact.token(), rel=0.25)


def test_a_vision_model() -> None:
    """A model of text and images nests its text part, and adds a vision tower."""
    text = config_of(next(model for model in MODELS if model["name"] == "Qwen/Qwen2.5-7B"))
    tower = {"depth": 32, "hidden_size": 1280, "intermediate_size": 3420}
    plain = ModelShape.from_config(text)
    nested = ModelShape.from_config({"text_config": text, "vision_config": tower})
    assert plain is not None
    assert nested is not None
    assert 0.5e9 < nested.parameters - plain.parameters < 0.8e9  # 0.67 B in Qwen2.5-VL
    assert ModelShape.from_config({"hidden_size": "7B"}) is None


def test_embeddings_are_tied_where_the_key_is_left_out() -> None:
    """It is written only where it is no default: Gemma's files lack it, Qwen's do not."""
    fields = config_of(next(model for model in MODELS if model["name"] == "Qwen/Qwen2.5-7B"))
    untied = ModelShape.from_config(fields)
    del fields["tie_word_embeddings"]
    tied = ModelShape.from_config(fields)
    assert untied is not None
    assert tied is not None
    assert (untied.tied, tied.tied) == (False, True)
    assert untied.parameters - tied.parameters == tied.vocabulary * tied.hidden


def test_deepseek_v3() -> None:
    """671 B parameters with shared experts, dense first layers and a small KV cache."""
    assert DEEPSEEK_V3.parameters == pytest.approx(671e9, rel=0.03)
    assert DEEPSEEK_V3.cached == 61 * 576


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("7B", 7),
        ("Qwen/Qwen2.5-0.5B-Instruct", 0.5),
        ("OpenRLHF/Llama-3-8b-sft-mixture", 8),
        ("mistralai/Mixtral-8x7B-v0.1", 56),
        ("HuggingFaceTB/SmolLM2-135M", 0.135),
        ("/models/qwen3-30b-a3b", 30),
        ("microsoft/Phi-3-mini-4k-instruct", None),
        ("gpt2", None),
        ("org/model-4bit", None),
        ("Qwen2.5", None),
        ("0B", None),
    ],
)
def test_sizes_in_names(name: str, billions: float | None) -> None:
    """A size in a name is a number before B or M."""
    found = ModelShape.from_name(name)
    assert (found and found.parameters / 1e9) == (billions and pytest.approx(billions))


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape["id"])
def test_shapes_of_the_frameworks_fit(shape: dict[str, Any]) -> None:
    """What runs by the frameworks' own scripts is not refused."""
    apart = shape["reference"] == "apart"  # the actor on 8 GPUs of its own, engines on others
    no_engines = apart or shape["algorithm"] in WITHOUT_ENGINES or shape["framework"] == "trl"
    layouts = LAYOUTS[shape["framework"]]
    known = next((model for model in MODELS if model["name"] == shape["model"]), None)
    load = Workload(
        table.OPENRLHF_TRAIN if shape["algorithm"] in WITHOUT_ENGINES else layouts,
        shape.get("total_length") or shape.get("prompt", 512) + shape.get("answer", 512),
        (NodeSize(shape["gpus"], gpu_memory=shape.get("gpu_memory", 80)),)
        * (1 if apart else shape["nodes"]),
        model=by_name(f"{shape['billions']}B")
        if known is None
        else ModelShape.from_config(config_of(known)),
        trained=2 if shape.get("critic") and not apart else 1,
        frozen=0 if apart or shape["reference"] == "none" else 1,
        share=0.0 if no_engines else 0.6,
        adapters="lora_rank" in shape,
    )
    found = sizing_of(load)
    assert found.tokens >= load.tokens
    assert bool(found.share) == bool(load.share)
    if "tensor_parallel" in shape and shape["tensor_parallel"] <= shape["gpus"] and not no_engines:
        sizing_of(replace(load, tensor_parallel=shape["tensor_parallel"]))


WEIGHTS = workload("7.6B", nodes=8, gpus=1, own_share=0.1)
LORA = workload("7B", gpus=1, memory=24, layouts=(table.ZERO2,), share=0.0, adapters=True)
REFUSED = [
    (workload("72B", memory=24, layouts=table.OPENRLHF, trained=2, frozen=2), "from 24×8 on"),
    (workload("72B", memory=24, trained=2), "from 3×8 on"),
    (workload("72B"), "FSDP2 with all states in CPU memory needs 1,192 GB of a node"),
    (workload("72B"), "from 2×8 on, or with GPUs of 192 GB"),
    (workload("8B", gpus=1), "from 1×2 on"),
    (workload("70B", gpus=1), "no: all states on the CPUs, "),
    (workload("671B-A37B", layouts=table.OPENRLHF), "nor on 64 such nodes"),
    (workload("8B", gpus=1, memory=24, layouts=table.OPENRLHF_TRAIN, share=0.0), "from 1×2 on"),
    # a part for engines without room for the weights, and engines that are too small: nodes are no
    # remedy for that
    (WEIGHTS, "in 0.1 × 80 GB; with engines of 1 GPU that have 0.6"),
    (workload("72B", nodes=4, tensor_parallel=1), "of weights / 1 = 144 GB"),
    (
        workload("72B", nodes=4, tensor_parallel=1),
        "; with engines of 8 GPUs that have 0.55 of each",
    ),
    # the states fit, and the longest sample does not
    (replace(LORA, tokens=8192, logit=10), "or with samples of at most 4096 tokens"),
]


@pytest.mark.parametrize(("load", "remedy"), REFUSED)
def test_refusals_name_what_would_fit(load: Workload, remedy: str) -> None:
    """What cannot fit is refused, with the arithmetic and the smallest nodes that fit."""
    with pytest.raises(MisfitError, match=r" B on .* GB: no: .* GB.*; ") as caught:
        sizing_of(load)
    assert remedy in str(caught.value)


def test_own_arguments_turn_refusals_into_warnings() -> None:
    """Whoever sets a related argument, or has unknown GPUs, gets a warning instead."""
    load = workload("72B")
    (warning,) = sizing_of(replace(load, given=("AGENT_TENSOR_PARALLEL",))).warnings
    assert "from 2×8 on, or with GPUs of 192 GB" in warning
    assert "Not refused: AGENT_TENSOR_PARALLEL set" in warning
    unknown = sizing_of(workload("72B", memory=None))
    assert "their memory is not known here" in unknown.warnings[0]


@pytest.mark.parametrize(
    ("share", "layout", "engine"),
    [(0.8, table.VERL_RESIDENT, 1), (0.95, table.VERL_OFFLOAD, 1), (0.1, table.VERL_RESIDENT, 4)],
)
def test_the_users_part_for_engines_is_counted(share: float, layout: Layout, engine: int) -> None:
    """States that leave too little for it are offloaded; a small one divides the weights."""
    found = sizing_of(replace(workload("7.6B"), own_share=share))
    assert (found.layout, found.share, found.tensor_parallel) == (layout, share, engine)
    assert found.warnings == ()


def test_heads_limit_tensor_parallel() -> None:
    """Engines divide the attention's heads: 28 of them not by 8."""
    config = config_of(next(model for model in MODELS if model["name"] == "Qwen/Qwen2.5-7B"))
    load = replace(workload(memory=24), model=ModelShape.from_config(config))
    assert sizing_of(load).tensor_parallel == 4


def test_slow_networks_shard_within_nodes() -> None:
    """On a slow network shards stay within nodes, if a node holds them all."""
    assert not sizing_of(workload("7B", nodes=2)).within_nodes
    slow = sizing_of(workload("7B", nodes=2, link=1e8))
    assert slow.within_nodes
    assert "7 B × 16 bytes / 8 GPUs = 14.0 GB" in slow.why["layout"]
    assert any("for about 2,240 s at 100 Mbit/s" in note for note in slow.notes)
    assert any("122 GB to save" in note for note in slow.notes)  # all shards are in each node

    # What does not fit in a node's GPUs goes to its memory before weights cross the network.
    larger = sizing_of(workload("32B", nodes=4, link=8e8))
    assert larger.within_nodes
    assert larger.layout.on_cpu
    with pytest.raises(MisfitError, match=r"would send gradients for 4.3 h: take one node"):
        sizing_of(workload("32B", nodes=4, link=1e8))


def test_assumptions_are_named() -> None:
    """An unknown model is not sized, and unknown GPUs are taken for common ones."""
    unknown = sizing_of(replace(workload(), model=None))
    assert (unknown.tensor_parallel, unknown.share, unknown.tokens) == (1, 0.6, 0)
    assert "the model's size is not known" in unknown.notes[0]
    assert "sized for GPUs of 80 GB" in " ".join(sizing_of(workload(memory=None)).notes)
    without = sizing_of(workload(gpus=0))
    assert (without.layout, without.tensor_parallel) == (table.VERL_RESIDENT, 1)
    assert without.notes == ()


def test_long_sequences_are_warned_of() -> None:
    """A limit on the length is no refusal, since most sequences are shorter."""
    found = sizing_of(workload("72B", nodes=4, tokens=136_000))
    assert found.tokens == 136_000
    assert "a sequence of all 136000 tokens may run out of memory: about " in found.warnings[-1]


@pytest.mark.parametrize(
    ("models", "memory"),
    [
        (["NVIDIA H100 80GB HBM3"], 80),
        (["NVIDIA H100 NVL"], 94),
        (["NVIDIA GH200 480GB"], 96),  # 480 GB are the CPU's
        (["NVIDIA A100-SXM4-40GB"], 40),
        (["NVIDIA L40S"], 48),
        (["NVIDIA L4"], 24),
        (["NVIDIA GeForce RTX 4090"], 24),
        (["NVIDIA RTX 6000 Ada Generation"], 48),
        (["Tesla T4"], 16),
        (["AMD Instinct MI300X 192 GiB"], 192),
        (["NVIDIA TITAN"], None),
        # a node's memory is that of its smallest GPU, if all are known
        (["NVIDIA H200", "NVIDIA H100 PCIe"], 80),
        (["NVIDIA H200", "NVIDIA TITAN"], None),
        ([], None),
    ],
)
def test_memory_of_gpus(models: list[str], memory: int | None) -> None:
    """The name of a GPU has its memory, or stands for it."""
    versions = NodeVersions(gpu_models=tuple(models))
    assert Facts("node", {}, node_versions=versions).gpu_memory == memory


def fits(load: Workload) -> bool:
    """Return whether a workload is not refused."""
    try:
        sizing_of(load)
    except MisfitError:
        return False
    return True


LOADS = st.builds(
    workload,
    st.sampled_from(["0.5B", "3B", "7B", "14B", "30B-A3B", "32B", "72B", "235B-A22B"]),
    st.integers(1, 8),
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from([16, 24, 48, 80, 141]),
    st.sampled_from([table.VERL, table.OPENRLHF, table.OPENRLHF_TRAIN, table.SEARCH_R1]),
    tokens=st.sampled_from([512, 4096, 32_768]),
    trained=st.sampled_from([1, 2]),
    frozen=st.sampled_from([0, 1, 2]),
    share=st.sampled_from([0.0, 0.5, 0.9]),
    link=st.sampled_from([None, 1e8, 1e10]),
)


@given(
    LOADS,
    st.integers(0, 4),
    st.sampled_from([1, 2]),
    st.sampled_from([0, 8, 61]),
)
def test_more_never_makes_it_refused(load: Workload, nodes: int, times: int, memory: int) -> None:
    """More nodes, GPUs or memory never make a fit refused, nor does training adapters only.

    A slow network does: more nodes have more to send.
    """
    load = replace(load, link=None if load.link == 1e8 else load.link)
    if not fits(load):
        return
    node = load.nodes[0]
    larger = replace(node, gpus=node.gpus * times, gpu_memory=(node.gpu_memory or 0) + memory)
    more = replace(load, nodes=(larger,) * (len(load.nodes) + nodes))
    assert fits(more)
    assert fits(replace(more, adapters=True))


@given(LOADS)
def test_sizes_stay_within_the_nodes(load: Workload) -> None:
    """An engine is within a node, its share leaves room, and a sequence fits the cap."""
    try:
        found = sizing_of(load)
    except MisfitError as refusal:
        assert " GB" in str(refusal)  # noqa: PT017 - refusals have figures
        return
    assert load.gpus % found.tensor_parallel == 0
    assert (0 < found.share <= 0.95) if load.share else found.share == 0
    assert found.tokens >= load.tokens
    assert found.layout.name in {layout.name for layout in load.layouts}
