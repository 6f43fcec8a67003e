"""torchrun: a worker's output counts like the head's, and its stacks are collected."""

from __future__ import annotations

import os
import re
import signal
from typing import TYPE_CHECKING

import pytest

from support.bundles import bundle_contents
from support.scenario import agents_in, ends, keep_running, last_line
from support.torchrun_nodes import START, job_log, start
from support.volumes import memory_disk

if TYPE_CHECKING:
    from support.scenario import Cluster

LIMIT, WRITES = 20, 45
"""AGENT_STALL in seconds, and for how many seconds only the worker's ranks write."""
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
SCRIPT = f"""
import os, threading, time

def tell(*words):  # ranks share a pipe: a line must be one write
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

rank = os.environ["RANK"]
tell("up", rank)
if int(rank) > 1:
    tell({OOM!r})
    for step in range(2 * {WRITES}):
        time.sleep(0.5)
        tell("step", step)
    tell("last word", rank)

def waits_for_the_others():
    threading.Event().wait()

waits_for_the_others()
"""


@pytest.mark.pods(2)
def test_a_workers_ranks_are_watched(cluster: Cluster) -> None:
    """A fatal line is seen once, as the rank goes on; output is progress, stacks are logged."""
    cluster.env["AGENT_STALL"] = f"{LIMIT}s"
    head, worker = start(cluster, SCRIPT)
    head.wait_for("up 0", stream="stdout", timeout=START)
    seen = "seen in the job's output, which goes on: a GPU ran out of memory"
    worker.wait_for(seen, timeout=WRITES)
    head.wait_for("stall: the job shows no sign of work for", timeout=180)
    written = job_log(cluster, 1)
    assert {"last word 2", "last word 3"} <= {*written.splitlines()}
    head_log, worker_log = head.stderr(), worker.stderr()
    assert worker_log.count(seen) == 1
    waits = "rank 0 on poda, rank 1 on poda, rank 2 on podb and rank 3 on podb are in"
    assert f"{waits} `waits_for_the_others` (train.py:" in head_log or (
        "4 of 4 ranks are in `waits_for_the_others` (train.py:" in head_log
    )
    found = cluster.file(0, "stacks-1.log").read_text()
    rank = re.search(r"rank 0 \(pid (\d+)\)", found)
    assert rank is not None
    assert head.exec(["kill", "-9", rank[1]]).returncode == 0
    assert ends([head, worker], 60) == [137, 137], head.tail()
    assert head.stderr().count("stall: the job shows no sign of work") == 1
    bundle = bundle_contents(cluster, 0, head)
    assert bundle["poda/stacks-1.log"].count("waits_for_the_others") >= 2


@pytest.mark.pods(2)
def test_the_output_of_failed_ranks_gives_the_remedy(cluster: Cluster) -> None:
    """The node's log explains the failure, and the head repeats it with the node's name."""
    fails = f"import os\nif os.environ['RANK'] == '3':\n    raise MemoryError({OOM!r})\n"
    agents = start(cluster, f"{fails}import time\ntime.sleep(600)\n")
    assert ends(agents, START) == [1, 1], agents[0].tail()
    assert "a GPU ran out of memory on podb" in last_line(agents[0])
    assert "Take a smaller micro batch" in last_line(agents[0])
    assert "a GPU ran out of memory" in last_line(agents[1])


SEVEN = """
import os, sys, time
for step in range(20):
    os.write(1, f"step {step} of rank {os.environ['RANK']}\\n".encode())
    time.sleep(0.5)
sys.exit(7 if os.environ["RANK"] == "0" else 0)
"""


@pytest.mark.pods(2)
def test_a_full_log_disk_takes_neither_code_nor_output(cluster: Cluster) -> None:
    """A rank's own code ends all nodes, and the head's stdout has the whole output."""
    with memory_disk(cluster.pods[0].tmp / "logs", "4m") as disk:
        agents = start(cluster, SEVEN)
        agents[0].wait_for("step 2 of rank 0", stream="stdout", timeout=START)
        disk.fill()
        assert ends(agents, START) == [7, 7], agents[0].tail()
        assert "step 19 of rank 0" in agents[0].stdout().splitlines()
    assert "local rank 0 on poda" in last_line(agents[0])


STOPPED = 25
"""For how many seconds an agent is stopped: longer than a silent share or head is tolerated."""


@pytest.mark.pods(2)
def test_stopped_agents_go_on(cluster: Cluster) -> None:
    """Neither a head nor a worker gives up a healthy job when it wakes after its deadlines."""
    cluster.env["AGENT_HEAD_GRACE"] = f"{STOPPED - 5}s"
    agents = start(cluster, f"import time\nprint('up', flush=True)\ntime.sleep({3 * STOPPED})\n")
    agents[0].wait_for("up", stream="stdout", timeout=START)
    stopped = [agent for one in agents for agent in agents_in(one)]
    for signum in (signal.SIGSTOP, signal.SIGCONT):
        for agent in stopped:
            os.kill(agent.host_pid, signum)
        if signum == signal.SIGSTOP:
            keep_running(STOPPED, *agents)
    assert ends(agents, 4 * STOPPED) == [0, 0], agents[0].tail()
    for one in agents:
        assert "the agent did not run for" in one.stderr()
    assert "lost" not in agents[0].stderr()
