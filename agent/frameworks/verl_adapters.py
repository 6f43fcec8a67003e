"""Adapters (LoRA) with verl: their keys, and the ranks and engines that a version supports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.frameworks.recipe import MisfitError, version_text
from agent.frameworks.verl_keys import ACTOR, MODEL, ROLLOUT, STRATEGY

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from agent.frameworks.arguments import Row
    from agent.frameworks.recipe import RecipeInput, Version

RANK = f"{MODEL}.lora_rank"
MEGATRON_RANK = f"{MODEL}.lora.rank"
_LAYERED = f"{ROLLOUT}.layered_summon"
_ALPHA = 32
_MEGATRON_ALPHA = 64
_RATE = "3e-6"
_VLLM_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
_ROUNDS_RANKS: Version = (0, 6)  # From it on verl gives vLLM the next larger of these ranks
_MERGES_FOR_SGLANG: Version = (0, 9)
_COLLECTS_BY_FSDP2: Version = (0, 9)
"""From it on the adapters of one layer at a time are found with FSDP 2 only.

With FSDP 1 none are found, and what verl does then torch refuses on one GPU.
Source: verl-project/verl, verl/utils/fsdp_utils.py, v0.9.0, collect_lora_params run on a CPU.
"""
MEGATRON_SINCE: Version = (0, 7, 1)
"""Source: verl-project/verl, examples/grpo_trainer/run_qwen3moe-30b_megatron_lora.sh, v0.7.1."""
_WORKER_SAVES_ADAPTER: Version = (0, 8)  # Up to it the trainer writes the adapter's own folder


def trains_adapters(asked: RecipeInput, given: Mapping[str, str]) -> bool:
    """Return whether AGENT_LORA_RANK or the user's own key turns LoRA on."""
    return rank_of(asked, given) != "0"


def rank_of(asked: RecipeInput, given: Mapping[str, str]) -> str:
    """Return the rank of the adapters: the user's own key, else AGENT_LORA_RANK, else 0."""
    return given.get(RANK, str(asked.lora_rank or 0))


def needs_fsdp2(asked: RecipeInput, given: Mapping[str, str]) -> bool:
    """Return whether this version finds the adapters with FSDP 2 only."""
    return trains_adapters(asked, given) and asked.version >= _COLLECTS_BY_FSDP2


def adapter_rows(
    asked: RecipeInput, given: Mapping[str, str], *, shards: int, on_cpu: bool
) -> Iterable[Row]:
    """Return the settings of adapters, as in verl's scripts; refuse what the version lacks.

    Only the actor has adapters: the critic of PPO is trained in full, as in verl's own tests.
    `shards` are the GPUs over which it is divided, `on_cpu` says whether its states are in CPU
    memory.
    """
    _check_collection(asked, given, shards)
    rank = asked.lora_rank
    if rank is None:
        return
    _check(asked, rank)
    yield RANK, rank, "AGENT_LORA_RANK"
    yield f"{MODEL}.lora_alpha", _ALPHA, "as the script for adapters; the default is 16"
    yield f"{ACTOR}.optim.lr", _RATE, "as the script for adapters; 1e-6 is for full training"
    loads = "engines load the base themselves: only adapters are sent to them"
    if asked.rollout == "sglang":
        loads = "as the script that merges adapters for the engines"
        yield f"{MODEL}.lora.merge", "True", "SGLang gets merged weights, as verl requires for it"
    yield f"{ROLLOUT}.load_format", "safetensors", loads

    # The two do not go together (verl-project/verl#5390), and one GPU has nothing to gather.
    if not on_cpu and (shards > 1 or asked.version < _COLLECTS_BY_FSDP2):
        yield _LAYERED, "True", "gathers one layer at a time: takes less of a GPU"


def _check_collection(asked: RecipeInput, given: Mapping[str, str], shards: int) -> None:
    """Refuse the user's settings with which verl ends as it collects the adapters."""
    is_layered = given.get(_LAYERED, "").lower() == "true"
    is_fsdp1 = given.get(STRATEGY) == "fsdp"
    if needs_fsdp2(asked, given) and is_layered and is_fsdp1 and shards == 1:
        what = f"AGENT_JOB_ARGS: {_LAYERED}=True with {STRATEGY}=fsdp on one GPU"
        raise MisfitError(f"{what}: verl ends at the first weight sync: leave one of them out")


def megatron_rows(asked: RecipeInput) -> Iterable[Row]:
    """Return the settings of Megatron-Bridge's adapters, as in verl's script for them."""
    rank = asked.lora_rank
    if rank is None:
        return
    _check(asked, rank)
    script = "as the script for adapters"
    yield MEGATRON_RANK, rank, "AGENT_LORA_RANK"
    yield f"{MODEL}.lora.alpha", _MEGATRON_ALPHA, f"{script}; the default is 32"
    yield f"{MODEL}.lora.lora_A_init_method", "kaiming", f"{script}; the default is xavier"
    yield f"{ACTOR}.optim.lr", _RATE, f"{script}; 1e-6 is for full training"
    yield f"{ACTOR}.megatron.vanilla_mbridge", "False", "adapters are Megatron-Bridge's"
    if asked.rollout == "sglang":
        yield f"{MODEL}.lora.merge", "True", "SGLang gets merged weights, as verl requires for it"


def _check(asked: RecipeInput, rank: int) -> None:
    """Refuse adapters that the engines of this version refuse, or serve wrongly."""
    verl = f"verl {version_text(asked.version)}"
    if asked.rollout == "sglang":
        if asked.version < _MERGES_FOR_SGLANG:
            what = f"AGENT_LORA_RANK with AGENT_ROLLOUT=sglang: {verl} has adapters with vLLM only"
            raise MisfitError(f"{what}: use AGENT_ROLLOUT=vllm, or verl 0.9")
        return
    ranks = ", ".join(map(str, _VLLM_RANKS))
    if asked.version < _ROUNDS_RANKS and rank not in _VLLM_RANKS:
        raise MisfitError(f"AGENT_LORA_RANK={rank}: vLLM with {verl} allows only {ranks}")
    if rank > _VLLM_RANKS[-1]:
        raise MisfitError(f"AGENT_LORA_RANK={rank}: vLLM allows at most {_VLLM_RANKS[-1]}")


def merge_note(asked: RecipeInput) -> str:
    """Return where the adapters are after training: verl does not merge them."""
    where = "`…/global_step_N/actor/lora_adapter`"
    if asked.version >= _WORKER_SAVES_ADAPTER:
        where = (
            "`lora_adapter` of what `python3 -m verl.model_merger merge --backend fsdp --local_dir "
            "…/global_step_N/actor --target_dir …` writes"
        )
    return f"the adapter is in {where}; docs/recipes/adapters.md merges it into a model"
