"""verl: GRPO and PPO by `verl.trainer.main_ppo`, which hydra configures.

verl.toml has what the command sets, in its order, and all that depends on verl's version; this
module computes the quantities that the table names. Search-R1, a fork of an early verl, shares the
placement and the keys.
"""

from __future__ import annotations

from math import lcm
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.base.versions import version_text
from agent.frameworks import verl_megatron, verl_separate
from agent.frameworks.arguments import GivenKeys, merged, quoted, read, texts
from agent.frameworks.pace import HOUR, StepWork, step_seconds, steps_between_saves
from agent.frameworks.recipe import (
    Command,
    MisfitError,
    RecipeInput,
    adapter_warning,
    check_columns,
    count_of,
    critic_warnings,
    engines_text,
    shape_of,
)
from agent.frameworks.sizing import engine_sizes, gb
from agent.frameworks.verl_adapters import (
    RANK,
    check_adapters,
    check_collection,
    merge_note,
    rank_of,
    trains_adapters,
)
from agent.frameworks.verl_keys import (
    ACTOR,
    CRITIC_MODEL,
    DTYPE,
    FSDP_SIZE,
    MAIN,
    MODE,
    REF,
    ROLLOUT,
    SAMPLES,
    STORES_KEY,
    STRATEGY,
    TENSOR_PARALLEL,
    VERL,
    check_keys,
)
from agent.frameworks.verl_memory import (
    ANSWER_TOKENS,
    PROMPT_TOKENS,
    WHOLE_MODEL,
    bucket_of,
    check_context,
    check_sequences,
    context_facts,
    fsdp_facts,
    fsdp_size,
    has_reference,
    longest_sample,
    sizing_and_saved,
    strategy_of,
)
from agent.frameworks.verl_placement import STORES, Placement, batches, groups_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from agent.frameworks.arguments import Override
    from agent.frameworks.sizing import Sizing
    from agent.frameworks.table import Facts
    from agent.frameworks.verl_separate import AsyncTrainer, Engines

FRAMEWORK = VERL.framework
VERSIONS = VERL.versions
ABOUT = VERL.about
PRESETS = VERL.presets

_TRAIN_NEAR = 1024  # verl's own batch; an update has a quarter of it
_TRAIN_NEAR_WITH_IMAGES = 512  # Of its scripts with images
_LEAST_SAMPLES = 256  # Answers of a step, at least
_UPDATES = 4  # Of a step
_LONGEST_STEP_OF_FEW = HOUR / 4
_FEW = 8  # GPUs: verl's scripts are for so many or more
_ACTOR_TOKENS = 24576
_CRITIC_TOKENS = 32768
"""Tokens of a batch on each GPU: the actor's as in the scripts, the critic's by default."""
_LONGEST_WHOLE = 8192  # Tokens of a batch of an engine: a longer prompt has to come in parts
REWARD_FUNCTION = str(Path(__file__).parents[1] / "bundled" / "verl_reward.py")  # Asks a server
_REWARD_FUNCTION_PATH = "reward.custom_reward_function.path"
_REWARD_MODEL_ENABLE = "reward.reward_model.enable"
_RATE = f"{ACTOR}.optim.lr"
_IMAGE_KEY = "data.image_key"
_FREEZE = f"{ACTOR}.freeze_vision_tower"
_MOST_WITH_EXPERTS = 100e9
"""Parameters up to which verl has scripts that train experts with FSDP.

Source: verl-project/verl, examples/grpo_trainer/run_qwen3_next_80b_a3b_fsdp.sh, v0.9.0.
"""
_MERGE = (
    "checkpoints have shards only; `python3 -m verl.model_merger merge --backend fsdp --local_dir "
    "…/global_step_N/actor --target_dir …` makes a model of one"
)
_MICRO_BATCHES = {
    "actor": f"{ACTOR}.ppo_micro_batch_size",
    "rollout": f"{ROLLOUT}.log_prob_micro_batch_size",
    "ref": f"{REF}.log_prob_micro_batch_size",
    "critic": "critic.ppo_micro_batch_size",
}
"""The micro batches (also `_per_gpu`) by which a user replaces batches by tokens."""
_BUDGETS = {
    "actor": f"{ACTOR}.ppo_max_token_len_per_gpu",
    "rollout": f"{ROLLOUT}.log_prob_max_token_len_per_gpu",
    "ref": f"{REF}.log_prob_max_token_len_per_gpu",
    "critic": "critic.ppo_max_token_len_per_gpu",
}
"""The tokens of a batch by tokens. verl asserts that they hold each of its samples."""

