"""OpenRLHF over Ray: GRPO and PPO with all models on the same GPUs, rewards from a server.

The sizes, placement and flags are shared by OpenRLHF-M and by OpenRLHF's programs for torchrun.
"""

from __future__ import annotations

from functools import cache
from math import ceil, gcd, lcm
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.base.versions import Version, release_of, version_text
from agent.frameworks.arguments import Arguments, check_named_columns
from agent.frameworks.division import Division, propose
from agent.frameworks.layouts import OPENRLHF as LAYOUTS
from agent.frameworks.layouts import (
    ZERO2,
    ZERO2_SLEEP,
    ZERO3,
    ZERO3_OFFLOAD,
    ZERO3_SLEEP,
)
from agent.frameworks.pace import ASSUMED_MEMORY, StepWork, steps_between_saves
from agent.frameworks.recipe import (
    NAMED_BY,
    WEIGHT,
    Command,
    GpuGroups,
    MisfitError,
    adapter_warning,
    check_cpus,
    check_multiple,
    check_positions,
    count_of,
    critic_warnings,
    engines_misfit,
    engines_text,
    nearest,
    shape_of,
)
from agent.frameworks.sizing import Host, Workload, engine_sizes, least_engine, sizing_for
from agent.frameworks.table import read_table

if TYPE_CHECKING:
    from agent.frameworks.layouts import Layout
    from agent.frameworks.recipe import NodeSize, RecipeInput
    from agent.frameworks.sizing import Sizing

OPENRLHF = read_table("openrlhf")
FRAMEWORK = OPENRLHF.framework
VERSIONS = OPENRLHF.versions
ABOUT = OPENRLHF.about
PRESETS = OPENRLHF.presets

SAME_GPUS = "checkpoints can be resumed with the same number of GPUs only (ZeRO)"
LEAST = "takes the least memory; batches by tokens or packing fill the GPU"
_WANDB = "by-WANDB_API_KEY"  # Turns W&B on; wandb reads the key from the environment

_PAIRS = ("train.colocate_actor_ref", "train.colocate_critic_reward")
"""Flags by which a user shares GPUs between two models each, instead of all."""
# The engines' usual part of each GPU; the default is nearly 1
_SHARE = 0.6
_SHARE_OF_PPO = 0.5
MEMORY = (
    *("ds.adam_offload", "ds.zpg", "ds.lora.rank", "ds.load_in_4bit"),
    *("ds.tensor_parallel_size", "train.micro_batch_size"),
    *("vllm.enable_sleep", "ds.enable_sleep", "train.colocate_all"),
    *(*_PAIRS, "train.max_tokens_per_gpu"),
)
"""Flags that change the memory that a model takes, in a way that is not counted."""
LOGIT_IN_FLOAT32 = 10
"""Bytes of a logit: in bf16, upcast to float32, and its gradient."""
_TOKENS = 16384  # Tokens of a batch on each GPU, as the PPO scripts of 0.9 to 0.11
_SLEEP = "vllm.enable_sleep"
_COLOCATED: tuple[tuple[str, str, str], ...] = (
    ("train.colocate_all", "", ""),
    (_SLEEP, "", "engines free their memory while models train"),
    ("ds.enable_sleep", "", "models free their memory while engines generate"),
)
_HELD = 20  # Bytes of a parameter in training, with room for the texts
_TRAINERS = ("actor.num_nodes", "actor.num_gpus_per_node")
_ASYNC = "train.async_enable"
_SHARE_ALONE = "0.95"
"""The engines' part of GPUs that are theirs alone.

Source: OpenRLHF/OpenRLHF, examples/scripts/train_reinforce_baseline_ray_agent_async.sh, v0.11.0.
"""
RING = "ds.ring_attn_size"  # The GPUs that divide the tokens of a sample
_MICRO_BATCHES = ("train.micro_batch_size", "rollout.micro_batch_size")
LEARNING_RATE = "actor.adam.lr"
_CRITIC = "critic.model_name_or_path"


