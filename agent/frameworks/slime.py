"""GRPO with slime: Megatron trains, SGLang generates on other nodes; also asynchronously.

slime.toml has what the command sets, slime_services.toml the engines; this module computes the
quantities that the table names. Megatron gets the description of a model from a file of slime's
scripts/models, which a shell reads before the training starts.
"""

from __future__ import annotations

from math import gcd
from typing import TYPE_CHECKING

from agent.base.value import Value
from agent.frameworks.arguments import Arguments, check_named_columns
from agent.frameworks.division import division_for
from agent.frameworks.layouts import SLIME as LAYOUTS
from agent.frameworks.layouts import SLIME_CPU, Split
from agent.frameworks.megatron_memory import (
    CONTEXT,
    EXPERT,
    EXPERT_TENSOR,
    PIPELINE,
    TENSOR,
    Fixed,
    MegatronFit,
)
from agent.frameworks.pace import StepWork, average, steps_between_saves
from agent.frameworks.recipe import (
    CONFIG,
    WEIGHT,
    Command,
    MisfitError,
    check_multiple,
    check_positions,
    count_of,
    equal_gpus,
    nearest,
)
from agent.frameworks.sizing import Host, Sizing, Workload, least_engine, sizing_for
from agent.frameworks.table import read_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent.frameworks.recipe import RecipeInput
    from agent.frameworks.table import Facts

SLIME = read_table("slime")
FRAMEWORK = SLIME.framework
VERSIONS = SLIME.versions
ABOUT = SLIME.about
PRESETS = SLIME.presets

_ENGINES = "{addresses:engine|space}"
_MODEL_ARGS = "model-args"
_TRAIN_ASYNC = "train-async"
_SHELL = ("bash", "-c", 'source "$0" && exec "$@" "${MODEL_ARGS[@]}"')
"""Adds what a file of scripts/models tells Megatron about a model."""
_RESPONSE = "rollout-max-response-len"
_REWARDS = ("rm-type", "custom-rm-path")
_SIZES = (TENSOR, PIPELINE, CONTEXT, EXPERT, EXPERT_TENSOR)
_MEMORY = ("optimizer-cpu-offload", "recompute-granularity", "max-tokens-per-gpu", "num-layers")
"""Flags that change the memory that a model takes, in a way that is not counted."""
_SPLIT = "after 20 steps the log says whether another division is faster"
_PROMPTS = 32
_GROUP = 8
_ANSWER = 8192
_TOKENS = 9216  # Of a micro batch on each GPU, as its script for 4B
_EVERY = 20  # Steps between checkpoints, at most


class _Own(Value):
    """The recipe's own flags, which slime does not have, and the others."""

    model_args: str  # A file that describes the model to Megatron; '' for none
    script: str
    others: tuple[str, ...]


def make(asked: RecipeInput) -> Command:
    """Make the command, for the nodes that train."""
    own = _own_flags(asked.args)
    arguments = Arguments("slime", SLIME.words_of_flags, {}, *own.others, has_others=True)
    _check_engines(arguments)
    model_args = "" if arguments.given("num-layers") else own.model_args or _model_args_of(asked)
    _check_rewards(arguments, asked)

    # What fits the nodes: how Megatron divides the model, then batches.
    gpus = equal_gpus(asked, "slime")
    world = gpus * len(asked.gpu_nodes)
    check_positions(asked, arguments.count(_RESPONSE, _ANSWER), f"lower --{_RESPONSE}")
    sizing = _sizing(arguments, asked)
    copies = _copies(arguments, sizing, world)
    prompts, group = _batch(arguments, copies)
    engine = asked.tensor_parallel or least_engine(asked.basis.model)
    arguments.add_all(
        SLIME.rows(
            asked.version,
            {
                **_facts_of(asked, sizing),
                **_saves(arguments, asked, sizing, prompts * group),
                "nodes": len(asked.gpu_nodes),
                "gpus": gpus,
                "engines": _ENGINES,
                "engine_gpus": engine,
                "why_engine_gpus": _why_engine(asked),
                "data": copies,
                "prompts": prompts,
                "group": group,
                "answers": prompts * group,
            },
        )
    )
    if asked.eval_data:
        arguments.add("eval-prompt-data", "eval", asked.eval_data, why="AGENT_EVAL_DATA")
    check_named_columns(arguments, asked, "input-key", "label-key")

    # The job, and what the user should know about it.
    train = (asked.python, own.script, *arguments.argv())
    argv = train if not model_args else (*_SHELL, model_args, *train)
    total = arguments.count("global-batch-size")
    batch = f"batch {total} = {count_of(prompts, 'prompt')} × {group}"
    division = division_for(SLIME.framework, asked.args, asked.model, asked.tensor_parallel)
    described = f"{model_args} of slime's folder describes the model to Megatron" * bool(model_args)
    notes = (
        f"{count_of(world, 'GPU')} train {copies} × the model; {batch}",
        f"[groups.rollout] nodes generate, by default {division.why}; {_SPLIT}",
        *filter(None, [described]),
        *sizing.notes,
    )
    return Command(
        argv=argv,
        env={"CUDA_DEVICE_MAX_CONNECTIONS": "1", "PYTHONPATH": "/root/Megatron-LM/"},
        why=arguments.why(),
        notes=notes,
        warnings=sizing.warnings,
        format={name: str(_size(arguments, name)) for name in _SIZES},
    )


