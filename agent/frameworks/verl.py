"""verl: GRPO and PPO by `verl.trainer.main_ppo`, which hydra configures.

Search-R1, a fork of an early verl, shares the placement and the keys.
"""

from __future__ import annotations

from math import lcm
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.frameworks import verl_megatron, verl_vision
from agent.frameworks.arguments import Row, merged, quoted, read, texts, whole
from agent.frameworks.framework import Checkout, CheckpointFormat, FrameworkInfo, Preset
from agent.frameworks.layouts import VERL_CPU
from agent.frameworks.pace import HOUR, StepWork, step_seconds, steps_between_saves
from agent.frameworks.recipe import (
    NAMED_BY,
    Command,
    MisfitError,
    RecipeInput,
    Version,
    adapter_warning,
    check_columns,
    count_of,
    engines_text,
    shape_of,
)
from agent.frameworks.sizing import engine_sizes, gb
from agent.frameworks.step_format import STEP, KeyMeaning, LineFormat, StepFormat, bar
from agent.frameworks.verl_adapters import (
    RANK,
    adapter_rows,
    megatron_rows,
    merge_note,
    rank_of,
    trains_adapters,
)
from agent.frameworks.verl_keys import (
    ACTOR,
    ANSWER,
    DTYPE,
    FSDP_SIZE,
    GPUS,
    MINI_BATCH,
    MODE,
    MODEL,
    NODES,
    PROMPT,
    REF,
    ROLLOUT,
    SAMPLES,
    SHARE,
    STORES_KEY,
    STRATEGY,
    TENSOR_PARALLEL,
    TRAIN_BATCH,
    check_keys,
)
from agent.frameworks.verl_memory import (
    ANSWER_TOKENS,
    KL_IN_REWARD,
    PROMPT_TOKENS,
    SAVED,
    WHOLE_MODEL,
    WHY_ADAPTER_SHARDS,
    WHY_SHARDS,
    bucket_rows,
    check_context,
    check_sequences,
    context_rows,
    fsdp_size,
    has_reference,
    longest_sample,
    memory_rows,
    sequence_rows,
    sizing_and_saved,
    strategy_of,
)
from agent.frameworks.verl_placement import STORES, Placement, batches, groups_of
from agent.node.facts import Package

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from agent.frameworks.arguments import Override
    from agent.frameworks.sizing import Sizing

TRACKER = "latest_checkpointed_iteration.txt"
MEANING = KeyMeaning(
    reward=("critic/rewards/mean", "critic/score/mean"),
    kl=("actor/kl_loss", "critic/kl", "actor/ppo_kl"),
    response_length=("response_length/mean",),
    clipped=("response_length/clip_ratio",),
    entropy=("actor/entropy", "actor/entropy_loss"),
    gradient_norm=("actor/grad_norm", "train/grad_norm"),
    step_seconds=("timing_s/step",),
    throughput=("perf/throughput",),
    validation=("val-core/*/mean@*", "val-core/*", "val/test_score/*"),
    clip_fraction=("actor/pg_clipfrac",),
    rollout_kl=("rollout_corr/k3_kl", "rollout_corr/kl"),
    rollout_difference=("training/rollout_probs_diff_mean", "rollout_corr/log_ppl_abs_diff"),
    staleness=(
        "training/off_policy/trajectory_staleness/mean",
        "fully_async/partial/max_partial_span",
    ),
    explained_variance=("critic/vf_explained_var",),
)
STEPS = StepFormat(
    lines=(
        LineFormat("step", "step:", rf"\bstep:(?P<step>{STEP}) - ", notation="dashes"),
        LineFormat("total", "Total training steps: ", rf"steps: (?P<of>{STEP})(?![\w.])"),
        bar("Training Progress"),
        LineFormat("evaluation", "test_gen_batch meta info:"),
        LineFormat("evaluation", "validation generation end"),
        LineFormat("checkpoint", "local_global_step_folder: "),
        LineFormat("checkpoint", "Saving checkpoint to: "),
        LineFormat("checkpoint", "Saving actor checkpoint to "),  # Search-R1
        LineFormat("checkpoint", "Saving critic checkpoint to "),
    ),
    meaning=MEANING,
    of_evaluation=("val-", "val/"),
    shown=(
        *("critic/rewards/mean", "critic/score/mean", "actor/kl_loss", "actor/ppo_kl"),
        *("actor/entropy", "actor/pg_clipfrac", "actor/grad_norm", "response_length/mean"),
        *("response_length/clip_ratio", "timing_s/step", "perf/throughput", "val-core/*"),
        *("critic/kl", "actor/entropy_loss", "actor/lr", "train/loss", "train/*", "val/*"),
    ),
)
"""The lines of its trainers; Search-R1, a fork, prints the same with three decimals."""
FRAMEWORK = FrameworkInfo(
    package=Package("verl", "verl", version_files=("verl/version/version",)),
    checkpoints=CheckpointFormat(
        prefix="global_step_",
        tracker=TRACKER,
        can_reshard=False,  # Its shards are named by world size
    ),
    steps=STEPS,
    is_sized_by_links=True,
    settings=(
        ("gpu_memory_utilization", "actor_rollout_ref.rollout.gpu_memory_utilization"),
        ("mem_fraction_static", "actor_rollout_ref.rollout.gpu_memory_utilization"),
        ("max_model_len", "actor_rollout_ref.rollout.max_model_len"),
        ("max_num_batched_tokens", "actor_rollout_ref.rollout.max_num_batched_tokens"),
    ),
)
VERSIONS: tuple[Version, ...] = (
    *((0, 5, 0), (0, 6, 1), (0, 7, 0), (0, 7, 1), (0, 8, 0)),
    *((0, 9, 0), (0, 9, 1)),
)
ABOUT = "verl: GRPO or PPO with vLLM or SGLang rollouts; the reward is verl's own, or a server's"

