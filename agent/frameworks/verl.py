"""verl: GRPO and PPO by `verl.trainer.main_ppo`, which hydra configures.

Search-R1, a fork of an early verl, shares the placement and the keys.
"""

from __future__ import annotations

from difflib import get_close_matches
from math import gcd, lcm
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.base.value import Value
from agent.frameworks.arguments import Row, merged, quoted, read, rows_for, texts, whole
from agent.frameworks.framework import Checkout, CheckpointFormat, FrameworkInfo, Preset
from agent.frameworks.pace import HOUR, StepWork, step_seconds, steps_between_saves
from agent.frameworks.recipe import (
    NAMED_BY,
    Command,
    GpuGroups,
    MisfitError,
    RecipeInput,
    Version,
    adapter_warning,
    check_columns,
    check_cpus,
    check_multiple,
    engines_misfit,
    engines_text,
    nearest,
    version_text,
)
from agent.frameworks.sizing import (
    VERL,
    VERL_CPU,
    VERL_OFFLOAD,
    Host,
    Sizing,
    Workload,
    sizing_for,
)
from agent.frameworks.step_format import STEP, KeyMeaning, LineFormat, StepFormat, bar
from agent.node.facts import Package

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from agent.frameworks.arguments import Override
    from agent.frameworks.recipe import NodeSize

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
VERSIONS: tuple[Version, ...] = ((0, 5, 0), (0, 6, 1), (0, 7, 0), (0, 7, 1), (0, 8, 0), (0, 9, 1))
ABOUT = "verl: GRPO or PPO with vLLM rollouts; the reward is verl's own, or a server's"

