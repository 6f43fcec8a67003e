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
from agent.work.recipes.arguments import (
    Row,
    merged,
    quoted,
    read,
    rows_for,
    texts,
    whole,
)
from agent.work.recipes.recipe import (
    NAMED_BY,
    Command,
    GpuGroups,
    MisfitError,
    RecipeInput,
    Version,
    check_columns,
    count_of,
    engines_text,
    version_text,
)
from agent.work.recipes.sizing import VERL, VERL_CPU, VERL_OFFLOAD, Sizing, Workload, sizing_for

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from agent.work.recipes.arguments import Override
    from agent.work.recipes.recipe import NodeSize

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
MODEL = "actor_rollout_ref.model"
NODES, GPUS = "trainer.nnodes", "trainer.n_gpus_per_node"
TENSOR_PARALLEL = f"{ROLLOUT}.tensor_model_parallel_size"
TRAIN_BATCH, MINI_BATCH = "data.train_batch_size", f"{ACTOR}.ppo_mini_batch_size"
_SAMPLES, _MODE = f"{ROLLOUT}.n", f"{ROLLOUT}.mode"
_STORES = "transfer_queue.backend.SimpleStorage.num_data_storage_units"
STORES = 8  # TransferQueue's storage processes, by default; one CPU each
_TRAIN_NEAR, _MINI_NEAR = 1024, 256  # verl's own batches
_PROMPT, _ANSWER = "data.max_prompt_length", "data.max_response_length"
_PROMPT_TOKENS, _ANSWER_TOKENS = 1024, 2048
_ACTOR_TOKENS, _CRITIC_TOKENS = 24576, 32768
"""Tokens of a batch on each GPU: the actor's as in the scripts, the critic's by default."""
_REF = "actor_rollout_ref.ref"
_SHARE = 0.6  # The engines' usual part of each GPU, as in the scripts
_STRATEGY = f"{ACTOR}.strategy"
_FSDP_SIZE, _DTYPE = f"{ACTOR}.fsdp_config.fsdp_size", f"{ACTOR}.fsdp_config.model_dtype"
"""The keys on which the format of checkpoints depends."""
_ALL_GPUS = "-1"
MEMORY_KEYS = (
    *(NODES, GPUS, TENSOR_PARALLEL, _STRATEGY, f"{ACTOR}.fsdp_config", "critic.fsdp"),
    *("critic.model.fsdp_config", "critic.strategy", f"{_REF}.fsdp_config"),
    *(f"{ROLLOUT}.gpu_memory_utilization", f"{ROLLOUT}.free_cache_engine"),
    *(f"{ACTOR}.ulysses", f"{MODEL}.enable_", f"{ROLLOUT}.quantization", "model_engine"),
)
"""Beginnings of keys that change the memory that a model takes."""

