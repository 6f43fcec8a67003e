"""TRL's GRPO by torchrun, on GPUs or CPUs, with rewards from a server.

trl.toml has what the command sets; this module computes the quantities that the table names. It
runs bundled/trl_grpo.py: TRL's own `trl grpo` cannot resume from a checkpoint or use a reward
server.
"""

from __future__ import annotations

from math import gcd
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.base.versions import version_text
from agent.frameworks.arguments import Arguments, check_named_columns
from agent.frameworks.layouts import ADAPTERS, FSDP_RESIDENT, TRL_OFFLOAD
from agent.frameworks.layouts import TRL as LAYOUTS
from agent.frameworks.pace import StepWork, average, steps_between_saves
from agent.frameworks.recipe import (
    WEIGHT,
    Command,
    MisfitError,
    check_multiple,
    check_positions,
    count_of,
    engines_misfit,
    gpu_processes,
    nearest,
)
from agent.frameworks.sizing import Fit, Host, Sizing, Workload, divisors, sizing_for
from agent.frameworks.table import read_table

if TYPE_CHECKING:
    from agent.frameworks.recipe import RecipeInput
    from agent.frameworks.table import Facts

TRL = read_table("trl")
FRAMEWORK = TRL.framework
VERSIONS = TRL.versions
ABOUT = TRL.about
PRESETS = TRL.presets

_COMPLETION = 1024
_PROMPT = 4096
_SHARE = 0.3
"""Defaults of the bundled program: tokens of an answer and a prompt, and vLLM's part of a GPU."""
_ENGINE = "vllm-tensor-parallel-size"
_AT_ONCE = "per-device-train-batch-size"
_PROMPTS = "vllm-prompt-tokens"
_SHARE_FLAG = "vllm-gpu-memory-utilization"
_SERVER = "vllm-server"  # The URL of vLLM on GPUs of its own
_MEMORY = ("shard", _PROMPTS, "config")
"""Flags that change the memory that a model takes, in a way that is not counted."""
_ANSWERS = 128  # Answers per update, approximately
_EVERY = 20  # Steps between checkpoints, at most


def make(asked: RecipeInput) -> Command:
    """Make the command that torchrun runs on every node."""
    arguments = Arguments("trl_grpo", TRL.words_of_flags, {}, *asked.args)
    version = asked.version
    world = gpu_processes(asked.nodes)

    # Model, data and rewards.
    arguments.add_all(TRL.rows(version, _model(asked, world), "model"))
    check_named_columns(arguments, asked, "prompt-key", "label-key")
    if not asked.scores and not arguments.given("reward-url"):
        raise MisfitError("no source of rewards: set AGENT_REWARD to a server or its URL")

    # What fits the GPUs, then batches.
    if asked.generation:
        why = "[services.generation] of AGENT_SERVICES, in a group of nodes"
        arguments.add(_SERVER, asked.generation, why=why)
    _check_server(arguments, asked, world)
    sizing = None if arguments.holds("cpu") else _sizing(arguments, asked, world)
    fit = None if sizing is None else sizing.fit
    batch, note = _batch(arguments, world, fit)
    arguments.add_all(TRL.rows(version, batch, "batch"))

    # When to save. On GPUs: sharding and engines by memory. On CPUs: can it train there at all?
    run = {
        "wandb": asked.wandb,
        "run_name": asked.named,
        "on_gpus": sizing is not None,
        **_saves(arguments, asked, world, fit),
    }
    if sizing is not None:
        run |= _sharding(arguments, sizing, world)
        run |= _engines(arguments, asked, sizing)
    else:
        _check_cpus(arguments, asked)
    arguments.add_all(TRL.rows(version, run, "run"))
    if run.get("beside_engines") and run.get("positions"):
        tokens = arguments.count(_PROMPTS, _PROMPT) + _completion(arguments)
        check_positions(asked, tokens, f"lower --max-completion-length or --{_PROMPTS}")

    # On which settings does the format of its checkpoints depend?
    made_with = {}
    if sizing is not None:
        is_whole = arguments.word("shard") in {"", "none"}
        made_with["sharding"] = "none" if is_whole else "fsdp"
    made_with["rank of adapters"] = arguments.word("lora-rank") or "0"
    script = str(Path(__file__).parents[1] / "bundled" / "trl_grpo.py")
    return Command(
        argv=(asked.python, script, *arguments.argv()),
        env={},
        why=arguments.why(),
        notes=(note, *(() if sizing is None else sizing.notes)),
        warnings=() if sizing is None else sizing.warnings,
        format=made_with,
    )


