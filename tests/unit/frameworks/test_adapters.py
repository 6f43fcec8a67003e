"""AGENT_LORA_RANK and AGENT_ROLLOUT in each framework's own keys, with their memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from agent.bundled import trl_grpo
from agent.frameworks import openrlhf_train, trl, verl
from agent.frameworks.recipe import JobBasis, MisfitError, ModelShape, NodeSize, RecipeInput
from support.recipe_words import arguments, flags_of
from support.verl_asked import RELEASES, asked

if TYPE_CHECKING:
    from agent.base.versions import Version

ACTOR = "actor_rollout_ref.actor"
MODEL = "actor_rollout_ref.model"
ROLLOUT = "actor_rollout_ref.rollout"
LORA = {
    f"{MODEL}.lora_rank": "64",
    f"{MODEL}.lora_alpha": "32",
    f"{ACTOR}.optim.lr": "3e-6",
    f"{ROLLOUT}.load_format": "safetensors",
    f"{ROLLOUT}.layered_summon": "True",
}
SHAPE = ModelShape(
    parameters=7_615_616_512,
    layers=28,
    hidden=3584,
    wide=18944,
    cached=28_672,
    vocabulary=152_064,
)


@pytest.mark.parametrize("version", RELEASES)
@pytest.mark.parametrize("recipe", ["verl-grpo", "verl-ppo"])
def test_verl_trains_adapters(version: Version, recipe: str) -> None:
    """The keys of verl's own script for adapters are added, and nothing else changes but sizes."""
    plain = arguments(verl.make(asked(version=version, recipe=recipe)))
    made = verl.make(replace(asked(version=version, recipe=recipe), lora_rank=64))
    found = arguments(made)
    assert LORA.items() <= found.items()
    changed = {key for key in found if found[key] != plain.get(key)}
    saved = f"{ACTOR}.checkpoint.save_contents"
    by_fsdp2 = {f"{ACTOR}.strategy"} if version >= (0, 9) else set()
    assert changed == {*LORA, saved, *by_fsdp2}
    assert found.get(f"{ACTOR}.strategy", "fsdp") == made.format[f"{ACTOR}.strategy"]
    assert "hf_model" not in found[saved]  # its weights would have the names of adapters
    assert set(made.why) == set(found)
    assert made.format[f"{MODEL}.lora_rank"] == "64"
    assert not any("want a higher one" in warning for warning in made.warnings)
    assert any("adapters.md merges it" in note for note in made.notes)


def test_the_users_keys_replace_those_of_adapters() -> None:
    """A rate or a rank in AGENT_JOB_ARGS wins, once."""
    own = (f"{ACTOR}.optim.lr=1e-5", f"{MODEL}.lora_rank=32")
    found = arguments(verl.make(replace(asked("2x8", (0, 9, 1), *own), lora_rank=64)))
    assert found[f"{ACTOR}.optim.lr"] == "1e-5"
    assert found[f"{MODEL}.lora_rank"] == "32"


@pytest.mark.parametrize(
    ("version", "rank", "said"),
    [
        ((0, 5, 0), 48, "allows only 8, 16, 32, 64, 128, 256, 320, 512"),
        ((0, 6, 1), 513, "allows at most 512"),
        ((0, 9, 1), 1024, "allows at most 512"),
    ],
)
def test_a_rank_that_the_engines_refuse(version: Version, rank: int, said: str) -> None:
    """A rank that vLLM would refuse after minutes is refused with those that it takes."""
    with pytest.raises(MisfitError, match=f"AGENT_LORA_RANK={rank}.*{said}"):
        verl.make(replace(asked(version=version), lora_rank=rank))


def test_a_rank_between_those_of_vllm_is_rounded_by_verl() -> None:
    """From 0.6 on verl itself reserves the next larger rank in the engines."""
    found = arguments(verl.make(replace(asked(version=(0, 6, 1)), lora_rank=48)))
    assert found[f"{MODEL}.lora_rank"] == "48"


@pytest.mark.parametrize("version", RELEASES)
def test_verl_with_sglang(version: Version) -> None:
    """The other engine has the same keys; a reward model's engine is the same one."""
    plain = verl.make(asked(version=version))
    made = verl.make(replace(asked(version=version), rollout="sglang"))
    found = arguments(made)
    changed = {key for key, value in found.items() if value != arguments(plain).get(key)}
    assert changed == {f"{ROLLOUT}.name"}
    assert found[f"{ROLLOUT}.name"] == "sglang"
    assert made.why[f"{ROLLOUT}.name"] == "AGENT_ROLLOUT"

    scored = replace(asked(version=version), rollout="sglang", reward_model="/reward")
    engines = {v for k, v in arguments(verl.make(scored)).items() if k.endswith("rollout.name")}
    assert engines == {"sglang"}