_GSM8K = "{data}/gsm8k"
_PRESET = Preset(
    about="GRPO with verl on gsm8k",
    # verl-project/verl, docker/README.md, v0.9.0: the newest release whose image has a stable tag
    image="verlai/verl:vllm024.latest",
    checkout=Checkout("https://github.com/verl-project/verl", tag="v0.9.0", folder="verl"),
    model="Qwen/Qwen2.5-7B-Instruct",
    imports="verl",
    train=f"{_GSM8K}/train.parquet",
    evaluate=f"{_GSM8K}/test.parquet",
    prepare=(
        f"test -e {_GSM8K}/train.parquet || "
        "python3 {code}/verl/examples/data_preprocess/gsm8k.py "
        f"--local_save_dir {_GSM8K}"
    ),
    args=(
        "data.max_prompt_length=512",
        "data.max_response_length=1024",
        "actor_rollout_ref.actor.optim.lr=1e-6",
        "trainer.total_epochs=15",
    ),
)
PRESETS = {
    "verl-grpo": _PRESET,
    "verl-ppo": replace(
        _PRESET,
        about="PPO with verl on gsm8k",
        args=(*_PRESET.args, "critic.optim.lr=1e-5"),
    ),
}

_TRAIN_NEAR = 1024  # verl's own batch; an update has a quarter of it
_LEAST_SAMPLES = 256  # Answers of a step, at least
_UPDATES = 4  # Of a step
_LONGEST_STEP_OF_FEW = HOUR / 4
_FEW = 8  # GPUs: verl's scripts are for so many or more
_ACTOR_TOKENS = 24576
_CRITIC_TOKENS = 32768
"""Tokens of a batch on each GPU: the actor's as in the scripts, the critic's by default."""
REWARD_FUNCTION = str(Path(__file__).parents[1] / "bundled" / "verl_reward.py")  # Asks a server
_RATE = f"{ACTOR}.optim.lr"
_MOST_WITH_EXPERTS = 100e9
"""Parameters up to which verl has scripts that train experts with FSDP.

Source: verl-project/verl, examples/grpo_trainer/run_qwen3_next_80b_a3b_fsdp.sh, v0.9.0.
"""
_ROLLOUT_NODES = f"{ROLLOUT}.nnodes"
_MERGE = (
    "checkpoints have shards only; `python3 -m verl.model_merger merge --backend fsdp --local_dir "
    "…/global_step_N/actor --target_dir …` makes a model of one"
)

