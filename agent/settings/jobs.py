"""The recipes: one row for each, with what it needs and where its code is."""

from __future__ import annotations

from signal import Signals
from typing import TYPE_CHECKING, Literal

from agent.base.value import Value

if TYPE_CHECKING:
    from agent.settings.model import Settings

NO_JOB = "none"
DEFAULT = "rehearsal"
TORCHRUN = "torchrun"

_REWARD_MODEL_FLAGS = ("--reward.model_name_or_path", "--reward_pretrain")
_OTHER_REWARD_FLAGS = (
    *("--reward.remote_url", "--remote_rm_url", "--train.agent_func_path", "--agent_func_path"),
)
"""OpenRLHF's flags by which AGENT_JOB_ARGS names the source of rewards."""

DEFAULT_DIALECT: Literal["openrlhf"] = "openrlhf"  # of the bundled reward server


class KnownJob(Value):
    """The part of a recipe that does not depend on the cluster; the rest is in its module."""

    name: str
    module: str = ""  # the module in agent/work/recipes; '' for the rehearsal
    framework: str = ""  # the distribution whose version decides the flags, or ''
    reward: Literal["needed", "possible", "unused"] = "unused"  # whether it calls a reward server
    launcher: Literal["ray", "torchrun"] = "ray"
    needs: tuple[str, ...] = ("AGENT_MODEL", "AGENT_TRAIN_DATA")  # variables that must be set
    dialect: Literal["openrlhf", "openrlhf-m"] = DEFAULT_DIALECT  # what its reward client reads
    sends_token: bool = False  # whether its reward client sends AGENT_REWARD_TOKEN
    loads_reward_model: bool = False  # whether its framework can load AGENT_REWARD_MODEL
    notice_signal: str = ""  # the signal on which its program saves and goes on, if it was seen to


JOBS = (
    KnownJob(DEFAULT, reward="needed", needs=(), sends_token=True),
    KnownJob(*("verl-grpo", "verl", "verl", "possible"), sends_token=True, loads_reward_model=True),
    KnownJob(*("verl-ppo", "verl", "verl", "possible"), sends_token=True, loads_reward_model=True),
    KnownJob("openrlhf-grpo", "openrlhf", "openrlhf", "needed", loads_reward_model=True),
    KnownJob("openrlhf-ppo", "openrlhf", "openrlhf", "needed", loads_reward_model=True),
    KnownJob(
        *("openrlhf-m-grpo", "openrlhf_m", "openrlhf-m", "needed"),
        dialect="openrlhf-m",
        loads_reward_model=True,
    ),
    KnownJob("search-r1-ppo", "search_r1", "search-r1"),
    KnownJob("search-r1-grpo", "search_r1", "search-r1"),
    KnownJob("openrlhf-sft", "openrlhf_train", "openrlhf", launcher="torchrun"),
    KnownJob("openrlhf-rm", "openrlhf_train", "openrlhf", launcher="torchrun"),
    KnownJob("openrlhf-dpo", "openrlhf_train", "openrlhf", launcher="torchrun"),
    KnownJob(
        *("trl-grpo", "trl", "trl", "needed", "torchrun"), sends_token=True, notice_signal="SIGUSR1"
    ),
)
"""Every recipe, in the order of `pod-agent recipes`."""

BY_NAME = {job.name: job for job in JOBS}


def known_job(settings: Settings, command: tuple[str, ...] | None) -> KnownJob | None:
    """Return the chosen recipe; None for a command after `--`, or for no job."""
    return None if command is not None else BY_NAME.get(settings.job or DEFAULT)


def reward_model(settings: Settings) -> str:
    """Return the variable that names a reward model for the training GPUs, or ''."""
    if settings.reward_model is not None:
        return "AGENT_REWARD_MODEL"
    return "AGENT_JOB_ARGS" if _has_flag(settings, _REWARD_MODEL_FLAGS) else ""


def needs_reward_url(settings: Settings, command: tuple[str, ...] | None) -> bool:
    """Return whether the job needs the reward server's URL."""
    if command is not None:
        return any("{reward_url}" in word for word in command)
    job = known_job(settings, command)
    has_own = bool(reward_model(settings)) or _has_flag(settings, _OTHER_REWARD_FLAGS)
    return job is not None and job.reward == "needed" and not has_own


def _has_flag(settings: Settings, flags: tuple[str, ...]) -> bool:
    return any(word.partition("=")[0] in flags for word in settings.job_args)


def notice_signal(settings: Settings) -> int:
    """Return the signal on which the job saves: AGENT_NOTICE_SIGNAL, else the recipe's; 0: none."""
    known = BY_NAME.get(settings.job or "")
    own = "" if known is None else known.notice_signal
    name = own if settings.notice_signal is None else settings.notice_signal
    return Signals[name] if name else 0


def launcher(settings: Settings, command: tuple[str, ...] | None) -> Literal["ray", "torchrun"]:
    """Return what starts the job's processes: AGENT_LAUNCHER, else the recipe's, else Ray."""
    job = known_job(settings, command)
    return settings.launcher or ("ray" if job is None else job.launcher)
