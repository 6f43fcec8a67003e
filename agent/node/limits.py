"""Limits of this container: cgroups, processes, threads."""

from __future__ import annotations

import errno
import os
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from agent.base.errors import UnavailableError
from agent.base.value import Value
from agent.node.facts import Room
from agent.node.python_facts import text_of

if TYPE_CHECKING:
    from collections.abc import Iterator


PROC = Path("/proc")
BASE = Path("/sys/fs/cgroup")


class OomKills(Value):
    """The number of processes that the OOM killer has killed."""

    number: int
    of_container: bool


def folders(kind: str, proc: Path = PROC, base: Path = BASE) -> Iterator[Path]:
    """Yield the folders with limits of one kind, from our own cgroup to the root.

    A container often sees its own cgroup as the root: then only the root exists.
    """
    for line in text_of(proc / "self/cgroup").splitlines():
        _, kinds, path = line.split(":", 2)
        if kinds and kind not in kinds.split(","):
            continue
        roots = (base / kind, base / kinds) if kinds else (base,)
        root = next((folder for folder in roots if folder.is_dir()), roots[0])
        own = root / path.lstrip("/")
        for folder in (own, *own.parents):
            if folder == root or root in folder.parents:
                yield folder


def cpus(proc: Path = PROC, base: Path = BASE) -> int:
    """Return the CPUs that this pod may use; Ray ignores a container's quota and cpuset."""
    limits = [float(len(os.sched_getaffinity(0)))]  # the kernel limits it to the cpuset
    for folder in folders("cpu", proc, base):
        for names in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
            with suppress(OSError, ValueError):
                quota, period = " ".join((folder / name).read_text() for name in names).split()
                if int(quota) > 0:
                    limits.append(int(quota) / int(period))
    return max(1, int(min(limits)))


def memory(machine: int, proc: Path = PROC, base: Path = BASE) -> int:
    """Return the bytes of memory that this pod may use."""
    limits = [machine]
    for folder in folders("memory", proc, base):
        for name in ("memory.max", "memory.limit_in_bytes"):
            with suppress(OSError, ValueError):
                limits.append(int((folder / name).read_text()))
    return min(limits)


def oom_kills(proc: Path = PROC, base: Path = BASE) -> OomKills:
    """Return the count of OOM kills in our cgroup, or on the machine if it is unknown.

    cgroup v1 has it in memory.oom_control, v2 in memory.events. Both count every killed process of
    the cgroup, even if the whole machine had run out of memory.
    """
    counters = [
        folder / name
        for folder in folders("memory", proc, base)
        for name in ("memory.events", "memory.oom_control")
    ]
    for file in (*counters, proc / "vmstat"):
        with suppress(OSError, ValueError, KeyError):
            lines = file.read_text().splitlines()
            fields = dict(line.split(maxsplit=1) for line in lines if " " in line)
            return OomKills(int(fields["oom_kill"]), of_container=file.name != "vmstat")
    return OomKills(0, of_container=False)


def open_files() -> tuple[int, int]:
    """Return how many files a process may open: the present limit, and the highest one."""
    import resource  # noqa: PLC0415 - Windows has no such module, and reads no limits

    return resource.getrlimit(resource.RLIMIT_NOFILE)


def process_room(uid: int, proc: Path = PROC, base: Path = BASE) -> Room | None:
    """Return how many more processes and threads may start, by the lowest limit; None without."""
    rooms = []
    for folder in folders("pids", proc, base):
        with suppress(OSError, ValueError):  # "max" means no limit
            most = int((folder / "pids.max").read_text())
            now = int((folder / "pids.current").read_text())
            rooms.append(Room(most - now, f"pids.max is {most}, {now} in use"))
    import resource  # noqa: PLC0415 - Windows has no such module, and reads no limits

    soft = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    if soft != resource.RLIM_INFINITY and uid != 0:  # it does not apply to root
        rooms.append(Room(soft, f"`ulimit -u` is {soft}"))
    return min(rooms, key=lambda room: room.left, default=None)


class ProcessLimitError(UnavailableError):
    """A limit of processes, threads or memory prevents the start of a process."""


@contextmanager
def starting(what: str) -> Iterator[None]:
    """Convert an error of starting `what` into one that names limit and remedy."""
    try:
        yield
    except (OSError, RuntimeError, MemoryError) as error:
        if limit_error := process_limit_error(what, error):
            raise limit_error from None
        raise


def process_limit_error(what: str, error: BaseException) -> ProcessLimitError | None:
    """Return a ProcessLimitError if this error means that a limit is reached."""
    number = error.errno if isinstance(error, OSError) else None  # a RuntimeError has none
    if number == errno.EAGAIN or "can't start new thread" in str(error):
        room = process_room(os.getuid())
        limit = "a limit of the system" if room is None else room.limit
        why = f"no room for another process or thread ({limit})"
        remedy = "Raise the limit (`--pids-limit`, pids.max, `ulimit -u`), or lower AGENT_NUM_CPUS"
    elif number == errno.ENOMEM or isinstance(error, MemoryError):
        why = "no memory for another process"
        remedy = "Give the container more memory, or end what fills it"
    else:
        return None
    return ProcessLimitError(f"{what} could not be started", why=why, remedy=remedy, culprit=what)