def _own_flags(args: Sequence[str]) -> _Own:
    """Split the recipe's own flags from those of slime."""
    model_args = ""
    script = "train.py"
    others: list[str] = []
    words = [*args]
    while words:
        word = words.pop(0)
        name, equals, value = word.removeprefix("--").partition("=")
        if word == f"--{_TRAIN_ASYNC}":
            script = "train_async.py"
        elif word.startswith("--") and name == _MODEL_ARGS:
            model_args = value if equals else words.pop(0) if words else ""
            if not model_args:
                raise MisfitError(f"AGENT_JOB_ARGS: --{_MODEL_ARGS} lacks its file")
        else:
            others.append(word)
    return _Own(model_args, script, tuple(others))


def _check_engines(arguments: Arguments) -> None:
    """Refuse engines on the training GPUs: they have nodes of their own."""
    if arguments.given("colocate"):
        what = "--colocate: the engines of this recipe have nodes of their own"
        raise MisfitError(f"AGENT_JOB_ARGS: {what}; give your own command after --")


def _model_args_of(asked: RecipeInput) -> str:
    """Return the file that describes a model by its name; raise MisfitError if there is none."""
    name = asked.model.rstrip("/").rpartition("/")[2].lower()
    known = SLIME.values[_MODEL_ARGS]
    fitting = [one for one in known if name == one.lower() or name.startswith(f"{one.lower()}-")]
    if fitting:
        return f"scripts/models/{max(fitting, key=len)}.sh"
    raise MisfitError(
        f"Megatron needs a description of AGENT_MODEL={asked.model}, and none of slime's "
        f"scripts/models has this name: name one by --{_MODEL_ARGS} scripts/models/FILE.sh in "
        "AGENT_JOB_ARGS, or give Megatron's own there (--num-layers, --hidden-size, …)"
    )


def _check_rewards(arguments: Arguments, asked: RecipeInput) -> None:
    """Refuse a run without rewards: slime would end at the first answer."""
    if not asked.scores and not any(map(arguments.given, _REWARDS)):
        own = "name one of slime's by --rm-type in AGENT_JOB_ARGS"
        what = "no source of rewards"
        raise MisfitError(f"{what}: set AGENT_REWARD to a server or its URL, or {own}")


def _flag(name: str) -> str:
    """Return the flag of one of Megatron's sizes."""
    return name.replace("_", "-")


def _size(arguments: Arguments, name: str) -> int:
    """Return one of Megatron's sizes: the user's, else the recipe's, else 1."""
    return arguments.count(_flag(name), 1)


