"""The job: its command line, filled in with what joined, and what Ray is told of it."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from agent.base.value import dataclass
from agent.settings.rules import NO_JOB
from agent.work.recipes import RECIPES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent.settings import Settings

PLACEHOLDERS = (
    *("nodes", "gpus_per_node", "total_gpus", "head_ip", "reward_url", "log_dir", "attempt"),
)
_PLACEHOLDER = re.compile(r"\{(" + "|".join(PLACEHOLDERS) + r")\}")


@dataclass(frozen=True)
class Job:
    """What to submit."""

    name: str
    argv: tuple[str, ...]
    runtime_env: dict[str, object]


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


def sizes(gpus: Sequence[int]) -> tuple[int, int, int]:
    """Return the nodes that count, the GPUs that each has at least, and all GPUs together.

    Where some nodes have GPUs and others none, as a head without any, only the former count.
    """
    having = [count for count in gpus if count > 0]
    if not having:
        return len(gpus), 0, 0
    return len(having), min(having), sum(having)


def job_of(
    settings: Settings,
    command: tuple[str, ...] | None,
    runtime_env: dict[str, object],
    python: str,
) -> Job | None:
    """Return the job that was asked for, None for AGENT_JOB=none; `python` runs our own ones."""
    if command is not None:
        return Job("command", command, runtime_env)
    name = settings.job or "rehearsal"
    if name == NO_JOB:
        return None
    return Job(name, (*RECIPES[name](python), *settings.job_args), runtime_env)


def fill(argv: tuple[str, ...], joined: Joined) -> list[str]:
    """Put values in place of the placeholders; other braces stay as they are."""
    return [_PLACEHOLDER.sub(lambda m: str(getattr(joined, m[1])), word) for word in argv]


def entrypoint(argv: list[str]) -> str:
    """Quote an argv for the shell in which Ray starts it; `exec` leaves no shell in between."""
    return "exec " + shlex.join(argv)
