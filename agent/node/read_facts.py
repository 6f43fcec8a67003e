"""How the facts of this machine are read."""

from __future__ import annotations

import os
import re
import resource
import shutil
import socket
import stat
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import psutil

from agent.node import cgroups, kernel_ports
from agent.node.addresses import interfaces, source_towards
from agent.node.facts import Facts, Folder
from agent.node.job_program import fault_of
from agent.node.outfit import look_at_outfit
from agent.node.variables import weighed
from agent.node.visible_devices import contradiction
from agent.node.wandb_login import has_login

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agent.node.facts import RayPython


def gather(  # noqa: PLR0913 - the one place where a machine becomes a value
    known_names: Mapping[str, tuple[str, ...]],
    ray: RayPython,
    environ: Mapping[str, str],
    command: Sequence[str] | None,
    *,
    is_first_process: bool,
    temp: str,
) -> Facts:
    """Look at this machine; takes a few milliseconds and starts nothing."""
    shm = shutil.disk_usage("/dev/shm") if Path("/dev/shm").is_dir() else None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    maker, gpus = gpus_of(Path("/dev"))
    disk, machine_memory = shutil.disk_usage(temp), int(psutil.virtual_memory().total)
    return Facts(
        hostname=socket.gethostname(),
        interfaces=interfaces(),
        ray=ray,
        cpus=cgroups.cpus(),
        machine_cpus=os.cpu_count() or 0,
        memory=cgroups.memory(machine_memory),
        machine_memory=machine_memory,
        shm=shm.total if shm else 0,
        shm_free=shm.free if shm else 0,
        temp=temp,
        temp_free=disk.free,
        temp_total=disk.total,
        temp_inodes=_free_inodes(temp),
        nofile_soft=soft,
        nofile_hard=hard,
        room=cgroups.room(os.getuid()),
        ephemeral_ports=kernel_ports.ephemeral(),
        reserved_ports=kernel_ports.reserved(),
        clock=time.time(),
        variables=weighed(environ),
        gpus=len(gpus),
        gpu_maker=maker,
        gpu_fault=gpu_fault(Path("/dev"), maker),
        gpu_contradiction=contradiction(environ, maker, ray.version),
        is_first_process=is_first_process,
        uid=os.getuid(),
        default_source=source_towards("192.0.2.1"),  # a test network: nobody is asked, none is sent
        program_fault=_program_fault(command, environ.get("PATH")),
        wandb_login=has_login(environ),
        known_names=known_names,
        outfit=look_at_outfit(environ, maker),
    )


def _free_inodes(folder: str) -> int | None:
    """Count how many more files a disk takes; some make room as they go, and tell 0 of 0."""
    found = os.statvfs(folder)
    return found.f_favail if found.f_files else None


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


def gpus_of(dev: Path) -> tuple[Literal["", "nvidia", "amd"], list[Path]]:
    """Find the GPUs whose device files this container got, and who made them."""
    nvidia = [p for p in dev.glob("nvidia*") if re.fullmatch(r"nvidia\d+", p.name)]
    if nvidia:
        return "nvidia", nvidia
    amd = list((dev / "dri").glob("renderD*")) if (dev / "kfd").exists() else []
    return ("amd" if amd else ""), amd


_CONTROL = {"nvidia": "nvidiactl", "amd": "kfd"}
"""The file by which a program reaches the driver; to open it wakes no GPU."""


def gpu_fault(dev: Path, maker: str) -> str:
    """Say why the driver lets nobody in, as it is in a container that lost its GPUs."""
    name = _CONTROL.get(maker)
    if name is None:
        return ""
    try:
        os.close(os.open(dev / name, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK))
    except OSError as error:
        return f"{dev / name}: {(error.strerror or str(error)).lower()}"
    return ""
