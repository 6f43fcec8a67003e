"""Ray's temp dir: made private before Ray starts, and rid of the sessions of earlier Rays."""

from __future__ import annotations

import os
import re
import shutil
import stat
import time
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from agent.node.read import read_folder
from agent.processes.stale_ray import command_lines
from agent.record.background import result_in_thread
from agent.record.log import say

if TYPE_CHECKING:
    from collections.abc import Container

    from agent.node.facts import Folder
    from agent.processes.waiting import BestEffort

SESSION_QUIET = 600.0
"""A Ray session whose files did not change for so long has ended. A running Ray writes its logs
more often, also in another container that shares the folder.
"""
_SESSION = re.compile(r"session_\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d_\d+_\d+")
KEPT_SESSIONS = 3  # number of ended sessions whose logs are kept
_MOST_FILES = 10_000


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
