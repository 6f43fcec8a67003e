"""What the cgroups around this process allow: version 1 and 2, from the innermost outwards."""

from __future__ import annotations

import os
import resource
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from agent.base.value import dataclass
from agent.node.facts import Room

if TYPE_CHECKING:
    from collections.abc import Iterator

PROC, BASE = Path("/proc"), Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class OomKills:
    """How many processes the kernel has ended for want of memory, and of whom."""

    number: int
    of_container: bool


def folders(kind: str, proc: Path = PROC, base: Path = BASE) -> Iterator[Path]:
    """Return where one kind of limit is kept for us, from our own cgroup outwards.

    A container often sees its own cgroup as the root, under the path of the host's: then only the
    root is there.
    """
    try:
        lines = (proc / "self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, kinds, path = line.split(":", 2)
        if kinds and kind not in kinds.split(","):
            continue
        roots = (base / kind, base / kinds) if kinds else (base,)
        root = next((one for one in roots if one.is_dir()), roots[0])
        place = root / path.lstrip("/")
        yield from (f for f in (place, *place.parents) if f == root or root in f.parents)


def cpus(proc: Path = PROC, base: Path = BASE) -> int:
    """Count the CPUs that this pod may use: Ray itself misses a container's quota and cpuset."""
    limits = [float(len(os.sched_getaffinity(0)))]
    for folder in folders("cpuset", proc, base):
        for name in ("cpuset.cpus.effective", "cpuset.effective_cpus"):
            with suppress(OSError, ValueError):
                limits.append(float(_count_of_list((folder / name).read_text())))
    for folder in folders("cpu", proc, base):
        with suppress(OSError, ValueError):
            quota, period = (folder / "cpu.max").read_text().split()
            limits.append(int(quota) / int(period))
        with suppress(OSError, ValueError):
            quota_v1 = int((folder / "cpu.cfs_quota_us").read_text())
            if quota_v1 > 0:
                limits.append(quota_v1 / int((folder / "cpu.cfs_period_us").read_text()))
    return max(1, int(min(limits)))


def _count_of_list(text: str) -> int:
    """Count a kernel list such as `0-3,8`."""
    return sum(last - first + 1 for first, last in ranges(text))


def ranges(text: str) -> tuple[tuple[int, int], ...]:
    """Read a kernel list such as `0-3,8`; raises ValueError where it is none."""
    parts = (part.partition("-") for part in text.strip().split(","))
    return tuple((int(first), int(last or first)) for first, _, last in parts)


def memory(machine: int, proc: Path = PROC, base: Path = BASE) -> int:
    """Return the bytes that this pod may use of the machine's."""
    limits = [machine]
    for folder in folders("memory", proc, base):
        for name in ("memory.max", "memory.limit_in_bytes"):
            with suppress(OSError, ValueError):
                limits.append(int((folder / name).read_text()))
    return min(limits)


def oom_kills(proc: Path = PROC, base: Path = BASE) -> OomKills:
    """Count what the kernel has ended for want of memory: in our own cgroup, else on the machine.

    Version 1 keeps the number in memory.oom_control, version 2 in memory.events. Both count every
    process of the cgroup that was ended so, also where the whole machine had run out.
    """
    for folder in folders("memory", proc, base):
        for name in ("memory.events", "memory.oom_control"):
            with suppress(OSError, ValueError, KeyError):
                return OomKills(_field((folder / name).read_text(), "oom_kill"), of_container=True)
    with suppress(OSError, ValueError, KeyError):
        return OomKills(_field((proc / "vmstat").read_text(), "oom_kill"), of_container=False)
    return OomKills(0, of_container=False)


def _field(text: str, name: str) -> int:
    """Read one number of a list such as `oom 3`, a line each; raises KeyError where it lacks it."""
    return int(dict(line.split(maxsplit=1) for line in text.splitlines() if " " in line)[name])


def pids(proc: Path = PROC, base: Path = BASE) -> Iterator[tuple[int, int]]:
    """Yield how many processes and threads there are and may be, where a cgroup has a limit."""
    for folder in folders("pids", proc, base):
        with suppress(OSError, ValueError):  # "max" is no number, and no limit
            most = int((folder / "pids.max").read_text())
            yield int((folder / "pids.current").read_text()), most


def room(uid: int, proc: Path = PROC, base: Path = BASE) -> Room | None:
    """Return how many more processes and threads there may be; None where nothing limits them."""
    found = [
        Room(most - now, f"pids.max is {most}, {now} in use") for now, most in pids(proc, base)
    ]
    soft = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    if soft != resource.RLIM_INFINITY and uid != 0:  # root is not held to it
        found.append(Room(soft, f"`ulimit -u` is {soft}"))
    return min(found, key=lambda one: one.left, default=None)
