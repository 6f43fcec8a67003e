"""What Ray needs of this machine, and what an earlier Ray left on it."""

from __future__ import annotations

import os
import re
import resource
import shutil
import stat
import time
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from agent.checks.machine import WANTED_FILES
from agent.node.read import read_folder
from agent.record.background import result_in_thread
from agent.record.log import say

if TYPE_CHECKING:
    from collections.abc import Container, Iterator

    from agent.node.facts import Folder
    from agent.processes.waiting import BestEffort

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


def secure_folder(temp: str, uid: int) -> Folder | None:
    """Create the private folder around Ray's temp dir; return what exists then.

    It is created or restricted first and checked afterwards, when nobody else can change it.
    """
    folder = Path(temp).parent
    with suppress(OSError):  # Ray reports a folder that cannot be created
        folder.mkdir(mode=0o700, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            status = os.fstat(handle)
            if status.st_uid == uid and status.st_mode & 0o077:
                os.fchmod(handle, 0o700)
        finally:
            os.close(handle)
    return read_folder(str(folder))


def raise_open_files(hard: int) -> None:
    """Raise the limit of open files as far as allowed: Ray aborts on the usual 1024."""
    wanted = WANTED_FILES if hard == resource.RLIM_INFINITY else min(WANTED_FILES, hard)
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


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


SESSION_QUIET = 600.0
"""A Ray session whose files did not change for so long has ended. A running Ray writes its logs
more often, also in another container that shares the folder.
"""
_SESSION = re.compile(r"session_\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d_\d+_\d+")
KEPT_SESSIONS = 3  # number of ended sessions whose logs are kept
_MOST_FILES = 10_000


def ended_sessions(temp_dir: Path, in_use: Container[str], now: float) -> list[Path]:
    """Return this user's sessions that are not in use nor changed lately, newest first; no links.

    A Ray of another container, whose processes are not visible, writes its logs.
    """
    changed = {}
    for path in temp_dir.glob("session_*"):
        with suppress(OSError):  # it was just removed, or cannot be read
            status = path.lstat()
            is_own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
            if is_own and _SESSION.fullmatch(path.name) and path.name not in in_use:
                files = (path, *islice(path.glob("logs/*"), _MOST_FILES))
                changed[path] = max(file.stat().st_mtime for file in files)

    ended = [path for path, at in changed.items() if at + SESSION_QUIET < now]
    return sorted(ended, key=lambda path: -changed[path])


async def prune_sessions(temp_dir: str, best_effort: BestEffort) -> None:
    """Remove old sessions from Ray's temp dir in the background, of the last ones only objects."""

    def prune() -> None:
        in_use = {name for _, line in command_lines() for name in _SESSION.findall(line)}
        ended = ended_sessions(Path(temp_dir), in_use, time.time())
        spilled = [folder for path in ended for folder in path.glob("ray_spilled_objects*")]
        old = ended[KEPT_SESSIONS:]
        for folder in (*spilled, *old):
            shutil.rmtree(folder, ignore_errors=True)  # a failure costs only disk space
        if old:
            say(f"removed {len(old)} earlier session(s) of Ray from {temp_dir}")

    await best_effort("the removal of Ray's earlier sessions", result_in_thread, prune)
