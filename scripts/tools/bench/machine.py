"""This machine's load: total CPU time, and that of unrelated processes."""

from __future__ import annotations

import os
import time
from pathlib import Path

PROC = Path("/proc")
TICKS = os.sysconf("SC_CLK_TCK")
KERNEL = "2"
CALM = 0.1
CALM_LIMIT = 60.0


def busy_seconds() -> float:
    """Return the CPU time of this machine since its boot, in seconds."""
    fields = (PROC / "stat").read_text().splitlines()[0].split()[1:]
    user, nice, system, _idle, _waiting, irq, softirq = (int(field) for field in fields[:7])
    return (user + nice + system + irq + softirq) / TICKS


def others_seconds() -> float:
    """Return the CPU time of all processes that are not ours, the pods' or the kernel's.

    The time of exited children is included, so that the difference of two readings also counts
    processes that started and exited between them (unless their parents exited too).
    """
    mine = (PROC / "self/ns/pid").readlink()
    return sum(_seconds(entry, mine) for entry in PROC.iterdir() if entry.name.isdigit())


def _seconds(entry: Path, namespace: Path) -> float:
    own = str(os.getpid())
    try:
        fields = stat_fields(entry)
        if own in {entry.name, fields[1]} or KERNEL in {entry.name, fields[1]}:
            return 0.0
        if (entry / "ns/pid").readlink() != namespace:
            return 0.0
    except OSError:  # it exited meanwhile
        return 0.0
    return sum(int(ticks) for ticks in fields[11:15]) / TICKS


def stat_fields(entry: Path) -> list[str]:
    """Return the fields of /proc/PID/stat from the third on: state, parent and so on."""
    return (entry / "stat").read_text().rpartition(")")[2].split()


def cpu_seconds_with_children(pid: int) -> float:
    """Return a process's CPU time and that of its exited children."""
    return sum(int(ticks) for ticks in stat_fields(PROC / str(pid))[11:15]) / TICKS


def birth(pid: int) -> float:
    """Return the start time of a process, as of time.monotonic()."""
    asleep = time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic()
    return int(stat_fields(PROC / str(pid))[19]) / TICKS - asleep


def await_calm() -> None:
    """Wait until the machine is nearly idle, up to a limit; the table shows disturbed runs."""
    until = time.monotonic() + CALM_LIMIT
    while time.monotonic() < until:
        before = busy_seconds()
        time.sleep(1.0)
        if busy_seconds() - before < CALM:
            return
