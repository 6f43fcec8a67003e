"""Losses while a job runs: the loss is named, and the job is retried where retries remain."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

import pytest

from support.scenario import BOOT, Cluster, await_true, ends, last_line, states

if TYPE_CHECKING:
    from pathlib import Path

    from tools.lab import Container, ProcessInfo

TWICE = 'echo attempt $AGENT_ATTEMPT; [ "$AGENT_ATTEMPT" = 1 ] || exit 7; exec sleep 1000'
"""Hangs in the first attempt, like a collective, and ends in the second."""


def _drivers(pod: Container) -> list[ProcessInfo]:
    return [p for p in pod.processes() if p.cmdline == "sleep 1000" and not p.zombie]


@pytest.mark.fault(
    "worker-back",
    "a worker's pod is killed and started again",
    "the head names it within 3 s; it rejoins; the lost attempt is made again",
)
@pytest.mark.pods(2)
def test_a_killed_worker_that_returns_costs_an_attempt(cluster: Cluster) -> None:
    """The job hangs without the worker: it is stopped, and submitted again with the new pod."""
    cluster.env |= {"AGENT_JOB_RETRIES": "1", "AGENT_NODE_GRACE": "3s"}
    head, worker = cluster.agents("sh", "-c", TWICE)
    head.wait_for("^attempt 1$", "stdout", timeout=BOOT)
    worker.kill()
    head.wait_for("attempt 1 of 2 is lost", timeout=60)
    again = cluster.agent(1, "sh", "-c", TWICE)
    assert ends([head, again]) == [7, 7], head.tail()
    assert head.stdout() == "attempt 1\nattempt 2\n"
    head.wait_for("attempt 2 of 2: .*podb.*; 2 of 2 node", timeout=5)
    first, second = cluster.outcome(0)["attempts"]
    assert (first["number"], first["exit_code"], second["exit_code"]) == (1, 75, 7)
    assert "podb" in first["reason"]


@pytest.mark.fault(
    "ray-job",
    "the head's Ray is killed while a job runs",
    "the attempt is lost and made again on a new Ray while retries remain; then 75",
)
@pytest.mark.pods(1)
def test_the_heads_ray_is_killed_twice(cluster: Cluster) -> None:
    """A lost Ray means another attempt on a new Ray; the second loss exceeds the retries."""
    cluster.env |= {"AGENT_JOB_RETRIES": "1"}
    head = cluster.agent(0, "sh", "-c", "echo attempt $AGENT_ATTEMPT; exec sleep 1000")
    for attempt in (1, 2):
        head.wait_for(f"^attempt {attempt}$", "stdout", timeout=BOOT)
        raylet = next(p for p in head.processes() if p.name == "raylet")
        assert head.exec(["kill", "-9", str(raylet.pid)]).returncode == 0
        if attempt == 1:
            head.wait_for("attempt 1 of 2 is lost: Ray was lost on the head", timeout=20)
            await_true("its driver is gone", lambda: not _drivers(head), 5)
    assert head.wait(60) == 75
    assert "Ray was lost on the head" in last_line(head)
    outcome = cluster.outcome(0)
    assert outcome["attempts_are_used_up"]
    assert [one["exit_code"] for one in outcome["attempts"]] == [75, 75]
    began = time.monotonic()
    again = cluster.agent(0, "sh", "-c", "echo attempt $AGENT_ATTEMPT; exec sleep 1000")
    assert again.wait(30) == 75
    assert time.monotonic() - began < 10
    assert "2 attempt(s) lost, and AGENT_JOB_RETRIES=1 allows no other" in last_line(again)
    assert again.stdout() == ""


@pytest.mark.fault(
    "head-back",
    "the head's pod is killed and restarted elsewhere, with its disk or without",
    "workers wait AGENT_HEAD_GRACE and rejoin; the run continues with its next attempt",
)
@pytest.mark.pods(3)
@pytest.mark.parametrize("disk", ["shared", "lost"])
def test_a_head_with_a_new_address_continues_its_run(
    cluster: Cluster, disk: str, shared: Path
) -> None:
    """The head's name gets a new address: the worker rejoins, the job is submitted again.

    The new head reads the run from `run.json`, or from a worker's report if that disk is gone.
    """
    cluster.env |= {"EXPECTED_WORKERS": "1", "AGENT_JOB_RETRIES": "1"}
    if disk == "shared":
        cluster.env["AGENT_LOG_DIR"] = str(shared)
    old, worker = cluster.agent(0, "sh", "-c", TWICE), cluster.agent(1, "sh", "-c", TWICE)
    old.wait_for("^attempt 1$", "stdout", timeout=BOOT)
    old.kill()
    worker.wait_for("has been silent|connection refused|waiting for", timeout=20)
    place = cluster.pods[2]
    cluster.lab.publish("poda", place.ip)
    new = cluster.agent(2, "sh", "-c", TWICE, env={"RUNPOD_POD_ID": "poda"})
    assert ends([new, worker], 2 * BOOT) == [7, 7], new.tail() + worker.tail()
    assert new.stdout() == "attempt 2\n"
    assert "the head's Ray was restarted" in worker.stderr()
    assert "attempt 2 of 2: its head was lost; 2 of 2 node(s)" in new.stderr()
    assert ("a worker reports run" in new.stderr()) == (disk == "lost")


@pytest.mark.fault(
    "head-other",
    "the head starts another run",
    "a worker of the former run leaves with 75",
)
@pytest.mark.pods(2)
def test_a_head_that_starts_another_run(cluster: Cluster) -> None:
    """Another job is another run: a worker of the former run ends with 75."""
    head, worker = cluster.agents("sh", "-c", "echo here; exec sleep 1000")
    head.wait_for("^here$", "stdout", timeout=BOOT)
    head.kill()
    other = cluster.agent(0, "sh", "-c", "echo another; exec sleep 1000")
    assert worker.wait(60) == 75
    assert "began another run" in last_line(worker)
    other.kill()


@pytest.mark.fault(
    "head-gone",
    "the head does not return",
    "workers leave with 75 after AGENT_HEAD_GRACE",
)
@pytest.mark.pods(2)
def test_a_head_that_never_returns(cluster: Cluster) -> None:
    """The worker ends AGENT_HEAD_GRACE after the head's last reply, without leftovers."""
    cluster.env |= {"AGENT_HEAD_GRACE": "15s"}
    head, worker = cluster.agents("sh", "-c", "echo here; exec sleep 1000")
    head.wait_for("^here$", "stdout", timeout=BOOT)
    head.kill()
    began = time.monotonic()
    assert worker.wait(40) == 75
    assert 4 < time.monotonic() - began < 25
    assert "silent for 15 s" in last_line(worker)


