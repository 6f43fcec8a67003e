"""Adapters (LoRA) with verl: the ranks and engines that a version supports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.base.versions import version_text
from agent.frameworks.recipe import MisfitError
from agent.frameworks.verl_keys import MODEL, ROLLOUT, STRATEGY, VERL

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.frameworks.recipe import RecipeInput

RANK = f"{MODEL}.lora_rank"
MEGATRON_RANK = f"{MODEL}.lora.rank"
_LAYERED = f"{ROLLOUT}.layered_summon"
_VLLM_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
_ONE_BY_FSDP2 = "finds_adapters_with_fsdp2_only"


def trains_adapters(asked: RecipeInput, given: Mapping[str, str]) -> bool:
    """Return whether AGENT_LORA_RANK or the user's own key turns LoRA on."""
    return rank_of(asked, given) != "0"


def rank_of(asked: RecipeInput, given: Mapping[str, str]) -> str:
    """Return the rank of the adapters: the user's own key, else AGENT_LORA_RANK, else 0."""
    return given.get(RANK, str(asked.lora_rank or 0))


def needs_fsdp2(asked: RecipeInput, given: Mapping[str, str]) -> bool:
    """Return whether this version finds the adapters with FSDP 2 only."""
    return trains_adapters(asked, given) and VERL.has(_ONE_BY_FSDP2, asked.version)


def gathers_by_layer(asked: RecipeInput, shards: int) -> bool:
    """Return whether adapters are gathered by layer: on one GPU there is nothing to gather.

    It does not go together with states in CPU memory (verl-project/verl#5390).
    """
    return shards > 1 or not VERL.has(_ONE_BY_FSDP2, asked.version)


def check_collection(asked: RecipeInput, given: Mapping[str, str], shards: int) -> None:
    """Refuse the user's settings with which verl ends as it collects the adapters."""
    is_layered = given.get(_LAYERED, "").lower() == "true"
    is_fsdp1 = given.get(STRATEGY) == "fsdp"
    if needs_fsdp2(asked, given) and is_layered and is_fsdp1 and shards == 1:
        what = f"AGENT_JOB_ARGS: {_LAYERED}=True with {STRATEGY}=fsdp on one GPU"
        raise MisfitError(f"{what}: verl ends at the first weight sync: leave one of them out")


def check_adapters(asked: RecipeInput) -> None:
    """Refuse adapters that the engines of this version refuse, or serve wrongly."""
    rank = asked.lora_rank
    if rank is None:
        return
    verl = f"verl {version_text(asked.version)}"
    if asked.rollout == "sglang":
        if not VERL.has("adapters_with_sglang", asked.version):
            what = f"AGENT_LORA_RANK with AGENT_ROLLOUT=sglang: {verl} has adapters with vLLM only"
            raise MisfitError(f"{what}: use AGENT_ROLLOUT=vllm, or verl 0.9")
        return
    ranks = ", ".join(map(str, _VLLM_RANKS))
    rounds = VERL.has("gives_vllm_the_next_rank", asked.version)
    if not rounds and rank not in _VLLM_RANKS:
        raise MisfitError(f"AGENT_LORA_RANK={rank}: vLLM with {verl} allows only {ranks}")
    if rank > _VLLM_RANKS[-1]:
        raise MisfitError(f"AGENT_LORA_RANK={rank}: vLLM allows at most {_VLLM_RANKS[-1]}")


def merge_note(asked: RecipeInput) -> str:
    """Return where the adapters are after training: verl does not merge them."""
    where = "`…/global_step_N/actor/lora_adapter`"
    if VERL.has("worker_saves_adapter", asked.version):
        where = (
            "`lora_adapter` of what `python3 -m verl.model_merger merge --backend fsdp --local_dir "
            "…/global_step_N/actor --target_dir …` writes"
        )
    return f"the adapter is in {where}; docs/recipes/adapters.md merges it into a model"
