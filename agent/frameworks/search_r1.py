"""Search-R1: PPO and GRPO on questions whose answers the model searches for.

It is a frozen fork of verl without a package: its keys are those of its sources at a14dc3a (2026),
and its values those of its authors' scripts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.base.value import Value
from agent.frameworks import verl
from agent.frameworks.arguments import fraction, merged, quoted, read, whole
from agent.frameworks.framework import CheckpointFormat, FrameworkInfo, Preset
from agent.frameworks.layouts import (
    FSDP_RESIDENT,
    SEARCH_R1,
    SEARCH_R1_OFFLOAD,
    SEARCH_R1_OPTIMIZER,
    Layout,
    Split,
)
from agent.frameworks.recipe import Command, MisfitError, check_multiple, engines_text, nearest
from agent.frameworks.sizing import Host, Sizing, Workload, sizing_for
from agent.frameworks.step_format import StepFormat
from agent.frameworks.verl_keys import (
    ACTOR,
    GPUS,
    MINI_BATCH,
    MODEL,
    NODES,
    ROLLOUT,
    SHARE,
    TENSOR_PARALLEL,
    TRAIN_BATCH,
)
from agent.frameworks.verl_memory import MEMORY_KEYS
from agent.frameworks.verl_placement import Placement, groups_of
from agent.node.facts import Package

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from agent.frameworks.arguments import Override, Row
    from agent.frameworks.recipe import RecipeInput, Version

FRAMEWORK = FrameworkInfo(
    package=Package("search-r1", "verl", own_file="search_r1"),
    checkpoints=CheckpointFormat(prefix="global_step_", can_resume=False),
    settings=verl.FRAMEWORK.settings,
    steps=StepFormat(
        lines=verl.STEPS.lines,
        meaning=verl.MEANING,
        of_evaluation=("val/",),
        shown=(
            *("critic/rewards/mean", "critic/kl", "actor/kl_loss", "actor/entropy_loss"),
            *("actor/pg_clipfrac", "actor/grad_norm", "response_length/mean"),
            *("response_length/clip_ratio", "env/finish_ratio", "env/ratio_of_valid_action"),
            *("env/number_of_valid_search", "timing_s/step"),
        ),
    ),
)
VERSIONS: tuple[Version, ...] = ()
ABOUT = "Search-R1: PPO or GRPO that learns to search; wants a retrieval server"

_GRPO_ARGS = (
    "retriever.url=http://127.0.0.1:8000/retrieve",
    "data.shuffle_train_dataloader=True",
    "actor_rollout_ref.actor.optim.lr=1e-6",
)
_PPO = Preset(
    about="PPO with Search-R1",
    no_image="Search-R1 in /opt/Search-R1, and its retriever's Python in /opt/retriever",
    code="/opt/Search-R1",
    model="Qwen/Qwen2.5-7B",
    train="{data}/nq_search/train.parquet",
    evaluate="{data}/nq_search/test.parquet",
    args=(*_GRPO_ARGS, "critic.optim.lr=1e-5"),
    services="search-r1.toml",
    imports="verl",
    resumes=False,
)
PRESETS = {
    "search-r1-ppo": _PPO,
    "search-r1-grpo": replace(_PPO, about="GRPO with Search-R1", args=_GRPO_ARGS),
}


_MICRO_BATCH = f"{ACTOR}.ppo_micro_batch_size"
_CRITIC_MICRO_BATCH = "critic.ppo_micro_batch_size"
_LOG_PROB_BATCHES = tuple(
    f"{part}.log_prob_micro_batch_size" for part in (ROLLOUT, "actor_rollout_ref.ref")
)
_RETRIEVER_KEY = "retriever.url"
_RETRIEVER = "http://{head_ip}:8000/retrieve"
_EVERY = 100  # Steps between checkpoints, and between evaluations
_FORKED_FROM = (0, 1)  # Its placement is that of this verl
_MINI_NEAR = 256

_ROOTS = (
    *("actor_rollout_ref", "algorithm", "critic", "data", "do_search", "hydra", "max_turns"),
    *("retriever", "reward_model", "trainer"),
)
_TRAINER = (
    *("critic_warmup", "default_hdfs_dir", "default_local_dir", "experiment_name", "logger"),
    *("n_gpus_per_node", "nnodes", "project_name", "save_freq", "test_freq", "total_epochs"),
    *("total_training_steps", "val_before_train"),
)
"""The keys at its root and of `trainer`, where a newer verl has more.

