"""What a model takes with verl: layouts by memory, the engines' share, and what is saved."""

from __future__ import annotations

from math import ceil, gcd
from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.base.versions import version_text
from agent.frameworks.layouts import VERL as LAYOUTS
from agent.frameworks.layouts import VERL_CPU, VERL_OFFLOAD, VERL_RESIDENT, Layout, Split
from agent.frameworks.recipe import WEIGHT, MisfitError, check_positions
from agent.frameworks.sizing import Host, Sizing, Workload, sizing_for
from agent.frameworks.verl_adapters import RANK, gathers_by_layer, needs_fsdp2, trains_adapters
from agent.frameworks.verl_keys import (
    ACTOR,
    ANSWER,
    DTYPE,
    FSDP_SIZE,
    GPUS,
    MODEL,
    NODES,
    PROMPT,
    REF,
    ROLLOUT,
    SHARE,
    STRATEGY,
    TENSOR_PARALLEL,
    VERL,
)
from agent.frameworks.verl_placement import equal_nodes
from agent.frameworks.verl_separate import for_trainer, trainer_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agent.frameworks.arguments import GivenKeys
    from agent.frameworks.recipe import RecipeInput
    from agent.frameworks.table import Facts

PROMPT_TOKENS = 1024
ANSWER_TOKENS = 2048
ENGINES_SHARE = 0.6  # The engines' usual part of each GPU, as in the scripts
_ALL_GPUS = "-1"
_STRATEGIES = ("fsdp", "fsdp2")
SAVED = f"{ACTOR}.checkpoint.save_contents"
_SHARDS = "[model,optimizer,extra]"
WHOLE_MODEL = "hf_model"
_SHARDS_AND_WHOLE = f"[model,optimizer,extra,{WHOLE_MODEL}]"
_GATHERED = 6  # Bytes of a parameter of the whole model on the first node: in float32 and in bf16
_NO_WHOLE_MODEL_FROM = 14e9  # Parameters
WHY_ADAPTER_SHARDS = "without an HF model: its weights would have the names of adapters"
WHY_SHARDS = f"without an HF model: one node would gather it, {_GATHERED} bytes a parameter"
KL_IN_REWARD = "algorithm.use_kl_in_reward"
_SEQUENCE_KEYS = (
    f"{ACTOR}.ulysses_sequence_parallel_size",
    f"{ACTOR}.fsdp_config.ulysses_sequence_parallel_size",
)
_PADDING = f"{MODEL}.use_remove_padding"  # Ulysses needs it
_LONG = 8192  # Tokens of a sample from which it may be divided, as in verl's scripts
_SEQUENCES = (1, 2, 4, 8)
_BUCKET = f"{ROLLOUT}.checkpoint_engine.update_weights_bucket_megabytes"
_BUCKET_MIB = 2048  # The default
_BUCKET_STEP = 256
_MIB = 1 << 20
_USUAL_POSITIONS = 131_072
_CACHE_PART = 0.8  # Of the memory beside an engine's weights, at least
_LONGER_CONTEXT = f"{MODEL}.override_config.max_position_embeddings"
_LARGEST_USUAL = 262_208 * 5376  # Gemma 3 27B: no other usual embedding is larger
_MARGIN = 1.5  # Of an embedding that is only an estimate
_HALF = ("bf16", "bfloat16", "fp16", "float16")
_FULL = 4  # Bytes of a value in float32, as FSDP's workers send it
MEMORY_KEYS = (
    *(f"{ACTOR}.fsdp_config", "critic.fsdp"),
    *("critic.model.fsdp_config", "critic.strategy", f"{REF}.fsdp_config"),
    *(f"{ROLLOUT}.free_cache_engine", f"{ROLLOUT}.quantization"),
    *(f"{MODEL}.enable_", "model_engine"),
)
"""Beginnings of keys that change the memory that a model takes, in a way that is not counted."""


def sizing_and_saved(asked: RecipeInput, given: GivenKeys) -> tuple[Sizing, str]:
    """Return the sizing, and what a checkpoint has.

    The first node gathers a whole model at each save: so there is none from a size on, or where it
    would cost another layout.
    """
    if SAVED in given:
        return _sizing(asked, given, given[SAVED]), given[SAVED]
    without = _sizing(asked, given, _SHARDS)
    if asked.lora_rank is not None:
        return without, _SHARDS

    # Is the model too large to be gathered on one node?
    model = asked.basis.model
    if model is not None and model.parameters >= _NO_WHOLE_MODEL_FROM:
        return without, _SHARDS

    # Does gathering it cost another layout, or memory that a node lacks?
    try:
        gathering = _sizing(asked, given, _SHARDS_AND_WHOLE)
    except MisfitError:
        return without, _SHARDS
    if gathering.layout != without.layout or gathering.warnings != without.warnings:
        return without, _SHARDS
    return gathering, _SHARDS_AND_WHOLE


