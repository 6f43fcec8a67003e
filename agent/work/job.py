"""The job: its command line, filled in with what joined, and what Ray is told of it."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from agent.base.value import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent.node.upload import Upload
    from agent.work.recipe_job import RecipeJob

COMMAND = "command"
"""The name of a job that was given as a command of one's own."""
_SIZES = ("nodes", "gpus_per_node", "total_gpus")
PLACEHOLDERS = (*_SIZES, "head_ip", "reward_url", "log_dir", "attempt", "checkpoints")
_PLACEHOLDER = re.compile(r"\{(" + "|".join(PLACEHOLDERS) + r")\}")


@dataclass(frozen=True)
class Job:
    """What to submit."""

    name: str
    argv: tuple[str, ...]
    """A recipe's is made anew of what joined; () where it does not fit what is expected."""
    runtime_env: dict[str, object]
    checkpoints: str = ""
    """The absolute folder for its checkpoints."""
    recipe: RecipeJob | None = None
    """What its command is made from, where it is known by name."""
    upload: Upload | None = None
    """What Ray would pack of its working_dir."""


@dataclass(frozen=True)
class Joined:
    """What is known once every node has joined; the values of the placeholders."""

    nodes: int
    gpus_per_node: int
    total_gpus: int
    head_ip: str
    reward_url: str
    log_dir: str
    attempt: int = 1
    checkpoints: str = ""


def sizes(gpus: Sequence[int]) -> tuple[int, int, int]:
    """Return the nodes that count, the GPUs that each has at least, and all GPUs together.

    Where some nodes have GPUs and others none, as a head without any, only the former count.
    """
    having = [count for count in gpus if count > 0]
    if not having:
        return len(gpus), 0, 0
    return len(having), min(having), sum(having)


def fill(argv: tuple[str, ...], joined: Joined) -> list[str]:
    """Put values in place of the placeholders; other braces stay as they are."""
    return [_PLACEHOLDER.sub(lambda m: str(getattr(joined, m[1])), word) for word in argv]


def is_sized(job: Job) -> bool:
    """Say whether the command depends on how many nodes or GPUs joined."""
    named = {name for word in job.argv for name in _PLACEHOLDER.findall(word)}
    return job.recipe is not None or not named.isdisjoint(_SIZES)


def entrypoint(argv: list[str], attempt: int) -> str:
    """Quote an argv for the shell in which Ray starts it; `exec` leaves no shell in between.

    The attempt's number is the driver's alone: actors have the environment of their node's Ray,
    and Ray's runtime_env is no place for it, since a job's own must not differ from it.
    """
    return f"export AGENT_ATTEMPT={attempt}; exec {shlex.join(argv)}"


def jobs_own(job: Job | None) -> tuple[tuple[str, ...] | None, dict[str, str]]:
    """Return what makes a job this job and no other, wherever it runs: argv, and settings.

    A recipe's argv follows the nodes, so its name and the user's own arguments stand for it.
    """
    if job is None or job.recipe is None:
        return (None if job is None else job.argv), {}
    from agent.work.recipes.versions import written  # noqa: PLC0415 - most runs need none of it

    asked = job.recipe.asked
    settings = {
        "model": asked.model,
        "train_data": asked.train_data,
        "eval_data": asked.eval_data,
        "tensor_parallel": str(asked.tensor_parallel),
        "version": written(asked.version),
        "checkpoints": asked.checkpoints,
    }
    return (job.name, *asked.args), settings