def make(asked: RecipeInput) -> Command:
    """Make `train_ppo_ray`'s command, sized for all GPUs that joined."""
    grpo = asked.recipe == "openrlhf-grpo"
    version = asked.version
    arguments = arguments_of("train_ppo_ray of OpenRLHF", "ppo", asked)
    check_nodes(asked, reward_tasks=OPENRLHF.has("reward_calls_take_a_cpu", version))

    # What fits the nodes: layout and engines by memory, then their places, then batches.
    add_lengths(arguments, 1024, 3072)
    sizing = size_engines(arguments, asked, critic=not grpo)
    groups, placement = place(arguments, asked, sizing, critic=not grpo)
    batches = add_batches(arguments, groups.total, 8 if grpo else 1)

    # What is trained, and how.
    arguments.add("actor.model_name_or_path", asked.model_path, why="AGENT_MODEL")
    _add_data(arguments, asked)
    if grpo and asked.has_vision and asked.has_column("images"):
        _add_images(arguments)
    add_training(arguments, asked, sizing, "actor")
    arguments.add_all(OPENRLHF.rows(version, kind_of(asked)))
    _add_tokens(arguments, sizing)

    # Rewards and checkpoints; then everything is there that takes GPUs.
    add_reward(arguments, asked, groups)
    add_checkpoints(arguments, asked, 20, rollout_step(arguments, sizing, critic=not grpo))
    check_demand(arguments, asked)
    notes = (f"{placement}; {batches[0]}", *batches[1:])
    made = command("train_ppo_ray", arguments, asked, sizing, notes)
    if grpo:
        return made
    critic = critic_warnings(asked, arguments.text(_CRITIC), arguments.word(_CRITIC))
    return replace(made, warnings=(*made.warnings, *critic))


def kind_of(asked: RecipeInput) -> dict[str, bool]:
    """Return the facts for OpenRLHF's table of what is trained."""
    kind = asked.recipe.removeprefix("openrlhf-")
    return {
        "grpo": kind == "grpo",
        "ppo": kind == "ppo",
        "over_ray": kind in {"grpo", "ppo"},
        "sft": kind == "sft",
        "dpo": kind == "dpo",
        "pairs": kind in {"rm", "dpo"},
    }


def command(
    module: str, arguments: Arguments, asked: RecipeInput, sizing: Sizing, notes: tuple[str, ...]
) -> Command:
    """Return the command of a program, with the settings that decide its checkpoints' format."""
    # Would adapters train at the rate of full training?
    warnings = list(sizing.warnings)
    rate = next(flag for flag in (LEARNING_RATE, "adam.lr") if arguments.supports(flag))
    follows_a_script = asked.recipe == "openrlhf-sft" and asked.lora_rank is not None
    if arguments.whole("ds.lora.rank") and not (arguments.given(rate) or follows_a_script):
        default = arguments.word(rate) or "OpenRLHF's default"
        warnings.append(adapter_warning(arguments.text(rate), default))

    made_with = {
        _STAGE: arguments.word("ds.zero_stage"),
        "dtype": arguments.word("ds.param_dtype") or "bf16",
        "GPUs of a rank": str(_rank_gpus(arguments)),
        "rank of adapters": arguments.word("ds.lora.rank") or "0",
    }
    return Command(
        argv=(asked.python, "-m", f"openrlhf.cli.{module}", *arguments.argv()),
        env={},
        why=arguments.why(),
        notes=(*notes, *sizing.notes),
        warnings=tuple(warnings),
        format=made_with,
    )


def _add_data(arguments: Arguments, asked: RecipeInput) -> None:
    arguments.add("data.prompt_dataset", asked.train_data, why="AGENT_TRAIN_DATA")
    arguments.add("data.input_key", "input", why="column of the prompt")
    # a server may also score by labels of data that are not known here
    has_labels = asked.has_column("label") and (asked.scores or asked.columns is not None)
    if arguments.given("data.label_key") or asked.needs_labels or has_labels:
        arguments.add("data.label_key", "label", why="column of the right answer")
    check_named_columns(arguments, asked, "data.input_key", "data.label_key")
    if not arguments.given("data.input_template"):
        plain = arguments.text("data.apply_chat_template", left_out=True)
        arguments.add("data.apply_chat_template", why=f"for plain text: {plain}")
    if asked.eval_data:
        if not asked.scores and not _has_own_server(arguments):
            raise MisfitError("AGENT_EVAL_DATA wants a reward server (AGENT_REWARD): unset it")
        arguments.add("eval.dataset", asked.eval_data, why="AGENT_EVAL_DATA")
        arguments.add("eval.steps", 20, why="the default never evaluates")