_KEPT_CHECKPOINTS = "of each attempt; the default keeps every checkpoint"
_SETTINGS: tuple[Row, ...] = (
    ("data.filter_overlong_prompts", "True", "one long prompt would end the job"),
    (f"{MODEL}.use_remove_padding", "True", "padding is not computed; off by default in 0.6"),
    ("trainer.max_actor_ckpt_to_keep", "2", _KEPT_CHECKPOINTS),
    ("trainer.total_epochs", "15", "as the scripts; the default is 30"),
)
"""Settings that depend on neither nodes nor version."""
_DYNAMIC = {
    f"{ACTOR}.use_dynamic_bsz": f"{ACTOR}.ppo_micro_batch_size",
    f"{ROLLOUT}.log_prob_use_dynamic_bsz": f"{ROLLOUT}.log_prob_micro_batch_size",
    f"{REF}.log_prob_use_dynamic_bsz": f"{REF}.log_prob_micro_batch_size",
    "critic.use_dynamic_bsz": "critic.ppo_micro_batch_size",
}
"""What forms batches by tokens, and the micro batches (also `_per_gpu`) that replace it."""
_BUDGETS = {
    f"{ACTOR}.use_dynamic_bsz": f"{ACTOR}.ppo_max_token_len_per_gpu",
    f"{ROLLOUT}.log_prob_use_dynamic_bsz": f"{ROLLOUT}.log_prob_max_token_len_per_gpu",
    f"{REF}.log_prob_use_dynamic_bsz": f"{REF}.log_prob_max_token_len_per_gpu",
    "critic.use_dynamic_bsz": "critic.ppo_max_token_len_per_gpu",
}
"""The tokens of such a batch. verl asserts that they hold each of its samples."""


_GROUP_SIZE = 8  # Answers to each prompt that GRPO compares
_AGENT_LOOPS = 8  # Agent-loop workers that verl starts by default
_MODULE = 3  # Words of the command before its arguments
_REF_OFFLOADED = "as the scripts: it works between updates only"
_REWARD_SHARE = 0.8  # Of each GPU for a reward model's engines, as in the scripts
_EVERY = 20  # Steps between checkpoints, at most, and between evaluations


def make(asked: RecipeInput) -> Command:
    """Make the command for the nodes that joined, with the keys of the installed version."""
    flags, overrides = verl_megatron.split_flags(asked.args)
    users = [read(argument) for argument in overrides]
    has_megatron = verl_megatron.trains_with_megatron(asked, flags, users)
    if not asked.is_nearest:
        tree = verl_megatron.BACKEND if has_megatron else ""
        check_keys(users, asked.version, tree=tree, chosen=flags)
    given = {override.key: override.value for override in users if override.prefix != "~"}
    if has_megatron:
        return _with_megatron(asked, users, given, flags)

    # What fits the nodes: layout and engines by memory, then what a checkpoint has.
    _check_rollout_nodes(given)
    check_sequences(asked, given)
    try:
        sizing, saved = sizing_and_saved(asked, given)
    except MisfitError as refusal:
        raise verl_megatron.with_remedy(asked, given, refusal) from None
    shards = groups_of(asked.nodes, sizing.tensor_parallel, given).total
    why_shards = WHY_SHARDS if asked.lora_rank is None else WHY_ADAPTER_SHARDS
    backend = (
        *adapter_rows(asked, given, shards=shards, on_cpu=sizing.layout.name == VERL_CPU.name),
        (SAVED, saved, "with an HF model" if WHOLE_MODEL in saved else why_shards),
        (f"{REF}.fsdp_config.param_offload", "True", _REF_OFFLOADED),
        *_critic_padding(asked),
        *memory_rows(asked, given, sizing),
        *sequence_rows(asked, sizing),
        *bucket_rows(asked, given),
    )

    # Who makes a model of a checkpoint?
    notes = []
    if asked.lora_rank is not None:
        notes.append(merge_note(asked))
    elif WHOLE_MODEL not in saved:
        notes.append(_MERGE)

    if _has_images(asked):
        backend = (*backend, *verl_vision.rows(asked, given, megatron=False))
        notes += verl_vision.notes(asked, megatron=False)
    made = _command(asked, users, given, sizing, backend, notes)
    experts = tuple(_expert_warnings(asked))
    strategy = strategy_of(asked, given, sizing.layout)
    return replace(
        made,
        argv=(*made.argv[:_MODULE], *flags, *made.argv[_MODULE:]),
        notes=(*made.notes, *sizing.notes),
        warnings=(*sizing.warnings, *experts, *made.warnings, *_rate_warnings(asked, given)),
        # the critic's are as the actor's
        format={
            STRATEGY: given.get(STRATEGY, strategy),
            FSDP_SIZE: given.get(FSDP_SIZE, fsdp_size(asked, sizing)),
            DTYPE: given.get(DTYPE, "fp32"),
            RANK: rank_of(asked, given),
        },
    )


