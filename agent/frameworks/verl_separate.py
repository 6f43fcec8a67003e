"""verl with engines on GPUs of their own, as two of its asynchronous trainers have them.

The engines generate all the time, while the other GPUs train; verl sends them the weights by NCCL
after each step. Trainer and engines are one Ray job: verl asks Ray for placement groups by numbers
(`trainer.nnodes`, and the engines' `nnodes`), and names no node. A group of nodes with `ray = true`
would decide nothing, so the split is in the command alone; the loss of any node ends the attempt.

- separate_async is a mode of verl's usual program, from 0.9.1 on: in 0.9.0 it has engines on the
  training GPUs, too.
- The fully async trainer is a program of its own. Its samples go one by one from the engines to the
  trainer, which takes an update's at a time; a step is what it trains between two syncs of weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.base.value import Value
from agent.base.versions import version_text
from agent.frameworks.division import propose
from agent.frameworks.recipe import (
    GpuGroups,
    MisfitError,
    NodeSize,
    NodeSplit,
    check_cpus,
    count_of,
    engines_misfit,
    engines_text,
)
from agent.frameworks.sizing import engine_sizes, least_engine
from agent.frameworks.verl_keys import MAIN, MINI_BATCH, NODES, ROLLOUT, TRAIN_BATCH, VERL

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.frameworks.arguments import GivenKeys
    from agent.frameworks.recipe import RecipeInput
    from agent.frameworks.sizing import Sizing, Workload
    from agent.frameworks.table import Facts
    from agent.frameworks.verl_placement import Placement

_HYBRID = "actor_rollout_ref.hybrid_engine"
_SYNC = "trainer.v1.separate_async.parameter_sync_step"
_TAKEN = "async_training.require_batches"
_TRIGGER = "async_training.trigger_parameter_sync_step"
_ENGINES_ON_TRAINER = (
    "async_training.use_trainer_do_validate",
    "async_training.use_dynamic_resource_scheduling",
)
_SENDER = f"{ROLLOUT}.checkpoint_engine.backend"
SHARE = 0.8
"""The engines' part of GPUs that do not train.

Source: verl-project/verl, verl/experimental/fully_async_policy/shell/dapo_7b_math_fsdp2_8_8.sh.
"""
_BYPASS = "algorithm.rollout_correction.bypass_mode"
_COPIES = 8  # Bytes of a parameter: two copies in float32 that it keeps for the old probabilities
_CPUS_OF_GPU = 2  # Of an engine's placement group (`max_colocate_count`)


class AsyncTrainer(Value):
    """One of verl's trainers whose engines have GPUs of their own."""

    argument: str  # The user's that chooses it, for messages
    module: str  # Its program
    engines: str  # The section of the engines' `nnodes` and `n_gpus_per_node`
    change: str  # The name in verl's table of the versions with it
    since: str
    cpus: int  # Of its processes without GPUs, each of which Ray may place on any node
    unread: Mapping[str, str]  # Keys that it does not read, and what is read instead
    tree: str = ""  # In verl's table, of the keys that it has beside the others

    @property
    def engine_nodes(self) -> str:
        """Return the key of the nodes of engines."""
        return f"{self.engines}.nnodes"

    @property
    def engine_gpus(self) -> str:
        """Return the key of the GPUs that engines have on each of them."""
        return f"{self.engines}.n_gpus_per_node"


SEPARATE = AsyncTrainer(
    argument="trainer.v1.trainer_mode=separate_async",
    module=MAIN,
    engines=ROLLOUT,
    change="trains_without_own_engines",
    since="0.9.1",
    cpus=1,
    unread={},
)
FULLY_ASYNC = AsyncTrainer(
    argument="async_training",
    module="verl.experimental.fully_async_policy.fully_async_main",
    engines="rollout",
    change="has_fully_async_trainer",
    since="0.8",
    cpus=1 + 10 + 10 + 2,  # The main process, the trainer's, the engines' and the queue's
    unread={
        TRAIN_BATCH: f"{MINI_BATCH} × {_TAKEN} × {_TRIGGER}",
        "trainer.total_training_steps": "rollout.total_rollout_steps (prompts)",
        f"{ROLLOUT}.nnodes": "rollout.nnodes",
        f"{ROLLOUT}.n_gpus_per_node": "rollout.n_gpus_per_node",
    },
    tree="fully_async",
)


