"""A heterogeneous job on real Slurm daemons, of which a node of engines is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import tools.lab as podlab
from support.scenario import BOOT, REPO, await_true, need_lab, stale_samples
from support.slurm_cluster import SlurmCluster, need_slurm

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SERVICES = REPO / "examples/services/groups.toml"
SLURMD_TIMEOUT = 15
"""Seconds until Slurm marks a silent node as down; by default 300."""
CONF = f"SlurmdTimeout={SLURMD_TIMEOUT}\nSchedulerParameters=bf_interval=2"
SETTINGS = "--export=ALL,AGENT_REWARD=builtin,AGENT_NUM_GPUS=2,AGENT_NODE_GRACE=10s"
JOB = (
    "pod-agent rehearsal-async --engines {{addresses:engine|space}} --keep"
    " --weights-dir {shared}/weights --samples {shared}/samples.jsonl"
    " --checkpoints {{checkpoints}} --reward-url {{reward_url}}"
    " --steps {steps} --seconds-per-step 0.5"
)
TWICE = "sh -c 'echo attempt $AGENT_ATTEMPT; [ \"$AGENT_ATTEMPT\" = 1 ] || exit 0; sleep 1000'"
END = 60.0
"""Maximum time from a job's end until Slurm reports it."""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the disk of all nodes."""
    return tmp_path_factory.mktemp("shared")


@pytest.fixture(scope="module")
def slurm(shared: Path) -> Iterator[SlurmCluster]:
    """Four nodes under Slurm: two train, and two are of the group."""
    need_lab()
    need_slurm()
    names = ["node1", "node2", "node3", "node4"]
    with podlab.Lab(names=names, shm="1g", share=[shared]) as lab:
        cluster = SlurmCluster(lab, shared, CONF)
        cluster.up()
        yield cluster


@pytest.mark.timeout(500)
def test_a_heterogeneous_job(slurm: SlurmCluster, shared: Path) -> None:
    """Engines of the second component serve the trainer of the first; all nodes end with 0."""
    command = JOB.format(shared=shared, steps=10)
    job = slurm.submit("whole", command, SETTINGS, services=SERVICES)
    job.wait_for("step 10/10", 2 * BOOT)
    assert job.state(END, "COMPLETED", "FAILED")["ExitCode"] == "0:0", job.text()
    assert "engine.1 on rank 3 (node4) answers" in job.text()
    assert {outcome["exit_code"] for outcome in job.outcomes().values()} == {0}
    assert stale_samples(job.text()) == 0


@pytest.mark.timeout(500)
def test_a_lost_node_of_the_engines(slurm: SlurmCluster, shared: Path) -> None:
    """Slurm takes it out of the job; the trainer goes on in its attempt, and ends with 0."""
    command = JOB.format(shared=shared, steps=160)
    job = slurm.submit("lost", command, SETTINGS, services=SERVICES)
    job.wait_for(r"^step \d+/160", 2 * BOOT)  # it goes on from the first job's checkpoint
    slurm.nodes["node4"].kill()
    job.wait_for("Node failure on node4", 2 * BOOT)
    job.wait_for("step 160/160", 4 * BOOT)
    assert job.state(END, "COMPLETED", "FAILED")["ExitCode"] == "0:0", job.text()
    assert job.fields()["Restarts"] == "0"
    outcome = slurm.outcome(job.id, "node1")
    assert (outcome["kind"], len(outcome["attempts"])) == ("done", 1)
    assert stale_samples(job.text()) == 0


@pytest.mark.timeout(600)
def test_a_lost_node_of_the_trainer(slurm: SlurmCluster) -> None:
    """Slurm would keep the job without its head and its batch script: the file has it requeued."""
    if not slurm.nodes["node4"].running:
        slurm.bring_back("node4")
    slurm.run("scontrol", "update", "NodeName=node1", "Weight=100")  # slurmctld's: not for the head
    settings = f"{SETTINGS},AGENT_JOB_RETRIES=3"
    job = slurm.submit("trainer", TWICE, settings, services=SERVICES)
    job.wait_for("^attempt 1$", 2 * BOOT)
    slurm.nodes["node2"].kill()
    await_true("it is requeued", lambda: job.fields().get("Restarts") == "1", 3 * BOOT, step=0.5)
    slurm.bring_back("node2")
    for component in (job.id, f"{job.id}+1"):
        slurm.run("scontrol", "update", f"JobId={component}", "StartTime=now+2seconds")
    job.wait_for("^attempt 2$", 2 * BOOT)
    assert job.state(END, "COMPLETED", "FAILED")["ExitCode"] == "0:0", job.text()
    first, second = slurm.outcome(job.id, "node2")["attempts"]
    assert second["exit_code"] == 0
    assert first["exit_code"] != 0
