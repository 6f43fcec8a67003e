"""Trainers that start their own processes, over two pods by AGENT_LAUNCHER=node, on CPUs.

POD_AGENT_LLAMAFACTORY_PYTHON and POD_AGENT_SWIFT_PYTHON name Pythons with these packages; without
them nothing is run. Each pod has the same small model and data; nothing is downloaded.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.scenario import REPO, ends

if TYPE_CHECKING:
    from support.scenario import Cluster

MOST_SECONDS = 420.0
LLAMA_FACTORY = """
model_name_or_path: /tmp/model
stage: sft
do_train: true
finetuning_type: full
dataset: sums
dataset_dir: /tmp
template: empty
cutoff_len: 64
output_dir: /tmp/out
per_device_train_batch_size: 5
num_train_epochs: 2
learning_rate: 0.01
logging_steps: 5
save_steps: 10
report_to: none
use_cpu: true
ddp_backend: gloo
"""
DATA_SETS = (
    '{"sums": {"file_name": "train.jsonl", "columns": {"prompt": "input", "response": "label"}}}'
)
SWIFT = (
    *("sft", "--model", "/tmp/model", "--model_type", "qwen2", "--template", "qwen2_5"),
    *("--tuner_type", "full", "--dataset", "/tmp/train.jsonl", "--max_length", "256"),
    *("--columns", '{"input": "query", "label": "response"}', "--torch_dtype", "float32"),
    *("--attn_impl", "eager", "--per_device_train_batch_size", "5", "--num_train_epochs", "2"),
    *("--learning_rate", "1e-2", "--logging_steps", "5", "--save_steps", "10"),
    *("--output_dir", "/tmp/out", "--use_cpu", "true", "--ddp_backend", "gloo"),
    *("--report_to", "none", "--split_dataset_ratio", "0"),
)


def make_model(cluster: Cluster, python: str) -> None:
    """Make a small model and its data in the /tmp of each pod."""
    program = REPO / "scripts/tools/frameworks/inside/small_model.py"
    for pod in cluster.pods:
        subprocess.run([python, str(program), str(pod.tmp)], check=True, timeout=120)
        (Path(pod.tmp) / "dataset_info.json").write_text(DATA_SETS)
        (Path(pod.tmp) / "sft.yaml").write_text(LLAMA_FACTORY)
    cluster.env |= {
        "AGENT_LAUNCHER": "node",
        "AGENT_NUM_CPUS": "1",
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "PATH": f"{Path(python).parent}:{os.environ['PATH']}",
    }


def losses(output: str) -> list[float]:
    """Return the losses that a trainer prints."""
    return [float(found) for found in re.findall(r"'loss': '?([\d.]+)", output)]


def train(cluster: Cluster, *command: str) -> None:
    """Train over both pods; the loss falls, and the trainer leaves a checkpoint."""
    agents = cluster.agents(*command)
    assert ends(agents, MOST_SECONDS) == [0, 0], agents[0].tail()
    found = losses(agents[0].stdout())
    assert found[-1] < found[0] / 2, agents[0].stdout()[-3000:]
    assert list(Path(cluster.pods[0].tmp).glob("out/**/checkpoint-10"))


@pytest.mark.skipif(
    "POD_AGENT_LLAMAFACTORY_PYTHON" not in os.environ, reason="no Python with LLaMA-Factory"
)
@pytest.mark.pods(2)
def test_llama_factory_trains_over_two_pods(cluster: Cluster) -> None:
    """It reads the five variables, and starts torchrun with them."""
    make_model(cluster, os.environ["POD_AGENT_LLAMAFACTORY_PYTHON"])
    cluster.env["FORCE_TORCHRUN"] = "1"
    train(cluster, "llamafactory-cli", "train", "/tmp/sft.yaml")


@pytest.mark.skipif("POD_AGENT_SWIFT_PYTHON" not in os.environ, reason="no Python with ms-swift")
@pytest.mark.pods(2)
def test_ms_swift_trains_over_two_pods(cluster: Cluster) -> None:
    """It reads the five variables, and starts torchrun with them."""
    make_model(cluster, os.environ["POD_AGENT_SWIFT_PYTHON"])
    train(cluster, "swift", *SWIFT)
