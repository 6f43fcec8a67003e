"""Start verl by its recipe's name, on a machine without GPUs.

Ray gets a number of GPUs, so that everything up to the first use of one is verl's own:
configuration, data, placement, workers. Its output shows how far it got. verl starts its reward
workers only after those; here they are started alone.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tools.frameworks.pretended import GPUS, not_reached, own_arguments, run_agent
from tools.frameworks.training import LONGEST, NotTrainedError, make_ground

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

FEW = (
    "data.train_batch_size=8",
    "actor_rollout_ref.actor.ppo_mini_batch_size=8",
    "data.max_prompt_length=64",
    "data.max_response_length=16",
)
STATIONS = (
    ("configuration", r"\[validate_config\] All configuration checks passed"),
    ("TaskRunner with our reward function", r"TaskRunnerV1 pid=.*'path': '.*/verl_reward\.py'"),
    ("100 rows of data", r"dataloader initialized, train dataset size: 100"),
    ("placement and two workers", r"create worker group dict_keys\(\['actor_rollout_ref'\]\)"),
    ("init_process_group", r"in initialize_global_process_group_ray"),
    ("no NCCL", r"RuntimeError: Distributed package doesn't have NCCL built in"),
)
"""The output of verl 0.9.1, in this order, up to the point where it needs a GPU."""
FULLY_ASYNC = "async_training.staleness_threshold=0.5"
SIDES = (
    ("its TaskRunner", r"\[ASYNC MAIN\] Creating worker mapping and resource pools"),
    ("workers that train", r"FullyAsyncTrainer pid=.*colocated worker base class"),
    ("init_process_group", r"ray::FullyAsyncTrainer\.init_workers\(\)"),
    ("no NCCL", r"RuntimeError: Distributed package doesn't have NCCL built in"),
)
"""The same of its fully async trainer, whose engines come after the workers that train."""
ITS_CPUS = 28  # Of one GPU that trains, one that generates, and the processes without
SCORES = "verl's reward workers scored 1.0 0.0 1.0 0.0"


def start_verl() -> str:
    """Start both programs by the agent, then verl's reward workers; return how far each got."""
    ground = make_ground("verl")
    began = time.monotonic()
    asked = {
        "AGENT_JOB": "verl-grpo",
        "AGENT_MODEL": str(ground / "model"),
        "AGENT_TRAIN_DATA": str(ground / "train.parquet"),
        "AGENT_CHECKPOINTS": str(ground / "checkpoints"),
        "AGENT_REWARD": "builtin",
    }
    start("main_ppo", ground, STATIONS, {**asked, "AGENT_JOB_ARGS": " ".join(FEW)})
    own = {"AGENT_JOB_ARGS": " ".join((*FEW[1:], FULLY_ASYNC)), "AGENT_NUM_CPUS": str(ITS_CPUS)}
    start("fully_async_main", ground, SIDES, {**asked, **own})
    between = time.monotonic()
    job = ("run", "--", "python", "-m", "tools.frameworks.inside.verl_scores", *overrides(ground))
    code, out = run_agent("verl", ground, job)
    if code != 0 or SCORES not in out:
        raise NotTrainedError(f"verl's reward workers: code {code}: {out[-LONGEST:]}")
    return (
        f"AGENT_JOB=verl-grpo, {GPUS} GPUs that are not there: "
        f"{', '.join(name for name, _ in STATIONS)}; fully async: "
        f"{', '.join(name for name, _ in SIDES)} ({between - began:.0f} s); {SCORES} "
        f"({time.monotonic() - between:.0f} s)"
    )


def start(
    program: str, ground: Path, stations: Sequence[tuple[str, str]], asked: Mapping[str, str]
) -> None:
    """Start a program by the agent; raise NotTrainedError unless it gets to the use of a GPU."""
    code, out = run_agent("verl", ground, (), asked)
    if missing := not_reached(stations, out):
        raise NotTrainedError(f"{program} did not reach {missing[0]}: {out[-LONGEST:]}")
    if code != 1:
        raise NotTrainedError(f"the agent ended with {code} where {program} ended with 1")


def overrides(ground: Path) -> tuple[str, ...]:
    """Return the recipe's arguments; the agent fills in the reward server's URL."""
    return own_arguments("verl-grpo", (0, 9, 1), ground, "train.parquet", FEW)
