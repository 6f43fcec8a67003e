"""RL with prime-rl: FSDP trains, and vLLM generates on other nodes, in environments.

prime_rl.toml has what its launcher `rl` is given, prime_rl_services.toml engines and router; this
module computes the quantities that the table names. bundled/prime_rl.sh starts the processes of
each node that trains from the files that `rl` makes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from agent.frameworks.arguments import Arguments
from agent.frameworks.division import division_for
from agent.frameworks.layouts import PRIME_RL as LAYOUTS
from agent.frameworks.layouts import PRIME_RL_CPU
from agent.frameworks.pace import StepWork, average, steps_between_saves
from agent.frameworks.recipe import (
    WEIGHT,
    Command,
    MisfitError,
    check_multiple,
    check_positions,
    count_of,
    equal_gpus,
    gpu_processes,
)
from agent.frameworks.sizing import Host, Sizing, Workload, sizing_for
from agent.frameworks.table import read_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from agent.frameworks.recipe import RecipeInput
    from agent.frameworks.table import Facts

TABLE = read_table("prime_rl")
FRAMEWORK = TABLE.framework
VERSIONS = TABLE.versions
ABOUT = TABLE.about
PRESETS = TABLE.presets

_SCRIPT = Path(__file__).parents[1] / "bundled" / "prime_rl.sh"
_ROUTER = "http://{address:router}:8000/v1"
_ENGINES = "{addresses:engine|url|space}"
_ENVIRONMENT = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "OMP_NUM_THREADS": "1"}
_FOR_TRAINER = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
"""What prime-rl's launcher sets for its processes."""
_SPLIT = "after 20 steps the log says whether another division is faster"
_OFFLOAD = "trainer.model.full-offload"
_MEMORY = (
    _OFFLOAD,
    "trainer.model.optim-cpu-offload",
    "trainer.model.fsdp-cpu-offload",
    "trainer.model.optimization-dtype",
    "trainer.model.dp-replicate",
    "trainer.model.lora.rank",
    "trainer.model.ac",
)
"""Flags that change the memory that a model takes, in a way that is not counted."""
_OF_ENGINES = ("--inference.", "--deployment.num-infer")
_LENGTHS = ("trainer.model.seq-len", "seq-len")
_TEXT = 8192
_BATCH = 512
_GROUP = 16
_EVERY = 100  # Steps between checkpoints, at most, as its configurations for 30B
_LAYOUT = "layout"


def make(asked: RecipeInput) -> Command:
    """Make the command, which runs on each node that trains."""
    if asked.revision:
        what = "prime-rl knows a model by one name, which has no revision"
        raise MisfitError(f"AGENT_MODEL_REVISION: {what}: fetch it to a folder, and name that")
    args = tuple(_kebab(asked.args))
    _check_engines(args)
    arguments = Arguments("rl", TABLE.words_of_flags, {}, *args, has_others=True)
    own_file = asked.train_data if asked.train_data.endswith(".toml") else ""

    # What fits the nodes, and batches.
    world = gpu_processes(asked.nodes)
    gpus = equal_gpus(asked, "prime-rl")
    tokens = next(filter(None, map(arguments.whole, _LENGTHS)), _TEXT)
    check_positions(asked, tokens, "lower --seq-len")
    sizing = _sizing(arguments, asked, tokens)
    batch = arguments.count("orchestrator.batch-size", _BATCH)
    group = arguments.count("orchestrator.group-size", _GROUP)
    check_multiple("--orchestrator.batch-size", batch, group)
    step = StepWork(batch, tokens, scored=1, fit=sizing.fit, micro=average(tokens))
    save_every, pace = steps_between_saves(asked, step, _EVERY)
    arguments.add_all(
        TABLE.rows(
            asked.version,
            {
                **_facts_of(asked, sizing, own_file),
                "nodes": len(asked.nodes),
                "gpus": gpus,
                "save_every": save_every,
                "why_save_every": pace or "as its configurations for 30B",
            },
        )
    )

    # Who generates, and what the script gives prime-rl's launcher.
    division = division_for(FRAMEWORK, asked.args, asked.model, asked.tensor_parallel)
    file = ("@", own_file) if own_file else ()
    script = ("bash", str(_SCRIPT), asked.checkpoints, _ROUTER, _ENGINES)
    return Command(
        argv=(*script, *file, *arguments.argv()),
        env={**_ENVIRONMENT, **_FOR_TRAINER},
        why=arguments.why(),
        notes=(*_notes(own_file, batch, group, world, division.why), *sizing.notes),
        warnings=sizing.warnings,
        format={_LAYOUT: sizing.layout.name},
    )