`val_before_train` is read, but not in its configuration: the recipe adds it.
"""
_CRITIC = "critic.model.fsdp_config"
_OFFLOADED = (
    *(f"{ACTOR}.fsdp_config.{part}_offload" for part in ("param", "grad", "optimizer")),
    "actor_rollout_ref.ref.fsdp_config.param_offload",
)
_OPTIMIZER = f"{ACTOR}.fsdp_config.optimizer_offload"
_CRITIC_OPTIMIZER = f"{_CRITIC}.optimizer_offload"
_CRITIC_OFFLOADED = tuple(f"{_CRITIC}.{part}_offload" for part in ("param", "grad", "optimizer"))
"""What the authors' scripts for one node keep in the memory of the host."""
_AGENTS = 5  # Answers to each prompt that GRPO compares


class _Authors(Value):
    """What its authors choose by a model's size, for PPO and for GRPO."""

    least: float  # Parameters from which it applies
    rate: str = ""  # The actor's learning rate; '' for the default, 1e-6
    ppo: Layout = FSDP_RESIDENT
    grpo: Layout = FSDP_RESIDENT
    ppo_samples: tuple[int, int] = (4, 8)
    """Samples of each GPU at once: in an update, and for log-probabilities."""
    grpo_samples: tuple[int, int] = (4, 8)
    share: float = 0.6  # Of each GPU for engines


_BY_SIZE = (
    _Authors(
        least=60e9,
        rate="1e-7",
        ppo=SEARCH_R1_OFFLOAD,
        grpo=SEARCH_R1_OFFLOAD,
        ppo_samples=(1, 1),
        grpo_samples=(1, 1),
        share=0.5,
    ),
    _Authors(
        least=25e9,
        rate="2e-7",
        ppo=SEARCH_R1_OPTIMIZER,
        ppo_samples=(1, 1),
        grpo_samples=(2, 4),
        share=0.5,
    ),
    _Authors(least=0),
)
"""Their scripts for 72B (GRPO only), for 32B, and for 3B to 8B on several nodes."""
_LENGTHS = (("data.max_prompt_length", 4096), ("data.max_response_length", 500))
_AUTHORS_SETTINGS = (
    *((key, str(length)) for key, length in _LENGTHS),
    ("data.max_start_length", "2048"),
    ("data.max_obs_length", "500"),
    (f"{MODEL}.enable_gradient_checkpointing", "True"),
    (f"{MODEL}.use_remove_padding", "True"),
    (f"{ACTOR}.optim.lr_warmup_steps_ratio", "0.285"),
    (f"{ACTOR}.state_masking", "True"),
    (f"{ROLLOUT}.name", "vllm"),
    ("trainer.total_epochs", "15"),
    ("trainer.total_training_steps", "1005"),
    ("max_turns", "4"),
    ("retriever.topk", "3"),
)
_ALGORITHM = {
    "search-r1-ppo": (
        ("algorithm.adv_estimator", "gae"),
        (f"{ROLLOUT}.top_p", "1.0"),
        ("critic.model.enable_gradient_checkpointing", "True"),
        ("critic.model.use_remove_padding", "True"),
        ("critic.optim.lr_warmup_steps_ratio", "0.015"),
    ),
    "search-r1-grpo": (
        ("algorithm.adv_estimator", "grpo"),
        (f"{ROLLOUT}.n_agent", str(_AGENTS)),
        (f"{ACTOR}.use_kl_loss", "True"),
    ),
}


