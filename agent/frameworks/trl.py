"""TRL's GRPO by torchrun, on GPUs or CPUs, with rewards from a server.

It runs bundled/trl_grpo.py: TRL's own `trl grpo` cannot resume from a checkpoint or use a reward
server.
"""

from __future__ import annotations

from math import gcd
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.frameworks.arguments import Arguments, check_keys
from agent.frameworks.framework import CheckpointFormat, FrameworkInfo, Preset
from agent.frameworks.layouts import ADAPTERS, FSDP_RESIDENT, TRL, TRL_OFFLOAD
from agent.frameworks.pace import StepWork, average, steps_between_saves
from agent.frameworks.recipe import (
    NAMED_BY,
    WEIGHT,
    Command,
    MisfitError,
    check_multiple,
    check_positions,
    count_of,
    engines_misfit,
    gpu_processes,
    nearest,
    version_text,
)
from agent.frameworks.sizing import Fit, Host, Sizing, Workload, divisors, sizing_for
from agent.frameworks.step_format import MEAN_REWARD, STEP, KeyMeaning, LineFormat, StepFormat
from agent.node.facts import Package

if TYPE_CHECKING:
    from agent.frameworks.recipe import RecipeInput, Version

FRAMEWORK = FrameworkInfo(
    package=Package("trl", "trl", version_files=("trl/VERSION", "VERSION")),
    checkpoints=CheckpointFormat(prefix="checkpoint-", last_file="trainer_state.json"),
    settings=(
        ("gpu_memory_utilization", "vllm_gpu_memory_utilization"),
        ("max_model_len", "vllm_max_model_length"),
    ),
    steps=StepFormat(
        lines=(
            # Our own trainer's lines; TRL's and transformers' own stand beside a bar.
            MEAN_REWARD,
            LineFormat(
                "values", "eval_step ", rf"\beval_step (?P<step>{STEP})/", notation="equals"
            ),
            LineFormat(
                "total",
                "this training was finished already",
                rf"this training was finished already: {STEP} of (?P<of>{STEP}) steps",
                begins=True,
            ),
            LineFormat("values", "{'loss': ", r"(?=\{'loss': )", notation="dict", begins=True),
            LineFormat("values", "{'reward", r"(?=\{'reward)", notation="dict", begins=True),
            LineFormat("values", "{'eval_", r"(?=\{'eval_)", notation="dict", begins=True),
            LineFormat("evaluation", "***** Running Evaluation *****"),
            LineFormat("checkpoint", "Saving model checkpoint to "),
        ),
        meaning=KeyMeaning(
            reward=("reward",),
            kl=("kl",),
            response_length=("completions/mean_length", "completion_length"),
            clipped=("completions/clipped_ratio",),
            entropy=("entropy",),
            gradient_norm=("grad_norm",),
            step_seconds=("step_time",),
            validation=("eval_reward",),
            equal_groups=("frac_reward_zero_std",),
            clip_fraction=("clip_ratio/region_mean", "clip_ratio"),
            rollout_difference=("sampling/sampling_logp_difference/mean",),
        ),
        of_evaluation=("eval_",),
        shown=(
            *("reward", "reward_std", "frac_reward_zero_std", "loss", "kl", "entropy"),
            *("grad_norm", "completions/mean_length", "completions/clipped_ratio"),
            *("clip_ratio/region_mean", "step_time", "num_tokens", "learning_rate", "eval_*"),
        ),
    ),
)
VERSIONS: tuple[Version, ...] = (
    *((1, 0, 0), (1, 1, 0), (1, 2, 0), (1, 3, 0), (1, 4, 0), (1, 5, 1), (1, 6, 0), (1, 7, 1)),
    *((1, 8, 0), (1, 9, 2), (1, 10, 0), (1, 11, 0), (1, 12, 0), (1, 13, 0), (1, 14, 2)),
    *((1, 15, 0), (1, 16, 0)),
)
ABOUT = "GRPO with TRL, one process a GPU, or on CPUs, by torchrun"

PRESETS = {
    "trl-grpo": Preset(
        about="GRPO with TRL, by torchrun",
        image="nvcr.io/nvidia/pytorch:25.11-py3",
        install=("pip install --quiet 'trl==1.16.0'",),
        model="Qwen/Qwen2.5-3B-Instruct",
        train="zhuzilin/dapo-math-17k",
        data_args=("--prompt-key prompt",),
        imports="trl",
    )
}

