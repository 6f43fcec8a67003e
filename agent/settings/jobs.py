"""The jobs that are known by name: one row for each recipe, which tells where it is made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from agent.base.value import dataclass

if TYPE_CHECKING:
    from agent.settings.model import Settings

NO_JOB = "none"
DEFAULT = "rehearsal"
TORCHRUN = "torchrun"

DIALECT: Literal["openrlhf"] = "openrlhf"
"""What the bundled reward server speaks unless it is told otherwise."""

_MODEL_AND_DATA = ("AGENT_MODEL", "AGENT_TRAIN_DATA")


@dataclass(frozen=True)
class KnownJob:
    """What is known of a recipe before anything is sized: the rest is in its file."""

    name: str
    module: str
    """Its file in agent/work/recipes."""
    framework: str = ""
    """The distribution whose version decides the flags; '' where none does."""
    reward: Literal["needed", "possible", "unused"] = "unused"
    """Whether the job calls a reward server: without one it cannot run, or need not, or never."""
    launcher: Literal["ray", "torchrun"] = "ray"
    needs: tuple[str, ...] = _MODEL_AND_DATA
    """The variables without which it cannot be made."""
    dialect: Literal["openrlhf", "openrlhf-m"] = DIALECT
    """What its client reads of the bundled reward server's replies."""


JOBS = (
    KnownJob(DEFAULT, "rehearsal", reward="needed", needs=()),
    KnownJob("verl-grpo", "verl", "verl", "possible"),
    KnownJob("verl-ppo", "verl", "verl", "possible"),
    KnownJob("openrlhf-grpo", "openrlhf", "openrlhf", "needed"),
    KnownJob("openrlhf-ppo", "openrlhf", "openrlhf", "needed"),
    KnownJob("openrlhf-m-grpo", "openrlhf_m", "openrlhf-m", "needed", dialect="openrlhf-m"),
    KnownJob("search-r1-ppo", "search_r1", "search-r1"),
    KnownJob("openrlhf-sft", "openrlhf_train", "openrlhf", launcher="torchrun"),
    KnownJob("openrlhf-rm", "openrlhf_train", "openrlhf", launcher="torchrun"),
    KnownJob("openrlhf-dpo", "openrlhf_train", "openrlhf", launcher="torchrun"),
    KnownJob("trl-grpo", "trl", "trl", "needed", launcher="torchrun"),
)
"""Every recipe, in the order in which they are listed."""

BY_NAME = {job.name: job for job in JOBS}


def known_job(settings: Settings, command: tuple[str, ...] | None) -> KnownJob | None:
    """Return the recipe that was asked for; None for a command of one's own, or no job at all."""
    if command is not None:
        return None
    return BY_NAME.get(settings.job or DEFAULT)


def launcher(settings: Settings, command: tuple[str, ...] | None) -> Literal["ray", "torchrun"]:
    """Return what starts the job's processes: as asked, else the recipe's own, else Ray."""
    job = known_job(settings, command)
    return settings.launcher or ("ray" if job is None else job.launcher)