@pytest.mark.parametrize("version", RELEASES)
def test_adapters_with_sglang(version: Version) -> None:
    """Adapters are merged by verl for SGLang from 0.9 on; before it has them with vLLM only."""
    both = replace(asked(version=version), rollout="sglang", lora_rank=513)
    if version < (0, 9):
        with pytest.raises(MisfitError, match="use AGENT_ROLLOUT=vllm, or verl"):
            verl.make(both)
        return
    found = arguments(verl.make(both))
    assert found[f"{MODEL}.lora.merge"] == "True"
    assert found[f"{MODEL}.lora_rank"] == "513"  # the limit is vLLM's


def test_adapters_need_little_memory_and_it_is_counted() -> None:
    """A model that is too large in full fits with adapters; their own bytes are in the reason."""
    large = replace(SHAPE, parameters=72_700_000_000, layers=80, hidden=8192, wide=29568, heads=64)
    nodes = (NodeSize(8, 128, 900 << 30, 80),)
    full = replace(asked(), nodes=nodes, basis=JobBasis(large), tensor_parallel=None)
    with pytest.raises(MisfitError, match="nodes' memory does not"):
        verl.make(full)
    made = verl.make(replace(full, lora_rank=64))
    why = made.why[f"{ROLLOUT}.gpu_memory_utilization"]
    assert "× 4 bytes / 8 GPUs" in why
    assert "adapters of rank 64: 0.92 B × 16 bytes / 8 GPUs = 1.8 GB" in why


def test_a_critic_beside_adapters_is_trained_in_full() -> None:
    """verl-ppo counts a whole critic and the actor's weights: only the actor has adapters."""
    nodes = (NodeSize(8, 64, 1_000 << 30, 80),)
    ppo = replace(asked(recipe="verl-ppo"), nodes=nodes, basis=JobBasis(SHAPE), lora_rank=64)
    made = verl.make(ppo)
    assert "× 20 bytes / 8 GPUs" in made.why[f"{ROLLOUT}.gpu_memory_utilization"]
    assert not any(key.startswith("critic.model.lora") for key in made.why)


def openrlhf_asked(recipe: str, version: Version, *args: str) -> RecipeInput:
    """Return what is asked of OpenRLHF's programs for torchrun, with adapters of rank 16."""
    return RecipeInput(
        recipe,
        (NodeSize(8),),
        version,
        "Qwen/Qwen2.5-7B",
        "/data/train.jsonl",
        checkpoints="/ckpt",
        args=args,
        lora_rank=16,
    )


@pytest.mark.parametrize(
    ("version", "flags", "merges"),
    [
        ((0, 8, 11), ("lora_rank", "lora_alpha"), "--bf16"),
        ((0, 9, 10), ("lora_rank", "lora_alpha"), "--param_dtype bf16"),
        ((0, 11, 2), ("ds.lora.rank", "ds.lora.alpha"), "--ds.param_dtype bf16"),
    ],
)
@pytest.mark.parametrize("recipe", ["openrlhf-sft", "openrlhf-rm", "openrlhf-dpo"])
def test_openrlhf_trains_adapters(
    recipe: str, version: Version, flags: tuple[str, str], merges: str
) -> None:
    """Rank and alpha as in its script; the note has the release's command that merges."""
    made = openrlhf_train.make(openrlhf_asked(recipe, version))
    found = flags_of(made)
    assert [found[flag] for flag in flags] == [("16",), ("16",)]
    (note,) = [note for note in made.notes if "lora_combiner" in note]
    assert merges in note
    assert ("--is_rm" in note) is (recipe == "openrlhf-rm")
    assert made.format["rank of adapters"] == "16"
    # only SFT has a script for adapters: the others' rates are those of full training
    warned = any("want a higher one" in warning for warning in made.warnings)
    assert warned is (recipe != "openrlhf-sft")


def trl_asked(gpus: int, *args: str, model: ModelShape = SHAPE) -> RecipeInput:
    """Return what is asked of TRL on a node, with adapters of rank 32."""
    return RecipeInput(
        "trl-grpo",
        (NodeSize(gpus, 64, 1_000 << 30, 80),),
        trl.VERSIONS[-1],
        "Qwen/Qwen2.5-7B",
        "/data/train.jsonl",
        checkpoints="/ckpt",
        args=args,
        scores=True,
        lora_rank=32,
        basis=JobBasis(model),
    )


