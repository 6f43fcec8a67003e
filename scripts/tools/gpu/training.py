"""trl-grpo through the agent on a model made on the spot: it learns, is killed, and resumes."""

from __future__ import annotations

import re
import signal
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tools.gpu import agents
from tools.gpu.part import PartError

if TYPE_CHECKING:
    import psutil

    from tools.gpu.part import Program, Work

SCRIPTS = Path(__file__).resolve().parents[2]
STEP = re.compile(r"^step (\d+)/(\d+) mean reward (\d\.\d+)", re.MULTILINE)
STEPS, KILLED_AT = 40, 15
FEW = (
    "--max-completion-length 1 --learning-rate 0.01 --save-steps 5 --num-generations 8 "
    "--per-device-train-batch-size 32 --gradient-accumulation-steps 1"
)
WITHOUT_ENGINE = "--vllm-tensor-parallel-size 0"
LEARNT = 0.6
KILLED_CODE = 128 + signal.SIGKILL
RESUMED = r"going on from \S*checkpoint-(\d+)"


def run(at: Work) -> None:
    """Train to a checkpoint, kill the rank, and let a second run end the training."""
    made = [sys.executable, "-m", "tools.frameworks.inside.small_model", str(at.folder)]
    at.run("model", made, {"PYTHONPATH": str(SCRIPTS), **agents.QUIET}, limit=60)
    at.figures["killed"] = killed(at)
    at.figures["resumed"] = resumed(at)


def start(at: Work, name: str) -> Program:
    """Start the agent with the recipe."""
    engine = f" {WITHOUT_ENGINE}" if at.has_gpu else ""
    env = {
        "AGENT_JOB": "trl-grpo",
        "AGENT_JOB_ARGS": f"{FEW} --max-steps {STEPS}{engine}",
        "AGENT_MODEL": str(at.folder / "model"),
        "AGENT_TRAIN_DATA": str(at.folder / "train.jsonl"),
        "AGENT_CHECKPOINTS": str(at.folder / "checkpoints"),
    }
    return agents.start(at, name, [], env)


def killed(at: Work) -> dict[str, object]:
    """Train until a checkpoint is there, then kill the trainer; return what was seen."""
    agent = start(at, "first")
    first_step = agents.seconds_to(at, agent, r"^step 1/", 60)
    agents.seconds_to(at, agent, rf"^step {KILLED_AT + 1}/", 60)
    rank = trainer(at)
    rank.kill()
    at_kill = time.monotonic()
    code = at.wait(agent, 40)
    figures = {
        "first_step_seconds": first_step,
        "code": code,
        "end_seconds": round(time.monotonic() - at_kill, 1),
        "last_line": agents.last_line(agent),
        **rewards(agent.output),
    }
    if code != KILLED_CODE:
        raise PartError(f"{code}, not {KILLED_CODE}, after the trainer was killed: {figures}")
    return figures


def trainer(at: Work) -> psutil.Process:
    """Return the process of the only rank."""
    for process in at.marked():
        words = process.cmdline()
        is_launcher = "torch.distributed.run" in words
        if any(word.endswith("trl_grpo.py") for word in words) and not is_launcher:
            return process
    raise PartError("no trainer runs")


def resumed(at: Work) -> dict[str, object]:
    """Run to the end from the checkpoint; return what was seen."""
    agent = start(at, "second")
    found = at.wait_for(agent, RESUMED, 60)
    if found is None:
        raise PartError(f"it did not resume: {agent.tail()}")
    checkpoint = int(found[1])
    first_step = agents.seconds_to(at, agent, rf"^step {checkpoint + 1}/", 60)
    code = at.wait(agent, 60)
    figures = {
        "checkpoint": checkpoint,
        "first_step_seconds": first_step,
        "code": code,
        "last_line": agents.last_line(agent),
        **rewards(agent.output),
    }
    last = figures["reward_last"]
    if code != 0 or not isinstance(last, float) or last < LEARNT:
        raise PartError(f"it ended with {code}, at a reward of {last}: {figures}")
    return figures


def rewards(output: str) -> dict[str, object]:
    """Return the steps, and the mean reward of the first and of the last five."""
    found = STEP.findall(output)
    values = [float(reward) for _step, _of, reward in found]
    return {
        "steps": [int(found[0][0]), int(found[-1][0])] if found else [],
        "reward_first": round(statistics.mean(values[:5]), 3) if values else None,
        "reward_last": round(statistics.mean(values[-5:]), 3) if values else None,
    }
