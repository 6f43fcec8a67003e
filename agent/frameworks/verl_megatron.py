"""verl with Megatron: its tree of keys, how the model is divided, and what is saved.

AGENT_BACKEND=megatron chooses it, or one's own `model_engine=megatron` (verl 0.8 and later) or
`--config-name=ppo_megatron_trainer` (before).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.base.versions import version_text
from agent.frameworks.layouts import CPU_OPTIMIZER, MEGATRON, MEGATRON_ADAPTERS, RESIDENT, Split
from agent.frameworks.megatron_memory import (
    CONTEXT,
    EXPERT,
    EXPERT_TENSOR,
    PIPELINE,
    TENSOR,
    Fixed,
    MegatronFit,
)
from agent.frameworks.recipe import CONFIG, WEIGHT, MisfitError
from agent.frameworks.sizing import Host, Sizing, Workload, sizing_for
from agent.frameworks.verl_adapters import MEGATRON_RANK
from agent.frameworks.verl_keys import (
    ACTOR,
    GPUS,
    NODES,
    REF,
    SHARE,
    STRATEGY,
    TENSOR_PARALLEL,
    VERL,
)
from agent.frameworks.verl_memory import (
    ENGINES_SHARE,
    MEMORY_KEYS,
    has_reference,
    keeps_engines,
    longest_sample,
)
from agent.frameworks.verl_placement import equal_nodes
from agent.frameworks.verl_published import SOURCE, TIMEOUTS, published_for, start_for

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from agent.frameworks.arguments import GivenKeys, Override
    from agent.frameworks.recipe import RecipeInput
    from agent.frameworks.table import Facts

BACKEND = "megatron"
ENGINE = "model_engine"
CONFIG_NAME = "--config-name"
_TREE = "ppo_megatron_trainer"
_ACTOR_TREE = "actor@actor_rollout_ref.actor"
_NAME_FLAGS = (CONFIG_NAME, "-cn")
_FLAGS = (*_NAME_FLAGS, "--config-path", "-cp", "--config-dir", "-cd")
"""Flags of hydra that choose a tree, by its name or by its folder."""

_SIZES = (TENSOR, PIPELINE, CONTEXT, EXPERT, EXPERT_TENSOR)
_SECTION = f"{ACTOR}.{BACKEND}"


def split_flags(args: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return hydra's flags that choose a tree, as `--config-name=…`, and all other arguments."""
    flags: list[str] = []
    others: list[str] = []
    words = list(args)
    while words:
        word = words.pop(0)
        name, equals, value = word.partition("=")
        if name not in _FLAGS:
            others.append(word)
            continue

        # The value is in the word, or it is the next word.
        if not equals:
            if not words:
                raise MisfitError(f"AGENT_JOB_ARGS: {name} lacks its value")
            value = words.pop(0)
        flags.append(f"{name}={value}")
    return tuple(flags), tuple(others)


def trains_with_megatron(
    asked: RecipeInput, flags: Sequence[str], users: Sequence[Override]
) -> bool:
    """Return whether Megatron trains: by the user's arguments, else by AGENT_BACKEND."""
    # By a flag, which chooses the whole tree?
    for flag in flags:
        name, _, value = flag.partition("=")
        if name in _NAME_FLAGS:
            return value.removesuffix(".yaml") == _TREE

    # By an argument, which chooses a part of it?
    for override in users:
        if override.key == ENGINE:
            return override.value == BACKEND
        if override.key == _ACTOR_TREE:
            return override.value.startswith(BACKEND)

    return asked.backend == BACKEND


def check(asked: RecipeInput) -> None:
    """Refuse what verl cannot do with Megatron, or this recipe does not."""
    if not VERL.has("loads_models_for_megatron", asked.version):
        raise MisfitError(
            f"Megatron with verl {version_text(asked.version)}: install 0.6.1 or later"
        )
    if asked.lora_rank is not None and not VERL.has("adapters_with_megatron", asked.version):
        what = f"AGENT_LORA_RANK with Megatron and verl {version_text(asked.version)}"
        raise MisfitError(f"{what}: install 0.7.1 or later, or use AGENT_BACKEND=fsdp")
    if asked.lora_rank is not None and asked.recipe != "verl-grpo":
        what = "AGENT_LORA_RANK with Megatron: verl has a script for it with verl-grpo only"
        raise MisfitError(f"{what}: use AGENT_BACKEND=fsdp")
    model = asked.basis.model
    leaves_out = VERL.has("leaves_out_further_layers", asked.version)
    if model is not None and model.further and not leaves_out:
        what = f"Megatron with verl {version_text(asked.version)} cannot load a model's MTP layers"
        raise MisfitError(f"{what}: set num_nextn_predict_layers to 0 in a copy's config.json")
    if asked.reward_model and not VERL.has("reward_model_beside_megatron", asked.version):
        what = "AGENT_REWARD_MODEL with Megatron: verl 0.6 would train it with Megatron too"
        raise MisfitError(f"{what}: install verl 0.7 or later, or use AGENT_BACKEND=fsdp")