def test_trl_trains_adapters() -> None:
    """Rank, alpha and rate as TRL's scripts; each GPU has a whole model, and it is counted."""
    made = trl.make(trl_asked(8))
    found = flags_of(made, after=2)
    assert found["lora-rank"] == ("32",)
    assert found["lora-alpha"] == ("32",)
    assert found["learning-rate"] == ("1e-5",)
    assert "shard" not in found  # FSDP would have to gather what vLLM gets
    assert made.format == {"sharding": "none", "rank of adapters": "32"}
    options = trl_grpo.parser().parse_args(made.argv[2:])
    assert (options.lora_rank, options.shard) == (32, "none")


def test_trl_has_no_reference_beside_adapters() -> None:
    """With a KL term the model without its adapters is the reference: no second one is counted."""
    assert trl.make(trl_asked(8, "--beta", "0.04")).notes == trl.make(trl_asked(8)).notes


def test_trl_refuses_a_model_that_no_gpu_holds() -> None:
    """A model is not divided with adapters, so more GPUs do not help, and larger ones do."""
    large = replace(SHAPE, parameters=72_700_000_000, layers=80, hidden=8192, wide=29568, heads=64)
    with pytest.raises(MisfitError, match=r"72.7 B × 2 bytes = 145 GB \+ adapters of rank 32"):
        trl.make(trl_asked(8, model=large))


STRATEGY = f"{ACTOR}.strategy"
LAYERED = f"{ROLLOUT}.layered_summon"


@pytest.mark.parametrize(
    ("version", "shape", "gpu_memory", "strategy", "is_layered"),
    [
        ((0, 8, 0), "1x1", 80, "fsdp", True),
        ((0, 9, 0), "1x1", 80, "fsdp2", False),  # torch refuses the fallback of FSDP 1 there
        ((0, 9, 1), "1x1", 80, "fsdp2", False),
        ((0, 9, 1), "1x2", 80, "fsdp2", True),
        ((0, 8, 0), "1x1", 24, "fsdp2", False),  # its states are in CPU memory
        ((0, 9, 1), "1x1", 24, "fsdp2", False),
    ],
)
def test_adapters_are_collected(
    version: Version, shape: str, gpu_memory: int, strategy: str, *, is_layered: bool
) -> None:
    """Adapters reach the engines by what each version's `collect_lora_params` can do."""
    what = asked(shape, version)
    nodes = tuple(replace(node, gpu_memory=gpu_memory, memory=200 << 30) for node in what.nodes)
    model = replace(SHAPE, heads=28, kv_heads=4)
    made = verl.make(replace(what, nodes=nodes, basis=JobBasis(model), lora_rank=32))
    found = arguments(made)
    assert found.get(STRATEGY, "fsdp") == strategy == made.format[STRATEGY]
    assert (LAYERED in found) is is_layered
    is_offloaded = found.get(f"{ACTOR}.fsdp_config.offload_policy") == "True"
    assert is_offloaded is (gpu_memory == 24)


def test_own_settings_with_which_adapters_cannot_be_collected() -> None:
    """They would end the job at its first weight sync."""
    own = (f"{STRATEGY}=fsdp", f"{LAYERED}=True")
    with pytest.raises(MisfitError, match="ends at the first weight sync"):
        verl.make(replace(asked("1x1", (0, 9, 1), *own), lora_rank=32))


def test_checkpoints_keep_their_strategy() -> None:
    """Adapters that FSDP 1 saved are not continued by FSDP 2."""
    kept = JobBasis(kept={STRATEGY: "fsdp", f"{MODEL}.lora_rank": "32"})
    made = verl.make(replace(asked(), basis=kept, lora_rank=32))
    assert made.format[STRATEGY] == "fsdp"
    assert STRATEGY not in arguments(made)


@pytest.mark.parametrize("version", [known for known in RELEASES if known >= (0, 7, 1)])
def test_megatron_trains_adapters(version: Version) -> None:
    """The keys of verl's script for them; the actor without adapters is the reference."""
    nodes = (NodeSize(8, 128, 900 << 30, 80),)
    model = replace(SHAPE, heads=28, kv_heads=4)
    plain = replace(asked(version=version), backend="megatron", nodes=nodes, basis=JobBasis(model))
    made = verl.make(replace(plain, lora_rank=32))
    found = arguments(made)
    script = {
        f"{MODEL}.lora.rank": "32",
        f"{MODEL}.lora.alpha": "64",
        f"{MODEL}.lora.lora_A_init_method": "kaiming",
        f"{ACTOR}.optim.lr": "3e-6",
        f"{ACTOR}.megatron.vanilla_mbridge": "False",
    }
    assert script.items() <= found.items()
    assert not [key for key in found if "lora_rank" in key or key.endswith("layered_summon")]
    assert made.format[f"{MODEL}.lora.rank"] == "32"
    assert "adapters of rank 32" in made.why[f"{ACTOR}.megatron.tensor_model_parallel_size"]