def _kebab(args: tuple[str, ...]) -> Iterator[str]:
    """Yield the user's arguments with their flags as the table has them: prime-rl takes both."""
    for word in args:
        name, equals, value = word.partition("=")
        yield f"{name.replace('_', '-')}{equals}{value}" if word.startswith("--") else word


def _check_engines(args: Iterable[str]) -> None:
    """Refuse flags that would have no effect: the engines are a service on nodes of a group."""
    for word in args:
        if word.startswith(_OF_ENGINES):
            where = "[services.engine] command and [groups.rollout] nodes"
            raise MisfitError(f"AGENT_JOB_ARGS: {word}: engines follow {where} of AGENT_SERVICES")


def _sizing(arguments: Arguments, asked: RecipeInput, tokens: int) -> Sizing:
    """Size the model, whose checkpoints keep the optimizer where it was."""
    kept = asked.basis.kept.get(_LAYOUT)
    load = Workload(
        layouts=tuple(one for one in LAYOUTS if one.name == kept) or LAYOUTS,
        tokens=tokens,
        tensor_parallel=1,  # Its engines have other GPUs
        sequences=(arguments.count("trainer.model.cp"),),
        in_nodes=Host(loading=WEIGHT, gathered=WEIGHT),
    )
    try:
        return sizing_for(asked, arguments.changed(_MEMORY), load)
    except MisfitError as misfit:
        others = "these are the nodes that train: [groups.rollout] nodes sets the others"
        raise MisfitError(f"{misfit}; {others}") from None


def _facts_of(asked: RecipeInput, sizing: Sizing, own_file: str) -> Facts:
    """Return the facts about model, environments, and where the optimizer is."""
    renderer, why_renderer = _renderer(asked)
    return {
        "recipe": asked.recipe,
        "model": asked.model_path,
        "checkpoints": asked.checkpoints,
        "run_name": asked.named,
        "own_file": own_file,
        "train_source": _source(asked.train_data),
        "eval_data": asked.eval_data,
        "eval_source": _source(asked.eval_data),
        "renderer": renderer,
        "why_renderer": why_renderer,
        "optimizer_on_cpu": sizing.layout.name == PRIME_RL_CPU.name,
        "why_layout": sizing.why["layout"],
        "wandb": asked.wandb,
    }


def _source(environment: str) -> str:
    """Return the only source of tasks: an environment for one agent, which runs on the head."""
    agent = {"harness": {"id": "null"}, "runtime": {"type": "subprocess"}}
    return json.dumps([{"env": {"taskset": {"id": environment}, "agent": agent}}])


def _renderer(asked: RecipeInput) -> tuple[str, str]:
    """Return what makes tokens of a chat, by the name of the model, and why."""
    name = asked.model.rstrip("/").rpartition("/")[2]
    for renderer, models in TABLE.values.items():
        if name in models or asked.model in models:
            return renderer, "by the model's name"
    return "default", "the model's chat template; tools need --orchestrator.renderer.tool-parser"


def _notes(own_file: str, batch: int, group: int, world: int, division: str) -> Iterator[str]:
    """Yield what the user should know about the job."""
    gpus = count_of(world, "GPU")
    if own_file:
        yield f"{gpus} train; {own_file} has environments and batches"
        yield f"sized for texts of {_TEXT} tokens, unless AGENT_JOB_ARGS has --seq-len"
    else:
        yield f"{gpus} train; batch {batch} = {count_of(batch // group, 'task')} × {group}"
    yield f"[groups.rollout] nodes generate, by default {division}; {_SPLIT}"