_FLAGS_BY_WORDS = {
    "0": "chat cpu wandb",
    "1": """
        model data split eval-data eval-split prompt-key label-key reward-url checkpoints run-name
        shard vllm-server
    """,
    "1i": """
        save-steps save-total-limit eval-steps num-generations per-device-train-batch-size
        gradient-accumulation-steps max-completion-length max-steps seed vllm-tensor-parallel-size
        vllm-prompt-tokens lora-rank lora-alpha
    """,
    "1f": """
        reward-seconds num-train-epochs learning-rate temperature beta vllm-gpu-memory-utilization
    """,
    "*": "config",
}
FLAGS = {flag: words for words, flags in _FLAGS_BY_WORDS.items() for flag in flags.split()}
"""The flags of bundled/trl_grpo.py, each with the words that it takes (see `Arguments`)."""

_GPUS_ONLY: Version = (1, 15)  # Its Triton kernels run on GPUs only, unlike other releases

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
    arguments = Arguments("trl_grpo", FLAGS, {}, *asked.args)
    world = gpu_processes(asked.nodes)

    # Model, data and rewards.
    arguments.add("model", asked.model_path, why="AGENT_MODEL")
    arguments.add("data", asked.train_data, why="AGENT_TRAIN_DATA")
    arguments.add("prompt-key", "input", why="column of the prompt")
    label = "label" if asked.has_column("label") or asked.needs_labels else ""
    arguments.add("label-key", label, why="column of the right answer; '' for none")
    check_keys(arguments, asked, "prompt-key", "label-key")
    arguments.add("chat", why="text prompts are sent as the user's message; --no-chat: as they are")
    if asked.eval_data:
        arguments.add("eval-data", asked.eval_data, why="AGENT_EVAL_DATA")
    if asked.scores:
        arguments.add("reward-url", "{reward_url}", why="the run's reward server")
    elif not arguments.given("reward-url"):
        raise MisfitError("no source of rewards: set AGENT_REWARD to a server or its URL")
    if asked.lora_rank is not None:
        arguments.add("lora-rank", asked.lora_rank, why="AGENT_LORA_RANK")
        arguments.add("lora-alpha", 32, why="as TRL's guide to adapters")
        arguments.add("learning-rate", "1e-5", why="as TRL's scripts for adapters; else 1e-6")
    arguments.add("checkpoints", asked.checkpoints, why="AGENT_CHECKPOINTS; resumes from the last")

    # What fits the GPUs, then batches, and when to save.
    _check_server(arguments, asked, world)
    if not world:
        arguments.add("cpu", why="no node has a GPU")
    sizing = None if arguments.holds("cpu") else _sizing(arguments, asked, world)
    fit = None if sizing is None else sizing.fit
    notes: tuple[str, ...] = (_batch(arguments, world, fit),)
    _save(arguments, asked, world, fit)

    # On GPUs: sharding and engines by memory. On CPUs: can this release train there at all?
    warnings: tuple[str, ...] = ()
    sharding = {}
    if sizing is not None:
        if world > 1 and not arguments.whole("lora-rank"):
            shard = "offload" if sizing.layout.name == TRL_OFFLOAD.name else "fsdp"
            arguments.add("shard", shard, why=sizing.why["layout"])
        if not arguments.given(_SERVER):
            _engines(arguments, asked, sizing)
            _shorten_prompts(arguments, asked)
        notes = (*notes, *sizing.notes)
        warnings = sizing.warnings
        is_whole = arguments.word("shard") in {"", "none"}
        sharding = {"sharding": "none" if is_whole else "fsdp"}
    elif asked.version[:2] == _GPUS_ONLY:
        release = version_text(asked.version)
        raise MisfitError(f"TRL {release} trains on GPUs only: 1.14.2 and 1.16.0 also run on CPUs")
    elif arguments.whole(_ENGINE, asked.tensor_parallel or 1) > 1 and not arguments.given("cpu"):
        raise MisfitError("engines of vLLM need GPUs (AGENT_TENSOR_PARALLEL), and no node has one")

    if asked.wandb:
        arguments.add("wandb", why="WANDB_API_KEY")
        arguments.add("run-name", asked.named, why=NAMED_BY)
    script = str(Path(__file__).parents[1] / "bundled" / "trl_grpo.py")
    return Command(
        argv=(asked.python, script, *arguments.argv()),
        env={},
        why=arguments.why(),
        notes=notes,
        warnings=warnings,
        format={**sharding, "rank of adapters": arguments.word("lora-rank") or "0"},
    )


