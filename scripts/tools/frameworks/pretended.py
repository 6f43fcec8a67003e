"""The agent on this machine with GPUs that do not exist: how far a framework gets.

Ray gets a number of GPUs; the framework itself runs up to the first use of one.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
from contextlib import ExitStack
from typing import TYPE_CHECKING

from agent.frameworks import recipe_of
from agent.frameworks.recipe import NodeSize, RecipeInput
from agent.settings.jobs import BY_NAME
from tools.frameworks.packages import REPO, environment
from tools.frameworks.training import LONGEST, QUIET, NotTrainedError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from agent.base.versions import Version

RUN_LIMIT, STOP_LIMIT = 600.0, 60.0
GPUS, CPUS = 2, 10
PORTS = ("AGENT_RAY_PORT", "AGENT_DASHBOARD_PORT", "AGENT_PORT", "AGENT_REWARD_PORT")
APART, BEHIND = 100, 20
"""The agent's ports: their distance, and how many after each must be free."""
STAND_INS = REPO / "scripts/tools/frameworks/stand_ins"
"""Modules that cannot be installed without CUDA, by the framework that imports them."""


def not_reached(stations: Sequence[tuple[str, str]], out: str) -> list[str]:
    """List the stages that a framework's output does not show."""
    return [name for name, pattern in stations if not re.search(pattern, out)]


def own_arguments(
    recipe: str, version: Version, ground: Path, data: str, args: tuple[str, ...]
) -> tuple[str, ...]:
    """Return a recipe's arguments for these GPUs, with the files of the work folder."""
    asked = RecipeInput(
        recipe=recipe,
        nodes=(NodeSize(GPUS, CPUS),),
        version=version,
        model=str(ground / "model"),
        train_data=str(ground / data),
        checkpoints=str(ground / "checkpoints"),
        args=args,
        scores=True,
    )
    return recipe_of(BY_NAME[recipe]).make(asked).argv[3:]


def run_agent(
    framework: str, ground: Path, words: Sequence[str], asked: Mapping[str, str] | None = None
) -> tuple[int, str]:
    """Run the agent here, with a framework's environment first on PATH; return code and output.

    It uses free ports, since other programs run here; its Ray ends with it.
    """
    agent = [str(environment("agent").parent / "pod-agent"), *words]
    own = {
        "PATH": os.pathsep.join([str(environment(framework).parent), os.defpath]),
        "HOME": str(ground),
        "EXPECTED_WORKERS": "0",
        "AGENT_NUM_GPUS": str(GPUS),
        "AGENT_NUM_CPUS": str(CPUS),
        "AGENT_LOG_DIR": str(ground / "logs"),
        "AGENT_ON_DONE": "exit",
        "PYTHONPATH": os.pathsep.join([str(REPO / "scripts"), str(STAND_INS / framework)]),
        **{name: str(port) for name, port in zip(PORTS, free_ports(len(PORTS)), strict=True)},
        **QUIET,
    }
    with (ground / "output.log").open("w+", encoding="utf-8") as sink:
        process = subprocess.Popen(
            agent, cwd=ground, env={**own, **(asked or {})}, stdout=sink, stderr=subprocess.STDOUT
        )
        try:
            code = process.wait(RUN_LIMIT)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            process.terminate()
            process.wait(STOP_LIMIT)
    out = (ground / "output.log").read_text(encoding="utf-8", errors="replace")
    if code is None:
        raise NotTrainedError(f"no end within {RUN_LIMIT:g} s: {out[-LONGEST:]}")
    return code, out


def free_ports(count: int) -> list[int]:
    """Return ports with free ones after them, below the kernel's ephemeral range."""
    found = [first for first in range(20000, 32000, APART) if is_free(first)]
    if len(found) < count:
        raise NotTrainedError(f"no {count} ports between 20000 and 32000 are free here")
    return found[:count]


def is_free(first: int) -> bool:
    """Check whether a port and those after it are free."""
    try:
        with ExitStack() as held:
            for port in range(first, first + BEHIND):
                held.enter_context(socket.socket()).bind(("", port))
    except OSError:
        return False
    return True