_SETTINGS: tuple[Row, ...] = (
    ("data.filter_overlong_prompts", "True", "one long prompt would end the job"),
    (f"{MODEL}.use_remove_padding", "True", "padding is not computed; off by default in 0.6"),
    (f"{_REF}.fsdp_config.param_offload", "True", "as the scripts: it works between updates only"),
    (
        f"{ACTOR}.checkpoint.save_contents",
        "[model,optimizer,extra,hf_model]",
        "with each checkpoint a model that transformers can load",
    ),
    ("trainer.max_actor_ckpt_to_keep", "2", "the default keeps every checkpoint"),
    ("trainer.total_epochs", "15", "as the scripts; the default is 30"),
    (f"{ROLLOUT}.name", "vllm", "verl has no default"),
)
_OF_PPO: tuple[Row, ...] = (
    ("critic.model.use_remove_padding", "True", "off by default up to 0.7"),
    ("trainer.max_critic_ckpt_to_keep", "2", "as the actor's"),
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
    count, gpus = whole(given, NODES), whole(given, GPUS)
    sizes = [node.gpus for node in nodes if node.gpus]
    if not sizes:
        raise MisfitError("it trains on GPUs, and no node has one")
    if tensor_parallel > sum(sizes):
        raise MisfitError(
            f"AGENT_TENSOR_PARALLEL={tensor_parallel} is more than the {sum(sizes)} GPUs"
        )
    fitting = {part: sum(size // part for size in sizes) for part in range(1, max(sizes) + 1)}
    shape, even = ", ".join(map(str, sizes)), min(sizes) == max(sizes)
    if gpus is None and even:
        gpus = sizes[0]
    if gpus is None:
        candidates = [
            size
            for size, groups in fitting.items()
            if size % tensor_parallel == 0 and groups >= (count or 1)
        ]
        if not candidates:
            raise MisfitError(
                f"no node of {shape} has the GPUs for an engine of {tensor_parallel}"
                + (f" {count} times" if count else "")
                + f": set AGENT_TENSOR_PARALLEL to {_divisors_of(max(sizes))}"
            )
        gpus = max(candidates, key=lambda size: ((count or fitting[size]) * size, size))
    if (count or 1) > fitting.get(gpus, 0):
        raise MisfitError(
            f"trainer.nnodes={count or 1} groups of {gpus} GPUs, each on one node, do not fit on "
            f"nodes of {shape} GPUs, which have {fitting.get(gpus, 0)}: verl would wait forever"
        )
    groups = GpuGroups(count or fitting[gpus], gpus)
    spans_nodes = tensor_parallel % gpus == 0 and groups.total % tensor_parallel == 0
    if gpus % tensor_parallel and not (spans_nodes and even and gpus == sizes[0]):
        raise MisfitError(
            f"AGENT_TENSOR_PARALLEL={tensor_parallel} does not divide the {gpus} GPUs of a node: "
            f"an engine would span parts of nodes; {_divisors_of(gpus)} fits"
        )
    return groups


def _divisors_of(number: int) -> str:
    found = [str(part) for part in range(1, number + 1) if number % part == 0]
    return found[0] if len(found) == 1 else f"{', '.join(found[:-1])} or {found[-1]}"


def _batches(gpus: int, samples: int, loops: int, given: Mapping[str, str]) -> tuple[int, int]:
    """Return the prompts of a step and of an update: near verl's own, or the user's.

    Each prompt has so many answers. verl divides the samples of an update by the GPUs, and those
    of a step also by its agent-loop workers (1 if their parts may be unequal).
    """
    train, mini, step = whole(given, TRAIN_BATCH), whole(given, MINI_BATCH), lcm(gpus, loops)

    def fitting(prompts: Iterable[int], parts: int) -> list[int]:
        return [number for number in prompts if number * samples % parts == 0]

    for key, value, parts in ((TRAIN_BATCH, train, step), (MINI_BATCH, mini, gpus)):
        if value is not None and value * samples % parts:
            near = nearest(value, fitting(range(1, value + gpus * loops + 1), parts))
            by = f"{gpus} GPUs" + (f" and {loops} agent loops" if loops > 1 else "")
            raise MisfitError(
                f"{key}={value} × {samples} answers cannot be divided by {by}: {near} fits"
            )
    if train is not None and mini is not None:
        if train % mini:
            raise MisfitError(f"{TRAIN_BATCH}={train} is no multiple of {MINI_BATCH}={mini}")
        return train, mini
    if train is not None:
        divisors = (part for part in range(1, train + 1) if train % part == 0)
        return train, nearest(train / 4, fitting(divisors, gpus))
    if mini is not None:
        steps = range(mini, (_TRAIN_NEAR // mini + loops + 1) * mini + 1, mini)
        return nearest(_TRAIN_NEAR, fitting(steps, step)), mini
    multiples = range(gpus, _MINI_NEAR + (loops + 1) * gpus, gpus)
    train = nearest(4 * _MINI_NEAR, fitting((4 * size for size in multiples), step))
    return train, train // 4


def nearest(target: float, numbers: Iterable[int]) -> int:
    """Return the number nearest to the target, the larger one of two."""
    return min(numbers, key=lambda number: (abs(number - target), -number))


class Placement(Value):
    """The processes of verl on the nodes, and the CPUs that they take."""

    version: Version
    groups: GpuGroups
    tensor_parallel: int
    has_servers: bool = True
    """Whether each engine is a server process, as in verl's asynchronous rollout."""
    stores: int = STORES
    name: str = "verl"
    main: str = "TaskRunner"  # The process that directs the others

    @property
    def _has_queue(self) -> bool:
        return self.version >= (0, 9)

    def needs(self, node: NodeSize, nodes: tuple[NodeSize, ...]) -> dict[str, int]:
        """Return the CPUs that a node needs, by purpose."""
        groups_here = min(node.gpus // self.groups.gpus, self.groups.count)
        each = 3 if self.version >= (0, 7) else 1
        needs = {}
        if groups_here:
            gpus = groups_here * self.groups.gpus
            needs[f"{count_of(gpus, 'GPU')} × {each}"] = gpus * each
        if groups_here and self.has_servers and self.version < (0, 7, 1):
            # up to 0.7.0 each engine's server takes a CPU on its node, beside the groups
            engines = groups_here * max(1, self.groups.gpus // self.tensor_parallel)
            needs[count_of(engines, "engine")] = engines
        if self._has_queue and self.stores:
            here = -(-self.stores // len(nodes))
            needs[f"{here} of TransferQueue's {self.stores} stores"] = here
        # Ray places processes that need no GPU on nodes without one, if any of those has CPUs
        without_gpus = [other for other in nodes if not other.gpus and other.cpus != 0]
        if node in (without_gpus or [other for other in nodes if other.cpus != 0]):
            needs["TransferQueue's controller" if self._has_queue else self.main] = 1
        return needs

    def fitting_stores(self, nodes: tuple[NodeSize, ...]) -> int:
        """Return how many of TransferQueue's stores have a free CPU, at most the default."""
        if not self._has_queue:
            return 0
        bare = replace(self, stores=0)
        free = [n.cpus - sum(bare.needs(n, nodes).values()) for n in nodes if n.cpus is not None]
        fitting = min(free, default=STORES) * len(nodes)
        return min(STORES, fitting) if fitting > 0 else STORES

    def check(self, nodes: tuple[NodeSize, ...]) -> list[str]:
        """Refuse nodes with too few CPUs; return a note if it is unknown how many they have."""
        short, most = [], 0
        for index, node in enumerate(nodes):
            needs = self.needs(node, nodes)
            total = sum(needs.values())
            most = max(most, total)
            if node.cpus is not None and node.cpus < total:
                name = f"node {index + 1}" if index else "the head"
                short.append(f"{name} has {node.cpus} of {total} CPUs ({' + '.join(needs)})")
        if short:
            raise MisfitError(
                f"{self.name} would wait forever for CPUs: {'; '.join(short)}. Ray only counts "
                "CPUs: AGENT_NUM_CPUS on such a node sets a higher number"
            )
        if all(node.cpus is not None for node in nodes):
            return []
        return [f"a node needs up to {most} CPUs; the CPUs of the nodes are not known here"]


VERSIONS: tuple[Version, ...] = ((0, 5, 0), (0, 6, 1), (0, 7, 0), (0, 7, 1), (0, 8, 0), (0, 9, 1))
ABOUT = "verl: GRPO or PPO with vLLM rollouts; the reward is verl's own, or a server's"

_GROUP_SIZE = 8  # Answers to each prompt that GRPO compares
_AGENT_LOOPS = 8  # Agent-loop workers that verl starts by default
_EVERY = 20  # Steps between checkpoints, and between evaluations


def make(asked: RecipeInput) -> Command:
    """Make the command for the nodes that joined, with the keys of the installed version."""
    users = [read(argument) for argument in asked.args]
    _check_keys(users, asked.version)
    given = {one.key: one.value for one in users if one.prefix != "~"}
    sizing = _sizing(asked, given)
    sizes, notes = _sizes(asked, given, sizing)
    rows = (
        *_model_and_data(asked, given),
        *sizes,
        *_memory(asked, sizing),
        *_batches_by_tokens(asked, given, sizing),
        *_reward(asked, given),
        logger_row(wandb=asked.wandb),
        ("trainer.project_name", quoted(asked.recipe), "the recipe's name"),
        ("trainer.experiment_name", quoted(asked.named), NAMED_BY),
        ("trainer.default_local_dir", quoted(asked.checkpoints), "AGENT_CHECKPOINTS"),
        ("trainer.save_freq", _EVERY, "verl's default is -1: never"),
        ("trainer.resume_mode", "auto", "resumes from the last checkpoint, if any"),
    )
    if not asked.scores and not asked.reward_model:
        notes.append(
            "verl scores by the data_source of each row, and refuses unknown ones: AGENT_REWARD "
            "uses a reward server instead"
        )
    if not asked.eval_data:
        notes.append("no AGENT_EVAL_DATA: the model is never evaluated")
    if asked.version >= (0, 9):
        needs = "verl 0.9 needs the packages TransferQueue and orjson, which pip does not install"
        notes.append(needs)
    arguments, why = merged(rows, users)
    return Command(
        argv=(asked.python, "-m", "verl.trainer.main_ppo", *arguments),
        env={"HYDRA_FULL_ERROR": "1"},
        why=why,
        notes=(*notes, *sizing.notes),
        warnings=sizing.warnings,
        # the critic's are as the actor's
        format={
            _STRATEGY: given.get(_STRATEGY, "fsdp2" if sizing.layout == VERL_CPU else "fsdp"),
            _FSDP_SIZE: given.get(_FSDP_SIZE, _fsdp_size(asked, sizing)),
            _DTYPE: given.get(_DTYPE, "fp32"),
        },
    )


def _sizing(asked: RecipeInput, given: Mapping[str, str]) -> Sizing:
    """Size the actor, the critic and the engines, which share all GPUs."""
    kept = asked.basis.kept
    is_fsdp2 = kept.get(_STRATEGY) == "fsdp2"
    layouts = tuple(one for one in VERL if not kept or (one == VERL_CPU) == is_fsdp2)
    load = Workload(
        nodes=asked.gpu_nodes,
        layouts=layouts,
        tokens=_longest(given),
        trained=1 if asked.recipe == "verl-grpo" else 2,
        share=_SHARE,
        tensor_parallel=whole(given, TENSOR_PARALLEL),
        adapters=f"{MODEL}.lora_rank" in given,
        within=kept[_FSDP_SIZE] != _ALL_GPUS if _FSDP_SIZE in kept else None,
    )
    return sizing_for(asked, [key for key in given if key.startswith(MEMORY_KEYS)], load)


def _memory(asked: RecipeInput, sizing: Sizing) -> Iterable[Row]:
    """Return the settings that follow from the memory of the GPUs."""
    yield f"{ROLLOUT}.gpu_memory_utilization", f"{sizing.share:g}", sizing.why["share"]
    critic = "critic.fsdp" if asked.version >= (0, 8) else "critic.model.fsdp_config"
    for part, sharding in ((ACTOR, f"{ACTOR}.fsdp_config"), ("critic", critic)):
        if part == "critic" and asked.recipe == "verl-grpo":
            continue
        if sizing.layout == VERL_OFFLOAD:
            yield f"{sharding}.param_offload", "True", sizing.why["layout"]
            yield f"{sharding}.optimizer_offload", "True", sizing.why["layout"]
        elif sizing.layout == VERL_CPU:
            yield f"{part}.strategy", "fsdp2", "it alone trains with offloaded states"
            yield f"{sharding}.offload_policy", "True", sizing.why["layout"]
        if sizing.within_nodes:
            yield f"{sharding}.fsdp_size", _fsdp_size(asked, sizing), sizing.why["within_nodes"]


def _fsdp_size(asked: RecipeInput, sizing: Sizing) -> str:
    """Return the GPUs over which states are sharded."""
    gpus = gcd(*(node.gpus for node in asked.gpu_nodes))
    return str(gpus) if sizing.within_nodes else _ALL_GPUS


def reward_function() -> str:
    """Return the path of the reward function that asks a server."""
    return str(Path(__file__).parents[2] / "bundled" / "verl_reward.py")


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
    complaints = [found for override in users if (found := _complaint(override, version, sections))]
    if complaints:
        raise MisfitError(f"AGENT_JOB_ARGS: {'; '.join(complaints)}")


def _complaint(override: Override, version: Version, sections: Mapping[str, set[str]]) -> str:
    """Return why a key is wrong in this version, with a suggestion; '' for a valid key."""
    key, verl = override.key, f"verl {version_text(version)}"
    for since, old, new in _MOVED:
        if version >= since and f"{key}.".startswith(f"{old}."):
            return f"{key}: {verl} calls it {new}{key.removeprefix(old)}"
    if override.prefix in {"+", "++"}:
        return ""
    if key == "algorithm.adv_estimator" and override.value not in _ESTIMATORS:
        hint = _suggestion(override.value, _ESTIMATORS)
        return f"{key}: verl has no {override.value}{hint}; ++{key}=… insists"
    section = key
    while section and section not in sections:
        section = section.rpartition(".")[0]
    name = key.removeprefix(section).strip(".").partition(".")[0]
    if not name or name in sections[section]:
        return ""
    where = f"in {section}" if section else "at its root"
    hint = _suggestion(name, sections[section], section)
    return f"{key}: {verl} has no {name} {where}{hint}; ++{key}=… insists"


def _suggestion(word: str, known: set[str], section: str = "") -> str:
    near = get_close_matches(word, known, 1)
    return f" ({'.'.join(filter(None, (section, near[0])))}?)" if near else ""


def _sizes(
    asked: RecipeInput, given: Mapping[str, str], sizing: Sizing
) -> tuple[list[Row], list[str]]:
    """Return the settings that follow from the nodes, and notes on them."""
    version, grpo = asked.version, asked.recipe == "verl-grpo"
    tensor_parallel = sizing.tensor_parallel
    samples = whole(given, _SAMPLES) or (_GROUP_SIZE if grpo else 1)
    groups = groups_of(asked.nodes, tensor_parallel, given)
    gpus = [node.gpus for node in asked.nodes if node.gpus]
    shape = ", ".join(map(str, gpus))
    if version < (0, 6) and sum(count >= groups.gpus for count in gpus) < groups.count:
        raise MisfitError(
            f"verl {version_text(version)} places at most one group on a node, and nodes of "
            f"{shape} GPUs are {groups.count} groups of {groups.gpus}: install 0.6.1 or a "
            f"later release, or set {NODES} and {GPUS} in AGENT_JOB_ARGS"
        )
    loops = whole(given, f"{ROLLOUT}.agent.num_workers") or _AGENT_LOOPS
    loops = loops if version < (0, 9) else 1
    train, mini = _batches(groups.total, samples, loops, given)
    mode = given.get(_MODE, "async" if _needs_async(asked) else "sync")
    placement = Placement(
        version,
        groups,
        tensor_parallel,
        has_servers=mode == "async" or version >= (0, 7),
        name=f"verl {version_text(version)}",
    )
    stores = whole(given, _STORES) or placement.fitting_stores(asked.nodes)
    cpu_notes = replace(placement, stores=stores).check(asked.nodes)
    engines = engines_text(groups.total, groups.total // tensor_parallel, tensor_parallel)
    even = f"× {samples} answers it is divisible by {groups.total} GPUs"
    joined = f"{len(gpus)} nodes with GPUs joined"
    if set(gpus) != {groups.gpus}:
        joined = f"groups of {groups.gpus} on nodes of {shape} GPUs"
    equal = f"{groups.total} GPUs in {groups.count} equal groups, each on one node"
    rows: list[Row] = [
        (NODES, groups.count, joined),
        (GPUS, groups.gpus, equal),
        (TENSOR_PARALLEL, tensor_parallel, f"{sizing.why['tensor_parallel']}; {engines}"),
        (_SAMPLES, samples, "GRPO compares the answers to a prompt" if grpo else "PPO needs one"),
        (TRAIN_BATCH, train, f"near 1024, and {even}; the data needs at least {train} rows"),
        (MINI_BATCH, mini, f"near 256, a part of the batch, and {even}"),
    ]
    if version >= (0, 9) and stores != STORES:
        why = f"instead of {STORES}: each takes a CPU, and no more are free"
        rows.append((_STORES, stores, why))
    notes = [f"{engines}; batch {train} = {train // mini} × {mini}"]
    idle = sum(gpus) - groups.total
    if idle:
        notes.append(f"{idle} of {sum(gpus)} GPUs stay idle")
    if tensor_parallel > groups.gpus:
        needs = "; this needs vLLM 0.11.1 or newer" * (version >= (0, 7, 1))
        notes.append(f"an engine spans {tensor_parallel // groups.gpus} nodes{needs}")
    return rows, [*notes, *cpu_notes]


def _model_and_data(asked: RecipeInput, given: Mapping[str, str]) -> Iterable[Row]:
    """Return the settings of model, data and algorithm."""
    grpo = asked.recipe == "verl-grpo"
    prompts = {"data.prompt_key": given.get("data.prompt_key", "prompt")}
    check_columns(asked, prompts, "name it by this key in AGENT_JOB_ARGS")
    model = quoted(asked.model_path)
    yield "algorithm.adv_estimator", "grpo" if grpo else "gae", asked.recipe
    yield "data.train_files", texts(asked.train_data), "AGENT_TRAIN_DATA"
    if asked.eval_data:
        yield "data.val_files", texts(asked.eval_data), "AGENT_EVAL_DATA"
        yield "trainer.test_freq", _EVERY, "verl's default is -1: never"
    else:
        unused = "verl requires some; without AGENT_EVAL_DATA it is never evaluated"
        yield "data.val_files", texts(asked.train_data), unused
        yield "trainer.val_before_train", "False", "no AGENT_EVAL_DATA"
    dropped = "verl drops longer ones and prints how many rows remain; by default 512"
    yield _PROMPT, _PROMPT_TOKENS, dropped
    yield _ANSWER, _ANSWER_TOKENS, "a longer answer is cut, and scored wrong; the default is 512"
    if asked.version < (0, 7):
        yield "data.return_raw_chat", "True", "asynchronous rollouts and reward models read it"
    yield f"{MODEL}.path", model, "AGENT_MODEL"
    if grpo:
        yield f"{ACTOR}.use_kl_loss", "True", "GRPO stays near its reference by a loss"
    else:
        yield "critic.model.path", model, "PPO's critic starts from AGENT_MODEL"
        yield from _OF_PPO
    yield from _SETTINGS


def _longest(given: Mapping[str, str]) -> int:
    """Return the tokens of the longest prompt and answer."""
    prompt = whole(given, _PROMPT) or _PROMPT_TOKENS
    return prompt + (whole(given, _ANSWER) or _ANSWER_TOKENS)


def _batches_by_tokens(
    asked: RecipeInput, given: Mapping[str, str], sizing: Sizing
) -> Iterable[Row]:
    """Form batches by tokens, except where the user sets micro batches, which it would ignore."""
    micro = [key for key, size in _DYNAMIC.items() if size in given or f"{size}_per_gpu" in given]
    grpo, longest = asked.recipe == "verl-grpo", _longest(given)
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
        yield "algorithm.use_kl_in_reward", "True", "a learned reward is exploited without it"
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
    yield f"{root}.rollout.name", "vllm", "verl has no default"
    yield f"{root}.rollout.gpu_memory_utilization", "0.8", f"{scripts}: it sleeps meanwhile"
    yield f"{root}.rollout.tensor_model_parallel_size", 1, scripts
    yield f"{root}.rollout.prompt_length", _longest(given) + 1024, "prompt, answer and template"
    yield f"{root}.rollout.response_length", 1024, scripts
    yield f"{root.removesuffix('.reward_model')}.num_workers", 8, scripts


def _reward(asked: RecipeInput, given: Mapping[str, str]) -> Iterable[Row]:
    """Return the settings of the function that asks the reward server, unless the user has one."""
    root = "custom_reward_function"
    if asked.version >= (0, 7, 1):
        root = f"reward.{root}"
    yield from _reward_model(asked, given)
    if not asked.scores or f"{root}.path" in given:
        return
    if asked.version < (0, 6):
        raise MisfitError(
            f"verl {version_text(asked.version)} cannot await the reward server: install 0.6.1 or "
            "a later release"
        )
    yield f"{root}.path", quoted(reward_function()), "asks the reward server"
    yield f"{root}.name", "compute_score", "its function"
    yield f"+{root}.reward_kwargs.url", quoted("{reward_url}"), "the run's reward server"
    if _needs_async(asked):
        yield _MODE, "async", "verl 0.6 awaits a reward function only in this mode"
        if given.get(_MODE, "async") != "async":
            raise MisfitError(f"AGENT_JOB_ARGS: {_MODE}: verl 0.6 scores by a server only in async")


def _needs_async(asked: RecipeInput) -> bool:
    return asked.scores and asked.version < (0, 7)


def logger_row(*, wandb: bool) -> Row:
    """Return the setting of the loggers."""
    if wandb:
        return "trainer.logger", '["console","wandb"]', "WANDB_API_KEY"
    return "trainer.logger", '["console"]', "no WANDB_API_KEY"