def _model(asked: RecipeInput, world: int) -> Facts:
    """Return the facts about model, data and rewards."""
    return {
        "model": asked.model_path,
        "train_data": asked.train_data,
        "label": "label" if asked.has_column("label") or asked.needs_labels else "",
        "eval_data": asked.eval_data,
        "scores": asked.scores,
        "reward_url": "{reward_url}",
        "adapters": asked.lora_rank is not None,
        "lora_rank": asked.lora_rank,
        "checkpoints": asked.checkpoints,
        "no_gpus": not world,
    }


def _check_server(arguments: Arguments, asked: RecipeInput, world: int) -> None:
    """Refuse settings of engines on the training GPUs beside a server, and a server for CPUs."""
    if not arguments.holds(_SERVER):
        return
    if not world or arguments.given("cpu"):
        where = "AGENT_JOB_ARGS" if arguments.given(_SERVER) else "[services.generation]"
        what = "--vllm-server: TRL sends weights to it by NCCL, from GPUs"
        raise MisfitError(f"{where}: {what}")
    both = [flag for flag in (_ENGINE, _SHARE_FLAG) if arguments.given(flag)]
    names = [f"--{flag} of AGENT_JOB_ARGS" for flag in both]
    if asked.tensor_parallel is not None:
        names.insert(0, "AGENT_TENSOR_PARALLEL")
    if names:
        where = "--tensor-parallel-size and --gpu-memory-utilization of the server's command"
        raise MisfitError(f"{' and '.join(names)} beside --vllm-server: set {where} instead")


def _check_cpus(arguments: Arguments, asked: RecipeInput) -> None:
    """Refuse a release that does not train on CPUs, and engines there."""
    if TRL.has("trains_on_gpus_only", asked.version):
        release = version_text(asked.version)
        raise MisfitError(f"TRL {release} trains on GPUs only: 1.14.2 and 1.16.0 also run on CPUs")
    if arguments.whole(_ENGINE, asked.tensor_parallel or 1) > 1 and not arguments.given("cpu"):
        raise MisfitError("engines of vLLM need GPUs (AGENT_TENSOR_PARALLEL), and no node has one")


def _sizing(arguments: Arguments, asked: RecipeInput, world: int) -> Sizing:
    """Size the model, vLLM, which shares all GPUs, and the answers of a process at once.

    These are a whole group, or the largest part of it that needs no warning.
    """
    group = _group(arguments)
    parts = divisors(group)
    if arguments.given(_AT_ONCE):
        parts = [arguments.count(_AT_ONCE)]
    tried = [_tried(arguments, asked, world, answers) for answers in reversed(parts)]
    sizings = [found for found in tried if isinstance(found, Sizing)]
    if not sizings:
        raise MisfitError(str(tried[-1]))
    return next((sizing for sizing in sizings if not sizing.warnings), sizings[-1])


def _tried(
    arguments: Arguments, asked: RecipeInput, world: int, answers: int
) -> Sizing | MisfitError:
    try:
        return _sizing_of(arguments, asked, world, answers)
    except MisfitError as refusal:
        return refusal


def _sizing_of(arguments: Arguments, asked: RecipeInput, world: int, answers: int) -> Sizing:
    """Size the model and vLLM for so many answers of a process at once.

    Prompts are not counted: they are usually much shorter than the answers.
    """
    has_reference = _has_reference(arguments)
    has_engines = not (_has_engines_off(arguments) or arguments.holds(_SERVER))
    layouts = LAYOUTS if world > 1 else (FSDP_RESIDENT,)
    rank = arguments.whole("lora-rank")
    if rank:
        layouts = (ADAPTERS,)
    load = Workload(
        layouts=tuple(
            replace(layout, loads_everywhere=has_reference or layout.loads_everywhere)
            for layout in layouts
        ),
        tokens=answers * _completion(arguments),
        samples=answers,
        frozen=1 if has_reference else 0,
        share=_SHARE if has_engines else 0.0,
        own_share=arguments.fraction(_SHARE_FLAG) if has_engines else None,
        tensor_parallel=arguments.whole(_ENGINE) or None,
        # the model of the end is gathered in float32
        in_nodes=Host(loading=2 * WEIGHT if has_reference else WEIGHT, gathered=4),
        adapters=bool(rank),
        rank=rank,
    )
    return sizing_for(asked, arguments.changed(_MEMORY), load)