def _add_images(arguments: Arguments) -> None:
    """Train on images, where the release can: as its script for them."""
    if not arguments.supports("data.max_images_per_prompt"):
        return
    script = "as its script for models that read images"
    arguments.add("data.image_key", "images", why="the column of the images")
    arguments.add("data.max_images_per_prompt", 1, why=f"{script}; the default is text alone")
    arguments.add("actor.freeze_visual_encoder", why=f"{script}: only the language model is sent")


def _add_tokens(arguments: Arguments, sizing: Sizing) -> None:
    """Fill the GPUs by tokens, unless the user sets micro batches, or trains on images."""
    if arguments.whole("data.max_images_per_prompt"):
        return
    arguments.add("ds.packing_samples", why="samples are not padded")
    given = any(arguments.given(flag) for flag in _MICRO_BATCHES)
    if given or not arguments.supports("train.dynamic_batch_enable"):
        return
    arguments.add("train.dynamic_batch_enable", why="batches by tokens, whatever the lengths are")
    parts = arguments.count(RING)
    fitting = sizing.tokens // parts if sizing.tokens else _TOKENS
    tokens = max(min(_TOKENS, fitting), ceil(longest(arguments) / parts))
    why = f"at least the longest sample; {sizing.why['tokens']}"
    if parts > 1:
        why = f"{why}; {parts} GPUs divide a sample"
    arguments.add("train.max_tokens_per_gpu", tokens, why=why)
    tokens = arguments.whole("train.max_tokens_per_gpu") or tokens
    arguments.add("rollout.max_tokens_per_gpu", tokens, why="as many as for training")


def longest(arguments: Arguments) -> int:
    """Return the tokens of the longest sample."""
    flags = ("data.max_len", "prompt_max_len", "generate_max_len")
    return sum(arguments.whole(flag) for flag in flags)


def size_engines(arguments: Arguments, asked: RecipeInput, *, critic: bool) -> Sizing:
    """Size models and engines that share GPUs, or models on other GPUs than the engines."""
    names = [name for name in ("data.max_len", "prompt_max_len") if arguments.supports(name)]
    check_positions(asked, longest(arguments), f"lower {arguments.text(names[0])}")
    trained = 2 if critic else 1
    rewards = _reward_part(arguments, asked)
    trainers = training_groups(arguments, asked)
    in_pairs = any(map(arguments.given, _PAIRS))
    load = Workload(
        layouts=kept_layouts(asked, LAYOUTS, arguments),
        nodes=() if in_pairs else _nodes_of(trainers, asked),
        tokens=longest(arguments),
        sequences=(arguments.count(RING),),
        trained=trained,
        frozen=1 + rewards,
        share=_SHARE_OF_PPO if critic else _SHARE,
        own_share=arguments.fraction("vllm.gpu_memory_utilization"),
        tensor_parallel=arguments.whole("vllm.tensor_parallel_size") or None,
        logit=LOGIT_IN_FLOAT32,
        in_nodes=Host(
            processes=trained + 2 + bool(rewards),
            loading=WEIGHT * (trained + 1 + rewards),
            gathered=WEIGHT,
            keeps_engines=arguments.text("vllm.enable_sleep", left_out=True)
            not in arguments.changed(["vllm.enable_sleep"]),
        ),
        adapters=bool(arguments.whole("ds.lora.rank")),
    )
    given = arguments.changed(MEMORY)
    if arguments.given(_ASYNC):
        alone_size = _engine_alone(arguments, asked, load, trainers)
        host = replace(load.in_nodes, keeps_engines=False)
        alone = replace(load, share=0.0, own_share=None, in_nodes=host)
        own = sizing_for(asked, given, alone)
        why = {**own.why, "tensor_parallel": "engines have GPUs of their own"}
        return replace(own, tensor_parallel=alone_size, why=why)
    sizing = sizing_for(asked, given, load)
    if not in_pairs:
        return sizing

    # In pairs the smallest group of two models decides, on GPUs without engines.
    groups = [_group_of(arguments, asked, model) for model in ("actor", "critic")[: load.trained]]
    smallest = min(groups, key=lambda group: group.total)
    pair = replace(
        load,
        nodes=_nodes_of(smallest, asked),
        layouts=kept_layouts(asked, (ZERO3, ZERO3_OFFLOAD), arguments),
        trained=1,
        frozen=1,
        share=0.0,
        own_share=None,
        in_nodes=Host(processes=2, loading=2 * WEIGHT, gathered=WEIGHT),
    )
    own = sizing_for(asked, given, pair)
    engine = {"tensor_parallel": sizing.why["tensor_parallel"]}
    return replace(own, tensor_parallel=sizing.tensor_parallel, why={**own.why, **engine})