_GSM8K = "{data}/gsm8k"
_PRESET = Preset(
    about="GRPO with verl on gsm8k",
    image="verlai/verl:vllm017.latest",
    checkout=Checkout("https://github.com/volcengine/verl", tag="v0.7.1", folder="verl"),
    model="Qwen/Qwen2.5-7B-Instruct",
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

ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"
MODEL = "actor_rollout_ref.model"
NODES = "trainer.nnodes"
GPUS = "trainer.n_gpus_per_node"
TENSOR_PARALLEL = f"{ROLLOUT}.tensor_model_parallel_size"
TRAIN_BATCH = "data.train_batch_size"
MINI_BATCH = f"{ACTOR}.ppo_mini_batch_size"
_SAMPLES = f"{ROLLOUT}.n"
_MODE = f"{ROLLOUT}.mode"
_STORES = "transfer_queue.backend.SimpleStorage.num_data_storage_units"
STORES = 8  # TransferQueue's storage processes, by default; one CPU each
_TRAIN_NEAR = 1024  # verl's own batch; an update has a quarter of it
_LEAST_BATCH = 64
_PROMPT = "data.max_prompt_length"
_ANSWER = "data.max_response_length"
_PROMPT_TOKENS = 1024
_ANSWER_TOKENS = 2048
_ACTOR_TOKENS = 24576
_CRITIC_TOKENS = 32768
"""Tokens of a batch on each GPU: the actor's as in the scripts, the critic's by default."""
_REF = "actor_rollout_ref.ref"
_SHARE = 0.6  # The engines' usual part of each GPU, as in the scripts
REWARD_FUNCTION = str(Path(__file__).parents[1] / "bundled" / "verl_reward.py")  # Asks a server
_STRATEGY = f"{ACTOR}.strategy"
_FSDP_SIZE = f"{ACTOR}.fsdp_config.fsdp_size"
_DTYPE = f"{ACTOR}.fsdp_config.model_dtype"
"""The keys on which the format of checkpoints depends."""
_ALL_GPUS = "-1"
_RATE = f"{ACTOR}.optim.lr"
_SAVED = f"{ACTOR}.checkpoint.save_contents"
_SHARDS = "[model,optimizer,extra]"
_WHOLE = "hf_model"
_SHARDS_AND_WHOLE = f"[model,optimizer,extra,{_WHOLE}]"
_GATHERED = 6  # Bytes of a parameter of the whole model on the first node: in float32 and in bf16
_NO_WHOLE_MODEL_FROM = 14e9  # Parameters
_WHY_SHARDS = f"without an HF model: one node would gather it, {_GATHERED} bytes a parameter"
_MERGE = (
    "checkpoints have shards only; `python3 -m verl.model_merger merge --backend fsdp --local_dir "
    "…/global_step_N/actor --target_dir …` makes a model of one"
)
_KL_IN_REWARD = "algorithm.use_kl_in_reward"
_DEEP_SLEEP: Version = (0, 6)  # From it on sleeping engines drop their weights
MEMORY_KEYS = (
    *(NODES, GPUS, TENSOR_PARALLEL, _STRATEGY, f"{ACTOR}.fsdp_config", "critic.fsdp"),
    *("critic.model.fsdp_config", "critic.strategy", f"{_REF}.fsdp_config"),
    *(f"{ROLLOUT}.gpu_memory_utilization", f"{ROLLOUT}.free_cache_engine"),
    *(f"{ACTOR}.ulysses", f"{MODEL}.enable_", f"{ROLLOUT}.quantization", "model_engine"),
)
"""Beginnings of keys that change the memory that a model takes."""

_KEPT_CHECKPOINTS = "of each attempt; the default keeps every checkpoint"
_SETTINGS: tuple[Row, ...] = (
    ("data.filter_overlong_prompts", "True", "one long prompt would end the job"),
    (f"{MODEL}.use_remove_padding", "True", "padding is not computed; off by default in 0.6"),
    (f"{_REF}.fsdp_config.param_offload", "True", "as the scripts: it works between updates only"),
    ("trainer.max_actor_ckpt_to_keep", "2", _KEPT_CHECKPOINTS),
    ("trainer.total_epochs", "15", "as the scripts; the default is 30"),
    (f"{ROLLOUT}.name", "vllm", "verl has no default"),
)
"""Settings that depend on neither nodes nor version."""
_DYNAMIC = {
    f"{ACTOR}.use_dynamic_bsz": f"{ACTOR}.ppo_micro_batch_size",
    f"{ROLLOUT}.log_prob_use_dynamic_bsz": f"{ROLLOUT}.log_prob_micro_batch_size",
    f"{_REF}.log_prob_use_dynamic_bsz": f"{_REF}.log_prob_micro_batch_size",
    "critic.use_dynamic_bsz": "critic.ppo_micro_batch_size",
}
"""What forms batches by tokens, and the micro batches (also `_per_gpu`) that replace it."""


def groups_of(
    nodes: tuple[NodeSize, ...], tensor_parallel: int, given: Mapping[str, str]
) -> GpuGroups:
    """Divide the nodes into equal groups; those that the user gave are checked."""
    count = whole(given, NODES)
    gpus = whole(given, GPUS)
    sizes = [node.gpus for node in nodes if node.gpus]
    if not sizes:
        raise MisfitError("it trains on GPUs, and no node has one")

    # How large is a group? The user's size, whole nodes that are equal, or what uses most GPUs.
    fitting = {part: sum(size // part for size in sizes) for part in range(1, max(sizes) + 1)}
    shape = ", ".join(map(str, sizes))
    even = min(sizes) == max(sizes)
    if gpus is None and even:
        gpus = sizes[0]
    if gpus is None:
        candidates = [
            size
            for size, groups in fitting.items()
            if size % tensor_parallel == 0 and groups >= (count or 1)
        ]
        if not candidates:
            raise engines_misfit(tensor_parallel, sizes)
        gpus = max(candidates, key=lambda size: ((count or fitting[size]) * size, size))

    # Do so many groups fit, and the engines into them? One that would span parts of nodes does not.
    if (count or 1) > fitting.get(gpus, 0):
        what = f"trainer.nnodes={count or 1} groups of {gpus} GPUs do not fit nodes of {shape}"
        raise MisfitError(f"{what} GPUs: verl would wait forever")
    groups = GpuGroups(count or fitting[gpus], gpus)
    spans_nodes = tensor_parallel % gpus == 0 and groups.total % tensor_parallel == 0
    if gpus % tensor_parallel and not (spans_nodes and even and gpus == sizes[0]):
        raise engines_misfit(tensor_parallel, sizes)
    return groups


def _batches(
    gpus: int, samples: int, loops: int, given: Mapping[str, str], near: int
) -> tuple[int, int]:
    """Return the prompts of a step and of an update: near verl's own, or the user's.

    Each prompt has so many answers. verl divides the samples of an update by the GPUs, and those
    of a step also by its agent-loop workers (1 if their parts may be unequal).
    """
    train = whole(given, TRAIN_BATCH)
    mini = whole(given, MINI_BATCH)
    step = lcm(gpus, loops)
    for key, value, parts in ((TRAIN_BATCH, train, step), (MINI_BATCH, mini, gpus)):
        if value is not None:
            check_multiple(f"{key} × {samples} answers:", value * samples, parts)
    if train is None:
        unit = lcm(step // gcd(step, samples), mini or 4 * gpus)
        train = nearest(near, unit)
        mini = mini or train // 4
    if mini is None:
        parts_of = (part for part in range(1, train + 1) if train % part == 0)
        fitting = [part for part in parts_of if part * samples % gpus == 0]
        mini = min(fitting, key=lambda part: (abs(part - train / 4), -part))
    check_multiple(TRAIN_BATCH, train, mini)
    return train, mini


class Placement(Value):
    """The processes of verl on the nodes, and the CPUs that they take."""

    version: Version
    groups: GpuGroups
    tensor_parallel: int
    has_servers: bool = True  # Whether each engine is a process, as in asynchronous rollouts

    def needs(self, node: NodeSize, nodes: tuple[NodeSize, ...], stores: int) -> int:
        """Return the CPUs that a node needs beside so many stores of TransferQueue in all."""
        groups_here = min(node.gpus // self.groups.gpus, self.groups.count)
        needs = groups_here * self.groups.gpus * (3 if self.version >= (0, 7) else 1)
        if self.has_servers and self.version < (0, 7, 1):
            # up to 0.7.0 each engine's server takes a CPU on its node, beside the groups
            needs += groups_here * max(1, self.groups.gpus // self.tensor_parallel)
        if self.version >= (0, 9):
            needs += -(-stores // len(nodes))
        # The main process and TransferQueue's controller need no GPU: Ray places them on nodes
        # without one, if any of those has CPUs.
        without_gpus = [other for other in nodes if not other.gpus and other.cpus != 0]
        return needs + (node in (without_gpus or [other for other in nodes if other.cpus != 0]))

    def fitting_stores(self, nodes: tuple[NodeSize, ...]) -> int:
        """Return how many of TransferQueue's stores have a free CPU, at most the default."""
        free = [n.cpus - self.needs(n, nodes, 0) for n in nodes if n.cpus is not None]
        fitting = min(free, default=STORES) * len(nodes)
        return min(STORES, fitting) if fitting > 0 else STORES

    def check(self, nodes: tuple[NodeSize, ...], stores: int = 0) -> list[str]:
        """Refuse nodes with too few CPUs; return a note if it is unknown how many they have."""
        needs = [self.needs(node, nodes, stores) for node in nodes]
        check_cpus(nodes, needs)
        if all(node.cpus is not None for node in nodes):
            return []
        return [f"a node needs up to {max(needs)} CPUs; the CPUs of the nodes are not known here"]


_GROUP_SIZE = 8  # Answers to each prompt that GRPO compares
_AGENT_LOOPS = 8  # Agent-loop workers that verl starts by default
_EVERY = 20  # Steps between checkpoints, at most, and between evaluations


def make(asked: RecipeInput) -> Command:
    """Make the command for the nodes that joined, with the keys of the installed version."""
    users = [read(argument) for argument in asked.args]
    if not asked.is_nearest:
        _check_keys(users, asked.version)
    given = {override.key: override.value for override in users if override.prefix != "~"}

    # What fits the nodes: layout and engines by memory, then batches, then steps between saves.
    sizing, saved = _sizing_and_saved(asked, given)
    sizes, notes, prompts = _sizes(asked, given, sizing)
    every, pace = steps_between_saves(asked, _step_of(asked, given, prompts), _EVERY)
    rows = (
        *_model_and_data(asked, given),
        (_SAVED, saved, "with an HF model" if _WHOLE in saved else _WHY_SHARDS),
        *sizes,
        *_memory(asked, sizing),
        *_batches_by_tokens(asked, given, sizing),
        *_reward(asked, given),
        *trainer_rows(asked),
        ("trainer.save_freq", every, "; ".join(filter(None, (pace, "verl's default is never")))),
        ("trainer.resume_mode", "auto", "resumes from the last checkpoint, if any"),
    )
    arguments, why = merged(rows, users)

    # What should the user know about this command?
    if not asked.scores and not asked.reward_model:
        notes.append("verl scores by data_source; AGENT_REWARD uses a reward server instead")
    if not asked.eval_data:
        notes.append("no AGENT_EVAL_DATA: the model is never evaluated")
    if _WHOLE not in saved:
        notes.append(_MERGE)
    if asked.version >= (0, 9):
        notes.append("verl 0.9 also needs the packages TransferQueue and orjson")

    strategy = "fsdp2" if sizing.layout.name == VERL_CPU.name else "fsdp"
    return Command(
        argv=(asked.python, "-m", "verl.trainer.main_ppo", *arguments),
        env={"HYDRA_FULL_ERROR": "1"},
        why=why,
        notes=(*notes, *sizing.notes),
        warnings=(*sizing.warnings, *_rate_warnings(given)),
        # the critic's are as the actor's
        format={
            _STRATEGY: given.get(_STRATEGY, strategy),
            _FSDP_SIZE: given.get(_FSDP_SIZE, _fsdp_size(asked, sizing)),
            _DTYPE: given.get(_DTYPE, "fp32"),
        },
    )


def _sizing_and_saved(asked: RecipeInput, given: Mapping[str, str]) -> tuple[Sizing, str]:
    """Return the sizing, and what a checkpoint has.

    The first node gathers a whole model at each save: so there is none from a size on, or where it
    would cost another layout.
    """
    if _SAVED in given:
        return _sizing(asked, given, given[_SAVED]), given[_SAVED]
    without = _sizing(asked, given, _SHARDS)

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


def _sizing(asked: RecipeInput, given: Mapping[str, str], saved: str) -> Sizing:
    kept = asked.basis.kept
    is_fsdp2 = kept.get(_STRATEGY) == "fsdp2"
    layouts = tuple(layout for layout in VERL if not kept or (layout == VERL_CPU) == is_fsdp2)
    adapters = _trains_adapters(given)
    load = Workload(
        layouts=layouts,
        tokens=_longest(given),
        trained=1 if asked.recipe == "verl-grpo" else 2,
        share=_SHARE,
        tensor_parallel=whole(given, TENSOR_PARALLEL),
        adapters=adapters,
        in_nodes=Host(
            frozen=4 if _has_reference(asked, given) and not adapters else 0,
            loading=4,
            loads_tied=True,
            gathered=_GATHERED if _WHOLE in saved else 0,
            keeps_engines=adapters or asked.version < _DEEP_SLEEP,
        ),
        within=kept[_FSDP_SIZE] != _ALL_GPUS if _FSDP_SIZE in kept else None,
    )
    return sizing_for(asked, [key for key in given if key.startswith(MEMORY_KEYS)], load)


def _trains_adapters(given: Mapping[str, str]) -> bool:
    return given.get(f"{MODEL}.lora_rank", "0") != "0"


def _rate_warnings(given: Mapping[str, str]) -> Iterable[str]:
    if _trains_adapters(given) and _RATE not in given:
        yield adapter_warning(_RATE, "verl's default of 1e-6")


def _has_reference(asked: RecipeInput, given: Mapping[str, str]) -> bool:
    """Return whether it loads a reference: always in the nodes' memory, and in float32."""
    by_loss = given.get(f"{ACTOR}.use_kl_loss", str(asked.recipe == "verl-grpo"))
    in_reward = str(bool(asked.reward_model) and asked.recipe == "verl-ppo")
    return "true" in {by_loss.lower(), given.get(_KL_IN_REWARD, in_reward).lower()}


def _memory(asked: RecipeInput, sizing: Sizing) -> Iterable[Row]:
    yield f"{ROLLOUT}.gpu_memory_utilization", f"{sizing.share:g}", sizing.why["share"]
    critic = "critic.fsdp" if asked.version >= (0, 8) else "critic.model.fsdp_config"
    for part, sharding in ((ACTOR, f"{ACTOR}.fsdp_config"), ("critic", critic)):
        if part == "critic" and asked.recipe == "verl-grpo":
            continue
        if sizing.layout.name == VERL_OFFLOAD.name:
            yield f"{sharding}.param_offload", "True", sizing.why["layout"]
            yield f"{sharding}.optimizer_offload", "True", sizing.why["layout"]
        elif sizing.layout.name == VERL_CPU.name:
            yield f"{part}.strategy", "fsdp2", "it alone trains with offloaded states"
            yield f"{sharding}.offload_policy", "True", sizing.why["layout"]
        if sizing.within_nodes:
            yield f"{sharding}.fsdp_size", _fsdp_size(asked, sizing), sizing.why["within_nodes"]


def _fsdp_size(asked: RecipeInput, sizing: Sizing) -> str:
    gpus = gcd(*(node.gpus for node in asked.gpu_nodes))
    return str(gpus) if sizing.within_nodes else _ALL_GPUS


_MOVED: tuple[tuple[Version, str, str], ...] = (
    ((0, 7, 1), "custom_reward_function", "reward.custom_reward_function"),
    ((0, 7, 1), "reward_manager", "reward.reward_manager"),
    ((0, 8), "critic.model.fsdp_config", "critic.fsdp"),
    ((0, 9), "reward_model.model.path", "reward.reward_model.model_path"),
    ((0, 9), "reward_model.num_workers", "reward.num_workers"),
    ((0, 9), "reward_model.reward_manager", "reward.reward_manager.name"),
    ((0, 9), "reward_model", "reward.reward_model"),
    ((0, 9), "sandbox_fusion", "reward.sandbox_fusion"),
)
"""Moved keys, and the first version that refuses or ignores the old one."""
_ESTIMATORS = {
    *("gae", "gdpo", "gpg", "grpo", "grpo_passk", "grpo_vectorized", "opo"),
    *("optimal_token_baseline", "reinforce_plus_plus", "reinforce_plus_plus_baseline", "remax"),
    *("rloo", "rloo_vectorized", "tir_optimal_token_baseline"),
}
"""Those of 0.9.1; earlier versions have some of them. verl checks only after the first rollout."""


def _check_keys(users: list[Override], version: Version) -> None:
    """Refuse all keys that this version of verl lacks or ignores; those of 0.5 are not known."""
    # another engine or tree has keys that are not in the tables
    names = [override.key for override in users]
    elsewhere = any(name == "model_engine" or "@" in name or "/" in name for name in names)
    if version < (0, 6) or elsewhere:
        return
    sections: dict[str, set[str]] = {}
    for section, *keys in rows_for("verl_keys.txt", version):
        sections.setdefault(section.strip("."), set()).update(keys)
    complaints = list(filter(None, (_complaint(user, version, sections) for user in users)))
    if complaints:
        raise MisfitError(f"AGENT_JOB_ARGS: {'; '.join(complaints)}")


def _complaint(override: Override, version: Version, sections: Mapping[str, set[str]]) -> str:
    """Return why a key is wrong in this version, with a suggestion; '' for a valid key."""
    key = override.key
    verl = f"verl {version_text(version)}"

    # Has this version moved it?
    for since, old, new in _MOVED:
        if version >= since and f"{key}.".startswith(f"{old}."):
            return f"{key}: {verl} calls it {new}{key.removeprefix(old)}"
    if override.prefix == "++":
        return ""

    # Which known section is it in, and by which name?
    section = key
    while section and section not in sections:
        section = section.rpartition(".")[0]
    name = key.removeprefix(section).strip(".").partition(".")[0]
    known = sections[section]
    if override.prefix == "+":
        has_key = name in known and key == f"{section}.{name}".lstrip(".")
        return f"+{key}: {verl} has this key: write {key}=… or ++{key}=…" if has_key else ""

    # Is the name among the section's, or the estimator among those that there are?
    if key == "algorithm.adv_estimator":
        name = override.value
        known = _ESTIMATORS
    if not name or name in known:
        return ""
    near = get_close_matches(name, known, 1)
    hint = f" ({near[0]}?)" if near else ""
    return f"{key}: {verl} has no {name}{hint}; ++{key}=… insists"


def _sizes(
    asked: RecipeInput, given: Mapping[str, str], sizing: Sizing
) -> tuple[list[Row], list[str], int]:
    """Return the settings of sizes, notes about them, and the prompts of a step."""
    version = asked.version
    grpo = asked.recipe == "verl-grpo"
    tensor_parallel = sizing.tensor_parallel
    samples = _answers(asked, given)

    # Groups of GPUs, each on one node; verl 0.5 places only one of them on a node.
    groups = groups_of(asked.nodes, tensor_parallel, given)
    gpus = [node.gpus for node in asked.nodes if node.gpus]
    shape = ", ".join(map(str, gpus))
    if version < (0, 6) and sum(count >= groups.gpus for count in gpus) < groups.count:
        what = f"places one group on a node, and nodes of {shape} GPUs are groups of {groups.gpus}"
        raise MisfitError(f"verl 0.5 {what}: install 0.6.1 or later")

    # Batches that divide over the GPUs, and up to 0.8 over the agent-loop workers.
    loops = 1
    if version < (0, 9):
        loops = whole(given, f"{ROLLOUT}.agent.num_workers") or _AGENT_LOOPS
    near, why_near = _batch_near(asked, given)
    train, mini = _batches(groups.total, samples, loops, given, near)

    # Do the nodes have CPUs for all processes?
    mode = given.get(_MODE, "async" if _needs_async(asked) else "sync")
    has_servers = mode == "async" or version >= (0, 7)
    placement = Placement(version, groups, tensor_parallel, has_servers)
    stores = whole(given, _STORES) or placement.fitting_stores(asked.nodes)
    cpu_notes = placement.check(asked.nodes, stores)

    engines = engines_text(groups.total, groups.total // tensor_parallel, tensor_parallel)
    even = f"× {samples} answers it is divisible by {groups.total} GPUs"
    equal = f"equal groups, each on one node, of nodes of {shape} GPUs"
    rows: list[Row] = [
        (NODES, groups.count, equal),
        (GPUS, groups.gpus, equal),
        (TENSOR_PARALLEL, tensor_parallel, f"{sizing.why['tensor_parallel']}; {engines}"),
        (_SAMPLES, samples, "GRPO compares the answers to a prompt" if grpo else "PPO needs one"),
        (TRAIN_BATCH, train, f"near {why_near}, and {even}; the data needs at least {train} rows"),
        (MINI_BATCH, mini, f"near {near // 4}, a part of the batch, and {even}"),
    ]
    if version >= (0, 9) and stores != STORES:
        why = f"instead of {STORES}: each takes a CPU, and no more are free"
        rows.append((_STORES, stores, why))

    notes = [f"{engines}; batch {train} = {train // mini} × {mini}"]
    idle = sum(gpus) - groups.total
    if idle:
        notes.append(f"{idle} of {sum(gpus)} GPUs stay idle")
    return rows, [*notes, *cpu_notes], train


def _answers(asked: RecipeInput, given: Mapping[str, str]) -> int:
    """Return the answers to each prompt."""
    return whole(given, _SAMPLES) or (_GROUP_SIZE if asked.recipe == "verl-grpo" else 1)


def _step_of(asked: RecipeInput, given: Mapping[str, str], prompts: int) -> StepWork:
    """Return the work of a step; old probabilities, reference and values are forward passes."""
    trained = 1 if asked.recipe == "verl-grpo" else 2
    scored = trained + _has_reference(asked, given)
    return StepWork(prompts * _answers(asked, given), _longest(given), trained, scored)


def _batch_near(asked: RecipeInput, given: Mapping[str, str]) -> tuple[int, str]:
    """Return the prompts of a step to aim at: verl's own, or less if it would take hours."""
    near = _TRAIN_NEAR
    usual = step_seconds(asked, _step_of(asked, given, near)) or 0.0
    seconds = usual
    while seconds > HOUR and near > _LEAST_BATCH:
        near //= 2
        seconds /= 2
    if near == _TRAIN_NEAR:
        return near, str(near)
    return near, f"{near}, since a step of {_TRAIN_NEAR} would take about {usual / HOUR:.1f} h"


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
    yield _PROMPT, _PROMPT_TOKENS, dropped
    yield _ANSWER, _ANSWER_TOKENS, "a longer answer is cut, and scored wrong; the default is 512"
    if asked.version < (0, 7):
        yield "data.return_raw_chat", "True", "asynchronous rollouts and reward models read it"

    # The model, and PPO's critic.
    yield f"{MODEL}.path", model, "AGENT_MODEL"
    if grpo:
        yield f"{ACTOR}.use_kl_loss", "True", "GRPO stays near its reference by a loss"
    else:
        yield "critic.model.path", model, "PPO's critic starts from AGENT_MODEL"
        yield "critic.model.use_remove_padding", "True", "off by default up to 0.7"
        yield "trainer.max_critic_ckpt_to_keep", "2", "as the actor's"

    yield from _SETTINGS


def _longest(given: Mapping[str, str]) -> int:
    prompt = whole(given, _PROMPT) or _PROMPT_TOKENS
    return prompt + (whole(given, _ANSWER) or _ANSWER_TOKENS)


def _batches_by_tokens(
    asked: RecipeInput, given: Mapping[str, str], sizing: Sizing
) -> Iterable[Row]:
    """Form batches by tokens, except where the user sets micro batches, which it would ignore."""
    micro = [key for key, size in _DYNAMIC.items() if size in given or f"{size}_per_gpu" in given]
    grpo = asked.recipe == "verl-grpo"
    longest = _longest(given)
    for key in _DYNAMIC:
        if key in micro:
            yield key, "False", "your micro batches, which it would ignore"
        elif key == f"{ACTOR}.use_dynamic_bsz" or (micro and not (grpo and "critic" in key)):
            yield key, "True", "batches by tokens; without it verl requires micro batches"
    fitting = sizing.tokens or _ACTOR_TOKENS
    tokens = f"at least the longest prompt and answer; {sizing.why['tokens']}"
    yield f"{ACTOR}.ppo_max_token_len_per_gpu", max(min(_ACTOR_TOKENS, fitting), longest), tokens
    if not grpo and (longest > _CRITIC_TOKENS or fitting < _ACTOR_TOKENS):
        yield "critic.ppo_max_token_len_per_gpu", max(fitting, longest), tokens


def _reward_model(asked: RecipeInput, given: Mapping[str, str]) -> Iterable[Row]:
    """Return the settings of a reward model on the training GPUs, by version."""
    root = "reward.reward_model" if asked.version >= (0, 7, 1) else "reward_model"
    if asked.recipe == "verl-ppo" and (asked.reward_model or f"{root}.enable" in given):
        yield _KL_IN_REWARD, "True", "a learned reward is exploited without it"
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
    yield f"{root}.rollout.name", "vllm", "verl has no default"
    yield f"{root}.rollout.gpu_memory_utilization", "0.8", f"{scripts}: it sleeps meanwhile"
    yield f"{root}.rollout.tensor_model_parallel_size", 1, scripts
    yield f"{root}.rollout.prompt_length", _longest(given) + 1024, "prompt, answer and template"
    yield f"{root}.rollout.response_length", 1024, scripts
    yield f"{root.removesuffix('.reward_model')}.num_workers", 8, scripts


def _reward(asked: RecipeInput, given: Mapping[str, str]) -> Iterable[Row]:
    """Return the settings of the function that asks the reward server, unless the user has one."""
    has_section = asked.version >= (0, 7, 1)
    root = "reward.custom_reward_function" if has_section else "custom_reward_function"
    yield from _reward_model(asked, given)
    if not asked.scores or f"{root}.path" in given:
        return
    if asked.version < (0, 6):
        raise MisfitError("verl 0.5 cannot await the reward server: install 0.6.1 or later")
    yield f"{root}.path", quoted(REWARD_FUNCTION), "asks the reward server"
    yield f"{root}.name", "compute_score", "its function"
    yield f"+{root}.reward_kwargs.url", quoted("{reward_url}"), "the run's reward server"
    if _needs_async(asked):
        yield _MODE, "async", "verl 0.6 awaits a reward function only in this mode"
        if given.get(_MODE, "async") != "async":
            raise MisfitError(f"AGENT_JOB_ARGS: {_MODE}: verl 0.6 scores by a server only in async")


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