class Engines(Value):
    """The GPUs of the engines: equal groups, each on one node."""

    trainer: AsyncTrainer
    groups: GpuGroups
    nodes: tuple[NodeSize, ...]  # The nodes, or the part of the only one
    split: NodeSplit | None = None  # Of the nodes, if there are several
    why: str = ""


def trainer_of(given: GivenKeys) -> AsyncTrainer | None:
    """Return the trainer with engines on GPUs of their own that the user wants, if any."""
    mode, _, value = SEPARATE.argument.partition("=")
    is_separate = given.get(mode) == value
    if not given.begin(f"{FULLY_ASYNC.argument}."):
        return SEPARATE if is_separate else None
    if is_separate:
        both = f"{SEPARATE.argument} and {FULLY_ASYNC.argument}"
        raise MisfitError(f"AGENT_JOB_ARGS: {both} are two trainers: leave one of them out")
    return FULLY_ASYNC


def check_version(asked: RecipeInput, trainer: AsyncTrainer) -> None:
    """Refuse a version with which the recipe has no such trainer."""
    if not VERL.has(trainer.change, asked.version):
        what = f"AGENT_JOB_ARGS: {trainer.argument}: with verl {version_text(asked.version)} the"
        raise MisfitError(f"{what} recipe has no such engines: install {trainer.since} or later")


def check_rollout_nodes(given: GivenKeys) -> None:
    """Refuse nodes for engines in a mode that has none."""
    if given.whole(SEPARATE.engine_nodes, least=0):
        name = given.written(SEPARATE.engine_nodes)
        what = f"AGENT_JOB_ARGS: {name}: the recipe has engines on the training GPUs"
        raise MisfitError(f"{what}, unless {SEPARATE.argument} is set")


def divisions(
    asked: RecipeInput, given: GivenKeys, trainer: AsyncTrainer, longest: int
) -> Iterator[tuple[RecipeInput, Engines]]:
    """Yield the input for the nodes that train, and the engines: the user's, or an estimate.

    It is for samples of at most so many tokens. After it come fewer engines, with which the trainer
    can hold a larger model.
    """
    _check(asked, given, trainer)
    sizes = {node.gpus for node in asked.gpu_nodes}
    if len(sizes) > 1 or 0 in sizes:
        shape = ", ".join(str(node.gpus) for node in asked.gpu_nodes)
        raise MisfitError(f"{trainer.argument} divides equal nodes, and these have {shape} GPUs")
    (gpus,) = sizes
    total = len(asked.gpu_nodes)
    trainers = given.whole(NODES)
    count = given.whole(trainer.engine_nodes) or (total - trainers if trainers else None)
    if total == 1:
        yield _of_one_node(asked, given, trainer, gpus)
    elif count is not None:
        yield _of_nodes(asked, given, trainer, count, "as you say")
    else:
        model = asked.basis.model
        engine = asked.tensor_parallel or least_engine(model)
        memory = asked.gpu_nodes[0].gpu_memory
        proposed = propose(model, longest, engine, memory)
        most = proposed.of(total)
        yield _of_nodes(asked, given, trainer, most, proposed.why)
        for fewer in range(most - 1, 0, -1):
            why = "the others are as few as can hold the model"
            yield _of_nodes(asked, given, trainer, fewer, why)