def tree_flags(asked: RecipeInput, flags: Sequence[str]) -> tuple[str, ...]:
    """Return the flags with that of Megatron's tree, where the version chooses it by a flag."""
    has_name = any(flag.partition("=")[0] in _NAME_FLAGS for flag in flags)
    if has_name or VERL.has("model_engine_chooses_tree", asked.version):
        return tuple(flags)
    return (f"{CONFIG_NAME}={_TREE}", *flags)


def sizing_of(asked: RecipeInput, given: GivenKeys) -> Sizing:
    """Return how the model is divided and what is offloaded; raises MisfitError if none fits."""
    fixed = _fixed_sizes(asked, given)
    rank = given.whole(MEGATRON_RANK) or asked.lora_rank or 0
    load = Workload(
        layouts=MEGATRON_ADAPTERS if rank else MEGATRON,
        tokens=longest_sample(given),
        nodes=equal_nodes(asked.nodes, given),
        trained=1 if asked.recipe == "verl-grpo" else 2,
        share=ENGINES_SHARE,
        own_share=given.fraction(SHARE),
        tensor_parallel=given.whole(TENSOR_PARALLEL),
        in_nodes=Host(
            # without its adapters the actor is the reference
            frozen=Split(own=WEIGHT if has_reference(asked, given) and not rank else 0),
            loading=WEIGHT,
            keeps_engines=keeps_engines(asked, adapters=rank > 0),
        ),
        adapters=rank > 0,
        rank=rank,
        spans=True,
    )

    # Which of the user's keys change the memory? With some, a misfit is only a warning.
    prefixes = (*MEMORY_KEYS, _SECTION, f"critic.{BACKEND}", f"{REF}.{BACKEND}")
    sizes = (ENGINE, *(f"{_SECTION}.{name}" for name in _SIZES))
    counted = set(map(given.written, sizes))
    changed = [key for key in given.begin(*prefixes) if key not in counted]

    # Does verl publish how to divide this model? A name alone says nothing of its layers.
    model = asked.basis.model
    rows = [] if model is None else published_for(model, images=asked.has_vision)
    if model is not None and model.source != CONFIG and rows and rows[0].layers:
        model = replace(model, layers=rows[0].layers)
        asked = replace(asked, basis=replace(asked.basis, model=model))
        ways = Fixed(fixed)
    else:
        ways = Fixed(fixed, one_stage=model is not None and model.source != CONFIG)
    load = replace(load, ways=ways.ways)
    if model is None or not rows or fixed or rank:
        return _searched(asked, changed, load, ways)
    start, why = start_for(rows, load, model)
    if start is not None:
        try:
            sizing = sizing_for(asked, (), replace(load, ways=start.ways))
        except MisfitError as misfit:
            why = misfit.what
        else:
            note = f"divided as verl publishes it for {start.model} ({SOURCE})"
            return replace(sizing, notes=(*sizing.notes, note))

    # Depart from it, with the reason.
    sizing = _searched(asked, changed, load, ways)
    of = rows[-1] if start is None else start
    note = f"departs from {of.text}, which verl publishes for {of.model} ({SOURCE}): {why}"
    return replace(sizing, notes=(*sizing.notes, note))


def _searched(asked: RecipeInput, changed: Sequence[str], load: Workload, ways: Fixed) -> Sizing:
    """Return the sizes by memory; a refusal says what a pipeline would need to know."""
    try:
        return sizing_for(asked, changed, load)
    except MisfitError as misfit:
        if not ways.one_stage:
            raise
        unknown = "a pipeline would divide its layers, whose number only config.json says"
        fetch = f"fetch it before (`hf download {asked.model} config.json`)"
        raise MisfitError(str(misfit), f"{unknown}: {fetch}") from None


def with_remedy(asked: RecipeInput, given: GivenKeys, refusal: MisfitError) -> MisfitError:
    """Return the refusal of a model for FSDP, with Megatron as a remedy if it fits with that."""
    if asked.basis.kept:
        return refusal
    try:
        check(asked)
        sizing = sizing_of(asked, given)
    except MisfitError:
        return refusal
    return MisfitError(f"{refusal}, or with AGENT_BACKEND=megatron: {sizing.why['layout']}")


