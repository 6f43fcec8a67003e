"""The recipes by name: the module of each, and what the settings have to be for it.

Settings are read before a module of `agent.frameworks` is imported.
"""

from __future__ import annotations

from signal import Signals
from typing import TYPE_CHECKING, Literal

from agent.base.value import Value

if TYPE_CHECKING:
    from agent.settings.model import Settings

NO_JOB = "none"
DEFAULT = "rehearsal"
TORCHRUN = "torchrun"
NODE = "node"

_REWARD_MODEL_FLAGS = ("--reward.model_name_or_path", "--reward_pretrain")
"""Flags by which AGENT_JOB_ARGS names a reward model."""
_OTHER_REWARD_FLAGS = (
    *("--reward.remote_url", "--remote_rm_url", "--train.agent_func_path", "--agent_func_path"),
    *("--reward-url", "--rm-type", "--custom-rm-path"),
)
"""Flags by which AGENT_JOB_ARGS names another source of rewards: a server or a program."""


class RecipeInfo(Value):
    """What the rules of settings read about a recipe; all else is in its module."""

    name: str
    module: str  # the module in agent/frameworks
    framework: str = ""  # the distribution whose version decides the flags, or ''
    reward: Literal["needed", "possible", "unused"] = "unused"  # whether it calls a reward server
    launcher: Literal["ray", "torchrun", "node"] = "ray"
    needs: tuple[str, ...] = ("AGENT_MODEL", "AGENT_TRAIN_DATA")  # variables that must be set
    sends_token: bool = False  # whether its reward client sends AGENT_REWARD_TOKEN
    loads_reward_model: bool = False  # whether its framework can load AGENT_REWARD_MODEL
    takes: tuple[str, ...] = ()  # variables that only some recipes have a use for
    notice_signal: str = ""  # the signal on which its program saves and continues; '' if untested


_OF_VERL = ("AGENT_LORA_RANK", "AGENT_ROLLOUT", "AGENT_BACKEND")
RECIPES = (  # name, module, framework
    RecipeInfo(DEFAULT, "rehearsal", reward="needed", needs=(), sends_token=True),
    RecipeInfo(
        "verl-grpo",
        "verl",
        "verl",
        reward="possible",
        sends_token=True,
        loads_reward_model=True,
        takes=_OF_VERL,
    ),
    RecipeInfo(
        "verl-ppo",
        "verl",
        "verl",
        reward="possible",
        sends_token=True,
        loads_reward_model=True,
        takes=_OF_VERL,
    ),
    RecipeInfo("openrlhf-grpo", "openrlhf", "openrlhf", reward="needed", loads_reward_model=True),
    RecipeInfo("openrlhf-ppo", "openrlhf", "openrlhf", reward="needed", loads_reward_model=True),
    RecipeInfo(
        "openrlhf-m-grpo",
        "openrlhf_m",
        "openrlhf-m",
        reward="needed",
        loads_reward_model=True,
    ),
    RecipeInfo("search-r1-ppo", "search_r1", "search-r1"),
    RecipeInfo("search-r1-grpo", "search_r1", "search-r1"),
    RecipeInfo(
        "openrlhf-sft",
        "openrlhf_train",
        "openrlhf",
        launcher="torchrun",
        takes=("AGENT_LORA_RANK",),
    ),
    RecipeInfo(
        "openrlhf-rm",
        "openrlhf_train",
        "openrlhf",
        launcher="torchrun",
        takes=("AGENT_LORA_RANK",),
    ),
    RecipeInfo(
        "openrlhf-dpo",
        "openrlhf_train",
        "openrlhf",
        launcher="torchrun",
        takes=("AGENT_LORA_RANK",),
    ),
    RecipeInfo(
        "trl-grpo",
        "trl",
        "trl",
        reward="needed",
        launcher="torchrun",
        sends_token=True,
        notice_signal="SIGUSR1",
        takes=("AGENT_LORA_RANK",),
    ),
    RecipeInfo("slime-grpo", "slime", "slime", reward="needed"),
    RecipeInfo("prime-rl", "prime_rl", "prime-rl", launcher="node"),
)
"""Every recipe, in the order of `pod-agent recipes`."""

FRAMEWORKS = tuple(dict.fromkeys(recipe.framework for recipe in RECIPES if recipe.framework))

BY_NAME = {recipe.name: recipe for recipe in RECIPES}


def recipe_info(settings: Settings, command: tuple[str, ...] | None) -> RecipeInfo | None:
    """Return the chosen recipe; None for a command after `--`, or for no job."""
    return None if command is not None else BY_NAME.get(settings.job or DEFAULT)


def reward_model(settings: Settings) -> str:
    """Return the variable that names a reward model for the training GPUs, or ''."""
    if settings.reward_model is not None:
        return "AGENT_REWARD_MODEL"
    return "AGENT_JOB_ARGS" if _has_flag(settings, _REWARD_MODEL_FLAGS) else ""


def needs_reward_url(settings: Settings, command: tuple[str, ...] | None) -> bool:
    """Return whether the job needs the reward server's URL."""
    words = settings.job_args if command is None else command
    names_it = any("{reward_url}" in word for word in words)
    job = recipe_info(settings, command)
    if job is None:
        return names_it
    names_other = _has_flag(settings, _OTHER_REWARD_FLAGS) and not names_it
    return job.reward == "needed" and not (reward_model(settings) or names_other)


def _has_flag(settings: Settings, flags: tuple[str, ...]) -> bool:
    return any(word.partition("=")[0] in flags for word in settings.job_args)


def on_stall(settings: Settings) -> Literal["log", "retry", "stop"]:
    """Return AGENT_ON_STALL or its default: another attempt with AGENT_JOB_RETRIES, else `log`.

    The default `retry` is not for the last attempt: a stall of that one is only logged.
    """
    if settings.on_stall is not None:
        return settings.on_stall
    return "retry" if settings.job_retries and settings.debug_ray == "0" else "log"


def notice_signal(settings: Settings) -> int:
    """Return the signal on which the job saves: AGENT_NOTICE_SIGNAL, else the recipe's; 0: none."""
    known = BY_NAME.get(settings.job or "")
    own = "" if known is None else known.notice_signal
    name = own if settings.notice_signal is None else settings.notice_signal
    return Signals[name] if name else 0


def services_source(settings: Settings) -> str:
    """Return what the run has its services from: a file, or else the job's recipe."""
    if settings.services is None:
        return f"AGENT_JOB={settings.job}"
    return f"AGENT_SERVICES={settings.services}"


def launcher(settings: Settings) -> Literal["ray", "torchrun", "node"]:
    """Return what starts the job's processes: AGENT_LAUNCHER, else the recipe's, else Ray."""
    job = BY_NAME.get(settings.job or "")  # none beside a command
    return settings.launcher or ("ray" if job is None else job.launcher)


def runs_by_shares(settings: Settings) -> bool:
    """Return whether a launcher starts the job on every node, and no Ray runs."""
    return launcher(settings) != "ray"