def _check_server(arguments: Arguments, asked: RecipeInput, world: int) -> None:
    """Refuse settings of engines on the training GPUs beside a server, and a server for CPUs."""
    if not arguments.given(_SERVER):
        return
    if not world or arguments.given("cpu"):
        what = "--vllm-server: TRL sends weights to it by NCCL, from GPUs"
        raise MisfitError(f"AGENT_JOB_ARGS: {what}")
    both = [flag for flag in (_ENGINE, _SHARE_FLAG) if arguments.given(flag)]
    names = [f"--{flag} of AGENT_JOB_ARGS" for flag in both]
    if asked.tensor_parallel is not None:
        names.insert(0, "AGENT_TENSOR_PARALLEL")
    if names:
        where = "--tensor-parallel-size and --gpu-memory-utilization of the server's command"
        raise MisfitError(f"{' and '.join(names)} beside --vllm-server: set {where} instead")


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
    turned_off = bool(arguments.changed([_ENGINE])) and not arguments.whole(_ENGINE)
    has_engines = not (turned_off or arguments.given(_SERVER))
    layouts = TRL if world > 1 else (FSDP_RESIDENT,)
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


def _save(arguments: Arguments, asked: RecipeInput, world: int, fit: Fit | None) -> None:
    """Save after the program's own number of steps, or about every hour."""
    answers = arguments.count(_AT_ONCE)
    step = StepWork(
        answers * max(1, world) * arguments.count("gradient-accumulation-steps"),
        _completion(arguments),
        scored=1 if _has_reference(arguments) else 0,
        fit=fit,
        micro=average(answers * _completion(arguments)),
    )
    steps, pace = steps_between_saves(asked, step, _EVERY)
    arguments.add("save-steps", steps, why=pace or "the program's own default")


def _completion(arguments: Arguments) -> int:
    return arguments.count("max-completion-length", _COMPLETION)


def _has_reference(arguments: Arguments) -> bool:
    """Return whether it loads a reference; with adapters the model without them is it."""
    if arguments.whole("lora-rank"):
        return False
    beta = arguments.word("beta") or "0"
    return beta.startswith("{") or bool(float(beta))


def _batch(arguments: Arguments, world: int, fit: Fit | None) -> str:
    """Set the answers of an update: whole groups of answers to one prompt.

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

    arguments.add("num-generations", group, why="answers per prompt, to compare")
    part = "" if each % group == 0 else f": {each} longest ones of {group} fit a GPU at once"
    arguments.add(_AT_ONCE, each, why=f"whole groups in an update{part}")
    arguments.add("gradient-accumulation-steps", steps, why=f"near {_ANSWERS} answers per update")

    who = "each process"
    times = ""
    if world:
        who = f"{count_of(world, 'GPU')} = {count_of(world, 'process')}"
        times = f"{world} × "
    prompts = f"{count_of(total // group, 'prompt')} × {group}"
    return f"{who}; batch {total} = {times}{each} × {steps}; {prompts}"


def _engines(arguments: Arguments, asked: RecipeInput, sizing: Sizing) -> None:
    size = sizing.tensor_parallel
    why = sizing.why
    sleeps = f"vLLM generates, and sleeps while the model trains; {why['tensor_parallel']}"
    arguments.add(_ENGINE, size, why=sleeps)
    if not arguments.whole(_ENGINE):  # turned off by the user
        return
    counts = sorted({node.gpus for node in asked.nodes})
    if any(count % size for count in counts):
        raise engines_misfit(size, counts)
    if sizing.share != _SHARE:
        arguments.add(_SHARE_FLAG, f"{sizing.share:g}", why=why["share"])


def _shorten_prompts(arguments: Arguments, asked: RecipeInput) -> None:
    """Fit prompt and answer into the model's positions, or refuse the user's that do not."""
    model = asked.basis.model
    if model is None or not model.positions or not arguments.whole(_ENGINE):
        return
    answer = _completion(arguments)
    left = model.positions - answer
    if 0 < left < _PROMPT:
        arguments.add(_PROMPTS, left, why=f"with the answer {model.positions} positions, as it has")
    remedy = f"lower --max-completion-length or --{_PROMPTS}"
    check_positions(asked, arguments.count(_PROMPTS, _PROMPT) + answer, remedy)
