"""verl with images: the settings of its scripts that train Qwen2.5-VL and Qwen3-VL on geo3k."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.frameworks.arguments import quoted
from agent.frameworks.recipe import Version, version_text
from agent.frameworks.verl_keys import ACTOR, MODEL, ROLLOUT
from agent.frameworks.verl_memory import longest_sample

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from agent.frameworks.arguments import Row
    from agent.frameworks.recipe import RecipeInput

TRAIN_NEAR = 512  # Prompts of a step in its scripts with images
_IMAGE_KEY = "data.image_key"
_IMAGES = "images"
_FREEZE = f"{ACTOR}.freeze_vision_tower"
_READS_FREEZE_FROM: Version = (0, 6)
_READS_FREEZE_UNTIL: Version = (0, 8)  # From it on the key is there, and nothing reads it
_FUSED_IN_MEGATRON: Version = (0, 8)
_CACHE_KEY_UNTIL: Version = (0, 8)  # Up to it the scripts turn the cache of images off
_TREE_HAS_CACHE_KEY: Version = (0, 6)  # Before it the tree itself has the key
_LONGEST_WHOLE = 8192  # Tokens of a batch of an engine: a longer prompt has to come in parts


def rows(asked: RecipeInput, given: Mapping[str, str], *, megatron: bool) -> Iterable[Row]:
    """Return the settings of a model with a vision tower, beside those of every model."""
    scripts = "as the scripts with images"
    yield _IMAGE_KEY, _IMAGES, "the column of the images; the default, said"
    yield f"{ACTOR}.kl_loss_coef", "0.01", f"{scripts}; the default is 0.001"
    if asked.lora_rank is not None:
        why = f"{scripts}: vLLM has no adapters of a vision tower"
        yield f"{MODEL}.exclude_modules", quoted(".*visual.*"), why
    elif not megatron or asked.version >= _FUSED_IN_MEGATRON:
        yield f"{MODEL}.use_fused_kernels", "True", f"{scripts}: logits take less memory"
    if freezes(asked, megatron=megatron):
        yield _FREEZE, "True", "as verl's script for it: images are understood as before"

    # The engines.
    if longest_sample(given) <= _LONGEST_WHOLE:
        yield f"{ROLLOUT}.enable_chunked_prefill", "False", f"{scripts}: an image stays whole"
    if asked.rollout == "vllm" and asked.version < _CACHE_KEY_UNTIL:
        plus = "" if asked.version < _TREE_HAS_CACHE_KEY else "+"
        key = f"{plus}{ROLLOUT}.engine_kwargs.vllm.disable_mm_preprocessor_cache"
        yield key, "True", f"{scripts}: sleeping engines lose the images"


def freezes(asked: RecipeInput, *, megatron: bool) -> bool:
    """Return whether the vision tower is not trained: where verl reads the key for it."""
    is_adapted = asked.lora_rank is not None
    reads_key = _READS_FREEZE_FROM <= asked.version < _READS_FREEZE_UNTIL
    return reads_key and not megatron and not is_adapted


def notes(asked: RecipeInput, *, megatron: bool) -> Iterable[str]:
    """Return what the user should know about images."""
    yield "images count in data.max_prompt_length; verl needs the package qwen-vl-utils for them"
    if asked.lora_rank is None and not freezes(asked, megatron=megatron):
        yield "the vision tower is trained too: this verl has no way to freeze it here"


def warnings(asked: RecipeInput, given: Mapping[str, str]) -> Iterable[str]:
    """Return what may be wrong: data without images, and a key that nothing reads."""
    column = given.get(_IMAGE_KEY, _IMAGES)
    if not asked.has_column(column):
        what = f"AGENT_TRAIN_DATA has no column {column} ({_IMAGE_KEY})"
        yield f"{what}, only {', '.join(asked.columns or ())}: the model is trained on text alone"
    if _FREEZE in given and asked.version >= _READS_FREEZE_UNTIL:
        yield f"{_FREEZE}: verl {version_text(asked.version)} has this key and does not read it"