def _reward_part(arguments: Arguments, asked: RecipeInput) -> float:
    """Return how large a reward model is, in models: as its name says, else as the actor; or 0."""
    name = arguments.word("reward.model_name_or_path") or asked.reward_model
    if not name:
        return 0
    own = shape_of(name, None)
    model = asked.basis.model
    if own is None or model is None:
        return 1
    return round(own.parameters / model.parameters, 1) or 0.1


def _nodes_of(groups: GpuGroups, asked: RecipeInput) -> tuple[NodeSize, ...]:
    """Return the groups of GPUs as nodes."""
    nodes = (asked.gpu_nodes * groups.count)[: groups.count]
    return tuple(replace(node, gpus=groups.gpus) for node in nodes)


def training_groups(arguments: Arguments, asked: RecipeInput) -> GpuGroups:
    """Return the GPUs that train: the user's, else all that asynchronous engines leave.

    The engines of asynchronous training have whole nodes, or a part of the only one.
    """
    if any(map(arguments.given, _TRAINERS)) or not arguments.given(_ASYNC):
        return _group_of(arguments, asked, "actor")

    # How many GPUs do the engines take?
    everything = groups_of(asked.gpu_nodes)
    if arguments.given("vllm.num_engines"):
        size = arguments.count("vllm.tensor_parallel_size", asked.tensor_parallel or 1)
        engines = arguments.count("vllm.num_engines") * size
    else:
        proposed = _division(arguments, asked)
        is_one = everything.count == 1
        each = 1 if is_one else everything.gpus  # The GPUs that are divided as one
        hold = ceil(_gpus_that_hold(asked) / each)
        engines = proposed.of(everything.total // each, hold) * each

    # The others train, in groups of equal size.
    left = everything.total - engines
    if left < 1:
        text = arguments.text(_ASYNC)
        what = f"{text}: the engines take {engines} of {everything.total} GPUs, and none trains"
        fewer = f"set a smaller {arguments.text('vllm.num_engines')}"
        raise MisfitError(f"{what}: join more GPUs, or {fewer}")
    part = gcd(left, everything.gpus)
    return GpuGroups(left // part, part)


def _division(arguments: Arguments, asked: RecipeInput) -> Division:
    """Propose how many GPUs generate beside asynchronous training."""
    model = asked.basis.model
    engine = asked.tensor_parallel or least_engine(model)
    memory = asked.gpu_nodes[0].gpu_memory if asked.gpu_nodes else None
    return propose(model, longest(arguments), engine, memory)


def _gpus_that_hold(asked: RecipeInput) -> int:
    """Return about how many GPUs hold the states of the trained model."""
    model = asked.basis.model
    if model is None:
        return 1
    memory = asked.gpu_nodes[0].gpu_memory or ASSUMED_MEMORY
    return ceil(_HELD * model.parameters / (memory * 1e9))


def _engine_alone(
    arguments: Arguments, asked: RecipeInput, load: Workload, trainers: GpuGroups
) -> int:
    """Return the GPUs of an engine on GPUs that do not train."""
    model = asked.basis.model
    given = load.tensor_parallel or asked.tensor_parallel
    if given or model is None:
        return given or 1

    # They are the GPUs that the trainers leave, on each node equally many.
    everything = groups_of(asked.gpu_nodes)
    gpus = everything.gpus
    if everything.count == 1:
        gpus = max(1, everything.total - trainers.total)
    nodes = tuple(replace(node, gpus=gpus) for node in asked.gpu_nodes)
    size = engine_sizes(replace(load, nodes=nodes), model)[0]
    if model.weights / size > float(_SHARE_ALONE) * load.label:
        text = arguments.text(_ASYNC)
        what = f"{text}: an engine of {count_of(size, 'GPU')} of {load.memory} GB lacks room"
        raise MisfitError(f"{what} for {model.billions}: take nodes with more or larger GPUs")
    return size


def _group_of(arguments: Arguments, asked: RecipeInput, model: str) -> GpuGroups:
    """Return the GPUs of a model: the user's, else all."""
    everything = groups_of(asked.gpu_nodes)
    nodes = arguments.count(f"{model}.num_nodes", everything.count)
    gpus = arguments.count(f"{model}.num_gpus_per_node", everything.gpus)
    return GpuGroups(nodes, gpus)


_STAGE = "ZeRO stage"


def kept_layouts(
    asked: RecipeInput, layouts: tuple[Layout, ...], arguments: Arguments
) -> tuple[Layout, ...]:
    """Return the layouts whose ZeRO stage existing checkpoints have.

    Below stage 3, which only the user may set, every GPU has whole models.
    """
    stage = asked.basis.kept.get(_STAGE)
    if stage in {"2", "3"}:
        of_stage = tuple(layout for layout in layouts if (layout == ZERO2) == (stage == "2"))
        layouts = of_stage or layouts
    if arguments.whole("ds.zero_stage", 3) >= 3:
        return layouts
    return (ZERO2_SLEEP if ZERO3_SLEEP in layouts else ZERO2,)


def arguments_of(name: str, program: str, asked: RecipeInput) -> Arguments:
    """Return the arguments of a program of OpenRLHF, with the flags of the release."""
    flags, spelling = flags_of(program, asked.version)
    program = f"{name} {version_text(asked.version)}"
    return Arguments(program, flags, spelling, *asked.args, has_others=asked.is_nearest)


@cache
def _rows_of_flags() -> tuple[tuple[Version, Version, str, list[str]], ...]:
    """Return the rows of openrlhf_flags.txt: since, before (() for none), programs, and words."""
    text = Path(__file__).with_name("openrlhf_flags.txt").read_text(encoding="utf-8")
    lines = text.replace("\n  ", " ").splitlines()
    rows = (line.split() for line in lines if not line.startswith("#"))
    return tuple(
        (release_of(since), release_of(before), programs, words)
        for since, before, programs, *words in rows
    )


def flags_of(program: str, version: Version) -> tuple[dict[str, str], dict[str, str]]:
    """Return the flags of a program in one release, and how it spells those with dots.

    Each flag has the words that it takes.
    """
    flags = {}
    spelling = {}
    words = ""
    for since, before, programs, row in _rows_of_flags():
        is_newer = bool(before) and version >= before
        if version < since or is_newer:
            continue
        for word in row if program in programs.split(",") else ():
            if not word[0].isalpha():
                words = word
                continue
            dotted, _, flat = word.partition("=")
            flat = flat or dotted.rpartition(":")[2].replace(".", "_")
            dotted = dotted.replace(":", ".")
            spelling[dotted] = dotted if OPENRLHF.has("flags_have_dots", version) else flat
            flags[spelling[dotted]] = words
    return flags, spelling


def groups_of(nodes: tuple[NodeSize, ...]) -> GpuGroups:
    """Return the nodes' GPUs as equal groups, as large as possible."""
    counts = [node.gpus for node in nodes]
    if not any(counts):
        raise MisfitError("OpenRLHF trains on GPUs only, and no node has one")
    size = gcd(*counts)
    return GpuGroups(sum(counts) // size, size)


def check_nodes(asked: RecipeInput, *, reward_tasks: bool) -> None:
    """Refuse nodes on which a process would wait for a CPU: each GPU takes one.

    With `reward_tasks`, one more is needed on any node: calls of the reward server are Ray tasks of
    a CPU each (an actor without a number of CPUs starts without any).
    """
    check_cpus(asked.nodes, (node.gpus for node in asked.nodes))
    known = [node.cpus for node in asked.nodes if node.cpus is not None]
    gpus = sum(node.gpus for node in asked.nodes)
    if reward_tasks and len(known) == len(asked.nodes) and sum(known) <= gpus:
        what = "calls of the reward server take one more CPU than there are GPUs"
        raise MisfitError(f"{what}, and there are {sum(known)}: raise AGENT_NUM_CPUS on a node")


def _rank_gpus(arguments: Arguments) -> int:
    """Return the GPUs of a rank: processes with the same data."""
    return arguments.count(RING) * arguments.count("ds.tensor_parallel_size")


def batch_text(size: int, micro: int, ranks: int) -> str:
    """Return the arithmetic of an update's samples."""
    each = f"{micro} × " if micro > 1 else ""
    return f"batch {size} = {ranks} × {each}{size // (micro * ranks)}"


def train_batch(arguments: Arguments, gpus: int, target: int) -> tuple[int, int, int]:
    """Return the samples of an update, those of a rank per step, and the ranks.

    The first is the number nearest to a target that is `micro` × steps × `ranks`, as DeepSpeed
    asserts. Ranks are groups of processes with different data.
    """
    apart = _rank_gpus(arguments)
    if gpus % apart:
        raise MisfitError(f"{gpus} GPUs cannot form ranks of {apart} (ring × tensor parallel)")
    ranks = gpus // apart
    micro = arguments.count("train.micro_batch_size")
    size = arguments.count("train.batch_size", nearest(target, micro * ranks))
    check_multiple(arguments.text("train.batch_size"), size, micro * ranks)
    return size, micro, ranks


def add_batches(
    arguments: Arguments, gpus: int, samples: int, *, is_fork: bool = False
) -> tuple[str, ...]:
    """Set batches that fit the ranks, or refuse the user's sizes that do not; return notes.

    If a rollout is not whole batches, or one rank has more samples than another, ranks wait for
    each other in a collective until NCCL's timeout. In OpenRLHF-M every rank also gets the same
    number of prompts.
    """
    size, train_micro, ranks = train_batch(arguments, gpus, 128)
    micro = arguments.count("rollout.micro_batch_size")
    samples = arguments.count("rollout.n_samples_per_prompt", samples)

    # The prompts of a rollout whose answers are whole batches, equally many for each rank.
    unit = lcm(size, micro * ranks)
    step = unit // gcd(unit, samples)
    if is_fork:
        step = lcm(step, gpus)
    near = (4 if is_fork else 8) * size // samples  # 8 batches of 128 are 1,024 samples
    rollout = arguments.count("rollout.batch_size", nearest(near, step))
    check_multiple(arguments.text("rollout.batch_size"), rollout, step)

    arguments.add("train.batch_size", size, why=f"fits {count_of(ranks, 'rank')}, nearest to 128")
    arguments.add("train.micro_batch_size", train_micro, why=LEAST)
    why = f"× {samples} = whole batches of {size}, fits {count_of(ranks, 'rank')}"
    arguments.add("rollout.batch_size", rollout, why=why)
    arguments.add("rollout.micro_batch_size", micro, why=LEAST)
    if samples > 1:
        arguments.add("rollout.n_samples_per_prompt", samples, why="answers to compare")

    batches = count_of(rollout * samples // size, "batch")
    text = batch_text(size, train_micro, ranks)
    return (
        f"{text}; rollout {rollout} prompts × {samples} = {batches}",
        f"a rollout needs data of at least {rollout} prompts",
        SAME_GPUS,
    )


def place(
    arguments: Arguments, asked: RecipeInput, sizing: Sizing, *, critic: bool
) -> tuple[GpuGroups, str]:
    """Place every model on all GPUs, and as many engines as fit; return the arithmetic."""
    counts = [node.gpus for node in asked.gpu_nodes]
    is_uneven = len(set(counts)) > 1
    shape = f"nodes of {', '.join(map(str, counts))} GPUs"
    groups = training_groups(arguments, asked)
    in_pairs = any(map(arguments.given, _PAIRS))
    is_async = arguments.given(_ASYNC)

    # Do engines fit? The GPUs of an engine communicate in every layer: it may fill whole nodes, not
    # parts.
    tensor_parallel = arguments.count("vllm.tensor_parallel_size", sizing.tensor_parallel)
    parts = any(count % tensor_parallel for count in counts)
    if parts and (is_uneven or tensor_parallel % counts[0] or sum(counts) % tensor_parallel):
        raise engines_misfit(tensor_parallel, counts)
    for_engines = sum(counts) - groups.total if is_async else groups.total
    if for_engines % tensor_parallel and not in_pairs:
        raise engines_misfit(tensor_parallel, (groups.gpus,) * groups.count)
    engines = arguments.count("vllm.num_engines", max(1, for_engines // tensor_parallel))

    for model in ("actor", "ref", *(["critic"] if critic else [])):
        arguments.add(f"{model}.num_nodes", groups.count, why=shape)
        arguments.add(f"{model}.num_gpus_per_node", groups.gpus, why=shape)
    text = engines_text(engines * tensor_parallel, engines, tensor_parallel)
    is_proposed = is_async and not any(map(arguments.given, _TRAINERS))
    why = f"{text}; {_division(arguments, asked).why}" if is_proposed else text
    arguments.add("vllm.num_engines", engines, why=why)
    reasons = sizing.why
    arguments.add("vllm.tensor_parallel_size", tensor_parallel, why=reasons["tensor_parallel"])
    share = f"{sizing.share:g}"
    why = reasons["share"]
    colocated = _COLOCATED
    if is_async:
        share = _SHARE_ALONE
        why = "the engines' GPUs do not train"
        is_own = bool(arguments.changed([_SLEEP]))
        colocated = tuple(row for row in _COLOCATED if row[0] != _SLEEP or is_own)
    shared = (("vllm.gpu_memory_utilization", share, why), *colocated)
    # In pairs the engines have GPUs of their own, unless the user says otherwise.
    arguments.add_all(row for row in shared if not in_pairs or arguments.changed(row[:1]))

    used = groups.total
    if is_async:
        used += engines * tensor_parallel
        text = f"{count_of(groups.total, 'GPU')} for training, {text}"
    idle = 0 if in_pairs else sum(counts) - used
    return groups, f"{shape}: {text}" + (f"; {count_of(idle, 'GPU')} idle" if idle > 0 else "")


def add_training(arguments: Arguments, asked: RecipeInput, sizing: Sizing, model: str) -> None:
    """Set sharding and precision, and W&B if there is a key."""
    why = sizing.why["layout"]
    arguments.add("ds.zero_stage", "2" if sizing.layout.name == ZERO2.name else "3", why=why)
    if sizing.layout.name == ZERO3_OFFLOAD.name:
        arguments.add("ds.adam_offload", why=why)
    if sizing.within_nodes:
        gpus = gcd(*(node.gpus for node in asked.gpu_nodes))
        arguments.add("ds.zpg", gpus, why=sizing.why["within_nodes"])
    arguments.add(f"{model}.gradient_checkpointing_enable", why="longer texts in the same memory")
    for switch in ("bf16", "flash_attn"):  # the default in newer versions
        if arguments.supports(switch):
            arguments.add(switch)
    if asked.wandb:
        why = "any value turns W&B on; the key is WANDB_API_KEY"
        arguments.add("logger.wandb.key", _WANDB, why=why)
        arguments.add("logger.wandb.run_name", asked.named, why=NAMED_BY)


def add_lengths(arguments: Arguments, prompt: int, answer: int) -> None:
    """Set the longest prompt and answer."""
    if arguments.supports("prompt_max_len"):
        arguments.add("prompt_max_len", prompt)
        arguments.add("generate_max_len", answer)
    else:
        arguments.add("data.max_len", prompt + answer, why="prompt and answer together")


def _has_own_server(arguments: Arguments) -> bool:
    return any(map(arguments.given, ("reward.remote_url", "train.agent_func_path")))


def add_reward(arguments: Arguments, asked: RecipeInput, groups: GpuGroups) -> None:
    """Set the source of rewards: the reward server, else the model or the user's arguments."""
    if asked.scores:
        arguments.add("reward.remote_url", "{reward_url}", why="the run's reward server")
    elif asked.reward_model or arguments.given("reward.model_name_or_path"):
        arguments.add("reward.model_name_or_path", asked.reward_model, why="AGENT_REWARD_MODEL")
        arguments.add("reward.num_nodes", groups.count, why="as the actor")
        arguments.add("reward.num_gpus_per_node", groups.gpus, why="as the actor")
    elif not _has_own_server(arguments):
        raise MisfitError("no source of rewards: set AGENT_REWARD or AGENT_REWARD_MODEL")


def rollout_step(arguments: Arguments, sizing: Sizing, *, critic: bool) -> StepWork:
    """Return the work of a step; old probabilities, reference and values are forward passes."""
    answers = arguments.count("rollout.n_samples_per_prompt")
    samples = arguments.count("rollout.batch_size") * answers
    scored = 3 if critic else 2
    scored += 1 if arguments.holds("reward.model_name_or_path") else 0
    return StepWork(
        samples,
        longest(arguments),
        2 if critic else 1,
        scored,
        fit=sizing.fit,
        updates=max(1, samples // arguments.count("train.batch_size")),
    )


def add_checkpoints(
    arguments: Arguments, asked: RecipeInput, usual: int, step: StepWork, within: str = ""
) -> None:
    """Save checkpoints and resume from them; without any, the flag to load has no effect.

    They are saved after so many steps, or about every hour.
    """
    path = f"{asked.checkpoints}/{within}" if within else asked.checkpoints
    steps, pace = steps_between_saves(asked, step, usual)
    why = "; ".join(filter(None, (pace, "the default never saves")))
    arguments.add("ckpt.save_steps", steps, why=why)
    arguments.add("ckpt.path", path, why="AGENT_CHECKPOINTS")
    arguments.add("ckpt.load_enable", why="resumes from the last checkpoint, if any")
    arguments.add("ckpt.output_dir", f"{asked.checkpoints}/model", why="the model at the end")


def check_demand(arguments: Arguments, asked: RecipeInput) -> None:
    """Refuse placement groups that do not fit on the GPUs: they would wait forever."""
    gpus = sum(node.gpus for node in asked.nodes)
    everything = arguments.holds("train.colocate_all")
    apart = arguments.holds(_ASYNC)
    if apart and arguments.holds(_SLEEP):
        what = f"{arguments.text(_ASYNC)}: its engines never sleep"
        raise MisfitError(f"{what}: leave out {arguments.text(_SLEEP)}")

    # How many GPUs does each model take? Two that share them take them once.
    others = [model for model in ("critic", "reward") if arguments.holds(f"{model}.num_nodes")]
    wanted = {
        model: arguments.count(f"{model}.num_nodes", 1)
        * arguments.count(f"{model}.num_gpus_per_node", 8)
        for model in ("actor", "ref", *others)
    }
    for first, second, pair in (("actor", "ref", _PAIRS[0]), ("critic", "reward", _PAIRS[1])):
        is_pair = (everything or arguments.holds(pair)) and {first, second} <= set(wanted)
        if is_pair and wanted[first] != wanted.pop(second):
            raise MisfitError(f"{first} and {second} share GPUs: give both the same number")
    if everything:
        wanted = {"actor": wanted["actor"]}

    # The engines have GPUs of their own, or exactly the actor's.
    engines = arguments.count("vllm.num_engines") * arguments.count("vllm.tensor_parallel_size")
    if apart or not everything:
        wanted["engines"] = engines
    elif engines != wanted["actor"]:
        have = f"the actor has {wanted['actor']}, the engines {engines}"
        flag = arguments.text("vllm.num_engines")
        raise MisfitError(f"actor and engines share GPUs, and {have}: leave out {flag}")

    if sum(wanted.values()) > gpus:
        parts = ", ".join(f"{name} {count}" for name, count in wanted.items())
        raise MisfitError(f"{sum(wanted.values())} GPUs are needed ({parts}) and {gpus} joined")