_GROUP_SIZE = 8  # Answers to each prompt that GRPO compares
_AGENT_LOOPS = 8  # Agent-loop workers that verl starts by default
_TEMPLATE_TOKENS = 1024  # What a reward model reads beside the sample, at most
_REWARD_SHARE = 0.8  # Of each GPU for a reward model's engines, as in the scripts
_EVERY = 20  # Steps between checkpoints, at most, and between evaluations


def make(asked: RecipeInput) -> Command:
    """Make the command for the nodes that joined, with the keys of the installed version."""
    flags, overrides = verl_megatron.split_flags(asked.args)
    users = [read(argument) for argument in overrides]
    given = GivenKeys.of(users, VERL.newest)
    trainer = verl_separate.trainer_of(given)
    if trainer is not None:
        verl_separate.check_version(asked, trainer)
    has_megatron = verl_megatron.trains_with_megatron(asked, flags, users)
    if not asked.is_nearest:
        tree = verl_megatron.BACKEND if has_megatron else ""
        beside = trainer.tree if trainer else ""
        check_keys(users, asked.version, tree=tree, beside=beside, chosen=flags)
    if has_megatron and trainer is not None:
        what = f"AGENT_JOB_ARGS: {trainer.argument}: with Megatron the recipe has engines on"
        raise MisfitError(f"{what} the training GPUs; give your own command after --")
    if has_megatron:
        return _with_megatron(asked, users, given, flags)

    # What fits the nodes: layout and engines by memory, then what a checkpoint has. The engines may
    # have GPUs of their own.
    engines = None
    if trainer is not None:
        asked, engines, sizing, saved = _with_own_engines(asked, given, trainer)
    else:
        verl_separate.check_rollout_nodes(given)
        check_sequences(asked, given)
        try:
            sizing, saved = sizing_and_saved(asked, given)
        except MisfitError as refusal:
            raise verl_megatron.with_remedy(asked, given, refusal) from None
    shards = groups_of(asked.nodes, 1 if engines else sizing.tensor_parallel, given).total
    check_collection(asked, given, shards)
    check_adapters(asked)
    backend = fsdp_facts(asked, given, sizing, saved=saved, shards=shards)

    # Who makes a model of a checkpoint?
    notes = []
    if asked.lora_rank is not None:
        notes.append(merge_note(asked))
    elif WHOLE_MODEL not in saved:
        notes.append(_MERGE)

    backend = {**backend, "megatron": False}
    made = _command(asked, users, given, flags, sizing, backend, notes, engines)
    experts = tuple(_expert_warnings(asked))
    return replace(
        made,
        split=engines.split if engines else None,
        warnings=(*sizing.warnings, *experts, *made.warnings, *_rate_warnings(asked, given)),
        # the critic's are as the actor's
        format={
            STRATEGY: given.get(STRATEGY, strategy_of(asked, given, sizing.layout)),
            FSDP_SIZE: given.get(FSDP_SIZE, fsdp_size(asked, sizing)),
            DTYPE: given.get(DTYPE, "fp32"),
            RANK: rank_of(asked, given),
        },
    )


def _with_own_engines(
    asked: RecipeInput, given: GivenKeys, trainer: AsyncTrainer
) -> tuple[RecipeInput, Engines, Sizing, str]:
    """Divide the nodes so that the trainer's hold the model, and size both sides."""
    size = given.whole(TENSOR_PARALLEL) or asked.tensor_parallel
    misfit: MisfitError | None = None
    for part, engines in verl_separate.divisions(asked, given, trainer, longest_sample(given)):
        try:
            check_sequences(part, given)
            sizing, saved = sizing_and_saved(part, given)
        except MisfitError as refusal:
            misfit = refusal
            continue
        sizing = verl_separate.with_engines(sizing, part, engines, size)
        return part, engines, sizing, saved
    what = f"{misfit}; these are the nodes that train" if misfit else "no node trains"
    raise MisfitError(what)


