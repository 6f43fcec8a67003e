"""The first weight sync of verl: its own sender, with whole models and the recipe's bucket.

`inside/first_sync.py` runs the sender of each version in the suite's environment.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from agent.frameworks.recipe import JobBasis, ModelShape, NodeSize, RecipeInput
from agent.frameworks.verl import make
from tools.frameworks.packages import REPO, environment, package
from tools.frameworks.training import NotTrainedError

VERSIONS = ((0, 7, 1), (0, 8, 0), (0, 9, 0), (0, 9, 1))
"""The versions with a sender of buckets to vLLM; those before have none."""
BUCKET = "actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes"
DEFAULT = 2048  # MiB, in each of these versions
LIMIT = 600.0
# Models of 72B, which FSDP loads in each process, take 2.3 TiB of a node.
NODES = (NodeSize(8, 96, gpu_memory=80, memory=4 << 40),) * 16
QWEN2 = {"model_type": "qwen2", "vocab_size": 152_064}
QWEN3 = {"model_type": "qwen3", "vocab_size": 151_936, "head_dim": 128}


def dense(kind: dict[str, Any], *sizes: int) -> dict[str, Any]:
    """Return the configuration of a model by its sizes: hidden, layers, heads, of keys, MLP."""
    names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    return {**kind, **dict(zip((*names, "intermediate_size"), sizes, strict=True))}


MODELS = {
    "Qwen2.5-0.5B": {**dense(QWEN2, 896, 24, 14, 2, 4864), "vocab_size": 151_936},
    "Qwen2.5-7B": dense(QWEN2, 3584, 28, 28, 4, 18_944),
    "Qwen2.5-32B": dense(QWEN2, 5120, 64, 40, 8, 27_648),
    "Qwen2.5-72B": dense(QWEN2, 8192, 80, 64, 8, 29_568),
    "Qwen3-8B": dense(QWEN3, 4096, 36, 32, 8, 12_288),
    "Qwen3-30B-A3B": {
        **dense({**QWEN3, "model_type": "qwen3_moe"}, 2048, 48, 32, 4, 6144),
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
    },
    "Llama-3.1-8B": dense({"model_type": "llama", "vocab_size": 128_256}, 4096, 32, 32, 8, 14_336),
}


def first_sync() -> str:
    """Send each model with each version as the recipe has it; return what was seen."""
    ends_by_default = []
    for version in VERSIONS:
        asked = [
            {"config": config, "dtype": "float32", "bucket": bucket_of(version, name, config)}
            for name, config in MODELS.items()
        ]
        asked += [{**model, "bucket": DEFAULT} for model in asked]
        ends = sent(version, asked)
        by_recipe = dict(zip(MODELS, ends[: len(MODELS)], strict=True))
        if failed := {name: end for name, end in by_recipe.items() if end}:
            raise NotTrainedError(f"verl {version} with the recipe's bucket: {failed}")
        ended = sum(bool(end) for end in ends[len(MODELS) :])
        ends_by_default.append(f"{'.'.join(map(str, version))}: {ended}")
    return (
        f"each version's sender sent {len(MODELS)} whole models with the recipe's bucket; with "
        f"verl's own of {DEFAULT} MiB it ended by an assertion for {', '.join(ends_by_default)}"
    )


def bucket_of(version: tuple[int, ...], name: str, config: dict[str, Any]) -> int:
    """Return the bucket of the recipe's command for a model."""
    asked = RecipeInput(
        recipe="verl-grpo",
        nodes=NODES,
        version=version,
        model=f"org/{name}",
        train_data="/data/train.parquet",
        eval_data="/data/test.parquet",
        checkpoints="/data/checkpoints",
        basis=JobBasis(ModelShape.from_config(config)),
    )
    words = [word for word in make(asked).argv if word.startswith(f"{BUCKET}=")]
    return int(words[-1].partition("=")[2]) if words else DEFAULT


def sent(version: tuple[int, ...], asked: list[dict[str, Any]]) -> list[str]:
    """Run the sender of one version; return '' or its error for each model."""
    folder = package("verl", ".".join(map(str, version)))
    argv = [str(environment("train")), "-m", "tools.frameworks.inside.first_sync"]
    with tempfile.TemporaryDirectory() as home:
        env = {"PATH": os.defpath, "PYTHONPATH": f"{REPO / 'scripts'}:{REPO}", "HOME": home}
        done = subprocess.run(
            argv,
            input=json.dumps({"package": str(folder), "models": asked}),
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
            env=env,
            cwd=Path(home),
        )
    if done.returncode != 0:
        raise NotTrainedError(f"the sender of verl {version}: {done.stderr.strip()[-600:]}")
    ends: list[str] = json.loads(done.stdout.strip().splitlines()[-1])
    return ends