@pytest.mark.fault("worker-back")
@pytest.mark.fault("worker-gone")
@pytest.mark.pods(2)
def test_a_killed_worker_is_named_within_three_seconds(cluster: Cluster) -> None:
    """The closed connection reports the loss, before GCS does."""
    cluster.env["AGENT_NODE_GRACE"] = "15s"
    head, worker = cluster.agents("sh", "-c", "echo here; exec sleep 1000")
    head.wait_for("^here$", "stdout", timeout=BOOT)
    killed = time.monotonic()
    worker.kill()
    head.wait_for("podb is silent", timeout=10)
    assert time.monotonic() - killed < 3
    assert states(head) == {"podb": "lost"}
    assert head.wait(60) == 75
    assert "podb" in last_line(head)


@pytest.mark.fault(
    "ray-idle",
    "Ray is killed while no job runs, on the head or a worker",
    "Ray is restarted in place; a worker rejoins",
)
@pytest.mark.pods(2)
def test_a_killed_ray_without_a_job_is_restarted(cluster: Cluster) -> None:
    """On head or worker, Ray is started again in place, and the worker rejoins."""
    cluster.env |= {"AGENT_JOB": "none"}
    head, worker = cluster.agents()
    head.wait_for("is up and stays", timeout=BOOT)
    _kill(worker, "raylet")
    worker.wait_for(r"Ray was lost here \(.*raylet.*: joining again", timeout=4)
    head.wait_for("podb left Ray", timeout=4)
    head.wait_for("all needed nodes are back", timeout=BOOT)
    _kill(head, "gcs_server")
    head.wait_for(r"Ray was lost on the head: .*gcs_server.*starting it again: 1 of 2", timeout=4)
    head.wait_for(r"is up and stays[\s\S]*is up and stays", timeout=BOOT)
    assert "the head's Ray was restarted" in worker.stderr()
    head.signal(signal.SIGTERM)
    assert ends([head, worker], 30) == [0, 0]


def _kill(pod: Container, name: str) -> None:
    process = next(p for p in pod.processes() if p.name == name)
    assert pod.exec(["kill", "-9", str(process.pid)]).returncode == 0


@pytest.mark.fault(
    "dashboard",
    "Ray's dashboard hangs while a job runs",
    "the job continues, and its end is read from GCS",
)
@pytest.mark.pods(1)
def test_a_hung_dashboard_does_not_end_the_job(cluster: Cluster) -> None:
    """The job continues, and its end is read from GCS."""
    wait = "while [ ! -e /tmp/go ]; do sleep 0.1; done"
    head = cluster.agent(0, "sh", "-c", f"echo here; {wait}; exit 6")
    head.wait_for("^here$", "stdout", timeout=BOOT)
    marks = ("ray-dashboard-", "dashboard/dashboard.py")
    pids = [str(p.pid) for p in head.processes() if any(mark in p.cmdline for mark in marks)]
    assert head.exec(["kill", "-STOP", *pids]).returncode == 0
    head.wait_for("Ray hangs, its dashboard .*: left alone, since a job runs", timeout=20)
    (cluster.pods[0].tmp / "go").touch()
    assert head.wait(40) == 6, head.tail()
