"""verl-grpo with images: a model that sees, in each version's keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from agent.frameworks import verl
from agent.frameworks.recipe import JobBasis, ModelShape, NodeSize, RecipeInput, shape_of
from support.model_shapes import QWEN2_5_7B_CONFIG
from support.recipe_words import arguments
from support.verl_asked import RELEASES, asked

if TYPE_CHECKING:
    from agent.base.versions import Version

ACTOR = "actor_rollout_ref.actor"
MODEL = "actor_rollout_ref.model"
ROLLOUT = "actor_rollout_ref.rollout"
FREEZE = f"{ACTOR}.freeze_vision_tower"
CACHE = f"{ROLLOUT}.engine_kwargs.vllm.disable_mm_preprocessor_cache"
TOWER = {"hidden_size": 1280, "depth": 32, "intermediate_size": 3420}
NAME = "Qwen/Qwen2.5-VL-7B-Instruct"


def seeing(version: Version = (0, 9, 1), *args: str, **more: object) -> RecipeInput:
    """Return what is asked for a model with a vision tower, on two nodes."""
    shape = shape_of(NAME, {**QWEN2_5_7B_CONFIG, "vision_config": TOWER})
    given = {"model": NAME, "basis": JobBasis(shape), "tensor_parallel": None, **more}
    nodes = (NodeSize(8, 64, 1 << 40, 80),) * 2
    return replace(asked("2x8", version, *args), nodes=nodes, **given)


def test_a_tower_is_counted() -> None:
    """A vision tower is seen in config.json, and its parameters are counted."""
    with_tower = shape_of(NAME, {**QWEN2_5_7B_CONFIG, "vision_config": TOWER})
    without = shape_of("Qwen/Qwen2.5-7B", QWEN2_5_7B_CONFIG)
    assert isinstance(with_tower, ModelShape)
    assert isinstance(without, ModelShape)
    assert with_tower.has_vision
    assert not without.has_vision
    tower = with_tower.parameters - without.parameters
    assert 0.5e9 < tower < 0.8e9


@pytest.mark.parametrize(
    ("name", "sees"),
    [
        ("Qwen/Qwen2.5-VL-7B-Instruct", True),
        ("Qwen/Qwen3-VL-30B-A3B-Instruct", True),
        ("/models/my-VLM", True),
        ("Qwen/Qwen2.5-7B-Instruct", False),
        ("org/EVLA-7B", False),
    ],
)
def test_it_is_seen_by_the_name_too(name: str, sees: bool) -> None:  # noqa: FBT001 - a row
    """Before the model is there, its name says whether it sees."""
    found = arguments(verl.make(seeing(model=name, basis=JobBasis(shape_of(name, None)))))
    assert ("data.image_key" in found) is sees


@pytest.mark.parametrize("version", RELEASES)
def test_as_verls_scripts(version: Version) -> None:
    """The tower is frozen where verl reads that key, and notes say what else there is to know."""
    made = verl.make(seeing(version))
    found = arguments(made)
    frozen = (0, 6) <= version < (0, 8)
    assert found.get(FREEZE) == ("True" if frozen else None)
    assert any("vision tower is trained too" in note for note in made.notes) is not frozen
    assert found.get(CACHE) == ("True" if version < (0, 8) else None)
    assert (f"+{CACHE}=True" in made.argv) is frozen
    assert any("qwen-vl-utils" in note for note in made.notes)
    assert set(made.why) == set(found)


def test_a_model_without_eyes_has_none_of_it() -> None:
    """Nothing changes for a model that reads text."""
    found = arguments(verl.make(asked()))
    assert not {"data.image_key", f"{ACTOR}.kl_loss_coef", FREEZE} & set(found)
    assert found["data.train_batch_size"] == "1024"


def test_long_prompts_come_in_parts() -> None:
    """An engine refuses whole prompts that are longer than its batch."""
    long = ("data.max_prompt_length=8192",)
    found = arguments(verl.make(seeing((0, 9, 1), *long)))
    assert f"{ROLLOUT}.enable_chunked_prefill" not in found


def test_adapters_leave_the_tower_out() -> None:
    """As in verl's script: the engines have no adapters of a vision tower."""
    made = verl.make(seeing((0, 7, 1), lora_rank=64))
    found = arguments(made)
    assert found[f"{MODEL}.exclude_modules"] == ".*visual.*"
    assert FREEZE not in found
    assert not any("vision tower is trained too" in note for note in made.notes)


def test_with_megatron() -> None:
    """Megatron has no key that freezes the tower, and fused kernels from 0.8 on."""
    new = arguments(verl.make(seeing((0, 9, 1), backend="megatron")))
    old = arguments(verl.make(seeing((0, 7, 1), backend="megatron")))
    assert FREEZE not in {**new, **old}
    assert f"{MODEL}.use_fused_kernels" in new
    assert f"{MODEL}.use_fused_kernels" not in old


def test_sglang_has_no_keys_of_vllm() -> None:
    """The cache of images is vLLM's."""
    assert CACHE not in arguments(verl.make(seeing((0, 7, 1), rollout="sglang")))


def test_data_without_images_are_warned_of() -> None:
    """They train the model on text alone, which is seldom meant."""
    columns = ("prompt", "picture")
    made = verl.make(seeing(columns=columns))
    assert any("no column images (data.image_key)" in warning for warning in made.warnings)
    own = verl.make(seeing((0, 9, 1), "data.image_key=picture", columns=columns))
    assert own.warnings == ()


def test_a_key_that_nothing_reads_is_warned_of() -> None:
    """From 0.8 on verl has the key of freezing, and ignores it."""
    (warning,) = verl.make(seeing((0, 9, 1), f"{FREEZE}=True")).warnings
    assert "verl 0.9.1 has this key and does not read it" in warning
    assert verl.make(seeing((0, 7, 1), f"{FREEZE}=False")).warnings == ()