def _group(arguments: Arguments) -> int:
    """Return the answers to a prompt."""
    group = arguments.count("num-generations", 8)
    if group < 2:
        raise MisfitError("AGENT_JOB_ARGS: --num-generations must be at least 2")
    return group


def _saves(arguments: Arguments, asked: RecipeInput, world: int, fit: Fit | None) -> Facts:
    """Return when to save: after the program's own number of steps, or about every hour."""
    answers = arguments.count(_AT_ONCE)
    step = StepWork(
        answers * max(1, world) * arguments.count("gradient-accumulation-steps"),
        _completion(arguments),
        scored=1 if _has_reference(arguments) else 0,
        fit=fit,
        micro=average(answers * _completion(arguments)),
    )
    steps, pace = steps_between_saves(asked, step, _EVERY)
    return {"save_every": steps, "why_save_every": pace or "the program's own default"}


def _completion(arguments: Arguments) -> int:
    return arguments.count("max-completion-length", _COMPLETION)


def _has_reference(arguments: Arguments) -> bool:
    """Return whether it loads a reference; with adapters the model without them is it."""
    if arguments.whole("lora-rank"):
        return False
    beta = arguments.word("beta") or "0"
    return beta.startswith("{") or bool(float(beta))


def _has_engines_off(arguments: Arguments) -> bool:
    """Return whether the user turned engines off."""
    return bool(arguments.changed([_ENGINE])) and not arguments.whole(_ENGINE)


def _batch(arguments: Arguments, world: int, fit: Fit | None) -> tuple[Facts, str]:
    """Return the answers of an update, whole groups of answers to one prompt, and their arithmetic.

    On CPUs the launcher decides the number of processes: each trains on whole groups.
    """
    group = _group(arguments)
    each = arguments.count(_AT_ONCE, group if fit is None else fit.load.samples)
    near = 1
    if world:
        at_once = each * world
        near = nearest(round(_ANSWERS / at_once), group // gcd(group, at_once))
    steps = arguments.count("gradient-accumulation-steps", near)
    total = each * steps * (world or 1)
    check_multiple("answers per update:", total, group)

    part = "" if each % group == 0 else f": {each} longest ones of {group} fit a GPU at once"
    facts = {
        "group": group,
        "at_once": each,
        "why_part": part,
        "updates": steps,
        "answers": _ANSWERS,
    }

    who = "each process"
    times = ""
    if world:
        who = f"{count_of(world, 'GPU')} = {count_of(world, 'process')}"
        times = f"{world} × "
    prompts = f"{count_of(total // group, 'prompt')} × {group}"
    return facts, f"{who}; batch {total} = {times}{each} × {steps}; {prompts}"


def _sharding(arguments: Arguments, sizing: Sizing, world: int) -> Facts:
    """Return whether GPUs divide the model, and where its states are."""
    return {
        "divides": world > 1 and not arguments.whole("lora-rank"),
        "shard": "offload" if sizing.layout.name == TRL_OFFLOAD.name else "fsdp",
        "why_layout": sizing.why["layout"],
    }


def _engines(arguments: Arguments, asked: RecipeInput, sizing: Sizing) -> Facts:
    """Return the facts about engines on the training GPUs."""
    size = sizing.tensor_parallel
    is_beside = not arguments.holds(_SERVER)
    turned_off = _has_engines_off(arguments)
    counts = sorted({node.gpus for node in asked.nodes})
    if is_beside and not turned_off and any(count % size for count in counts):
        raise engines_misfit(size, counts)

    # Do prompt and answer fit the model's positions?
    model = asked.basis.model
    positions = 0 if model is None or turned_off else model.positions
    left = positions - _completion(arguments)
    return {
        "beside_engines": is_beside,
        "tensor_parallel": size,
        "why_tensor_parallel": sizing.why["tensor_parallel"],
        "other_share": not turned_off and sizing.share != _SHARE,
        "share": f"{sizing.share:g}",
        "why_share": sizing.why.get("share"),
        "shortens_prompts": positions and 0 < left < _PROMPT,
        "prompt_tokens": left,
        "positions": positions,
    }
