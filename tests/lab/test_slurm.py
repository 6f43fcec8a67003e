"""Real Slurm daemons run the plain example, one agent per node, with every way to end.

The jobs run side by side where possible: Slurm lets them share hosts, and its timers take minutes.
"""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

import pytest

import tools.lab as podlab
from support.scenario import AGENT, BOOT, need_lab
from support.slurm_cluster import Job, SlurmCluster, need_slurm

if TYPE_CHECKING:
    from collections.abc import Iterator

CLEANS_UP = "trap 'echo cleaned up; exit 0' TERM; echo running; while :; do sleep 0.1; done"
IGNORES_TERM = "trap '' TERM; echo running; while :; do sleep 0.1; done"
ONCE = r"echo running; [ -n \"$SLURM_RESTART_COUNT\" ] || sleep 100; echo second run"
KILL_WAIT = 30.0
"""Slurm's default: seconds between its TERM and its KILL."""
SHORT_OF_GCS = "--export=ALL,RAY_gcs_rpc_server_reconnect_timeout_s=15"
"""A Ray whose agent was killed exits when its GCS is away for 60 s; here for 15 s."""
ORPHANED = 120.0
END = 40.0
"""Maximum time from a job's end until Slurm reports it."""
SBATCH_POLLS = 120.0
"""`sbatch --wait` polls after 2 s, then less and less often, down to every 30 s."""


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    """Two nodes that jobs share, as Slurm's hosts may be shared."""
    need_lab()
    need_slurm()
    shared = tmp_path_factory.mktemp("shared")
    with podlab.Lab(names=["node1", "node2"], shm="1g", share=[shared]) as lab:
        cluster = SlurmCluster(lab, shared)
        cluster.up()
        yield cluster


@pytest.fixture(scope="module")
def neighbor(slurm: SlurmCluster) -> Job:
    """A job on the same nodes that ignores signals, with its worker's agent and parent stopped."""
    job = slurm.submit("neighbor", f'sh -c "{IGNORES_TERM}"')
    job.wait_for("^running$")
    hung = job.parent("node2")
    slurm.nodes["node2"].exec(["kill", f"-{signal.SIGSTOP}", str(hung.pid)])
    return job


@pytest.fixture(scope="module")
def seven(slurm: SlurmCluster, neighbor: Job) -> Job:
    """A job that ends with 7, next to the neighbor."""
    assert neighbor
    return slurm.submit("seven", 'sh -c "echo nodes={nodes}; exit 7"')


def test_the_jobs_code_arrives_and_another_jobs_ray_stays(neighbor: Job, seven: Job) -> None:
    """Both nodes exit with 7, in any order; --kill-on-bad-exit then stops none with 143."""
    before = neighbor.ray()
    assert set(before["node1"]) == {"gcs_server", "raylet"}
    assert set(before["node2"]) == {"raylet"}
    assert seven.state(BOOT + END, "FAILED", "COMPLETED")["ExitCode"] == "7:0", seven.text()
    assert "\nnodes=2\n" in seven.text()
    seven.wait_until_gone(2)
    outcomes = seven.outcomes().values()
    assert [(one["kind"], one["exit_code"]) for one in outcomes] == [("job-failed", 7)] * 2
    assert neighbor.ray() == before


def test_two_tasks_on_a_node_are_refused(slurm: SlurmCluster) -> None:
    """Each task would start its own Ray: 78, with the remedy."""
    done = slurm.run("srun", "--nodes=2", "--ntasks-per-node=2", AGENT, "run", "--", "true")
    assert done.returncode == 78
    assert done.stderr.count("expected one agent per node") == 4
    assert "srun --ntasks-per-node=1" in done.stderr


@pytest.mark.fault("slurm")
def test_scancel(slurm: SlurmCluster) -> None:
    """The job can clean up; all nodes log the reason, and exit before Slurm kills them."""
    job = slurm.submit("canceled", f'sh -c "{CLEANS_UP}"')
    job.wait_for("^running$")
    began = time.monotonic()
    slurm.run("scancel", job.id)
    job.wait_until_gone(KILL_WAIT)
    assert time.monotonic() - began < KILL_WAIT - 5
    job.state(END, "CANCELLED")
    assert "cleaned up" in job.text()
    outcomes = job.outcomes().values()
    assert [(one["culprit"], one["exit_code"]) for one in outcomes] == [("SIGTERM", 143)] * 2


@pytest.mark.fault(
    "slurm",
    "Slurm: a task is killed, the job is canceled, requeued or at its time limit",
    "all tasks stop in order; a requeued job continues in the same folders",
)
def test_a_killed_task_ends_the_others(slurm: SlurmCluster) -> None:
    """--kill-on-bad-exit: a parent is killed; the head is stopped, and lets the job clean up."""
    job = slurm.submit("bad-exit", f'sh -c "{CLEANS_UP}"', SHORT_OF_GCS)
    job.wait_for("^running$")
    dying = job.parent("node2")
    slurm.nodes["node2"].exec(["kill", f"-{signal.SIGKILL}", str(dying.pid)])
    assert job.state(END, "FAILED")["ExitCode"] == "137:0", job.text()
    assert "task 1: Killed" in job.text()
    assert "cleaned up" in job.text()
    assert job.cluster.outcome(job.id, "node1")["culprit"] == "SIGTERM"
    job.wait_until_gone(5, "node1")


@pytest.mark.fault("slurm")
def test_requeue(slurm: SlurmCluster) -> None:
    """The second run of a job continues in the same folders; the first outcome is kept."""
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


@pytest.mark.fault("slurm")
def test_time_limit(slurm: SlurmCluster, neighbor: Job) -> None:
    """TERM at the limit, KILL for a hung process: the head ends in order, without leftovers."""
    slurm.run("scontrol", "update", f"JobId={neighbor.id}", "TimeLimit=1")
    neighbor.state(150, "TIMEOUT")
    neighbor.wait_until_gone(2)
    outcome = neighbor.cluster.outcome(neighbor.id, "node1")
    assert (outcome["culprit"], outcome["exit_code"]) == ("SIGTERM", 143)
    assert "stopped: asked to stop by SIGTERM (exit code 143)" in neighbor.text()


def test_sbatch_waits_for_the_code(seven: Job) -> None:
    """`sbatch --wait` exits with the same code after its next poll."""
    seven.state(BOOT + END, "FAILED", "COMPLETED")
    assert seven.sbatch.wait(SBATCH_POLLS) == 7


def test_nothing_is_left(slurm: SlurmCluster) -> None:
    """No process of any job is left, not even of the task whose agent was killed.

    Slurm loses track of such processes if it follows parents, as here, instead of cgroups.
    """
    assert slurm.jobs
    for job in slurm.jobs:
        job.wait_until_gone(ORPHANED)
