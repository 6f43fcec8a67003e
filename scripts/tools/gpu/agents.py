"""The agent on this machine alone, with torchrun and without a network."""

from __future__ import annotations

import re
import sys
import time
from typing import TYPE_CHECKING

from tools.gpu.part import PartError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tools.gpu.part import Program, Work

LOOPBACK = "127.0.0.1"
QUIET = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONWARNINGS": "ignore"}


def start(at: Work, name: str, words: list[str], env: Mapping[str, str]) -> Program:
    """Start an agent as the head of a run of one node."""
    base = {
        **QUIET,
        "AGENT_LAUNCHER": "torchrun",
        "AGENT_NODE_IP": LOOPBACK,
        "AGENT_ON_DONE": "exit",
        "AGENT_LOG_DIR": str(logs_of(at, name)),
        "GLOO_SOCKET_IFNAME": "lo",  # the machine may have no other interface
        "NCCL_SOCKET_IFNAME": "lo",
    }
    argv = [sys.executable, "-m", "agent", "run", *(["--", *words] if words else [])]
    return at.start(name, argv, {**base, **env})


def logs_of(at: Work, name: str) -> Path:
    """Return the log folder of an agent."""
    return at.folder / f"{name}-logs"


def file_of(at: Work, name: str, file: str) -> Path:
    """Return a file of a run's folder."""
    found = sorted(logs_of(at, name).glob(f"*/*/{file}"))
    if not found:
        raise PartError(f"{name} wrote no {file}")
    return found[0]


def seconds_to(at: Work, program: Program, pattern: str, limit: float) -> float:
    """Wait for a line of the job; return the seconds since the agent's start."""
    found = at.wait_for(program, pattern, limit)
    if found is None:
        raise PartError(f"{program.name} has no line {pattern!r}: {program.tail()}")
    return round(time.monotonic() - program.began, 1)


def last_line(program: Program) -> str:
    """Return the sentence with which an agent ended."""
    lines = [line for line in program.errors.splitlines() if line.strip()]
    return re.sub(r"\s+", " ", lines[-1])[:300] if lines else ""
