"""Real torchrun by gloo on CPUs, if POD_AGENT_TORCH_PYTHON names a Python with torch.

Torch takes a gigabyte and is not a dependency, so the default suite uses a stand-in:
test_torchrun.py. This file checks the stand-in's assumptions against the real one.
"""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.scenario import Cluster, ends, last_line

if TYPE_CHECKING:
    from tools.lab import Container

PYTHON = os.environ.get("POD_AGENT_TORCH_PYTHON", "")
START = 150.0
"""A limit for six processes that import torch on two shared cores."""

pytestmark = pytest.mark.skipif(
    not PYTHON, reason="POD_AGENT_TORCH_PYTHON names no Python that has torch"
)

ALL_REDUCE = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
ones = torch.ones(4) * (dist.get_rank() + 1)
dist.all_reduce(ones)
print("sum", ones.tolist(), "of", dist.get_world_size(), flush=True)
dist.destroy_process_group()
"""

DDP = """
import os, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
target = torch.arange(8.0).unsqueeze(1)
torch.manual_seed(dist.get_rank())
for step in range(1, 61):
    x = torch.randn(32, 8)
    loss = ((model(x) - x @ target) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if dist.get_rank() == 0 and step % 20 == 0:
        print(f"step {step} loss {loss.item():.4f}", flush=True)
weights = [torch.zeros(1, 8) for _ in range(dist.get_world_size())]
dist.all_gather(weights, model.module.weight.detach())
assert all(torch.equal(weights[0], other) for other in weights)
print("weights are equal", flush=True)
dist.destroy_process_group()
"""

FAILS_AMID = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
for step in range(1000):
    if step == 20 and dist.get_rank() == 3:
        os._exit(7)
    dist.all_reduce(torch.ones(1000))
"""


def start(cluster: Cluster, script: str) -> list[Container]:
    """Start the agents with a script for torchrun, in two processes a pod."""
    cluster.env |= {"AGENT_LAUNCHER": "torchrun", "AGENT_NUM_CPUS": "2"}
    for pod in cluster.pods:
        (Path(pod.tmp) / "train.py").write_text(script)
    return cluster.agents(PYTHON, "/tmp/train.py")


@pytest.mark.pods(3)
def test_an_all_reduce_over_three_pods(cluster: Cluster) -> None:
    """Six ranks sum to 21, and every node ends with 0."""
    agents = start(cluster, ALL_REDUCE)
    assert ends(agents, START) == [0, 0, 0], agents[0].tail()
    assert agents[0].stdout().count("sum [21.0, 21.0, 21.0, 21.0] of 6") == 2


@pytest.mark.pods(3)
def test_a_short_ddp_training(cluster: Cluster) -> None:
    """The loss decreases, and all ranks end with the same weights."""
    agents = start(cluster, DDP)
    assert ends(agents, START) == [0, 0, 0], agents[0].tail()
    losses = [float(loss) for loss in re.findall(r"loss (\S+)", agents[0].stdout())]
    assert len(losses) == 3
    assert losses[-1] < losses[0] / 10
    assert "weights are equal" in agents[0].stdout()


@pytest.mark.pods(3)
def test_a_rank_that_fails_during_collectives(cluster: Cluster) -> None:
    """The other ranks fail with 1 after it: the outcome is the first one's 7, with its node."""
    agents = start(cluster, FAILS_AMID)
    assert ends(agents, START) == [7, 7, 7], agents[0].tail()
    assert "exit code 7 (local rank 1 on pod" in last_line(agents[0])


@pytest.mark.pods(2)
def test_a_pod_killed_during_collectives(cluster: Cluster) -> None:
    """Its peers' errors are not the job's outcome: 75, and the pod is named."""
    script = FAILS_AMID.replace("step == 20 and", "False and").replace("1000):", "10**9):")
    script = script.replace("for step", 'print("running", flush=True)\nfor step')
    head, worker = start(cluster, script)
    head.wait_for("running", stream="stdout", timeout=START)
    worker.kill()
    assert head.wait(60) == 75, head.tail()
    assert "podb" in last_line(head)


@pytest.mark.pods(2)
def test_sigterm_during_collectives(cluster: Cluster) -> None:
    """All nodes end with 143 within the grace."""
    script = FAILS_AMID.replace("step == 20 and", "False and").replace("1000):", "10**9):")
    script = script.replace("for step", 'print("running", flush=True)\nfor step')
    head, worker = start(cluster, script)
    head.wait_for("running", stream="stdout", timeout=START)
    head.signal(signal.SIGTERM)
    assert ends([head, worker], 40) == [143, 143], head.tail()
