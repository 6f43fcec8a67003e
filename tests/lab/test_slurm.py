"""Slurm for real: the plain example under its daemons, one agent a node, every way to end.

The jobs run beside one another where they can: hosts are shared here, and Slurm counts in minutes.
"""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

import pytest

import podlab
from scenario import AGENT, BOOT, need_lab
from slurm_cluster import Job, SlurmCluster, need_slurm

if TYPE_CHECKING:
    from collections.abc import Iterator

PATIENT = "trap 'echo cleaned up; exit 0' TERM; echo running; while :; do sleep 0.1; done"
DEAF = "trap '' TERM; echo running; while :; do sleep 0.1; done"
ONCE = r"echo running; [ -n \"\$SLURM_RESTART_COUNT\" ] || sleep 100; echo second run"
KILL_WAIT = 30.0
"""Slurm's default: the seconds from its TERM to its KILL."""
SHORT_OF_GCS = "--export=ALL,RAY_gcs_rpc_server_reconnect_timeout_s=15"
"""A Ray whose agent was killed ends when it has missed the head's for a minute, here less."""
ORPHANED = 120.0
END = 40.0
"""Longest from a job's end to Slurm's word of it."""
ASKED_AGAIN = 120.0
"""`sbatch --wait` asks after 2 s, then ever later, up to every half minute."""


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    """Two nodes, which jobs share as Slurm's hosts may be shared."""
    need_lab()
    need_slurm()
    shared = tmp_path_factory.mktemp("shared")
    with podlab.Lab(names=["node1", "node2"], shm="1g", share=[shared]) as lab:
        cluster = SlurmCluster(lab, shared)
        cluster.up()
        yield cluster


@pytest.fixture(scope="module")
def neighbour(slurm: SlurmCluster) -> Job:
    """A job on the same nodes, which is deaf, and whose worker's agent hangs with its parent."""
    job = slurm.submit("neighbour", f'sh -c "{DEAF}"')
    job.wait_for("^running$")
    hung = job.parent("node2")
    slurm.nodes["node2"].exec(["kill", f"-{signal.SIGSTOP}", str(hung.pid)])
    return job


@pytest.fixture(scope="module")
def seven(slurm: SlurmCluster, neighbour: Job) -> Job:
    """A job that ends with 7, beside the neighbour."""
    assert neighbour
    return slurm.submit("seven", 'sh -c "echo nodes={nodes}; exit 7"')


def test_the_jobs_code_arrives_and_another_jobs_ray_stays(neighbour: Job, seven: Job) -> None:
    """Both leave with 7, whoever is first; --kill-on-bad-exit then stops nobody with 143."""
    before = neighbour.ray()
    assert set(before["node1"]) == {"gcs_server", "raylet"}
    assert set(before["node2"]) == {"raylet"}
    assert seven.state(BOOT + END, "FAILED", "COMPLETED")["ExitCode"] == "7:0", seven.text()
    assert "\nnodes=2\n" in seven.text()
    seven.wait_until_gone(2)
    outcomes = seven.outcomes().values()
    assert [(one["kind"], one["exit_code"]) for one in outcomes] == [("job-failed", 7)] * 2
    assert neighbour.ray() == before


def test_two_tasks_on_a_node_are_refused(slurm: SlurmCluster) -> None:
    """Each would start another Ray: 78, with the remedy."""
    done = slurm.run("srun", "--nodes=2", "--ntasks-per-node=2", AGENT, "run", "--", "true")
    assert done.returncode == 78
    assert done.stderr.count("more than one task on a node") == 4
    assert "srun --ntasks-per-node=1" in done.stderr


def test_scancel(slurm: SlurmCluster) -> None:
    """The job may clean up, all nodes log why they end, and end before Slurm kills."""
    job = slurm.submit("cancelled", f'sh -c "{PATIENT}"')
    job.wait_for("^running$")
    began = time.monotonic()
    slurm.run("scancel", job.id)
    job.wait_until_gone(KILL_WAIT)
    assert time.monotonic() - began < KILL_WAIT - 5
    job.state(END, "CANCELLED")
    assert "cleaned up" in job.text()
    outcomes = job.outcomes().values()
    assert [(one["culprit"], one["exit_code"]) for one in outcomes] == [("SIGTERM", 143)] * 2


def test_a_killed_task_ends_the_others(slurm: SlurmCluster) -> None:
    """--kill-on-bad-exit: a parent is killed; the head is stopped, and lets the job clean up."""
    job = slurm.submit("bad-exit", f'sh -c "{PATIENT}"', SHORT_OF_GCS)
    job.wait_for("^running$")
    dying = job.parent("node2")
    slurm.nodes["node2"].exec(["kill", f"-{signal.SIGKILL}", str(dying.pid)])
    assert job.state(END, "FAILED")["ExitCode"] == "137:0", job.text()
    assert "task 1: Killed" in job.text()
    assert "cleaned up" in job.text()
    assert job.cluster.outcome(job.id, "node1")["culprit"] == "SIGTERM"
    job.wait_until_gone(5, "node1")


def test_requeue(slurm: SlurmCluster) -> None:
    """The second run of a job continues in the same folders, beside the first's outcome."""
    job = slurm.submit("requeued", f'sh -c "{ONCE}"')
    job.wait_for("^running$")
    slurm.run("scontrol", "requeue", job.id)
    job.state(END, "PENDING")
    job.wait_until_gone(2)
    slurm.run("scontrol", "update", f"JobId={job.id}", "StartTime=now")
    job.wait_for("^second run$")
    assert job.state(END, "COMPLETED", "FAILED")["ExitCode"] == "0:0", job.text()
    first = job.outcomes("outcome.former-1.json").values()
    second = job.outcomes().values()
    assert [one["culprit"] for one in first] == ["SIGTERM"] * 2
    assert [(one["kind"], one["exit_code"]) for one in second] == [("done", 0)] * 2


def test_time_limit(slurm: SlurmCluster, neighbour: Job) -> None:
    """TERM at the limit, KILL for what hangs: the head ends in order, and no process is left."""
    slurm.run("scontrol", "update", f"JobId={neighbour.id}", "TimeLimit=1")
    neighbour.state(150, "TIMEOUT")
    neighbour.wait_until_gone(2)
    outcome = neighbour.cluster.outcome(neighbour.id, "node1")
    assert (outcome["culprit"], outcome["exit_code"]) == ("SIGTERM", 143)
    assert "stopped: asked to stop by SIGTERM (exit code 143)" in neighbour.text()


def test_sbatch_waits_for_the_code(seven: Job) -> None:
    """`sbatch --wait` ends with it too, when it has asked again."""
    seven.state(BOOT + END, "FAILED", "COMPLETED")
    assert seven.sbatch.wait(ASKED_AGAIN) == 7


def test_nothing_is_left(slurm: SlurmCluster) -> None:
    """No process of any job, not even of the task whose agent was killed.

    Slurm loses sight of such processes where it follows parents, as here, rather than cgroups.
    """
    assert slurm.jobs
    for job in slurm.jobs:
        job.wait_until_gone(ORPHANED)
