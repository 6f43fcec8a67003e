"""verl with Megatron: AGENT_BACKEND or one's own arguments, in each version's keys."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from agent.frameworks import verl
from agent.frameworks.recipe import JobBasis, MisfitError
from support import verl_asked
from support.model_shapes import QWEN3_8B, QWEN3_235B
from support.recipe_words import arguments
from support.verl_asked import MINI, RELEASES

if TYPE_CHECKING:
    from agent.base.versions import Version

ACTOR = "actor_rollout_ref.actor"
MEGATRON = f"{ACTOR}.megatron"
TP = f"{MEGATRON}.tensor_model_parallel_size"
PP = f"{MEGATRON}.pipeline_model_parallel_size"
CP = f"{MEGATRON}.context_parallel_size"
EP = f"{MEGATRON}.expert_model_parallel_size"
ETP = f"{MEGATRON}.expert_tensor_parallel_size"
OPTIMIZER = f"{ACTOR}.optim.override_optimizer_config"
WITH_MEGATRON = [version for version in RELEASES if version >= (0, 6)]
CONFIG = "--config-name=ppo_megatron_trainer"
on = partial(verl_asked.on, backend="megatron")


@pytest.mark.parametrize("version", WITH_MEGATRON)
@pytest.mark.parametrize("recipe", ["verl-grpo", "verl-ppo"])
def test_keys_of_its_own_tree(version: Version, recipe: str) -> None:
    """The tree is chosen as the version does it, and no key of FSDP's tree is set."""
    made = verl.make(on(version=version, recipe=recipe))
    found = arguments(made)
    by_key = version >= (0, 8)
    assert found.get("model_engine") == ("megatron" if by_key else None)
    assert (CONFIG in made.argv) is not by_key
    assert not [key for key in found if "fsdp" in key or key.endswith("strategy")]
    assert found["actor_rollout_ref.ref.megatron.param_offload"] == "True"
    assert found[f"{MEGATRON}.override_transformer_config.recompute_granularity"] == "full"
    assert (f"{MEGATRON}.use_mbridge" in found) is (version < (0, 7))
    assert ("actor_rollout_ref.ref.megatron.tensor_model_parallel_size" in found) is (
        version < (0, 7)
    )
    critic = {key: value for key, value in found.items() if key.startswith("critic.megatron")}
    of_actor = {key for key in found if key.startswith(MEGATRON)}
    assert {f"{ACTOR}{key.removeprefix('critic')}" for key in critic} == (
        of_actor if recipe == "verl-ppo" else set()
    )
    assert set(made.why) == {key for key in found if not key.startswith("--")}
    assert made.format[f"{ACTOR}.strategy"] == "megatron"


def test_the_reason_has_the_arithmetic() -> None:
    """Beside each size stands how the GPUs are divided and what a GPU keeps."""
    why = verl.make(on()).why[TP]
    assert "8 GPUs = TP 2 × PP 1 × DP 4" in why
    assert "4.1 B of 8.19 B on a GPU × 6 bytes + optimizer 1.02 B × 12 bytes = 36.9 GB" in why


@pytest.mark.parametrize("version", WITH_MEGATRON)
def test_the_largest_of_verls_scripts(version: Version) -> None:
    """235B-A22B on 8×8×80: uneven stages as in verl's script, and states offloaded."""
    found = arguments(verl.make(on(QWEN3_235B, "8x8x80", version)))
    settings = f"{MEGATRON}.override_transformer_config"
    assert found[f"{settings}.num_layers_in_first_pipeline_stage"] == "11"
    assert found[f"{settings}.num_layers_in_last_pipeline_stage"] == "11"
    assert (found[TP], found[PP], found[EP]) == ("4", "8", "4")
    assert found[f"{MEGATRON}.param_offload"] == "True"
    assert found[f"{MEGATRON}.optimizer_offload"] == "True"
    assert (f"{MEGATRON}.grad_offload" in found) is (version < (0, 9, 1))
    assert found[f"{OPTIMIZER}.optimizer_cpu_offload"] == "True"


def test_fsdp_is_refused_with_megatron_as_the_remedy() -> None:
    """A model that only fits with Megatron says so, with what it would take."""
    with pytest.raises(MisfitError) as refusal:
        verl.make(on(QWEN3_235B, "8x8x80", memory=1 << 40, backend=""))
    said = str(refusal.value)
    assert "235 B on 8×8×80 GB: no" in said
    assert "or with AGENT_BACKEND=megatron: offload between phases, optimizer in CPU" in said
    with pytest.raises(MisfitError) as hopeless:
        verl.make(on(QWEN3_235B, "1x8x80", memory=1 << 40, backend=""))
    assert "AGENT_BACKEND" not in str(hopeless.value)


@pytest.mark.parametrize(
    ("version", "args"),
    [
        ((0, 9, 1), ("model_engine=megatron",)),
        ((0, 9, 1), (CONFIG,)),
        ((0, 6, 1), (CONFIG,)),
        ((0, 7, 1), ("--config-name", "ppo_megatron_trainer.yaml", "--config-path=config")),
        ((0, 7, 1), ("-cn", "ppo_megatron_trainer")),
    ],
)
def test_ones_own_arguments_choose_it(version: Version, args: tuple[str, ...]) -> None:
    """The user's tree counts without AGENT_BACKEND, and stands in the command once."""
    for backend in ("", "fsdp", "megatron"):
        made = verl.make(on(QWEN3_8B, "1x8x80", version, *args, backend=backend))
        found = arguments(made)
        assert found[TP] == "2"
        assert not [key for key in found if "fsdp" in key]
        chosen = [word for word in made.argv if "ppo_megatron" in word or "model_engine" in word]
        assert len(chosen) == 1
        assert made.argv.index(chosen[0]) >= 3
    if "--config-path=config" in args:
        assert "--config-path=config" in made.argv