def _sizing(asked: RecipeInput, given: GivenKeys, saved: str) -> Sizing:
    kept = asked.basis.kept
    adapters = trains_adapters(asked, given)
    layouts = tuple(layout for layout in LAYOUTS if _is_shardable(asked, given, layout))
    load = Workload(
        layouts=layouts,
        nodes=equal_nodes(asked.nodes, given) if NODES in given or GPUS in given else (),
        sequences=_sequences(asked, given),
        tokens=longest_sample(given),
        trained=1 if asked.recipe == "verl-grpo" else 2,
        share=ENGINES_SHARE,
        own_share=given.fraction(SHARE),
        tensor_parallel=given.whole(TENSOR_PARALLEL),
        adapters=adapters,
        in_nodes=Host(
            frozen=Split(4 if has_reference(asked, given) and not adapters else 0),
            loading=4,
            loads_tied=True,
            gathered=_GATHERED if WHOLE_MODEL in saved else 0,
            keeps_engines=keeps_engines(asked, adapters=adapters),
        ),
        within=kept[FSDP_SIZE] != _ALL_GPUS if FSDP_SIZE in kept else None,
        rank=0 if asked.lora_rank is None else given.whole(RANK) or asked.lora_rank,
    )
    if load.rank and load.trained > 1:
        load = _beside_a_critic(load)
    own_engines = trainer_of(given)
    if own_engines is not None:
        load = for_trainer(load, given, own_engines)
    counted = set(map(given.written, _SEQUENCE_KEYS))
    changed = [key for key in given.begin(*MEMORY_KEYS) if key not in counted]
    return sizing_for(asked, changed, load)


def _is_shardable(asked: RecipeInput, given: GivenKeys, layout: Layout) -> bool:
    """Return whether the user's FSDP, or that of the checkpoints, can have a layout."""
    if STRATEGY in given:
        return given[STRATEGY] != "fsdp" or layout.name != VERL_CPU.name
    saved_by = asked.basis.kept.get(STRATEGY)
    return saved_by not in _STRATEGIES or saved_by == strategy_of(asked, given, layout)


def _sequences(asked: RecipeInput, given: GivenKeys) -> tuple[int, ...]:
    """Return over how many GPUs a sample's tokens may be divided (Ulysses), the least first.

    Each of them gets whole heads, so that it divides the heads, and a node's GPUs.
    """
    for key in _SEQUENCE_KEYS:
        if key in given:
            return (given.whole(key) or 1,)
    model = asked.basis.model
    if model is None or not model.heads or model.has_vision:
        return (1,)
    if longest_sample(given) <= _LONG or given.get(_PADDING, "True").lower() != "true":
        return (1,)
    gpus = gcd(*(node.gpus for node in asked.gpu_nodes))
    most = given.whole(GPUS) or gpus
    cached = model.kv_heads
    return tuple(
        size
        for size in _SEQUENCES
        if most % size == 0
        and model.heads % size == 0
        and max(size, cached) % min(size, cached) == 0
    )


def check_sequences(asked: RecipeInput, given: GivenKeys) -> None:
    """Refuse the user's division of samples where verl ends with it before the first step."""
    total = sum(node.gpus for node in equal_nodes(asked.nodes, given))
    model = asked.basis.model
    heads = 0 if model is None else model.heads
    for key in _SEQUENCE_KEYS:
        size = given.whole(key) or 1
        why = ""
        if total % size:
            why = f"it does not divide {total} GPUs"
        elif heads % size:
            why = f"each GPU gets whole heads of attention, and the model has {heads}"
        elif size > 1 and given.get(_PADDING, "True").lower() != "true":
            why = f"verl divides samples with {_PADDING}=True only"
        if why:
            raise MisfitError(f"AGENT_JOB_ARGS: {given.written(key)}={size}: {why}")


def strategy_of(asked: RecipeInput, given: GivenKeys, layout: Layout) -> str:
    """Return which FSDP shards the actor."""
    if layout.name == VERL_CPU.name:
        return "fsdp2"

    # Checkpoints keep what they have.
    if needs_fsdp2(asked, given):
        return asked.basis.kept.get(STRATEGY, "fsdp2")
    return "fsdp"


def keeps_engines(asked: RecipeInput, *, adapters: bool) -> bool:
    """Return whether sleeping engines keep their weights in the nodes' memory."""
    if asked.rollout == "sglang":
        return VERL.has("sglang_keeps_weights_asleep", asked.version)
    return adapters or not VERL.has("engines_drop_weights_asleep", asked.version)


def _beside_a_critic(load: Workload) -> Workload:
    """Return the workload of PPO with adapters: a critic in full, and the actor's weights."""
    layouts = tuple(map(_with_frozen_actor, load.layouts))
    return replace(load, layouts=layouts, trained=1, frozen=1, adapters=False)


def _with_frozen_actor(layout: Layout) -> Layout:
    """Return a layout with weights of the actor too: on the GPUs, or offloaded with the rest."""
    if layout.name == VERL_RESIDENT.name:
        return replace(layout, frozen=Split(layout.untrained))
    return replace(layout, host=Split(layout.host.shard + layout.untrained))