def _fixed_sizes(asked: RecipeInput, given: GivenKeys) -> dict[str, int]:
    """Return the sizes of the checkpoints, or of the user's arguments."""
    known = {name: size for name in _SIZES if (size := given.whole(f"{_SECTION}.{name}"))}

    # Checkpoints of Megatron fix the others.
    saved = {}
    kept = asked.basis.kept
    if kept.get(STRATEGY) == BACKEND:
        keys = {name: f"{_SECTION}.{name}" for name in _SIZES}
        saved = {name: int(kept[key]) for name, key in keys.items() if key in kept}
    return saved | known


def facts_of(asked: RecipeInput, sizing: Sizing, flags: Sequence[str]) -> Facts:
    """Return the facts for verl's table of how the model is divided, and what is offloaded."""
    model = asked.basis.model
    parameters = 0 if model is None else model.parameters
    facts: dict[str, object] = {
        "tree_is_chosen": any(_TREE in flag for flag in flags),
        "divided": False,
        "offloads": sizing.layout.name != RESIDENT.name,
        "optimizer_on_cpu": sizing.layout.name == CPU_OPTIMIZER.name,
        "part_on_cpu": sizing.layout.on_cpu,
        "nccl_timeout": next((s for least, s in TIMEOUTS if parameters >= least), 0),
    }
    if not isinstance(sizing.fit, MegatronFit):
        return facts

    # A pipeline's first and last stage may have other numbers of layers than those between.
    parallel = sizing.fit.parallel
    stages = sizing.fit.stages
    layers = f"{sizing.fit.model.layers} layers in {parallel.pipeline} stages"
    between = f"{parallel.pipeline - 2} × {stages.middle}"
    return {
        **facts,
        "divided": True,
        "tensor": parallel.tensor,
        "pipeline": parallel.pipeline,
        "context": parallel.context,
        "divides_context": parallel.context > 1,
        "experts": sizing.fit.model.experts,
        "expert": parallel.expert,
        "expert_tensor": parallel.expert_tensor,
        "uneven": not stages.even,
        "first_layers": stages.first,
        "last_layers": stages.last,
        "why_stages": f"{layers}: {stages.first} + {between} + {stages.last}",
    }


def with_groups(sizing: Sizing, given: GivenKeys) -> GivenKeys:
    """Return the user's keys with those of the groups of GPUs for which a model was divided."""
    if not isinstance(sizing.fit, MegatronFit):
        return given
    load = sizing.fit.load
    return given.or_else({NODES: str(len(load.nodes)), GPUS: str(load.gpus)})


def ranks_of(asked: RecipeInput, sizing: Sizing, gpus: int) -> tuple[int, int]:
    """Return two divisors: of the answers of an update, and of those of a step.

    Each copy of the model gets a part of an update. Up to 0.6 verl also divides a step over all
    GPUs.
    """
    if sizing.fit is None:
        return gpus, 1
    if not isinstance(sizing.fit, MegatronFit):
        return gpus // sizing.fit.sequence, 1
    return sizing.fit.parallel.data, 1 if VERL.has("copies_divide_a_step", asked.version) else gpus


def tokens_of(sizing: Sizing, tokens: int) -> int:
    """Return each GPU's part of a batch's tokens, where several GPUs divide a text."""
    if sizing.fit is None:
        return tokens
    return -(-tokens // sizing.fit.parts)


def notes(asked: RecipeInput) -> Iterable[str]:
    """Return what the user should know: packages, and where the model is."""
    bridge = "mbridge"
    if VERL.has("needs_megatron_bridge", asked.version):
        bridge = "megatron-bridge"
    if asked.lora_rank is not None:
        bridge = "megatron-bridge (newer than 0.2)"
    yield f"Megatron also needs the packages megatron-core, transformer-engine and {bridge}"
    folder = "actor/huggingface"
    if VERL.has("actor_has_model_folder", asked.version):
        folder = "actor/model/huggingface"
    if asked.lora_rank is not None:
        yield f"the adapter is in `…/global_step_N/{folder}/adapter`; docs/recipes/adapters.md"
        return
    yield f"`…/global_step_N/{folder}` is a model that transformers and vLLM load: nothing to merge"


def format_of(asked: RecipeInput, given: GivenKeys, sizing: Sizing) -> dict[str, str]:
    """Return the settings on which the format of checkpoints depends."""
    sizes = {}
    if isinstance(sizing.fit, MegatronFit):
        sizes = {
            f"{_SECTION}.{name}": str(size) for name, size in sizing.fit.parallel.sizes().items()
        }
    rank = {}
    if asked.lora_rank is not None:
        rank = {MEGATRON_RANK: given.get(MEGATRON_RANK, str(asked.lora_rank))}
    return {STRATEGY: BACKEND, **sizes, **rank}
