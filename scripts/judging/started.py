"""verl, which wants GPUs, started for real by its recipe's name on this machine without any.

Ray is told of GPUs that are not there, so that everything up to the first use of one is verl's
own: configuration, data, placement, workers. How far that is, its own output says. Its reward
workers, which it starts only after those, are then started alone.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

from agent.settings.jobs import BY_NAME
from agent.work.recipes.recipe import Asked, NodeSize
from judging.commands import recipe_of
from judging.packages import REPO, environment
from judging.training import LONGEST, QUIET, NotTrainedError, make_ground

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

RUN_LIMIT, STOP_LIMIT = 600.0, 60.0
GPUS, CPUS = 2, 10
FEW = (
    "data.train_batch_size=8",
    "actor_rollout_ref.actor.ppo_mini_batch_size=8",
    "data.max_prompt_length=64",
    "data.max_response_length=16",
)
PORTS = ("AGENT_RAY_PORT", "AGENT_DASHBOARD_PORT", "AGENT_PORT", "AGENT_REWARD_PORT")
APART, BEHIND = 100, 20
"""Ports of the agent's choice: how far from each other, and how many behind each must be free."""
STATIONS = (
    ("configuration", r"\[validate_config\] All configuration checks passed"),
    ("TaskRunner with our reward function", r"TaskRunnerV1 pid=.*'path': '.*/verl_reward\.py'"),
    ("100 rows of data", r"dataloader initialized, train dataset size: 100"),
    ("placement and two workers", r"create worker group dict_keys\(\['actor_rollout_ref'\]\)"),
    ("init_process_group", r"in initialize_global_process_group_ray"),
    ("no NCCL", r"RuntimeError: Distributed package doesn't have NCCL built in"),
)
"""What verl 0.9.1 says on its way, in this order of events, and where a CPU ends it."""
SCORES = "verl's reward workers scored 1.0 0.0 1.0 0.0"


def start_verl() -> str:
    """Start main_ppo by the agent, then verl's reward workers; return how far each came."""
    ground = make_ground("verl")
    began = time.monotonic()
    asked = {
        "AGENT_JOB": "verl-grpo",
        "AGENT_JOB_ARGS": " ".join(FEW),
        "AGENT_MODEL": str(ground / "model"),
        "AGENT_TRAIN_DATA": str(ground / "train.parquet"),
        "AGENT_CHECKPOINTS": str(ground / "checkpoints"),
        "AGENT_REWARD": "builtin",
    }
    code, out = run_agent(ground, (), asked)
    if missing := not_reached(out):
        raise NotTrainedError(f"main_ppo did not come to {missing[0]}: {out[-LONGEST:]}")
    if code != 1:
        raise NotTrainedError(f"the agent ended with {code} where main_ppo ended with 1")
    between = time.monotonic()
    job = ("run", "--", "python", "-m", "judging.inside.verl_scores", *overrides(ground))
    code, out = run_agent(ground, job, {"PYTHONPATH": str(REPO / "scripts")})
    if code != 0 or SCORES not in out:
        raise NotTrainedError(f"verl's reward workers: code {code}: {out[-LONGEST:]}")
    return (
        f"AGENT_JOB=verl-grpo, {GPUS} GPUs that are not there: "
        f"{', '.join(name for name, _ in STATIONS)} ({between - began:.0f} s); {SCORES} "
        f"({time.monotonic() - between:.0f} s)"
    )


def not_reached(out: str) -> list[str]:
    """List the stations that verl's output does not tell of."""
    return [name for name, pattern in STATIONS if not re.search(pattern, out)]


def overrides(ground: Path) -> tuple[str, ...]:
    """Return the recipe's own arguments; the agent fills in the reward server's URL."""
    asked = Asked(
        recipe="verl-grpo",
        nodes=(NodeSize(GPUS, CPUS),),
        version=(0, 9, 1),
        model=str(ground / "model"),
        train_data=str(ground / "train.parquet"),
        checkpoints=str(ground / "checkpoints"),
        args=FEW,
        scores=True,
    )
    return recipe_of(BY_NAME["verl-grpo"]).make(asked).argv[3:]


def run_agent(ground: Path, words: Sequence[str], env: Mapping[str, str]) -> tuple[int, str]:
    """Run the agent on this machine, with verl's environment first on PATH; return code and output.

    It takes ports that are free now, since other things run here; its Ray ends with it.
    """
    agent = [str(environment("agent").parent / "pod-agent"), *words]
    own = {
        "PATH": os.pathsep.join([str(environment("verl").parent), os.defpath]),
        "HOME": str(ground),
        "EXPECTED_WORKERS": "0",
        "AGENT_NUM_GPUS": str(GPUS),
        "AGENT_NUM_CPUS": str(CPUS),
        "AGENT_LOG_DIR": str(ground / "logs"),
        "AGENT_ON_DONE": "exit",
        **{name: str(port) for name, port in zip(PORTS, free_ports(len(PORTS)), strict=True)},
        **QUIET,
    }
    with (ground / "output.log").open("w+", encoding="utf-8") as sink:
        process = subprocess.Popen(
            agent, cwd=ground, env={**own, **env}, stdout=sink, stderr=subprocess.STDOUT
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
    """Return ports with free ones behind them, below those that the kernel gives out."""
    found = [first for first in range(20000, 32000, APART) if is_free(first)]
    if len(found) < count:
        raise NotTrainedError(f"no {count} ports between 20000 and 32000 are free here")
    return found[:count]


def is_free(first: int) -> bool:
    """Say whether nobody listens on a port, nor on those behind it."""
    try:
        with ExitStack() as held:
            for port in range(first, first + BEHIND):
                held.enter_context(socket.socket()).bind(("", port))
    except OSError:
        return False
    return True