def _sizing(arguments: Arguments, asked: RecipeInput) -> Sizing:
    """Return how Megatron divides the model, and where its optimizer is.

    The weights of the reference are in the nodes' memory, and a copy of the trained ones.
    """
    fixed = {name: _size(arguments, name) for name in _SIZES if arguments.given(_flag(name))}
    fixed |= {name: int(size) for name, size in asked.basis.kept.items() if name in _SIZES}
    model = asked.basis.model
    ways = Fixed(fixed, one_stage=model is not None and model.source != CONFIG)
    load = Workload(
        layouts=LAYOUTS,
        tokens=arguments.count(_RESPONSE, _ANSWER),
        in_nodes=Host(frozen=Split(own=2 * WEIGHT), loading=WEIGHT),
        ways=ways.ways,
        tensor_parallel=1,  # Its engines have other GPUs
    )
    try:
        return sizing_for(asked, arguments.changed(_MEMORY), load)
    except MisfitError as misfit:
        others = "these are the nodes that train: [groups.rollout] nodes sets the others"
        raise MisfitError(f"{misfit}; {others}") from None


def _copies(arguments: Arguments, sizing: Sizing, world: int) -> int:
    """Return how many copies of the model share the answers of an update."""
    if isinstance(sizing.fit, MegatronFit):
        return sizing.fit.parallel.data
    one = _size(arguments, TENSOR) * _size(arguments, PIPELINE) * _size(arguments, CONTEXT)
    if world % one:
        raise MisfitError(f"AGENT_JOB_ARGS: {count_of(world, 'GPU')} are no multiple of {one}")
    return world // one


def _batch(arguments: Arguments, copies: int) -> tuple[int, int]:
    """Return the prompts of a rollout and the answers to each, which all copies share evenly."""
    group = arguments.count("n-samples-per-prompt", _GROUP)
    step = copies // gcd(copies, group)
    prompts = arguments.count("rollout-batch-size", nearest(_PROMPTS, step))
    answers = arguments.count("global-batch-size", prompts * group)
    check_multiple("answers per update:", answers, copies)
    return prompts, group


def _facts_of(asked: RecipeInput, sizing: Sizing) -> Facts:
    """Return the facts about model, data and how Megatron divides the model."""
    tokens = min(_TOKENS, sizing.tokens) if sizing.tokens else _TOKENS
    facts: dict[str, object] = {
        "recipe": asked.recipe,
        "model": asked.model_path,
        "checkpoints": asked.checkpoints,
        "train_data": asked.train_data,
        "eval_data": asked.eval_data,
        "scores": asked.scores,
        "reward_url": "{reward_url}",
        "wandb": asked.wandb,
        "run_name": asked.named,
        "optimizer_on_cpu": sizing.layout.name == SLIME_CPU.name,
        "why_layout": sizing.why["layout"],
        "tokens": tokens,
        "why_tokens": f"{_TOKENS} as its script for 4B, or as many as fit: {sizing.why['tokens']}",
        "divided": False,
    }
    if not isinstance(sizing.fit, MegatronFit):
        return facts
    parallel = sizing.fit.parallel
    stages = sizing.fit.stages
    return {
        **facts,
        "tokens": -(-tokens // parallel.context),
        "divided": True,
        "tensor": parallel.tensor,
        "pipeline": parallel.pipeline,
        "context": parallel.context,
        "expert": parallel.expert,
        "expert_tensor": parallel.expert_tensor,
        "splits_layers": parallel.tensor > 1,
        "uneven": not stages.even,
        "first_layers": stages.first,
        "last_layers": stages.last,
        "why_stages": f"{sizing.fit.model.layers} layers in {parallel.pipeline} stages",
    }


def _saves(arguments: Arguments, asked: RecipeInput, sizing: Sizing, answers: int) -> Facts:
    """Return when to save: as its scripts do, or about every hour."""
    longest = arguments.count(_RESPONSE, _ANSWER)
    step = StepWork(answers, longest, scored=2, fit=sizing.fit, micro=average(longest))
    steps, pace = steps_between_saves(asked, step, _EVERY)
    return {"save_every": steps, "why_save_every": pace or "as its scripts"}


def _why_engine(asked: RecipeInput) -> str:
    if asked.tensor_parallel is not None:
        return "AGENT_TENSOR_PARALLEL"
    return "GPUs of an engine, whose weights take half of 80 GB at most"
