"""verl's own collection of adapters, and its checkpoints, sharded as the recipe has it.

`inside/collected_adapters.py` and `inside/saved_checkpoint.py` run the code of each version in the
suite's environment.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path

from agent.frameworks.recipe import JobBasis, ModelShape, NodeSize, RecipeInput
from agent.frameworks.verl import make
from tools.frameworks.first_sync import MODELS, VERSIONS
from tools.frameworks.packages import REPO, environment, package
from tools.frameworks.training import NotTrainedError

RANK = 16
LIMIT = 200.0
GPUS = (1, 2)
STRATEGY = "actor_rollout_ref.actor.strategy"
LAYERED = "actor_rollout_ref.rollout.layered_summon"
REFUSED = "NO_SHARD is not supported yet"
"""What torch says to FSDP 1 on one GPU, where verl 0.9 finds no adapters layer by layer."""


def collected_adapters() -> str:
    """Collect the adapters as the recipe has them, on one GPU and on two; return what was seen."""
    for version in VERSIONS:
        for gpus in GPUS:
            strategy, layered = settings_of(version, gpus)
            end = collected(version, gpus, strategy, layered=layered)
            if end:
                raise NotTrainedError(f"verl {version}, {strategy} on {gpus} GPUs: {end}")

    # Does this find what the recipe avoids?
    end = collected(VERSIONS[-1], 1, "fsdp", layered=True)
    if REFUSED not in end:
        raise NotTrainedError(f"FSDP 1 with layered_summon on one GPU did not fail: {end!r}")
    versions = ", ".join(".".join(map(str, version)) for version in VERSIONS)
    return (
        f"verl {versions} collected all adapters with the recipe's settings, on one process and on "
        f"two; with FSDP 1, layer by layer on one, 0.9.1 ended: {end}"
    )


def saved_checkpoints() -> str:
    """Save and load a checkpoint with FSDP 1 and 2 on two processes; return what was seen."""
    for version in VERSIONS:
        for strategy in ("fsdp", "fsdp2"):
            end = collected(version, 2, strategy, layered=False, program="saved_checkpoint")
            if end:
                raise NotTrainedError(f"verl {version}, {strategy}: {end}")
    versions = ", ".join(".".join(map(str, version)) for version in VERSIONS)
    return f"verl {versions} saved and loaded weights and optimizer, with FSDP 1 and 2"


def settings_of(version: tuple[int, ...], gpus: int) -> tuple[str, bool]:
    """Return which FSDP the recipe's command has, and whether it gathers layer by layer."""
    asked = RecipeInput(
        recipe="verl-grpo",
        nodes=(NodeSize(gpus, 32, gpu_memory=80, memory=1 << 40),),
        version=version,
        model="org/Qwen2.5-7B",
        train_data="/data/train.parquet",
        checkpoints="/data/checkpoints",
        lora_rank=RANK,
        scores=True,
        basis=JobBasis(ModelShape.from_config(MODELS["Qwen2.5-7B"])),
    )
    given = dict(word.split("=", 1) for word in make(asked).argv if "=" in word)
    return given.get(STRATEGY, "fsdp"), given.get(LAYERED) == "True"


def collected(
    version: tuple[int, ...],
    gpus: int,
    strategy: str,
    *,
    layered: bool,
    program: str = "collected_adapters",
) -> str:
    """Run a program with one version on so many processes; return '' or what is wrong."""
    asked = {
        "package": str(package("verl", ".".join(map(str, version)))),
        "rank": RANK,
        "strategy": strategy,
        "layered": layered,
    }
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(gpus))
    words = ("-m", f"tools.frameworks.inside.{program}", json.dumps(asked))
    with tempfile.TemporaryDirectory() as home:
        done = subprocess.run(
            [str(environment("train")), *launcher, *words],
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
            env={"PATH": os.defpath, "PYTHONPATH": f"{REPO / 'scripts'}:{REPO}", "HOME": home},
            cwd=Path(home),
        )
    if done.returncode != 0:
        raise NotTrainedError(f"{program} of verl {version}: {done.stderr.strip()[-600:]}")
    end: str = json.loads(done.stdout.strip().splitlines()[-1])
    return end