def _with_megatron(
    asked: RecipeInput, users: list[Override], given: Mapping[str, str], flags: tuple[str, ...]
) -> Command:
    """Make the command where Megatron trains: see `verl_megatron`."""
    _check_rollout_nodes(given)
    verl_megatron.check(asked)
    sizing = verl_megatron.sizing_of(asked, given)
    backend = (
        *verl_megatron.engine_row(asked, flags),
        (SHARE, f"{sizing.share:g}", sizing.why["share"]),
        *verl_megatron.parallel_rows(asked, sizing),
        *megatron_rows(asked),
        *bucket_rows(asked, given, megatron=True),
    )
    notes = list(verl_megatron.notes(asked))
    if _has_images(asked):
        backend = (*backend, *verl_vision.rows(asked, given, megatron=True))
        notes += verl_vision.notes(asked, megatron=True)
    made = _command(asked, users, given, sizing, backend, notes)
    tree = verl_megatron.tree_flags(asked, flags)
    return replace(
        made,
        argv=(*made.argv[:_MODULE], *tree, *made.argv[_MODULE:]),
        notes=(*made.notes, *sizing.notes),
        warnings=(*sizing.warnings, *made.warnings),
        format=verl_megatron.format_of(asked, given, sizing),
    )


def _check_rollout_nodes(given: Mapping[str, str]) -> None:
    """Refuse engines on nodes of their own: this recipe's memory is for shared GPUs."""
    if whole(given, _ROLLOUT_NODES, least=0):
        what = f"AGENT_JOB_ARGS: {_ROLLOUT_NODES}: the recipe has engines on the training GPUs"
        raise MisfitError(f"{what}; docs/frameworks.md has commands with engines on their own")


def _has_images(asked: RecipeInput) -> bool:
    """Return whether it trains with images: verl has scripts for that with GRPO."""
    return asked.recipe == "verl-grpo" and asked.has_vision


def _command(  # noqa: PLR0913 - what both ways to train have made
    asked: RecipeInput,
    users: list[Override],
    given: Mapping[str, str],
    sizing: Sizing,
    backend: Iterable[Row],
    of_backend: Iterable[str],
) -> Command:
    """Return the command with the settings and notes of what trains, and of all else."""
    # Batches, then steps between saves.
    sizes, notes, prompts = _sizes(asked, given, sizing)
    every, pace = steps_between_saves(asked, _step_of(asked, given, sizing, prompts), _EVERY)
    rows = (
        *_model_and_data(asked, given),
        *backend,
        *context_rows(asked, given, sizing),
        *sizes,
        *_batches_by_tokens(asked, given, sizing),
        *_reward(asked, given, sizing),
        *trainer_rows(asked),
        ("trainer.save_freq", every, "; ".join(filter(None, (pace, "verl's default is never")))),
        ("trainer.resume_mode", "auto", "resumes from the last checkpoint, if any"),
    )
    arguments, why = merged(rows, users)

    # What should the user know about this command?
    warnings = list(check_context(asked, given))
    if _has_images(asked):
        warnings += verl_vision.warnings(asked, given)
    if not asked.scores and not asked.reward_model:
        notes.append("verl scores by data_source; AGENT_REWARD uses a reward server instead")
    if not asked.eval_data:
        notes.append("no AGENT_EVAL_DATA: the model is never evaluated")
    notes += of_backend
    if asked.version >= (0, 9):
        notes.append("verl 0.9 also needs the packages TransferQueue and orjson")
    return Command(
        argv=(asked.python, "-m", "verl.trainer.main_ppo", *arguments),
        env={"HYDRA_FULL_ERROR": "1"},
        why=why,
        notes=tuple(notes),
        warnings=tuple(warnings),
    )


def _expert_warnings(asked: RecipeInput) -> Iterable[str]:
    model = asked.basis.model
    if model is not None and model.experts and model.parameters > _MOST_WITH_EXPERTS:
        what = f"{model.billions} with experts: FSDP gathers all experts of each layer, of which a "
        yield f"{what}token passes few; AGENT_BACKEND=megatron divides them, as verl's scripts do"