def _of_nodes(
    asked: RecipeInput, given: GivenKeys, trainer: AsyncTrainer, count: int, why: str
) -> tuple[RecipeInput, Engines]:
    """Divide the nodes: the last ones generate."""
    total = len(asked.gpu_nodes)
    gpus = asked.gpu_nodes[0].gpus
    each = given.whole(trainer.engine_gpus) or gpus
    trainers = given.whole(NODES)
    if count <= 0:
        what = f"AGENT_JOB_ARGS: {given.written(NODES)}={trainers}: {total} nodes of {gpus} GPUs"
        raise MisfitError(f"{what} joined, and some of them have to generate")
    if count >= total or each > gpus:
        what = f"engines on {count_of(count, 'node')} of {each} GPUs"
        raise MisfitError(f"AGENT_JOB_ARGS: {what}, and {total} of {gpus} GPUs joined: some train")
    own = asked.gpu_nodes[total - count :]
    others = tuple(node for node in asked.nodes if not node.gpus)
    rest = replace(asked, nodes=(*asked.gpu_nodes[: total - count], *others))
    setting = f"{trainer.engine_nodes}={{engines}}"
    if trainers is not None:
        setting = f"{NODES}={{trainer}} {setting}"
    split = NodeSplit(min(trainers or total, total - count), count, setting=setting)
    reason = f"{count} of {total} nodes generate; {why}"
    return rest, Engines(trainer, GpuGroups(count, each), own, split, reason)


def _of_one_node(
    asked: RecipeInput, given: GivenKeys, trainer: AsyncTrainer, gpus: int
) -> tuple[RecipeInput, Engines]:
    """Divide the GPUs of the only node."""
    each = given.whole(trainer.engine_gpus) or gpus // 2
    if given.whole(trainer.engine_nodes) not in {None, 1} or not 0 < each < gpus:
        what = f"{trainer.argument}: one node of {count_of(gpus, 'GPU')} joined"
        raise MisfitError(f"{what}: some of them have to train, and some to generate")
    (node,) = asked.gpu_nodes
    nodes = (
        replace(joined, gpus=gpus - each) if joined == node else joined for joined in asked.nodes
    )
    engines = Engines(
        trainer,
        GpuGroups(1, each),
        (replace(node, gpus=each),),
        why=f"{each} of {gpus} GPUs generate",
    )
    return replace(asked, nodes=tuple(nodes)), engines


def _check(asked: RecipeInput, given: GivenKeys, trainer: AsyncTrainer) -> None:
    """Refuse what does not go with separate engines."""
    mode = trainer.argument

    # What verl would not read, and what would bring engines onto the training GPUs.
    for key, instead in trainer.unread.items():
        if key in given:
            what = f"AGENT_JOB_ARGS: {given.written(key)}: with {mode} verl reads {instead}"
            raise MisfitError(f"{what} instead: leave it out")
    for key in (_HYBRID, *_ENGINES_ON_TRAINER):
        if given.get(key, "False").lower() != "false":
            what = f"AGENT_JOB_ARGS: {given.written(key)}: with {mode} the recipe has no engines on"
            raise MisfitError(f"{what} the training GPUs; give your own command after --")
    if given.get(_SENDER) == "naive":
        what = f"AGENT_JOB_ARGS: {given.written(_SENDER)}=naive: verl ends with {mode} and this one"
        raise MisfitError(f"{what}: leave it out, since the recipe sets nccl")

    # What the recipe does not combine with it.
    if asked.lora_rank is not None:
        raise MisfitError(f"AGENT_LORA_RANK with {mode} was not tried: unset one of them")
    if asked.reward_model:
        what = f"AGENT_REWARD_MODEL needs GPUs of its own with {mode}"
        raise MisfitError(f"{what}: give your own command after --, or a server (AGENT_REWARD)")
    if trainer is FULLY_ASYNC and asked.recipe != "verl-grpo":
        what = f"{asked.recipe} with {mode}: verl reads its critic by keys that it lacks"
        raise MisfitError(f"{what}: take verl-grpo, or {SEPARATE.argument}")