def has_reference(asked: RecipeInput, given: GivenKeys) -> bool:
    """Return whether it loads a reference: always in the nodes' memory, and in float32."""
    by_loss = given.get(f"{ACTOR}.use_kl_loss", str(asked.recipe == "verl-grpo"))
    in_reward = str(bool(asked.reward_model) and asked.recipe == "verl-ppo")
    return "true" in {by_loss.lower(), given.get(KL_IN_REWARD, in_reward).lower()}


def fsdp_facts(
    asked: RecipeInput, given: GivenKeys, sizing: Sizing, *, saved: str, shards: int
) -> Facts:
    """Return the facts for verl's table of what FSDP shards, over so many GPUs, and saves."""
    layout = sizing.layout.name
    on_cpu = layout == VERL_CPU.name
    sequence = sizing.fit.sequence if sizing.fit else 1
    why_shards = WHY_SHARDS if asked.lora_rank is None else WHY_ADAPTER_SHARDS
    strategy = strategy_of(asked, given, sizing.layout)
    return {
        "saved": saved,
        "why_saved": "with an HF model" if WHOLE_MODEL in saved else why_shards,
        "offloads": layout == VERL_OFFLOAD.name,
        "on_cpu": on_cpu,
        "gathers_by_layer": not on_cpu and gathers_by_layer(asked, shards),
        "needs_fsdp2": needs_fsdp2(asked, given) and strategy == "fsdp2",
        "within_nodes": sizing.within_nodes,
        "fsdp_size": fsdp_size(asked, sizing),
        "divides_texts": sequence > 1,
        "sequence": sequence,
    }


def bucket_of(asked: RecipeInput, given: GivenKeys, *, megatron: bool) -> tuple[int, str]:
    """Return the MiB of the buffer in which vLLM gets weights, and why; 0 if the default suffices.

    FSDP's workers send tensors as transformers has them, Megatron's as the checkpoint has them.
    """
    if asked.rollout != "vllm" or not VERL.has("tensors_must_fit_bucket", asked.version):
        return 0, ""

    # How large is the largest tensor, and each of its values?
    model = asked.basis.model
    if model is None:
        largest = _LARGEST_USUAL
        what = "the model's size is not known, and no usual embedding has more than"
    elif model.largest:
        largest = model.largest if megatron else max(model.largest, model.fused)
        what = "its largest tensor has"
    else:
        largest = int(_MARGIN * model.vocabulary * model.hidden)
        what = f"by {model.source} its largest tensor has at most"
    is_half = megatron or given.get(DTYPE, "").lower() in _HALF
    each = WEIGHT if is_half else _FULL
    needed = largest * each / _MIB
    if needed <= _BUCKET_MIB and _BUCKET not in given:
        return 0, ""

    # The user's own bucket wins, unless verl would end at the first weight sync.
    ends = f"verl {version_text(asked.version)} ends where a tensor exceeds its bucket"
    reason = f"{what} {largest / 1e6:,.0f} M values × {each} bytes = {needed:,.0f} MiB; {ends}"
    bucket = given.whole(_BUCKET)
    is_exact = model is not None and model.largest
    if bucket is not None and bucket < needed and is_exact:
        raise MisfitError(f"AGENT_JOB_ARGS: {_BUCKET}={bucket} is too small: {reason}")
    return ceil(needed / _BUCKET_STEP) * _BUCKET_STEP, reason


def context_facts(given: GivenKeys, sizing: Sizing) -> Facts:
    """Return the longest text of vLLM's engines, where their cache lacks room for the model's.

    vLLM does not start unless its cache holds one text of that length.
    """
    fit = sizing.fit
    positions = 0 if fit is None else fit.model.positions or _USUAL_POSITIONS
    longest = longest_sample(given)
    return {
        "longest": longest,
        "positions": positions,
        "cache_lacks_room": fit is not None
        and longest < positions
        and _CACHE_PART * fit.cache(sizing.share) < positions,
    }


def check_context(asked: RecipeInput, given: GivenKeys) -> Iterable[str]:
    """Refuse texts that are longer than the model's, or say what this version does with them."""
    model = asked.basis.model
    longest = longest_sample(given)
    if model is None or _LONGER_CONTEXT in given:
        return
    if not VERL.has("engines_accept_texts_of_model", asked.version):
        check_positions(asked, longest, f"lower {PROMPT} or {ANSWER}")
    elif 0 < model.positions < longest:
        what = f"answers end at the model's {model.positions} positions (config.json)"
        yield f"{what}, prompt included: {PROMPT} and {ANSWER} allow {longest} tokens"


def fsdp_size(asked: RecipeInput, sizing: Sizing) -> str:
    """Return over how many GPUs the weights are sharded."""
    gpus = gcd(*(node.gpus for node in asked.gpu_nodes))
    return str(gpus) if sizing.within_nodes else _ALL_GPUS


def longest_sample(given: GivenKeys) -> int:
    """Return the tokens of the longest prompt with the longest answer."""
    prompt = given.whole(PROMPT) or PROMPT_TOKENS
    return prompt + (given.whole(ANSWER) or ANSWER_TOKENS)
