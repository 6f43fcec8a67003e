"""Real Slurm daemons: an agent is killed within its step, and a node is lost."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

import tools.lab as podlab
from support.scenario import BOOT, await_true, need_lab
from support.slurm_cluster import Job, SlurmCluster, need_slurm

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

END = 60.0
"""Maximum time from a job's end until Slurm reports it."""
SBATCH_POLLS = 120.0
"""`sbatch --wait` polls after 2 s, then less and less often, down to every 30 s."""
SLURMD_TIMEOUT = 30
"""Seconds until Slurm marks a silent node as down; by default 300."""
COUNTS = "sh -c 'until [ -e {go} ]; do i=$((i+1)); echo line $i; sleep 0.25; done; exit 7'"
TWICE = "sh -c 'echo attempt $AGENT_ATTEMPT; [ \"$AGENT_ATTEMPT\" = 1 ] || exit 0; sleep 1000'"
SOON = "--export=ALL,AGENT_JOB_RETRIES=3,AGENT_NODE_GRACE=10s,AGENT_WAIT_WORKERS=60s"


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[SlurmCluster]:
    """Two nodes under Slurm."""
    need_lab()
    need_slurm()
    with podlab.Lab(names=["node1", "node2"], shm="1g", share=[tmp_path]) as lab:
        cluster = SlurmCluster(lab, tmp_path, f"SlurmdTimeout={SLURMD_TIMEOUT}")
        cluster.up()
        yield cluster


@pytest.mark.fault(
    "slurm-agent",
    "Slurm: only the agent is killed within its step, on the head or a worker",
    "its parent restarts it within the step: the same Ray, one attempt, the job's code",
)
@pytest.mark.timeout(600)
def test_an_agent_killed_within_its_step(slurm: SlurmCluster, tmp_path: Path) -> None:
    """Its parent starts the next agent: same Ray, one attempt, the job's exit code."""
    go = tmp_path / "go"
    job = slurm.submit("killed", COUNTS.format(go=go))
    job.wait_for("^line 5$")
    parents = _parents(job)
    rays = job.ray()
    assert set(rays["node1"]) == {"gcs_server", "raylet"}
    assert set(rays["node2"]) == {"raylet"}
    for number, node in enumerate(slurm.nodes, 1):
        _kill_agent(job, node)
        job.wait_for(rf"(still runs: adopted[\s\S]*){{{number}}}")
        written = _last_line(job)
        job.wait_for(f"^line {written + 20}$")  # the job continues, and its output is followed
    assert _parents(job) == parents
    assert job.ray() == rays
    go.touch()
    assert job.state(END, "FAILED", "COMPLETED")["ExitCode"] == "7:0", job.text()
    lines = [line for line in job.text().splitlines() if line.startswith("line ")]
    assert [*dict.fromkeys(lines)] == [f"line {i}" for i in range(1, _last_line(job) + 1)]
    outcomes = job.outcomes()
    assert [one["exit_code"] for one in outcomes.values()] == [7, 7]
    assert [one["number"] for one in outcomes["node1"]["attempts"]] == [1]
    job.wait_until_gone(END)
    assert job.sbatch.wait(SBATCH_POLLS) == 7


@pytest.mark.fault("slurm-node")
@pytest.mark.timeout(600)
def test_a_hung_node_requeues_the_job(slurm: SlurmCluster) -> None:
    """On 75 the batch script requeues the job, which continues as the run's next attempt."""
    job = slurm.submit("hangs", TWICE, SOON)
    job.wait_for("^attempt 1$")
    for process in job.processes()["node2"]:
        os.kill(process.host_pid, signal.SIGSTOP)
    job.wait_for("attempt 1 of 4 is lost: .*node2", timeout=BOOT)
    job.wait_for("exit code 75", timeout=2 * BOOT)
    _goes_on(slurm, job)


@pytest.mark.fault(
    "slurm-node",
    "Slurm: a node is lost, or all its processes hang",
    "Slurm requeues the job when the node stops responding, or the batch script does at 75: "
    "the same job id continues with the next attempt",
)
@pytest.mark.timeout(600)
def test_a_lost_node_requeues_the_job(slurm: SlurmCluster) -> None:
    """Slurm requeues it after the node's loss; it continues as the run's next attempt."""
    job = slurm.submit("lost", TWICE, SOON)
    job.wait_for("^attempt 1$")
    slurm.nodes["node2"].kill()
    job.wait_for("attempt 1 of 4 is lost: .*node2", timeout=BOOT)
    job.wait_until_gone(2 * BOOT)
    slurm.bring_back("node2")
    _goes_on(slurm, job)


def _goes_on(slurm: SlurmCluster, job: Job) -> None:
    """Start the requeued job without Slurm's delay; it must make the second attempt.

    Not in the second of its requeue, whose credentials Slurm has revoked.
    """
    await_true("it is requeued", lambda: job.fields().get("Restarts") == "1", 2 * BOOT, step=0.3)
    slurm.run("scontrol", "update", f"JobId={job.id}", "StartTime=now+2seconds")
    job.wait_for("^attempt 2$", timeout=2 * BOOT)
    assert job.state(END, "COMPLETED", "FAILED")["ExitCode"] == "0:0", job.text()
    first, second = job.outcomes()["node1"]["attempts"]
    assert (first["exit_code"], second["exit_code"]) == (75, 0)
    assert "node2" in first["reason"]
    job.wait_until_gone(END)


def _kill_agent(job: Job, node: str) -> None:
    await_true("there is an agent", lambda: job.agent(node) is not None, END)
    agent = job.agent(node)
    assert agent is not None
    os.kill(agent.host_pid, signal.SIGKILL)


def _parents(job: Job) -> dict[str, int]:
    """Return the PIDs of the processes that Slurm started, by node."""
    return {node: job.parent(node).pid for node in job.cluster.nodes}


def _last_line(job: Job) -> int:
    """Return the number in the job's last line."""
    lines = [line for line in job.text().splitlines() if line.startswith("line ")]
    return int(lines[-1].split()[1])