def test_ones_own_engine_wins_over_the_variable() -> None:
    """`model_engine=dp` trains with FSDP's tree."""
    found = arguments(verl.make(on(QWEN3_8B, "1x8x80", (0, 9, 1), "model_engine=dp")))
    assert TP not in found
    assert "actor_rollout_ref.ref.fsdp_config.param_offload" in found


def test_a_tree_of_ones_own_is_not_checked() -> None:
    """A configuration that the recipe does not know has keys that it does not know."""
    own = ("--config-name=mine", "trainer.of_mine=1")
    made = verl.make(on(QWEN3_8B, "1x8x80", (0, 9, 1), *own, backend=""))
    assert set(own) <= set(made.argv)


@pytest.mark.parametrize(
    ("version", "argument", "said"),
    [
        ((0, 9, 1), f"{ACTOR}.fsdp_config.param_offload=True", "has no fsdp_config"),
        ((0, 9, 1), f"{MEGATRON}.grad_offload=True", "has no grad_offload"),
        ((0, 8, 0), f"{MEGATRON}.pad_to_length=True", "has no pad_to_length"),
        ((0, 9, 1), "critic.megatron.tensor_parallel=2", "has no tensor_parallel"),
        ((0, 9, 1), f"{ACTOR}.optim.min_lr_ratio=1", "has no min_lr_ratio"),
        ((0, 9, 1), f"{MEGATRON}.override_transformer_config.moe=1", "has no moe"),
        ((0, 9, 1), "critic.megatron.override_transformer_config.moe=1", "has no moe"),
        ((0, 9, 1), "actor_rollout_ref.ref.megatron.tensor=2", "has no tensor"),
        ((0, 6, 1), f"{MEGATRON}.vanilla_mbridge=True", "has no vanilla_mbridge"),
        ((0, 7, 1), "critic.model.use_remove_padding=True", "has no use_remove_padding"),
        ((0, 9, 1), f"{TP}=3", "no division of 8 GPUs"),
        ((0, 9, 1), f"{TP}=two", "expected a whole number"),
        ((0, 9, 1), f"{MINI}=255", "is no multiple of 4"),
        ((0, 9, 1), "--config-name", "lacks its value"),
        ((0, 9, 1), "--multirun", "no argument for hydra"),
    ],
)
def test_wrong_arguments_are_refused(version: Version, argument: str, said: str) -> None:
    """Keys that this tree lacks, and sizes that Megatron would refuse."""
    args = (argument, "actor_rollout_ref.rollout.n=1") if "mini" in argument else (argument,)
    with pytest.raises(MisfitError) as refusal:
        verl.make(on(QWEN3_8B, "1x8x80", version, *args))
    assert said in str(refusal.value)


def test_up_to_0_6_a_step_is_divided_over_all_gpus() -> None:
    """A batch of 1,028 answers divides over four copies, and not over eight GPUs."""
    own = ("actor_rollout_ref.rollout.n=1", "data.train_batch_size=1028", f"{MINI}=4")
    with pytest.raises(MisfitError, match="is no multiple of 8"):
        verl.make(on(QWEN3_8B, "1x8x80", (0, 6, 1), *own))
    assert verl.make(on(QWEN3_8B, "1x8x80", (0, 9, 1), *own))


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ({"version": (0, 5, 0)}, "install 0.6.1 or later"),
        ({"lora_rank": 64, "recipe": "verl-ppo"}, "a script for it with verl-grpo only"),
        ({"lora_rank": 64, "version": (0, 7, 0)}, "install 0.7.1 or later"),
        ({"version": (0, 6, 1), "reward_model": "/reward"}, "install verl 0.7 or later"),
    ],
)
def test_what_is_refused(what: dict[str, object], said: str) -> None:
    """What verl cannot do with Megatron, or the recipe does not, is refused with a remedy."""
    with pytest.raises(MisfitError, match=said):
        verl.make(replace(on(), **what))


def test_checkpoints_keep_their_division() -> None:
    """A later attempt divides the model as the one that saved, and FSDP cannot resume it."""
    first = verl.make(on(QWEN3_8B, "1x8x80", (0, 9, 1), f"{TP}=4"))
    basis = JobBasis(QWEN3_8B, kept=first.format)
    later = verl.make(replace(on(), basis=basis))
    assert arguments(later)[TP] == "4"
    assert later.format == first.format
    assert first.format[EP] == "1"


def test_an_unknown_size() -> None:
    """Nothing is divided for a model of unknown size, and a note says so."""
    made = verl.make(on(None))
    assert TP not in arguments(made)
    assert any("the model's size is not known" in note for note in made.notes)


def test_it_says_where_the_model_is() -> None:
    """Each checkpoint has a model that needs no merge; its folder moved in 0.9."""
    assert any("actor/model/huggingface" in note for note in verl.make(on()).notes)
    old = verl.make(on(version=(0, 8, 0)))
    assert any("global_step_N/actor/huggingface" in note for note in old.notes)
    assert any("megatron-core" in note for note in old.notes)
