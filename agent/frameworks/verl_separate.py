"""verl with engines on GPUs of their own, in its mode separate_async, from 0.9.1 on.

The engines generate all the time, while the other GPUs train; verl sends them the weights by NCCL
after each step. Trainer and engines are one Ray job: verl asks Ray for placement groups by numbers
(`trainer.nnodes`, `actor_rollout_ref.rollout.nnodes`), and names no node. A group of nodes with
`ray = true` would decide nothing, so the split is in the command alone; the loss of any node ends
the attempt. 0.9.0 has engines on the training GPUs, too, in this mode.
"""

from __future__ import annotations

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
from agent.frameworks.verl_keys import MINI_BATCH, NODES, ROLLOUT, TRAIN_BATCH, VERL

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.frameworks.arguments import GivenKeys
    from agent.frameworks.recipe import RecipeInput
    from agent.frameworks.sizing import Sizing, Workload
    from agent.frameworks.table import Facts

MODE_KEY = "trainer.v1.trainer_mode"
_MODE = "separate_async"
_HYBRID = "actor_rollout_ref.hybrid_engine"
_ENGINE_NODES = f"{ROLLOUT}.nnodes"
_ENGINE_GPUS = f"{ROLLOUT}.n_gpus_per_node"
_SYNC = "trainer.v1.separate_async.parameter_sync_step"
_SENDER = f"{ROLLOUT}.checkpoint_engine.backend"
SHARE = 0.8
"""The engines' part of GPUs that do not train.

Source: verl-project/verl, verl/experimental/fully_async_policy/shell/dapo_7b_math_fsdp2_8_8.sh.
"""
_COPIES = 8  # Bytes of a parameter: two copies in float32 that it keeps for the old probabilities
_CPUS_OF_GPU = 2  # Of an engine's placement group (`max_colocate_count`)


class Engines(Value):
    """The GPUs of the engines: equal groups, each on one node."""

    groups: GpuGroups
    nodes: tuple[NodeSize, ...]  # The nodes, or the part of the only one
    split: NodeSplit | None = None  # Of the nodes, if there are several
    why: str = ""


def is_separate(given: GivenKeys) -> bool:
    """Return whether the user wants engines on GPUs of their own."""
    return given.get(MODE_KEY) == _MODE


def check_rollout_nodes(given: GivenKeys) -> None:
    """Refuse nodes for engines in a mode that has none."""
    if given.whole(_ENGINE_NODES, least=0):
        name = given.written(_ENGINE_NODES)
        what = f"AGENT_JOB_ARGS: {name}: the recipe has engines on the training GPUs"
        raise MisfitError(f"{what}, unless {MODE_KEY}={_MODE} is set")


def divisions(
    asked: RecipeInput, given: GivenKeys, longest: int
) -> Iterator[tuple[RecipeInput, Engines]]:
    """Yield the input for the nodes that train, and the engines: the user's, or an estimate.

    It is for samples of at most so many tokens. After it come fewer engines, with which the trainer
    can hold a larger model.
    """
    _check(asked, given)
    sizes = {node.gpus for node in asked.gpu_nodes}
    if len(sizes) > 1 or 0 in sizes:
        shape = ", ".join(str(node.gpus) for node in asked.gpu_nodes)
        raise MisfitError(f"{MODE_KEY}={_MODE} divides equal nodes, and these have {shape} GPUs")
    (gpus,) = sizes
    total = len(asked.gpu_nodes)
    trainers = given.whole(NODES)
    count = given.whole(_ENGINE_NODES) or (total - trainers if trainers else None)
    if total == 1:
        yield _of_one_node(asked, given, gpus)
    elif count is not None:
        yield _of_nodes(asked, given, count, "as you say")
    else:
        model = asked.basis.model
        engine = asked.tensor_parallel or least_engine(model)
        memory = asked.gpu_nodes[0].gpu_memory
        proposed = propose(model, longest, engine, memory)
        most = proposed.of(total)
        yield _of_nodes(asked, given, most, proposed.why)
        for fewer in range(most - 1, 0, -1):
            yield _of_nodes(asked, given, fewer, "the others are as few as can hold the model")


def _of_nodes(
    asked: RecipeInput, given: GivenKeys, count: int, why: str
) -> tuple[RecipeInput, Engines]:
    """Divide the nodes: the last ones generate."""
    total = len(asked.gpu_nodes)
    gpus = asked.gpu_nodes[0].gpus
    each = given.whole(_ENGINE_GPUS) or gpus
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
    setting = f"{_ENGINE_NODES}={{engines}}"
    if trainers is not None:
        setting = f"{NODES}={{trainer}} {setting}"
    split = NodeSplit(min(trainers or total, total - count), count, setting=setting)
    reason = f"{count} of {total} nodes generate; {why}"
    return rest, Engines(GpuGroups(count, each), own, split, reason)


