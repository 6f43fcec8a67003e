"""Start OpenRLHF by its recipe's name, on a machine without GPUs.

Parser, checks, placement group, actors and data are OpenRLHF's own up to the first use of a GPU.
Two modules cannot be installed without CUDA, and have stand-ins: flash-attn, which OpenRLHF imports
before it reads an argument and does not call here, and vLLM, whose engines answer without a model.
Rollouts come after the models are on their GPUs; so one rollout is run separately, by OpenRLHF's
own functions.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tools.frameworks.pretended import GPUS, not_reached, own_arguments, run_agent
from tools.frameworks.training import LONGEST, NotTrainedError, make_ground

if TYPE_CHECKING:
    from pathlib import Path

FEW = ("--train.batch_size", "16", "--rollout.batch_size", "8", "--data.max_len", "64")
SENT = 8 * 8
"""Prompts of a rollout, times the answers to each."""
STATIONS = (
    ("configuration", r"namespace\(ref=namespace\(num_nodes=1, num_gpus_per_node=2"),
    ("a placement group", r"RolloutRayActor pid=\d+\)"),
    ("its engines' actors", r"stand-in for vLLM's engine: .*max_model_len=64"),
    ("100 rows of data", r"PPOTrainer pid=\d+\).*num_rows: 100"),
    ("the models' actors", r"ModelActor\.init_model_from_pretrained"),
    ("setup_distributed", r"in setup_distributed"),
    ("no CUDA", r"has no attribute '_cuda_setDevice'"),
)
"""The output of OpenRLHF 0.11.2, in this order, up to the point where it needs a GPU."""
LOADED = "OpenRLHF loaded 100 prompts for 50 steps"
REWARDED = f"OpenRLHF's engines were given these rewards: {SENT // 2} x 0, {SENT // 2} x 1"


def start_openrlhf() -> str:
    """Start train_ppo_ray by the agent, then a rollout; return how far each got."""
    ground = make_ground("openrlhf")
    began = time.monotonic()
    asked = {
        "AGENT_JOB": "openrlhf-grpo",
        "AGENT_JOB_ARGS": " ".join(FEW),
        "AGENT_MODEL": str(ground / "model"),
        "AGENT_TRAIN_DATA": str(ground / "train.jsonl"),
        "AGENT_CHECKPOINTS": str(ground / "checkpoints"),
    }
    code, out = run_agent("openrlhf", ground, (), asked)
    if missing := not_reached(STATIONS, out):
        raise NotTrainedError(f"train_ppo_ray did not reach {missing[0]}: {out[-LONGEST:]}")
    if code != 1:
        raise NotTrainedError(f"the agent ended with {code} where train_ppo_ray ended with 1")
    between = time.monotonic()
    job = (
        "run",
        "--",
        "python",
        "-m",
        "tools.frameworks.inside.openrlhf_rollout",
        *arguments(ground),
    )
    code, out = run_agent("openrlhf", ground, job)
    if code != 0 or LOADED not in out or REWARDED not in out:
        raise NotTrainedError(f"OpenRLHF's rollout: code {code}: {out[-LONGEST:]}")
    return (
        f"AGENT_JOB=openrlhf-grpo, {GPUS} GPUs that are not there, flash-attn and vLLM stand-ins: "
        f"{', '.join(name for name, _ in STATIONS)} ({between - began:.0f} s); {LOADED}; "
        f"{REWARDED} ({time.monotonic() - between:.0f} s)"
    )


def arguments(ground: Path) -> tuple[str, ...]:
    """Return the recipe's arguments; the agent fills in the reward server's URL."""
    return own_arguments("openrlhf-grpo", (0, 11, 2), ground, "train.jsonl", FEW)