def for_trainer(load: Workload, given: GivenKeys, trainer: AsyncTrainer) -> Workload:
    """Return the workload of GPUs without engines: the weights of a step stay in the memory.

    The fully async trainer takes the engines' probabilities by default, and then keeps no copies.
    """
    frozen = load.in_nodes.frozen
    if trainer is SEPARATE or given.get(_BYPASS, "True").lower() == "false":
        frozen = frozen._replace(shard=frozen.shard + _COPIES)
    host = replace(load.in_nodes, keeps_engines=False, frozen=frozen)
    return replace(load, share=0.0, own_share=None, tensor_parallel=1, in_nodes=host)


def with_engines(sizing: Sizing, asked: RecipeInput, engines: Engines, size: int | None) -> Sizing:
    """Return a sizing of the trainer with its engines; `size` is the user's tensor parallelism."""
    why = "AGENT_TENSOR_PARALLEL" if size else "the engines' GPUs do not train"
    model = asked.basis.model
    if size is None and model is not None and sizing.fit is not None:
        load = replace(
            sizing.fit.load,
            nodes=tuple(replace(node, gpus=engines.groups.gpus) for node in engines.nodes),
            share=SHARE,
            tensor_parallel=None,
        )
        size = engine_sizes(load, model)[0]
        if model.weights / size > SHARE * load.label:
            what = f"an engine of {count_of(size, 'GPU')} of {load.memory} GB lacks room"
            what = f"{engines.trainer.argument}: {what}"
            raise MisfitError(f"{what} for the {model.billions} parameters")
    size = size or 1
    gpus = engines.groups.gpus
    spans_nodes = size % gpus == 0 and engines.groups.total % size == 0
    if gpus % size and not spans_nodes:
        raise engines_misfit(size, (gpus,) * engines.groups.count)
    reasons = {**sizing.why, "tensor_parallel": why, "share": "the engines' GPUs do not train"}
    return replace(sizing, tensor_parallel=size, share=SHARE, why=reasons)


def prompts_between_syncs(
    trainer: AsyncTrainer, given: GivenKeys, train: int, mini: int
) -> tuple[int, int]:
    """Return the prompts that are trained between two syncs of weights, and verl's count for them.

    `train` prompts of a step, and `mini` of an update, are what suits the nodes that train.
    """
    if trainer is SEPARATE:
        steps = given.whole(_SYNC)
        if steps is not None and train != steps * mini:
            what = f"AGENT_JOB_ARGS: {given.written(_SYNC)}={steps}: verl ends where it is not"
            raise MisfitError(f"{what} {TRAIN_BATCH} / {MINI_BATCH}, here {train} / {mini}")
        return train, train // mini

    # It counts how often it takes the prompts of a few updates.
    taken = mini * (given.whole(_TAKEN) or 1)
    times = given.whole(_TRIGGER) or max(1, train // taken)
    return taken * times, times


def engine_facts(engines: Engines, size: int, sync_step: int) -> Facts:
    """Return the facts for verl's table about the engines, and how often they get weights."""
    groups = engines.groups
    return {
        "separate": engines.trainer is SEPARATE,
        "fully_async": engines.trainer is FULLY_ASYNC,
        "engine_nodes": groups.count,
        "engine_gpus": groups.gpus,
        "why_engines": engines.why,
        "engines": engines_text(groups.total, groups.total // size, size),
        "sync_step": sync_step,
    }


def cpus_beside_trainer(engines: Engines) -> int:
    """Return the CPUs of engines on the only node, which the trainer has, too."""
    return engines.groups.gpus * _CPUS_OF_GPU if engines.split is None else 0


def check_engine_cpus(engines: Engines, placement: Placement, nodes: tuple[NodeSize, ...]) -> None:
    """Refuse nodes of engines with too few CPUs: Ray would wait for ever.

    `placement` and `nodes` are the trainer's. Ray may place the main process of separate_async
    here, too, but it keeps no CPU.
    """
    if engines.split is None:
        return
    needs = engines.groups.gpus * _CPUS_OF_GPU
    is_beside_main = any(node.gpus for node in placement.hosts_of_main(nodes))
    if engines.trainer is FULLY_ASYNC and is_beside_main:
        needs += placement.main_cpus
    check_cpus(engines.nodes, (needs for _ in engines.nodes))