def _rate_warnings(asked: RecipeInput, given: Mapping[str, str]) -> Iterable[str]:
    is_set = asked.lora_rank is not None or _RATE in given
    if trains_adapters(asked, given) and not is_set:
        yield adapter_warning(_RATE, "verl's default of 1e-6")


def _sizes(
    asked: RecipeInput, given: Mapping[str, str], sizing: Sizing
) -> tuple[list[Row], list[str], int]:
    """Return the settings of sizes, notes about them, and the prompts of a step."""
    version = asked.version
    grpo = asked.recipe == "verl-grpo"
    tensor_parallel = sizing.tensor_parallel
    samples = _answers(asked, given)

    # Groups of GPUs, each on one node; verl 0.5 places only one of them on a node.
    groups = groups_of(asked.nodes, tensor_parallel, verl_megatron.with_groups(sizing, given))
    gpus = [node.gpus for node in asked.nodes if node.gpus]
    shape = ", ".join(map(str, gpus))
    if version < (0, 6) and sum(count >= groups.gpus for count in gpus) < groups.count:
        what = f"places one group on a node, and nodes of {shape} GPUs are groups of {groups.gpus}"
        raise MisfitError(f"verl 0.5 {what}: install 0.6.1 or later")

    # Batches that divide over the copies of the model, and up to 0.8 over the agent-loop workers.
    ranks, divided = verl_megatron.ranks_of(asked, sizing, groups.total)
    parts = divided
    if version < (0, 9):
        parts = lcm(parts, whole(given, f"{ROLLOUT}.agent.num_workers") or _AGENT_LOOPS)
    near, why_near = _batch_near(asked, given, sizing)
    train, mini = batches(ranks, samples, parts, given, near)

    # Do the nodes have CPUs for all processes?
    mode = given.get(MODE, "async" if _needs_async(asked) else "sync")
    has_servers = mode == "async" or version >= (0, 7)
    placement = Placement(version, groups, tensor_parallel, has_servers)
    stores = whole(given, STORES_KEY) or placement.fitting_stores(asked.nodes)
    cpu_notes = placement.check(asked.nodes, stores)

    engines = engines_text(groups.total, groups.total // tensor_parallel, tensor_parallel)
    copies = count_of(ranks, "GPU" if ranks == groups.total else "data-parallel rank")
    even = f"× {samples} answers it is divisible by {copies}"
    equal = f"equal groups, each on one node, of nodes of {shape} GPUs"
    rows: list[Row] = [
        (NODES, groups.count, equal),
        (GPUS, groups.gpus, equal),
        (TENSOR_PARALLEL, tensor_parallel, f"{sizing.why['tensor_parallel']}; {engines}"),
        (SAMPLES, samples, "GRPO compares the answers to a prompt" if grpo else "PPO needs one"),
        (TRAIN_BATCH, train, f"near {why_near}, and {even}; the data needs at least {train} rows"),
        (MINI_BATCH, mini, f"near {near // 4}, a part of the batch, and {even}"),
    ]
    if version >= (0, 9) and stores != STORES:
        why = f"instead of {STORES}: each takes a CPU, and no more are free"
        rows.append((STORES_KEY, stores, why))

    notes = [f"{engines}; batch {train} = {train // mini} × {mini}"]
    idle = sum(gpus) - groups.total
    if idle:
        notes.append(f"{idle} of {sum(gpus)} GPUs stay idle")
    return rows, [*notes, *cpu_notes], train


def _answers(asked: RecipeInput, given: Mapping[str, str]) -> int:
    """Return the answers to each prompt."""
    return whole(given, SAMPLES) or (_GROUP_SIZE if asked.recipe == "verl-grpo" else 1)


def _step_of(
    asked: RecipeInput, given: Mapping[str, str], sizing: Sizing, prompts: int
) -> StepWork:
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


def _batch_near(asked: RecipeInput, given: Mapping[str, str], sizing: Sizing) -> tuple[int, str]:
    """Return the prompts of a step to aim at: verl's own, or less if it would take hours."""
    most = verl_vision.TRAIN_NEAR if _has_images(asked) else _TRAIN_NEAR

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


def _model_and_data(asked: RecipeInput, given: Mapping[str, str]) -> Iterable[Row]:
    grpo = asked.recipe == "verl-grpo"
    check_columns(asked, {"data.prompt_key": given.get("data.prompt_key", "prompt")})
    model = quoted(asked.model_path)
    yield "algorithm.adv_estimator", "grpo" if grpo else "gae", asked.recipe

    # The data, and the lengths of prompts and answers.
    yield from data_rows(asked, _EVERY)
    if not asked.eval_data:
        yield "trainer.val_before_train", "False", "no AGENT_EVAL_DATA"
    dropped = "verl drops longer ones and prints how many rows remain; by default 512"
    yield PROMPT, PROMPT_TOKENS, dropped
    yield ANSWER, ANSWER_TOKENS, "a longer answer is cut, and scored wrong; the default is 512"
    if asked.version < (0, 7):
        yield "data.return_raw_chat", "True", "asynchronous rollouts and reward models read it"

    # The model, and PPO's critic.
    yield f"{MODEL}.path", model, "AGENT_MODEL"
    if grpo:
        yield f"{ACTOR}.use_kl_loss", "True", "GRPO stays near its reference by a loss"
    else:
        yield "critic.model.path", model, "PPO's critic starts from AGENT_MODEL"
        yield "trainer.max_critic_ckpt_to_keep", "2", "as the actor's"

    yield from _SETTINGS
    chosen = "AGENT_ROLLOUT" if asked.rollout == "sglang" else "verl has no default"
    yield f"{ROLLOUT}.name", asked.rollout, chosen


def _critic_padding(asked: RecipeInput) -> Iterable[Row]:
    """Return the critic's setting of padding, which FSDP's tree has; Megatron never pads."""
    if asked.recipe == "verl-ppo":
        yield "critic.model.use_remove_padding", "True", "off by default up to 0.7"


def _batches_by_tokens(
    asked: RecipeInput, given: Mapping[str, str], sizing: Sizing
) -> Iterable[Row]:
    """Form batches by tokens, except where the user sets micro batches, which it would ignore."""
    micro = [key for key, size in _DYNAMIC.items() if size in given or f"{size}_per_gpu" in given]
    _check_budgets(given, sizing, micro)
    grpo = asked.recipe == "verl-grpo"
    longest = longest_sample(given)
    for key in _DYNAMIC:
        if key in micro:
            yield key, "False", "your micro batches, which it would ignore"
        elif key == f"{ACTOR}.use_dynamic_bsz" or (micro and not (grpo and "critic" in key)):
            yield key, "True", "batches by tokens; without it verl requires micro batches"
    fitting = sizing.tokens or _ACTOR_TOKENS
    tokens = f"at least the longest prompt and answer; {sizing.why['tokens']}"
    yield f"{ACTOR}.ppo_max_token_len_per_gpu", _actor_tokens(given, sizing), tokens
    if not grpo and (longest > _CRITIC_TOKENS or fitting < _ACTOR_TOKENS):
        of_critic = verl_megatron.tokens_of(sizing, max(fitting, longest))
        yield "critic.ppo_max_token_len_per_gpu", of_critic, tokens


def _check_budgets(given: Mapping[str, str], sizing: Sizing, micro: Sequence[str]) -> None:
    """Refuse the user's tokens of a micro batch that lack room for the longest sample."""
    longest = longest_sample(given)
    least = verl_megatron.tokens_of(sizing, longest)
    for key, budget in _BUDGETS.items():
        tokens = whole(given, budget)
        if tokens and tokens < least and key not in micro:
            what = f"AGENT_JOB_ARGS: {budget}={tokens}: verl ends where a sample has more tokens"
            raise MisfitError(f"{what}, and the longest takes {least} of a GPU")


def _actor_tokens(given: Mapping[str, str], sizing: Sizing) -> int:
    """Return the tokens of a micro batch of the actor on one GPU."""
    fitting = sizing.tokens or _ACTOR_TOKENS
    most = _ACTOR_TOKENS * (sizing.fit.sequence if sizing.fit else 1)
    return verl_megatron.tokens_of(sizing, max(min(most, fitting), longest_sample(given)))


def _reward_model(asked: RecipeInput, given: Mapping[str, str], sizing: Sizing) -> Iterable[Row]:
    """Return the settings of a reward model on the training GPUs, by version."""
    root = "reward.reward_model" if asked.version >= (0, 7, 1) else "reward_model"
    if asked.recipe == "verl-ppo" and (asked.reward_model or f"{root}.enable" in given):
        yield KL_IN_REWARD, "True", "a learned reward is exploited without it"
    if not asked.reward_model:
        return

    path = "model_path" if asked.version >= (0, 7, 1) else "model.path"
    yield f"{root}.enable", "True", "AGENT_REWARD_MODEL"
    yield f"{root}.{path}", quoted(asked.reward_model), "AGENT_REWARD_MODEL"
    scripts = "as the scripts with a reward model"
    if asked.version < (0, 7):
        yield f"{root}.model.use_remove_padding", "True", scripts
        yield f"{root}.model.fsdp_config.param_offload", "True", scripts
        return

    # From 0.7 on engines of its own generate the scores.
    yield f"{root}.rollout.name", asked.rollout, "verl has no default"
    share, size, why = _reward_engines(asked, sizing)
    yield f"{root}.rollout.gpu_memory_utilization", f"{share:g}", why
    yield f"{root}.rollout.tensor_model_parallel_size", size, why
    longest = longest_sample(given)
    yield f"{root}.rollout.prompt_length", longest + 1024, "prompt, answer and template"
    yield f"{root}.rollout.response_length", 1024, scripts
    yield f"{root.removesuffix('.reward_model')}.num_workers", 8, scripts


def _reward_engines(asked: RecipeInput, sizing: Sizing) -> tuple[float, int, str]:
    """Return the part of a GPU for the engines of a reward model, their GPUs, and the reason.

    All other engines sleep meanwhile, and the states of training stay.
    """
    scripts = "as the scripts with a reward model"
    if sizing.fit is None:
        return _REWARD_SHARE, 1, scripts
    share = min(_REWARD_SHARE, sizing.fit.left)
    if share < _REWARD_SHARE:
        scripts = f"{gb(sizing.fit.generating)} of training stay on a GPU meanwhile"

    # How many GPUs does its own size take?
    model = shape_of(asked.reward_model, None)
    if model is None:
        return share, 1, scripts
    size = engine_sizes(replace(sizing.fit.load, tensor_parallel=None), model)[0]
    return share, size, f"{scripts}; {gb(model.weights)} of weights, by {model.source}"


def _reward(asked: RecipeInput, given: Mapping[str, str], sizing: Sizing) -> Iterable[Row]:
    """Return the settings of the function that asks the reward server, unless the user has one."""
    has_section = asked.version >= (0, 7, 1)
    root = "reward.custom_reward_function" if has_section else "custom_reward_function"
    yield from _reward_model(asked, given, sizing)
    if not asked.scores or f"{root}.path" in given:
        return
    if asked.version < (0, 6):
        raise MisfitError("verl 0.5 cannot await the reward server: install 0.6.1 or later")
    yield f"{root}.path", quoted(REWARD_FUNCTION), "asks the reward server"
    yield f"{root}.name", "compute_score", "its function"
    yield f"+{root}.reward_kwargs.url", quoted("{reward_url}"), "the run's reward server"
    if _needs_async(asked):
        yield MODE, "async", "verl 0.6 awaits a reward function only in this mode"
        if given.get(MODE, "async") != "async":
            raise MisfitError(f"AGENT_JOB_ARGS: {MODE}: verl 0.6 scores by a server only in async")


def _needs_async(asked: RecipeInput) -> bool:
    return asked.scores and asked.version < (0, 7)


def data_rows(asked: RecipeInput, every: int) -> Iterable[Row]:
    """Return the settings of the data; verl requires data for evaluation, too."""
    yield "data.train_files", texts(asked.train_data), "AGENT_TRAIN_DATA"
    if asked.eval_data:
        yield "data.val_files", texts(asked.eval_data), "AGENT_EVAL_DATA"
        yield "trainer.test_freq", every, "the default is -1: never"
    else:
        yield "data.val_files", texts(asked.train_data), "required; there is no AGENT_EVAL_DATA"


def trainer_rows(asked: RecipeInput) -> Iterable[Row]:
    """Return the settings of the run's names, loggers and folder."""
    logger = '["console","wandb"]' if asked.wandb else '["console"]'
    yield "trainer.logger", logger, "wandb with WANDB_API_KEY only"
    yield "trainer.project_name", quoted(asked.recipe), "the recipe's name"
    yield "trainer.experiment_name", quoted(asked.named), NAMED_BY
    yield "trainer.default_local_dir", quoted(asked.checkpoints), "AGENT_CHECKPOINTS"
