"""Processes that an earlier Ray left on this machine."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Iterator

_RAY_MARKS = (
    "/ray/core/src/ray/",
    "/ray/dashboard/",
    "/ray/_private/",
    "/ray/autoscaler/_private/",
    "ray.util.client.server",
    "ray::",
    "ray-dashboard-",
)
"""Parts of the command lines of Ray's processes."""


def stale_ray(temp_dir: str, *, everything: bool) -> list[psutil.Process]:
    """Find Ray processes of an earlier run: on a shared host only those with our temp dir.

    Processes of other containers are skipped: a host sees them, and their temp dir may have the
    same name.
    """
    stale = []
    here = _container(os.getpid())
    ours = {os.getpid(), os.getppid()}
    for pid, line in command_lines():
        if pid in ours or not any(mark in line for mark in _RAY_MARKS):
            continue
        is_removed = everything or f"{temp_dir}/" in line
        if is_removed and _container(pid) == here:
            with suppress(psutil.NoSuchProcess):
                stale.append(psutil.Process(pid))
    return stale


def command_lines() -> Iterator[tuple[int, str]]:
    """Yield every process's pid and command line; psutil.Process takes six times as long."""
    for pid in psutil.pids():
        with suppress(OSError):  # it has ended, or it is another user's
            line = Path(f"/proc/{pid}/cmdline").read_bytes()
            yield pid, os.fsdecode(line).replace("\0", " ")


def _container(pid: int) -> str:
    """Return the id of a process's pid namespace, which identifies its container."""
    try:
        return str(Path(f"/proc/{pid}/ns/pid").readlink())
    except OSError:  # it has ended, or it is another user's
        return ""
