"""Real runs on CPUs: the recipe trl-grpo trains a small model made for the run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from agent.frameworks import recipe_of
from agent.frameworks.recipe import NodeSize, RecipeInput
from agent.settings.jobs import BY_NAME
from tools.frameworks.faults import Fault
from tools.frameworks.packages import FOLDER, REPO, environment, package

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from agent.base.versions import Version

STEP = re.compile(r"^step (\d+)/(\d+) mean reward (\d\.\d+)", re.MULTILINE)
FROM_CHECKPOINT = re.compile(r"going on from \S*checkpoint-(\d+)")
FEW = "--max-completion-length 1 --learning-rate 0.01 --save-steps 5 --num-generations 8"
MAKE_LIMIT, TRAIN_LIMIT, SERVE_LIMIT = 300.0, 400.0, 30.0
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2")
LONGEST = 600
SHARDER = REPO / "scripts" / "tools" / "frameworks" / "inside" / "fsdp_on_cpus.py"
QUIET = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}


class NotTrainedError(Exception):
    """A real run failed; the message has the evidence."""


def make_ground(name: str) -> Path:
    """Make a folder with the model and the data, visible to every pod like a shared disk."""
    folder = FOLDER / "training" / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    argv = [str(environment("train")), "-m", "tools.frameworks.inside.small_model", str(folder)]
    env = {"PATH": os.defpath, "PYTHONPATH": str(REPO / "scripts"), **QUIET}
    done = subprocess.run(
        argv, env=env, capture_output=True, text=True, timeout=MAKE_LIMIT, check=False
    )
    if done.returncode != 0:
        raise NotTrainedError(f"no model could be made: {done.stderr[-LONGEST:]}")
    return folder


def command(ground: Path, version: Version, steps: int, url: str) -> list[str]:
    """Return the recipe's command, for a machine without GPUs, with few and short steps."""
    asked = RecipeInput(
        recipe="trl-grpo",
        nodes=(NodeSize(0, 1), NodeSize(0, 1)),
        version=version,
        model=str(ground / "model"),
        train_data=str(ground / "train.jsonl"),
        checkpoints=str(ground / "checkpoints"),
        args=(*FEW.split(), "--max-steps", str(steps), "--per-device-train-batch-size", "32"),
        scores=True,
        python=str(environment("train")),
    )
    return [
        word.replace("{reward_url}", url)
        for word in recipe_of(BY_NAME["trl-grpo"]).make(asked).argv
    ]


@contextmanager
def reward_server(log: Path) -> Iterator[str]:
    """Run the bundled reward server on a free port of loopback; yield its URL."""
    argv = [sys.executable, "-m", "agent", "reward-server", "--host", "127.0.0.1", "--port", "0"]
    with log.open("w+", encoding="utf-8") as sink:
        process = subprocess.Popen(argv, cwd=REPO, stdout=sink, stderr=subprocess.STDOUT)
        try:
            yield url_in(log)
        finally:
            process.terminate()
            process.wait(SERVE_LIMIT)


def url_in(log: Path) -> str:
    """Wait until the server prints its URL."""
    until = time.monotonic() + SERVE_LIMIT
    while not (found := re.search(r"http://\S+", log.read_text(encoding="utf-8"))):
        if time.monotonic() > until:
            raise NotTrainedError(f"no reward server: {log.read_text(encoding='utf-8')[-LONGEST:]}")
        time.sleep(0.1)
    return found[0]


def train_with(version: str) -> tuple[str, list[Fault]]:
    """Train with one TRL, two processes by gloo: whole models, then sharded ones."""
    said = []
    for way, sharded in (("whole", False), ("sharded by FSDP", True)):
        text, faults = train_one_way(version, sharded=sharded)
        if faults:
            return "", faults
        said.append(f"{way}: {text}")
    return "; ".join(said), []


def train_one_way(version: str, *, sharded: bool) -> tuple[str, list[Fault]]:
    """Train to step 6, then resume from its checkpoint up to 8."""
    ground = make_ground(f"trl-{version}")
    env = {"PATH": os.defpath, "HOME": str(ground), **QUIET}
    env["PYTHONPATH"] = str(package("trl", version))
    numbers = tuple(int(number) for number in version.split("."))
    output = []
    with reward_server(ground / "reward.log") as url:
        for steps in (6, 8):
            python, *words = command(ground, numbers, steps, url)
            if sharded:
                words = [str(SHARDER), *words, "--shard", "fsdp"]
            argv = [python, *TORCHRUN, *words]
            done = subprocess.run(
                argv, env=env, cwd=ground, capture_output=True, text=True,
                timeout=TRAIN_LIMIT, check=False,
            )  # fmt: skip
            if done.returncode != 0:
                return "", [Fault("crash", f"training: {done.stderr.strip()[-LONGEST:]}")]
            output.append(done.stdout)
    kept = ground / "checkpoints" / "checkpoint-5" / "pytorch_model_fsdp_0"
    if kept.is_dir() != sharded:
        return "", [Fault("ignored", f"its checkpoint is {'not ' * sharded}sharded")]
    seen = STEP.findall(output[1])
    if not FROM_CHECKPOINT.search(output[1]) or [step for step, *_ in seen] != ["7", "8"]:
        return "", [
            Fault("ignored", f"it did not resume from its checkpoint: {output[1][-LONGEST:]}")
        ]
    return f"trained to step 6, resumed to 8: reward {curve(''.join(output))}", []


def curve(output: str) -> str:
    """Format the first and last mean reward."""
    rewards = [reward for _step, _of, reward in STEP.findall(output)]
    return f"{rewards[0]} to {rewards[-1]}" if rewards else "not in the output"