def _of_one_node(asked: RecipeInput, given: GivenKeys, gpus: int) -> tuple[RecipeInput, Engines]:
    """Divide the GPUs of the only node."""
    each = given.whole(_ENGINE_GPUS) or gpus // 2
    if given.whole(_ENGINE_NODES) not in {None, 1} or not 0 < each < gpus:
        what = f"{MODE_KEY}={_MODE}: one node of {count_of(gpus, 'GPU')} joined"
        raise MisfitError(f"{what}: some of them have to train, and some to generate")
    (node,) = asked.gpu_nodes
    nodes = (
        replace(joined, gpus=gpus - each) if joined == node else joined for joined in asked.nodes
    )
    engines = Engines(
        GpuGroups(1, each),
        (replace(node, gpus=each),),
        why=f"{each} of {gpus} GPUs generate",
    )
    return replace(asked, nodes=tuple(nodes)), engines


def _check(asked: RecipeInput, given: GivenKeys) -> None:
    """Refuse what does not go with separate engines."""
    mode = f"{MODE_KEY}={_MODE}"
    if not VERL.has("trains_without_own_engines", asked.version):
        verl = f"verl {version_text(asked.version)}"
        raise MisfitError(f"AGENT_JOB_ARGS: {mode}: {verl} has no such engines: install 0.9.1")
    if given.get(_HYBRID, "False").lower() != "false":
        what = f"AGENT_JOB_ARGS: {given.written(_HYBRID)}: with {mode} the recipe has no engines on"
        raise MisfitError(f"{what} the training GPUs; give your own command after --")
    if given.get(_SENDER) == "naive":
        what = f"AGENT_JOB_ARGS: {given.written(_SENDER)}=naive: verl ends with {mode} and this one"
        raise MisfitError(f"{what}: leave it out, since the recipe sets nccl")
    if asked.lora_rank is not None:
        raise MisfitError(f"AGENT_LORA_RANK with {mode} was not tried: unset one of them")
    if asked.reward_model:
        what = f"AGENT_REWARD_MODEL needs GPUs of its own with {mode}"
        raise MisfitError(f"{what}: give your own command after --, or a server (AGENT_REWARD)")


def for_trainer(load: Workload) -> Workload:
    """Return the workload of GPUs without engines: the weights of a step stay in the memory."""
    frozen = load.in_nodes.frozen
    host = replace(
        load.in_nodes, keeps_engines=False, frozen=frozen._replace(shard=frozen.shard + _COPIES)
    )
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
            raise MisfitError(f"{MODE_KEY}={_MODE}: {what} for the {model.billions} parameters")
    size = size or 1
    gpus = engines.groups.gpus
    spans_nodes = size % gpus == 0 and engines.groups.total % size == 0
    if gpus % size and not spans_nodes:
        raise engines_misfit(size, (gpus,) * engines.groups.count)
    reasons = {**sizing.why, "tensor_parallel": why, "share": "the engines' GPUs do not train"}
    return replace(sizing, tensor_parallel=size, share=SHARE, why=reasons)


def engine_facts(engines: Engines, size: int, *, train: int, mini: int) -> Facts:
    """Return the facts for verl's table about the engines, and how often they get weights."""
    groups = engines.groups
    return {
        "separate": True,
        "engine_nodes": groups.count,
        "engine_gpus": groups.gpus,
        "why_engines": engines.why,
        "engines": engines_text(groups.total, groups.total // size, size),
        "sync_step": train // mini,
    }


def check_sync(given: GivenKeys, train: int, mini: int) -> None:
    """Refuse the user's steps between syncs with which verl ends at its start."""
    steps = given.whole(_SYNC)
    if steps is not None and train != steps * mini:
        what = f"AGENT_JOB_ARGS: {given.written(_SYNC)}={steps}: verl ends where it is not"
        raise MisfitError(f"{what} {TRAIN_BATCH} / {MINI_BATCH}, here {train} / {mini}")


def check_engine_cpus(engines: Engines) -> None:
    """Refuse nodes of engines with too few CPUs: Ray would wait for ever."""
    needs = engines.groups.gpus * _CPUS_OF_GPU
    check_cpus(engines.nodes, (needs for _ in engines.nodes))