def _with_megatron(
    asked: RecipeInput, users: list[Override], given: GivenKeys, flags: tuple[str, ...]
) -> Command:
    """Make the command where Megatron trains: see `verl_megatron`."""
    verl_separate.check_rollout_nodes(given)
    verl_megatron.check(asked)
    sizing = verl_megatron.sizing_of(asked, given)
    check_adapters(asked)
    backend = {**verl_megatron.facts_of(asked, sizing, flags), "megatron": True}
    tree = verl_megatron.tree_flags(asked, flags)
    made = _command(asked, users, given, tree, sizing, backend, verl_megatron.notes(asked))
    return replace(
        made,
        warnings=(*sizing.warnings, *made.warnings),
        format=verl_megatron.format_of(asked, given, sizing),
    )


def _has_images(asked: RecipeInput) -> bool:
    """Return whether it trains with images: verl has scripts for that with GRPO."""
    return asked.recipe == "verl-grpo" and asked.has_vision


def _command(  # noqa: PLR0913 - what both ways to train have made
    asked: RecipeInput,
    users: list[Override],
    given: GivenKeys,
    flags: tuple[str, ...],
    sizing: Sizing,
    backend: Facts,
    of_backend: Iterable[str],
    engines: Engines | None = None,
) -> Command:
    """Return the command by verl's table, from the facts of what trains and from all others."""
    grpo = asked.recipe == "verl-grpo"
    images = _has_images(asked)
    bucket, why_bucket = bucket_of(asked, given, megatron=bool(backend["megatron"]))
    sizes, notes, prompts = _sizes(asked, given, sizing, engines)
    step = _step_of(asked, given, sizing, prompts)
    save_every, pace = steps_between_saves(asked, step, _EVERY)
    freezes = (
        VERL.has("reads_freeze_vision_tower", asked.version)
        and asked.lora_rank is None
        and not backend["megatron"]
    )
    facts = {
        **backend,
        **{f"why_{name}": why for name, why in sizing.why.items()},
        "fsdp": not backend["megatron"],
        "recipe": asked.recipe,
        "grpo": grpo,
        "ppo": not grpo,
        "images": images,
        "adapters": asked.lora_rank is not None,
        "lora_rank": asked.lora_rank,
        "rollout": asked.rollout,
        "vllm": asked.rollout == "vllm",
        "sglang": asked.rollout == "sglang",
        "share": f"{sizing.share:g}",
        "bucket": bucket,
        "why_bucket": why_bucket,
        **context_facts(given, sizing),
        "freezes_vision_tower": freezes,
        "fits_one_batch": longest_sample(given) <= _LONGEST_WHOLE,
        "prompt_tokens": PROMPT_TOKENS,
        "answer_tokens": ANSWER_TOKENS,
        "every": _EVERY,
        "save_every": save_every,
        "why_save_every": "; ".join(filter(None, (pace, "verl's default is never"))),
        **sizes,
        **_batches_by_tokens(asked, given, sizing),
        **_model_and_data(asked, given),
        **_reward_engines(asked, sizing),
        **_reward(asked, given),
        **run_facts(asked),
    }
    arguments, why = merged(VERL.rows(asked.version, facts), users)

    # What should the user know about this command?
    warnings = list(check_context(asked, given))
    if not grpo:
        warnings += critic_warnings(asked, CRITIC_MODEL, given.get(CRITIC_MODEL, ""))
    if images:
        warnings += _image_warnings(asked, given)
    if not asked.scores and not asked.reward_model:
        notes.append("verl scores by data_source; AGENT_REWARD uses a reward server instead")
    if not asked.eval_data:
        notes.append("no AGENT_EVAL_DATA: the model is never evaluated")
    notes += of_backend
    if images:
        notes += _image_notes(asked, freezes=freezes)
    if VERL.has("stores_samples_in_queue", asked.version) and not sizes["fully_async"]:
        notes.append("verl 0.9 also needs the packages TransferQueue and orjson")
    return Command(
        argv=(asked.python, "-m", engines.trainer.module if engines else MAIN, *flags, *arguments),
        env={"HYDRA_FULL_ERROR": "1"},
        why=why,
        notes=(*notes, *sizing.notes),
        warnings=tuple(warnings),
    )


