"""Out of memory, by Ray's OOM killer or the kernel's: reported, and not retried.

A version 1 memory cgroup plays the container's limit. A process inside it allocates memory until
the kernel kills the victim, which has the highest `oom_score_adj`.
"""

from __future__ import annotations

import os
import re
import sys
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.scenario import AGENT, BOOT, Cluster, await_true, ends, last_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tools.lab import Container
    from tools.lab.container import ProcessInfo

CGROUPS = Path("/sys/fs/cgroup/memory")
GREEDY = """
import sys, time, ray
ray.init(log_to_driver=False)
print("running", flush=True)
def grow():
    held = []
    while len(held) < 144:
        held.append(bytearray(b"x" * (64 << 20)))
    time.sleep(60)
if sys.argv[1] == "driver":
    grow()
ray.get(ray.remote(max_retries=0)(grow).remote())
"""
FOREVER = "echo attempt $AGENT_ATTEMPT; for i in $(seq 300); do sleep 0.1; done; exit 7"
HOG = """
import sys, time
victim, held = int(sys.argv[1]), []
while sys.argv[2] not in open("/proc/self/cgroup").read():
    time.sleep(0.05)
def lives():
    try:
        return open(f"/proc/{victim}/stat").read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
while lives():
    held.append(bytearray(b"x" * (1 << 20)))
"""


@contextmanager
def memory_limit(name: str, size: int) -> Iterator[Path]:
    """Make a memory cgroup below our own; skip on machines without version 1."""
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    own = next((line.split(":")[2] for line in lines if ":memory:" in line), None)
    if own is None or not CGROUPS.is_dir():
        pytest.skip("no memory cgroup of version 1 here")
    folder = CGROUPS / own.lstrip("/") / f"{name}-{os.getpid()}"
    folder.mkdir()
    (folder / "memory.limit_in_bytes").write_text(str(size))
    try:
        yield folder
    finally:
        await_true("the cgroup is empty", lambda: not (folder / "cgroup.procs").read_text(), 20)
        folder.rmdir()


def start_within(cluster: Cluster, folder: Path, script: str) -> Container:
    """Start the head's agent as its pod's first process, entirely within a cgroup."""
    pod = cluster.pods[0]
    line = f'while [ ! -e /tmp/go ]; do sleep 0.1; done; exec {AGENT} run -- sh -c "$JOB"'
    head = pod.start(
        ["sh", "-c", line], env={**cluster.env, "RUNPOD_POD_ID": pod.name, "JOB": script}
    )
    (folder / "cgroup.procs").write_text(str(head.pid))
    cluster.started.append(head)
    (pod.tmp / "go").touch()
    return head


def have_killed(head: Container, folder: Path, victim: ProcessInfo) -> None:
    """Make the kernel's OOM killer choose this process, then start a memory hog."""
    for process in head.processes():
        score = "1000" if process.pid == victim.pid else "0"
        with suppress(OSError):  # the process has exited
            Path(f"/proc/{process.host_pid}/oom_score_adj").write_text(score)
    running = head.spawn([sys.executable, "-c", HOG, str(victim.pid), folder.name])
    (folder / "cgroup.procs").write_text(str(running.pid))
    await_true("the hog is done", lambda: not running.running, 120)
    assert running.wait() in {0, 137}, running.tail()


@pytest.mark.fault(
    "memory",
    "memory runs out: Ray's OOM killer ends a worker or the job, the kernel's the job or Ray",
    "the end names it, with the job's code or 75; no further attempt",
)
@pytest.mark.pods(2)
@pytest.mark.parametrize("who", ["worker", "driver"])
def test_rays_oom_killer(cluster: Cluster, who: str) -> None:
    """A task or the driver uses too much: the outcome names memory; there is no retry."""
    total, free = (
        int(re.search(rf"{name}:\s+(\d+)", Path("/proc/meminfo").read_text())[1])  # type: ignore[index]
        for name in ("MemTotal", "MemAvailable")
    )
    threshold = (total - free + (6 << 20)) / total  # 6 GiB more than is used now
    cluster.env |= {
        "AGENT_JOB_RETRIES": "2",
        "RAY_memory_usage_threshold": f"{threshold:.3f}",
        "RAY_memory_monitor_refresh_ms": "100",
        "GREEDY": GREEDY,
    }
    head, worker = cluster.agents("sh", "-c", f'exec {sys.executable} -c "$GREEDY" {who}')
    codes = ends([head, worker])
    assert codes[0] == codes[1] != 0, head.tail()
    assert head.stdout().splitlines().count("running") == 1
    assert "the job ran out of memory" in last_line(head)
    assert "Give the pods more memory" in last_line(head)
    assert len(cluster.outcome(0)["attempts"]) == 1


@pytest.mark.fault("memory")
@pytest.mark.pods(1)
@pytest.mark.parametrize("who", ["driver", "raylet"])
def test_the_kernels_oom_killer(cluster: Cluster, who: str) -> None:
    """It kills the job's driver or Ray itself: the outcome names memory; there is no retry."""
    cluster.env["AGENT_JOB_RETRIES"] = "2"
    with memory_limit("pod", 5 << 30) as folder:
        head = start_within(cluster, folder, FOREVER)
        head.wait_for("^attempt 1$", stream="stdout", timeout=BOOT)
        names = {
            "driver": lambda p: p.cmdline.startswith("sh -c echo attempt"),
            "raylet": lambda p: p.name == "raylet",
        }
        have_killed(head, folder, next(p for p in head.processes() if names[who](p)))
        assert head.wait(60) == (137 if who == "driver" else 75), head.tail()
    assert "the job ran out of memory" in last_line(head)
    assert "the kernel's OOM killer ended" in last_line(head)
    assert [line for line in head.stdout().splitlines() if "attempt" in line] == ["attempt 1"]
    assert cluster.outcome(0)["kind"] == "job-failed"


@pytest.mark.fault(
    "memory-agent",
    "the kernel's OOM killer ends the agent",
    "a new one continues the run, and logs why",
)
@pytest.mark.pods(1)
def test_the_kernels_oom_killer_kills_the_agent(cluster: Cluster) -> None:
    """The next agent takes over and logs the cause; the job is not disturbed."""
    with memory_limit("pod", 5 << 30) as folder:
        head = start_within(cluster, folder, FOREVER)
        head.wait_for("^attempt 1$", stream="stdout", timeout=BOOT)
        agent = next(p for p in head.processes() if p.ppid == 1 and "pod-agent" in p.cmdline)
        have_killed(head, folder, agent)
        head.wait_for(
            "was killed .this container ran out of memory: the kernel's OOM killer", timeout=20
        )
        assert head.wait(60) == 7, head.tail()
    assert cluster.outcome(0)["exit_code"] == 7