def make(asked: RecipeInput) -> Command:
    """Make the command for the nodes that joined."""
    users = [_checked(read(argument)) for argument in asked.args]
    given = {override.key: override.value for override in users if override.prefix != "~"}

    # What fits the nodes: layout by memory, groups of GPUs, then batches.
    sizing = _sizing(asked, given)
    tensor_parallel = sizing.tensor_parallel
    groups = groups_of(asked.nodes, tensor_parallel, given)
    placement = Placement(_FORKED_FROM, groups, tensor_parallel, has_servers=False)
    cpu_notes = placement.check(asked.nodes)
    samples = _samples(asked, given, sizing)
    grpo = asked.recipe == "search-r1-grpo"
    batches, sizes = _batches(groups.total, samples, given, grpo=grpo)

    settings = (*_AUTHORS_SETTINGS, *_ALGORITHM[asked.recipe])
    rows: list[Row] = [
        *_model_and_data(asked),
        (NODES, groups.count, "groups of GPUs, each on one node"),
        (GPUS, groups.gpus, "groups have one size"),
        (TENSOR_PARALLEL, tensor_parallel, sizing.why["tensor_parallel"]),
        *batches,
        *((key, value, "as its authors run it") for key, value in settings),
        *_by_size(asked, sizing),
        (_RETRIEVER_KEY, quoted(_RETRIEVER), "the main task may run on any node"),
        *verl.trainer_rows(asked),
        ("trainer.default_hdfs_dir", "null", "the default copies models to its authors' HDFS"),
        ("trainer.save_freq", _EVERY, "its default is -1: never"),
    ]
    arguments, why = merged(rows, users)

    # What should the user know about this command?
    url = given.get(_RETRIEVER_KEY, _RETRIEVER)
    notes = [
        "Search-R1 cannot resume: it saves models, and every attempt starts at step 0",
        f"its main task asks {url}: AGENT_SERVICES starts a retrieval server",
        "it scores by exact match, and only rows with a known data_source (nq, hotpotqa, …)",
    ]
    if not asked.eval_data:
        notes.append("no AGENT_EVAL_DATA: the evaluation after the last step uses training data")

    engines = engines_text(groups.total, groups.total // tensor_parallel, tensor_parallel)
    return Command(
        argv=(asked.python, "-m", "verl.trainer.main_ppo", *arguments),
        env={
            "HYDRA_FULL_ERROR": "1",
            "TORCH_NCCL_AVOID_RECORD_STREAMS": "1",
            "VLLM_ATTENTION_BACKEND": "XFORMERS",
        },
        why=why,
        notes=(f"{engines}; {sizes}", *cpu_notes, *notes, *sizing.notes),
        warnings=sizing.warnings,
    )


def _authors_of(asked: RecipeInput) -> _Authors:
    model = asked.basis.model
    parameters = 0 if model is None else model.parameters
    return next(authors for authors in _BY_SIZE if parameters >= authors.least)


def _sizing(asked: RecipeInput, given: Mapping[str, str]) -> Sizing:
    """Size the models and the engines, which share all GPUs.

    Its authors' layout is preferred: on one node everything is offloaded, else by the model's size.
    The others are tried where the nodes' memory does not suffice for it.
    """
    is_ppo = asked.recipe == "search-r1-ppo"
    authors = _authors_of(asked)
    preferred = authors.ppo if is_ppo else authors.grpo
    if len(asked.gpu_nodes) == 1:
        preferred = SEARCH_R1_OFFLOAD
    first = SEARCH_R1.index(preferred)

    # The reference is offloaded with everything else; a saved model is gathered in float32.
    load = Workload(
        layouts=(*SEARCH_R1[first:], *reversed(SEARCH_R1[:first])),
        tokens=_longest(given),
        trained=2 if is_ppo else 1,
        frozen=1,
        share=authors.share,
        own_share=fraction(given, SHARE),
        tensor_parallel=whole(given, TENSOR_PARALLEL),
        in_nodes=Host(
            frozen=Split(2 if preferred is SEARCH_R1_OFFLOAD else 0),
            loading=4,
            loads_tied=True,
            gathered=4,
            keeps_engines=True,
        ),
    )
    return sizing_for(asked, [key for key in given if key.startswith(MEMORY_KEYS)], load)


def _longest(given: Mapping[str, str]) -> int:
    return sum(whole(given, key) or default for key, default in _LENGTHS)


def _checked(override: Override) -> Override:
    """Refuse a key that its configuration does not have."""
    root, _, rest = override.key.partition(".")
    known = root in _ROOTS and (root != "trainer" or rest.split(".")[0] in _TRAINER)
    if not known and override.prefix not in {"+", "++"}:
        what = f"AGENT_JOB_ARGS: {override.key}: Search-R1 has no such key"
        raise MisfitError(f"{what}; +{override.key} would add one")
    return override


def _samples(asked: RecipeInput, given: Mapping[str, str], sizing: Sizing) -> tuple[int, int]:
    """Return the samples of a GPU in an update, and for log-probabilities, by its memory.

    They are its authors', or half as many as often as the longest ones do not fit.
    """
    authors = _authors_of(asked)
    longest = _longest(given)
    wanted = authors.ppo_samples if asked.recipe == "search-r1-ppo" else authors.grpo_samples
    if not sizing.tokens:  # the model's size is not known
        return wanted
    update, log_prob = wanted
    while update > 1 and update * longest > sizing.tokens:
        update //= 2
    while log_prob > 1 and log_prob * longest > sizing.forward:
        log_prob //= 2
    return update, log_prob


def _batches(
    gpus: int, samples: tuple[int, int], given: Mapping[str, str], *, grpo: bool
) -> tuple[list[Row], str]:
    """Return the settings of batches near its authors' 512 and 256, and their arithmetic.

    The GPUs divide the prompts of a step, of an update, and of a micro batch over all GPUs.
    """
    # The user's sizes, else the nearest to its authors'.
    unit = 4 * gpus if 4 * gpus <= _MINI_NEAR else gpus
    mini = whole(given, MINI_BATCH) or nearest(_MINI_NEAR, unit)
    train = whole(given, TRAIN_BATCH) or 2 * mini
    at_once, log_probs_at_once = samples
    largest = max(part for part in range(1, at_once + 1) if mini // gpus % part == 0)
    micro = whole(given, _MICRO_BATCH) or largest * gpus
    answers = train * (whole(given, f"{ROLLOUT}.n_agent") or (_AGENTS if grpo else 1))
    critic = whole(given, _CRITIC_MICRO_BATCH) or gpus

    # Do the GPUs divide all of them, and the smaller ones the larger?
    log_prob = ((key, whole(given, key) or gpus) for key in _LOG_PROB_BATCHES)
    parts = (_MICRO_BATCH, micro), (_CRITIC_MICRO_BATCH, critic)
    for key, value in (
        (TRAIN_BATCH, answers),
        (MINI_BATCH, mini),
        *parts,
        *log_prob,
    ):
        check_multiple(key, value, gpus)
    check_multiple(TRAIN_BATCH, train, mini)
    for _, size in parts:
        check_multiple(MINI_BATCH, mini, size)

    even = f"divisible by {gpus} GPUs"
    fitting = "by its authors' scripts and the GPUs' memory"
    rows: list[Row] = [
        (
            TRAIN_BATCH,
            train,
            f"near 512, and {even}; the data needs at least {train} rows",
        ),
        ("data.val_batch_size", mini, "near 256; evaluation skips an incomplete batch"),
        (MINI_BATCH, mini, f"near 256, and {even}"),
        (_MICRO_BATCH, micro, f"{micro // gpus} per GPU, {fitting}"),
        *(
            (key, log_probs_at_once * gpus, f"{log_probs_at_once} per GPU, {fitting}")
            for key in _LOG_PROB_BATCHES
        ),
        (_CRITIC_MICRO_BATCH, gpus, "1 per GPU; checked for GRPO, too, which has no critic"),
    ]
    return rows, f"batch {train} = {train // mini} × {mini}"


def _by_size(asked: RecipeInput, sizing: Sizing) -> Iterable[Row]:
    yield SHARE, f"{sizing.share:g}", sizing.why["share"]
    layout = sizing.layout.name
    has_critic = asked.recipe == "search-r1-ppo"
    offloaded: tuple[str, ...] = ()
    if layout == SEARCH_R1_OFFLOAD.name:
        offloaded = (*_OFFLOADED, *(_CRITIC_OFFLOADED if has_critic else ()))
    elif layout == SEARCH_R1_OPTIMIZER.name:
        offloaded = (_OPTIMIZER, *([_CRITIC_OPTIMIZER] if has_critic else ()))
    for key in offloaded:
        yield key, "True", sizing.why["layout"]

    model = asked.basis.model
    rate = _authors_of(asked).rate
    if rate and model is not None:
        yield f"{ACTOR}.optim.lr", rate, f"as its authors run models of {model.billions}"


def _model_and_data(asked: RecipeInput) -> Iterable[Row]:
    model = quoted(asked.model_path)
    yield from verl.data_rows(asked, _EVERY)
    yield "+trainer.val_before_train", "False", "an evaluation would delay the first step"
    yield f"{MODEL}.path", model, "AGENT_MODEL"
    if asked.recipe == "search-r1-ppo":
        yield "critic.model.path", model, "PPO's critic starts from AGENT_MODEL"
