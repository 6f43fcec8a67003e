"""How the facts of this machine are read."""

from __future__ import annotations

import os
import re
import resource
import shutil
import socket
import stat
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from agent.node.addresses import interfaces, source_towards
from agent.node.facts import Facts, Folder
from agent.node.job_program import fault_of
from agent.node.wandb_login import has_login

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agent.node.facts import RayPython


def gather(
    known_names: Mapping[str, tuple[str, ...]],
    ray: RayPython,
    environ: Mapping[str, str],
    command: Sequence[str] | None,
    *,
    is_first_process: bool,
) -> Facts:
    """Look at this machine; takes a few milliseconds and starts nothing."""
    shm = shutil.disk_usage("/dev/shm") if Path("/dev/shm").is_dir() else None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return Facts(
        hostname=socket.gethostname(),
        interfaces=interfaces(),
        ray=ray,
        cpus=_cpus(Path("/sys/fs/cgroup")),
        memory=_memory(Path("/sys/fs/cgroup")),
        shm=shm.total if shm else 0,
        shm_free=shm.free if shm else 0,
        temp_free=shutil.disk_usage("/tmp").free,
        nofile_soft=soft,
        nofile_hard=hard,
        gpus=_gpus(),
        is_first_process=is_first_process,
        uid=os.getuid(),
        default_source=source_towards("192.0.2.1"),  # a test network: nobody is asked, none is sent
        program_fault=_program_fault(command, environ.get("PATH")),
        wandb_login=has_login(environ),
        known_names=known_names,
    )


def _program_fault(command: Sequence[str] | None, path: str | None) -> str:
    """Look for the job's program; a placeholder in it is filled in by the run alone."""
    if not command or "{" in command[0]:
        return ""
    fault = fault_of(command[0], path)
    return f"{command[0]!r} {fault}" if fault else ""


def look_at_folder(path: str) -> Folder | None:
    """Look at what lies at a path, without following a link; None where nothing does."""
    place = Path(path)
    try:
        found = place.lstat()
    except OSError:
        return None
    inside: list[tuple[str, int]] = []
    with suppress(OSError):  # one that we may not read is none of ours, which its owner tells
        inside = [(entry.name, entry.lstat().st_uid) for entry in place.iterdir()]
    strangers = tuple(sorted(name for name, uid in inside if uid != found.st_uid))
    mode = stat.S_IMODE(found.st_mode)
    return Folder(path, stat.S_ISDIR(found.st_mode), found.st_uid, mode, strangers)


def _cpus(cgroup: Path) -> int:
    """Count the CPUs that this pod may use: Ray itself misses a container's quota and cpuset."""
    limits = [float(len(os.sched_getaffinity(0)))]
    with suppress(OSError, ValueError):
        limits.append(float(_count_of_list((cgroup / "cpuset.cpus.effective").read_text())))
    with suppress(OSError, ValueError):
        quota, period = (cgroup / "cpu.max").read_text().split()
        limits.append(int(quota) / int(period))
    with suppress(OSError, ValueError):
        quota_v1 = int((cgroup / "cpu/cpu.cfs_quota_us").read_text())
        if quota_v1 > 0:
            limits.append(quota_v1 / int((cgroup / "cpu/cpu.cfs_period_us").read_text()))
    return max(1, int(min(limits)))


def _count_of_list(text: str) -> int:
    """Count a kernel list such as `0-3,8`."""
    total = 0
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        total += int(last or first) - int(first) + 1
    return total


def _memory(cgroup: Path) -> int:
    limits = [int(psutil.virtual_memory().total)]
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):
            limits.append(int((cgroup / name).read_text()))
    return min(limits)


def _gpus() -> int:
    """Count the GPUs whose device files this container got."""
    dev = Path("/dev")
    nvidia = [p for p in dev.glob("nvidia*") if re.fullmatch(r"nvidia\d+", p.name)]
    if nvidia:
        return len(nvidia)
    return len(list((dev / "dri").glob("renderD*"))) if (dev / "kfd").exists() else 0
