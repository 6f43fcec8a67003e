"""AGENT_PREFLIGHT=nccl: an all-reduce over all pods before the job, by gloo on CPUs.

It uses real torch if POD_AGENT_TORCH_PYTHON names a Python with torch; see test_torchrun_real.py.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from agent.node.read import find_torch
from support.scenario import ENVIRONMENT, Cluster, await_true, ends, last_line

if TYPE_CHECKING:
    from tools.lab import Container

PYTHON = os.environ.get("POD_AGENT_TORCH_PYTHON", "")
START = 200.0
"""A limit for ten processes that import torch on two shared cores."""
BROKEN = """
import sys
if "all_reduce" in sys.argv[0]:
    raise ImportError("libcudart.so.12: cannot open shared object file")
"""
needs_torch = pytest.mark.skipif(
    not PYTHON, reason="POD_AGENT_TORCH_PYTHON names no Python that has torch"
)


def with_job(cluster: Cluster) -> None:
    """Give every pod a job for torchrun."""
    for pod in cluster.pods:
        (Path(pod.tmp) / "job.py").write_text("print('the job', flush=True)\n")


def await_ranks(agent: Container) -> None:
    """Wait until a pod's ranks run."""

    def are_there() -> bool:
        return any("--local-rank" in process.cmdline for process in agent.processes())

    await_true("its ranks are there", are_there)


@needs_torch
@pytest.mark.pods(3)
def test_an_all_reduce_precedes_the_job(cluster: Cluster) -> None:
    """Its duration is logged, then the job starts."""
    cluster.env |= {"AGENT_LAUNCHER": "torchrun", "AGENT_PREFLIGHT": "nccl"}
    with_job(cluster)
    agents = cluster.agents(PYTHON, "/tmp/job.py")
    assert ends(agents, START) == [0, 0, 0], agents[0].tail()
    log = agents[0].stderr()
    speed = re.search(r"an all-reduce of 8 MiB over 3 node\(s\) by CPU takes ([\d.]+) ms", log)
    assert speed is not None, log
    assert log.index(speed[0]) < log.index("waiting for the job to start")
    assert "the job" in agents[0].stdout()


@needs_torch
@pytest.mark.pods(2)
def test_a_pod_that_cannot_take_part_ends_the_run(cluster: Cluster) -> None:
    """Its part fails: every node ends with 78 and its name; no job is started."""
    cluster.env |= {"AGENT_LAUNCHER": "torchrun", "AGENT_PREFLIGHT": "nccl"}
    with_job(cluster)
    broken = Path(cluster.pods[1].tmp) / "broken" / "torch"
    (broken / "distributed").mkdir(parents=True)
    (broken / "__init__.py").write_text(BROKEN)
    (broken / "distributed" / "__init__.py").touch()
    ask = "import torch.version; print(torch.version.__version__)"
    version = subprocess.check_output([PYTHON, "-c", ask], text=True).strip()
    (broken / "version.py").write_text(f"__version__ = '{version}'\n")
    agents = [
        cluster.agent(0, PYTHON, "/tmp/job.py"),
        cluster.agent(1, PYTHON, "/tmp/job.py", env={"PYTHONPATH": "/tmp/broken"}),
    ]
    assert ends(agents, 60) == [78, 78], agents[0].tail()
    message = f"the all-reduce failed: {cluster.pods[1].name}: "
    assert message in last_line(agents[0])
    assert "libcudart.so.12" in last_line(agents[0])
    assert "the job" not in agents[0].stdout()


@needs_torch
@pytest.mark.pods(2)
def test_a_stop_during_an_all_reduce(cluster: Cluster) -> None:
    """SIGTERM during the all-reduce: all nodes end with 143, and no rank is left."""
    cluster.env |= {"AGENT_LAUNCHER": "torchrun", "AGENT_PREFLIGHT": "nccl"}
    with_job(cluster)
    agents = cluster.agents(PYTHON, "/tmp/job.py")
    for agent in agents:
        await_ranks(agent)
    store = agents[0].exec(["ss", "-Hltn", "sport = :19999"])
    assert [line.split()[3] for line in store.stdout.splitlines()] == [
        f"{cluster.pods[0].ip}:19999"
    ]
    agents[0].signal(signal.SIGTERM)
    assert ends(agents, 40) == [143, 143], agents[0].tail()
    assert "the job" not in agents[0].stdout()


@needs_torch
@pytest.mark.pods(2)
def test_a_pod_cut_off_during_an_all_reduce(cluster: Cluster) -> None:
    """Its ranks never answer: after the grace the run is lost, and the pod is named."""
    cluster.env |= {"AGENT_LAUNCHER": "torchrun", "AGENT_PREFLIGHT": "nccl"}
    cluster.env |= {"AGENT_NODE_GRACE": "5s", "AGENT_HEAD_GRACE": "5s"}
    with_job(cluster)
    head, worker = cluster.agents(PYTHON, "/tmp/job.py")
    await_ranks(worker)
    cluster.pods[1].cut()
    assert ends([head, worker], 60) == [75, 75], head.tail()
    assert f"was aborted after the loss of {cluster.pods[1].name}" in last_line(head)


@pytest.mark.pods(1)
def test_an_all_reduce_without_torch(cluster: Cluster) -> None:
    """It needs torch in Ray's Python: 78 at once, with the reason."""
    head = cluster.agent(0, "true", env={"AGENT_PREFLIGHT": "nccl", "EXPECTED_WORKERS": "0"})
    assert head.wait(30) == 78
    assert "nccl needs torch, which is not installed for" in last_line(head)
    assert "starting Ray" not in head.stderr()


@pytest.mark.pods(2)
def test_an_all_reduce_before_a_ray_job(cluster: Cluster) -> None:
    """Beside Ray, in Ray's Python; real torch if POD_AGENT_ENVIRONMENT has it."""
    if find_torch(None, str(ENVIRONMENT / "bin/python")).version is None:
        pytest.skip(f"{ENVIRONMENT} has no torch")
    cluster.env["AGENT_PREFLIGHT"] = "nccl"
    agents = cluster.agents("sh", "-c", "echo the job")
    assert ends(agents, START) == [0, 0], agents[0].tail()
    log = agents[0].stderr()
    speed = re.search(r"an all-reduce of 8 MiB over 2 node\(s\) by CPU takes ([\d.]+) ms", log)
    assert speed is not None, log
    assert log.index(speed[0]) < log.index("✓ nodes ")
    assert agents[0].stdout() == "the job\n"