def _image_notes(asked: RecipeInput, *, freezes: bool) -> Iterable[str]:
    yield "images count in data.max_prompt_length; verl needs the package qwen-vl-utils for them"
    if asked.lora_rank is None and not freezes:
        yield "the vision tower is trained too: this verl has no way to freeze it here"


def _image_warnings(asked: RecipeInput, given: GivenKeys) -> Iterable[str]:
    """Return what may be wrong: data without images, and a key that nothing reads."""
    column = given.get(_IMAGE_KEY, "images")
    if not asked.has_column(column):
        what = f"AGENT_TRAIN_DATA has no column {column} ({_IMAGE_KEY})"
        yield f"{what}, only {', '.join(asked.columns or ())}: the model is trained on text alone"
    if _FREEZE in given and VERL.has("lost_freeze_vision_tower", asked.version):
        verl = f"verl {version_text(asked.version)}"
        yield f"{given.written(_FREEZE)}: {verl} has this key and does not read it"


def _expert_warnings(asked: RecipeInput) -> Iterable[str]:
    model = asked.basis.model
    if model is not None and model.experts and model.parameters > _MOST_WITH_EXPERTS:
        what = f"{model.billions} with experts: FSDP gathers all experts of each layer, of which a "
        yield f"{what}token passes few; AGENT_BACKEND=megatron divides them, as verl's scripts do"


def _rate_warnings(asked: RecipeInput, given: GivenKeys) -> Iterable[str]:
    is_set = asked.lora_rank is not None or _RATE in given
    if trains_adapters(asked, given) and not is_set:
        yield adapter_warning(_RATE, "verl's default of 1e-6")


