"""Nobody reads stdout or stderr: the agent still exits in time with the right code.

The pod's first process is a small shell that opens the read end of a FIFO and never reads it.
"""

from __future__ import annotations

import signal
import time

import pytest

from support.scenario import AGENT, BOOT, Cluster, await_true

UNREAD = "mkfifo /tmp/unread && exec 3<>/tmp/unread && exec sleep infinity"
"""Opened for both ends: the pipe always has a reader, and no byte is read from it."""
CHATTY = "yes 'a line of the output that nobody reads' | head -c 5000000; exit 7"
WAITING = "trap 'exit 0' TERM; while :; do sleep 0.1; done"
FULL = "head -c 65536 /dev/zero"
"""Fills the pipe before the agent starts: its first write blocks."""


@pytest.mark.fault(
    "readers",
    "no process reads the agent's stdout or stderr",
    "deadlines, SIGTERM and the exit work as usual",
)
@pytest.mark.pods(1)
def test_stdout_without_a_reader(cluster: Cluster) -> None:
    """5 MB into a full pipe: the run ends with the job's code, and job.log is complete."""
    pod = cluster.pods[0]
    holder = pod.start(["sh", "-c", UNREAD])
    await_true("the fifo is there", (pod.tmp / "unread").exists)
    line = f'exec {AGENT} run -- sh -c "$1" >/tmp/unread'
    env = {**cluster.env, "RUNPOD_POD_ID": pod.name}
    head = holder.spawn(["sh", "-c", line, "sh", CHATTY], env=env)
    assert head.wait(BOOT) == 7, head.tail()
    assert "job-failed" in head.stderr().splitlines()[-1]
    assert cluster.outcome(0)["exit_code"] == 7
    assert cluster.file(0, "job.log").stat().st_size == 5_000_000
    holder.kill()


@pytest.mark.fault("readers")
@pytest.mark.pods(1)
def test_stderr_without_a_reader(cluster: Cluster) -> None:
    """No log line can be written, and SIGTERM still stops everything within the grace."""
    pod = cluster.pods[0]
    holder = pod.start(["sh", "-c", UNREAD])
    await_true("the fifo is there", (pod.tmp / "unread").exists)
    line = f'{FULL} >/tmp/unread; exec {AGENT} run -- sh -c "$1" 2>/tmp/unread'
    env = {**cluster.env, "RUNPOD_POD_ID": pod.name}
    head = holder.spawn(["sh", "-c", line, "sh", f"echo running; {WAITING}"], env=env)
    head.wait_for("running", stream="stdout", timeout=BOOT)
    began = time.monotonic()
    head.signal(signal.SIGTERM)
    assert head.wait(30) == 143
    assert time.monotonic() - began < 25
    log = cluster.file(0, "agent.log").read_text()
    assert "stopped: asked to stop by SIGTERM" in log.splitlines()[-1]
    assert cluster.outcome(0)["kind"] == "stopped"
    await_true(
        "no process is left",
        lambda: all(p.zombie or "sleep infinity" in p.cmdline for p in holder.processes()),
        10,
    )
    holder.kill()


@pytest.mark.fault("readers")
@pytest.mark.pods(1)
def test_closed_stdout_and_stderr(cluster: Cluster) -> None:
    """With `>&-`, `2>&-`, both, or `| head -1`: exit code and job.log are the job's."""
    pod = cluster.pods[0]
    holder = pod.start(["sleep", "infinity"])
    env = {**cluster.env, "RUNPOD_POD_ID": pod.name}
    job = "seq 20000; echo last; exit 5"
    for ways in (">&-", "2>&-", ">&- 2>&-", "| head -1"):
        inner = f'{AGENT} run -- sh -c "$1"'
        line = f"{{ {inner}; echo $? >/tmp/code; }} {ways}"
        done = holder.exec(["sh", "-c", line, "sh", job], env=env, timeout=BOOT)
        assert (pod.tmp / "code").read_text() == "5\n", f"{ways}: {done.stderr}"
        assert cluster.file(0, "job.log").read_text().splitlines()[-2:] == ["20000", "last"]
        assert cluster.outcome(0)["exit_code"] == 5
        read = {">&-": [], "2>&-": ["last"], ">&- 2>&-": [], "| head -1": ["1"]}[ways]
        assert done.stdout.splitlines()[-1:] == read
        message = "" if "2>&-" in ways else "(exit code 5). Its output is in job.log"
        assert message in "".join(done.stderr.splitlines()[-1:])
        assert bool(done.stderr) == bool(message)
