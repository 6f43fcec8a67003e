"""The cost of a following worker's agent: memory and CPU of its processes."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tools.bench.figures import Follow, Share
from tools.bench.machine import await_calm, cpu_seconds
from tools.bench.measure import BOOT_LIMIT, END_LIMIT, await_time
from tools.bench.systems import LONG_JOB, PATH, STARTED, agent, is_ours
from tools.lab import Lab

if TYPE_CHECKING:
    from tools.lab import Container, ProcessInfo

SETTLE = 5.0
WATCHED = 30.0


def follow() -> Follow:
    """Boot two pods with a long job and measure the worker's agent for half a minute."""
    with Lab(names=["pod0", "pod1"], shm="8g") as lab:
        await_calm()
        boots = [agent(lab.pods, pod, LONG_JOB) for pod in lab.pods]
        started = [
            pod.start(boot.argv, env={"PATH": PATH, **boot.env})
            for pod, boot in zip(lab.pods, boots, strict=True)
        ]
        head, worker = started
        await_time(lab.pods[0].tmp / STARTED, head, BOOT_LIMIT)
        time.sleep(SETTLE)
        ours = own_processes(worker)
        before = {info.host_pid: cpu_seconds(info.host_pid) for info in ours}
        began = time.monotonic()
        time.sleep(WATCHED)
        seconds = time.monotonic() - began
        shares = [share(info, before[info.host_pid], seconds) for info in ours]
        codes = [container.wait(END_LIMIT) for container in started]
    return Follow(seconds, shares, codes)


def own_processes(worker: Container) -> list[ProcessInfo]:
    """Return the agent's processes in a pod: its init and itself, without Ray's."""
    return [info for info in worker.processes() if is_ours(info.cmdline)]


def share(info: ProcessInfo, before: float, seconds: float) -> Share:
    """Return a process's memory, and its CPU use since the first reading."""
    used = cpu_seconds(info.host_pid) - before
    role = "init" if info.pid == 1 else "agent"
    resident = megabytes(info.host_pid, "status", "VmRSS")
    proportional = megabytes(info.host_pid, "smaps_rollup", "Pss")
    return Share(role, resident, proportional, 100 * used / seconds)


def megabytes(pid: int, file: str, name: str) -> float:
    """Return a figure of /proc/PID/FILE in MB; the kernel gives it in KiB."""
    found = re.search(
        rf"^{name}:\s+(\d+) kB", Path(f"/proc/{pid}/{file}").read_text(), re.MULTILINE
    )
    return int(found[1]) * 1024 / 1e6 if found else 0.0