def _sizes(
    asked: RecipeInput, given: GivenKeys, sizing: Sizing, own_engines: Engines | None
) -> tuple[Facts, list[str], int]:
    """Return the facts about sizes, notes about them, and the prompts of a step.

    `own_engines` have GPUs that do not train, if there are some.
    """
    version = asked.version
    grpo = asked.recipe == "verl-grpo"
    tensor_parallel = 1 if own_engines else sizing.tensor_parallel
    samples = _answers(asked, given)

    # Groups of GPUs, each on one node; verl 0.5 places only one of them on a node.
    groups = groups_of(asked.nodes, tensor_parallel, verl_megatron.with_groups(sizing, given))
    gpus = [node.gpus for node in asked.nodes if node.gpus]
    shape = ", ".join(map(str, gpus))
    is_single = not VERL.has("many_groups_on_a_node", version)
    if is_single and sum(count >= groups.gpus for count in gpus) < groups.count:
        what = f"places one group on a node, and nodes of {shape} GPUs are groups of {groups.gpus}"
        raise MisfitError(f"verl 0.5 {what}: install 0.6.1 or later")

    # Batches that divide over the copies of the model, and up to 0.8 over the agent-loop workers.
    ranks, divided = verl_megatron.ranks_of(asked, sizing, groups.total)
    parts = divided
    is_fully_async = own_engines is not None and own_engines.trainer is verl_separate.FULLY_ASYNC
    if VERL.has("agent_loops_divide_a_step", version) and not is_fully_async:
        parts = lcm(parts, given.whole(f"{ROLLOUT}.agent.num_workers") or _AGENT_LOOPS)
    near, why_near = _batch_near(asked, given, sizing)
    train, mini = batches(ranks, samples, parts, given, near)

    # Do the nodes have CPUs for all processes?
    mode = given.get(MODE, "async" if _needs_async(asked) else "sync")
    has_servers = mode == "async" or VERL.has("rollouts_are_asynchronous", version)
    placement = Placement(
        groups,
        tensor_parallel,
        cpus_of_gpu=3 if VERL.has("actors_take_three_cpus", version) else 1,
        has_servers=has_servers and VERL.has("servers_take_a_cpu", version),
        has_stores=VERL.has("stores_samples_in_queue", version) and not is_fully_async,
        main_cpus=own_engines.trainer.cpus if own_engines else 1,
        engine_cpus=verl_separate.cpus_beside_trainer(own_engines) if own_engines else 0,
    )
    stores = given.whole(STORES_KEY) or placement.fitting_stores(asked.nodes)
    cpu_notes = placement.check(asked.nodes, stores)

    text = engines_text(groups.total, groups.total // tensor_parallel, tensor_parallel)
    of_engines: Facts = {"separate": False, "fully_async": False, "engines": text}
    if own_engines is not None:
        train, sync = verl_separate.prompts_between_syncs(own_engines.trainer, given, train, mini)
        verl_separate.check_engine_cpus(own_engines, placement, asked.nodes)
        of_engines = verl_separate.engine_facts(own_engines, sizing.tensor_parallel, sync)
        text = f"{count_of(groups.total, 'GPU')} for training, {of_engines['engines']}"
    copies = count_of(ranks, "GPU" if ranks == groups.total else "data-parallel rank")
    even = f"× {samples} answers it is divisible by {copies}"
    facts = {
        "groups": groups.count,
        "gpus": groups.gpus,
        "why_groups": f"equal groups, each on one node, of nodes of {shape} GPUs",
        "tensor_parallel": sizing.tensor_parallel,
        **of_engines,
        "samples": samples,
        "why_samples": "GRPO compares the answers to a prompt" if grpo else "PPO needs one",
        "train_batch": train,
        "why_train_batch": f"near {why_near}, and {even}; the data needs at least {train} rows",
        "mini_batch": mini,
        "why_mini_batch": f"near {near // 4}, a part of the batch, and {even}",
        "fewer_stores": placement.has_stores and stores != STORES,
        "stores": stores,
        "usual_stores": STORES,
    }

    notes = [f"{text}; batch {train} = {train // mini} × {mini}"]
    if own_engines is not None:
        notes.append("the engines get the weights by NCCL, for which verl needs the package cupy")
    idle = sum(gpus) - groups.total
    if idle:
        notes.append(f"{idle} of {sum(gpus)} GPUs stay idle")
    return facts, [*notes, *cpu_notes], train


def _answers(asked: RecipeInput, given: GivenKeys) -> int:
    """Return the answers to each prompt."""
    return given.whole(SAMPLES) or (_GROUP_SIZE if asked.recipe == "verl-grpo" else 1)


def _step_of(asked: RecipeInput, given: GivenKeys, sizing: Sizing, prompts: int) -> StepWork:
    """Return the work of a step; old probabilities, reference and values are forward passes."""
    trained = 1 if asked.recipe == "verl-grpo" else 2
    return StepWork(
        prompts * _answers(asked, given),
        longest_sample(given),
        trained,
        scored=trained + has_reference(asked, given),
        fit=sizing.fit,
        micro=_actor_tokens(given, sizing),
        updates=_UPDATES,
    )


def _batch_near(asked: RecipeInput, given: GivenKeys, sizing: Sizing) -> tuple[int, str]:
    """Return the prompts of a step to aim at: verl's own, or less if it would take hours."""
    most = _TRAIN_NEAR_WITH_IMAGES if _has_images(asked) else _TRAIN_NEAR

    def seconds(prompts: int) -> float:
        return step_seconds(asked, _step_of(asked, given, sizing, prompts)) or 0.0

    # Whoever has fewer GPUs than verl's scripts tries things out.
    limit = _LONGEST_STEP_OF_FEW if sum(n.gpus for n in asked.gpu_nodes) < _FEW else HOUR
    answers = _answers(asked, given)
    near = most
    while seconds(near) > limit and near * answers > _LEAST_SAMPLES:
        near //= 2
    if near == most:
        return near, str(near)
    where = " with states in CPU memory" if sizing.layout.on_cpu else ""
    hours = f"{seconds(most) / HOUR:.1f} h{where}"
    return near, f"{near}, since a step of {most} would take about {hours}"


def _batches_by_tokens(asked: RecipeInput, given: GivenKeys, sizing: Sizing) -> Facts:
    """Return the tokens of a batch, and for which parts the user sets micro batches instead."""
    own = {
        part: size in given or f"{size}_per_gpu" in given for part, size in _MICRO_BATCHES.items()
    }
    _check_budgets(given, sizing, own)
    longest = longest_sample(given)
    fitting = sizing.tokens or _ACTOR_TOKENS
    critic_tokens = 0  # The default suffices
    is_ppo = asked.recipe == "verl-ppo"
    if is_ppo and (longest > _CRITIC_TOKENS or fitting < _ACTOR_TOKENS):
        critic_tokens = verl_megatron.tokens_of(sizing, max(fitting, longest))
    return {
        "own_micro_batch": any(own.values()),
        **{f"own_micro_batch_of_{part}": has_own for part, has_own in own.items()},
        "actor_tokens": _actor_tokens(given, sizing),
        "critic_tokens": critic_tokens,
    }


def _check_budgets(given: GivenKeys, sizing: Sizing, own_micro_batch: Mapping[str, bool]) -> None:
    """Refuse the user's tokens of a micro batch that lack room for the longest sample."""
    longest = longest_sample(given)
    least = verl_megatron.tokens_of(sizing, longest)
    for part, budget in _BUDGETS.items():
        tokens = given.whole(budget)
        if tokens and tokens < least and not own_micro_batch[part]:
            name = given.written(budget)
            what = f"AGENT_JOB_ARGS: {name}={tokens}: verl ends where a sample has more tokens"
            raise MisfitError(f"{what}, and the longest takes {least} of a GPU")


def _actor_tokens(given: GivenKeys, sizing: Sizing) -> int:
    """Return the tokens of a micro batch of the actor on one GPU."""
    fitting = sizing.tokens or _ACTOR_TOKENS
    most = _ACTOR_TOKENS * (sizing.fit.sequence if sizing.fit else 1)
    return verl_megatron.tokens_of(sizing, max(min(most, fitting), longest_sample(given)))


def _model_and_data(asked: RecipeInput, given: GivenKeys) -> Facts:
    check_columns(asked, {"data.prompt_key": given.get("data.prompt_key", "prompt")})
    return {
        "model": quoted(asked.model_path),
        "train_data": texts(asked.train_data),
        "eval_data": texts(asked.eval_data) if asked.eval_data else "",
    }


def _reward_engines(asked: RecipeInput, sizing: Sizing) -> Facts:
    """Return the part of a GPU for the engines of a reward model, their GPUs, and the reason.

    All other engines sleep meanwhile, and the states of training stay.
    """
    share = _REWARD_SHARE
    size = 1
    why = "as the scripts with a reward model"
    if sizing.fit is not None and asked.reward_model:
        share = min(_REWARD_SHARE, sizing.fit.left)
        if share < _REWARD_SHARE:
            why = f"{gb(sizing.fit.generating)} of training stay on a GPU meanwhile"

        # How many GPUs does its own size take?
        model = shape_of(asked.reward_model, None)
        if model is not None:
            size = engine_sizes(replace(sizing.fit.load, tensor_parallel=None), model)[0]
            why = f"{why}; {gb(model.weights)} of weights, by {model.source}"
    return {
        "reward_share": f"{share:g}",
        "reward_tensor_parallel": size,
        "why_reward_engines": why,
    }


def _reward(asked: RecipeInput, given: GivenKeys) -> Facts:
    """Return what scores: a model, the user's function, or the one that asks the server."""
    facts = {
        "reward_model": quoted(asked.reward_model) if asked.reward_model else "",
        "learned_reward": asked.reward_model or _REWARD_MODEL_ENABLE in given,
        "scored_tokens": longest_sample(given) + _TEMPLATE_TOKENS,
        "asks_server": False,
        "reward_function": quoted(REWARD_FUNCTION),
        "reward_url": quoted("{reward_url}"),
    }
    if not asked.scores or _REWARD_FUNCTION_PATH in given:
        return facts

    if not VERL.has("awaits_reward_function", asked.version):
        raise MisfitError("verl 0.5 cannot await the reward server: install 0.6.1 or later")
    if _needs_async(asked) and given.get(MODE, "async") != "async":
        raise MisfitError(f"AGENT_JOB_ARGS: {MODE}: verl 0.6 scores by a server only in async")
    return {**facts, "asks_server": True}


def _needs_async(asked: RecipeInput) -> bool:
    return asked.scores and not VERL.has("rollouts_are_asynchronous", asked.version)


def run_facts(asked: RecipeInput) -> Facts:
    """Return the facts about the run's loggers, name and folder."""
    return {
        "logger": '["console","wandb"]' if asked.wandb else '["console"]',
        "run_name": quoted(asked.named),
        "checkpoints": quoted(asked.checkpoints),
    }
