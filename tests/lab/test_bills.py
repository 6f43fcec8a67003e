"""Bounded bills: a node is taken away, hours are over, a container restarts."""

from __future__ import annotations

import re
import signal
import time
from typing import TYPE_CHECKING

import pytest

from support.scenario import BOOT, await_true, ends, last_line

if TYPE_CHECKING:
    from support.scenario import Cluster

TRAINS = """
import os, pathlib, signal, time
folder = pathlib.Path("{checkpoints}")
kept = [int(path.name.split("-")[1]) for path in folder.glob("checkpoint-*")]
step, wanted = max(kept, default=0), []
signal.signal(signal.SIGUSR1, lambda *_: wanted.append(1))
print(f"of {nodes} from step {step}", flush=True)
while step < 400:
    if os.environ["AGENT_ATTEMPT"] == "2" and step >= max(kept) + 5:
        break
    time.sleep(0.2)
    step += 1
    print(f"step {step}", flush=True)
    if wanted:
        wanted.clear()
        new = folder / f"checkpoint-{step}"
        new.mkdir(parents=True)
        (new / "state").write_text(str(step))
"""
"""A step takes 0.2 s; the job saves at the end of a step, and only on SIGUSR1."""

SAVES_ON_TERM = """
import pathlib, signal, sys, time
def save(*_):
    time.sleep(1)
    pathlib.Path("/tmp/saved").write_text("all")
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("training", flush=True)
time.sleep(1000)
"""


@pytest.mark.fault(
    "worker-taken",
    "a platform takes a worker away (SIGTERM) from a job that saves on AGENT_NOTICE_SIGNAL",
    "the job saves within the notice and is stopped; the worker leaves with 143; another "
    "attempt begins when a node is back, and AGENT_JOB_RETRIES does not count it",
)
@pytest.mark.pods(2)
def test_a_node_that_is_taken_away(cluster: Cluster) -> None:
    """SIGTERM to the worker: the job saves, at most one step is lost, and no retry is used."""
    cluster.env |= {"AGENT_NOTICE_SIGNAL": "SIGUSR1", "AGENT_CHECKPOINTS": "/tmp/checkpoints"}
    job = ("python3", "-u", "-c", TRAINS)
    head, worker = cluster.agents(*job)
    head.wait_for("^step 10$", "stdout", timeout=BOOT)
    worker.signal(signal.SIGTERM)
    began = time.monotonic()
    assert worker.wait(25) == 143
    assert time.monotonic() - began < 15
    head.wait_for("announced losses that AGENT_JOB_RETRIES does not count: 1 of 10", timeout=40)
    again = cluster.agent(1, *job)
    assert ends([head, again]) == [0, 0], head.tail()
    assert "the job has saved checkpoint-" in head.stderr()
    first, second = head.stdout().split("of 2 from step ")[1:]
    last = int(re.findall(r"step (\d+)", first)[-1])
    saved = int(second.split()[0])
    noticed = re.search(r"SIGUSR1 passed on", head.stderr())
    assert noticed is not None
    assert (f"step {saved}" in first, saved <= last) == (True, True)
    lost, done = cluster.outcome(0)["attempts"]
    assert (lost["exit_code"], done["exit_code"]) == (75, 0)
    assert "the platform takes away " in lost["reason"]


@pytest.mark.fault(
    "hours",
    "a run has used its AGENT_MAX_HOURS, or its AGENT_MAX_COST",
    "announced; the job is stopped with its grace to save; 78, with the cost",
)
@pytest.mark.pods(1)
def test_a_run_that_has_used_its_hours(cluster: Cluster) -> None:
    """The job's own handler of SIGTERM saves within its grace; the run ends with 78 and a cost."""
    cluster.env |= {"AGENT_MAX_HOURS": "0.02", "AGENT_PRICE_PER_HOUR": "100"}
    head = cluster.agent(0, "python3", "-u", "-c", SAVES_ON_TERM)
    head.wait_for("^training$", "stdout", timeout=BOOT)
    head.wait_for(r"AGENT_MAX_HOURS allows 0.02 h of 1 node\(s\), \$2.00", timeout=BOOT)
    assert head.wait(BOOT) == 78
    assert (cluster.pods[0].tmp / "saved").read_text() == "all"
    assert "AGENT_MAX_HOURS" in last_line(head)
    outcome = cluster.outcome(0)
    assert outcome["kind"] == "stopped"
    assert outcome["cost"] >= 1.99
    assert f" · ${outcome['cost']:.2f} · " in head.stderr()


@pytest.mark.fault("hours")
@pytest.mark.pods(1)
def test_a_run_that_has_used_its_money(cluster: Cluster) -> None:
    """It is announced at 80 %; the job saves within its grace, and the run ends with 78."""
    cluster.env |= {"AGENT_MAX_COST": "40", "AGENT_PRICE_PER_HOUR": "3600"}
    head = cluster.agent(0, "python3", "-u", "-c", SAVES_ON_TERM)
    head.wait_for("^training$", "stdout", timeout=BOOT)
    head.wait_for(r"\$3[2-9]\.\d\d of AGENT_MAX_COST=\$40.00 are used", timeout=60)
    assert head.wait(60) == 78, head.tail()
    assert (cluster.pods[0].tmp / "saved").read_text() == "all"
    assert "Raise AGENT_MAX_COST" in last_line(head)
    outcome = cluster.outcome(0)
    assert outcome["kind"] == "stopped"
    assert 40 <= outcome["cost"] < 60


@pytest.mark.fault(
    "finished",
    "RunPod or a LeaderWorkerSet starts the container of a finished run again",
    "the recorded code again, without another job; AGENT_RERUN=1 runs it",
)
@pytest.mark.pods(1)
def test_a_restarted_container_of_a_finished_run(cluster: Cluster) -> None:
    """It ends with the recorded code and one line; AGENT_RERUN=1 runs the job again."""
    job = ("sh", "-c", "echo ran >>/tmp/ran; exit 5")
    ran = cluster.pods[0].tmp / "ran"
    assert cluster.agent(0, *job).wait(BOOT) == 5
    began = time.monotonic()
    again = cluster.agent(0, *job)
    assert again.wait(BOOT) == 5
    assert time.monotonic() - began < 10
    assert "has ended: a restarted container does not repeat it" in again.stderr()
    assert ran.read_text() == "ran\n"
    assert cluster.agent(0, *job, env={"AGENT_RERUN": "1"}).wait(BOOT) == 5
    await_true("the job ran again", lambda: ran.read_text() == "ran\nran\n", 1)
