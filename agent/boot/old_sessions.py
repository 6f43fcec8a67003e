"""Sessions that earlier Rays left in this agent's own temp dir: they fill the disk of a later one.

What a dead Ray spilled is of use to nobody; its logs may be, so those of the last few stay.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import anyio

from agent.base.value import dataclass
from agent.boot.make_ready import command_lines
from agent.record.log import say

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from agent.runtime.best_effort import BestEffort

_NAME = re.compile(r"session_\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d_\d+_\d+")
_SPILLED = "ray_spilled_objects*"
KEPT = 3
"""Of so many dead sessions the logs stay."""
QUIET = 600.0
"""A Ray that lives writes to its logs more often, also one that is hidden in another container."""
_MOST = 64
_MOST_FILES = 10_000


@dataclass(frozen=True)
class Session:
    """A session's folder, as it was found."""

    name: str
    changed: float
    """When anything in it, or among its logs, changed last."""


class Superfluous(NamedTuple):
    """What of the sessions nobody needs, by their names."""

    whole: tuple[str, ...] = ()
    spilled: tuple[str, ...] = ()
    """Those of which only what they spilled goes."""


def superfluous(found: Iterable[Session], living: frozenset[str], now: float) -> Superfluous:
    """Decide what goes: nothing of a session that a process names, or that changed lately."""
    dead = [one for one in found if one.name not in living and one.changed + QUIET < now]
    names = [one.name for one in sorted(dead, key=lambda one: (-one.changed, one.name))]
    return Superfluous(tuple(names[KEPT:][-_MOST:]), tuple(names[:KEPT]))


async def prune(temp_dir: str, best_effort: BestEffort) -> None:
    """Remove what nobody needs of the sessions in Ray's temp dir, beside whatever else goes on."""
    path = Path(temp_dir)

    async def remove() -> int:
        return await anyio.to_thread.run_sync(_prune, path, abandon_on_cancel=True)

    gone = await best_effort("the removal of Ray's earlier sessions", remove)
    if isinstance(gone, int) and gone:
        say(f"removed {gone} earlier session(s) of Ray's from {path}: the last {KEPT} stay")


def _prune(temp_dir: Path) -> int:
    """Do so; return how many sessions went whole."""
    found = [*_sessions(temp_dir)]
    if not found:
        return 0
    going = superfluous(found, _living(), time.time())
    for name in going.spilled:
        for folder in (temp_dir / name).glob(_SPILLED):
            shutil.rmtree(folder, ignore_errors=True)  # what resists costs disk, not the run
    for name in going.whole:
        shutil.rmtree(temp_dir / name, ignore_errors=True)  # same
    return sum(not (temp_dir / name).exists() for name in going.whole)


def _sessions(temp_dir: Path) -> Iterator[Session]:
    """Find the sessions that are ours; a link is none, nor is anything of another user."""
    try:
        with os.scandir(temp_dir) as entries:
            for entry in entries:
                is_ours = entry.is_dir(follow_symlinks=False) and (
                    entry.stat(follow_symlinks=False).st_uid == os.getuid()
                )
                if is_ours and _NAME.fullmatch(entry.name):
                    yield Session(entry.name, _changed(Path(entry.path)))
    except OSError:  # there is none yet, or it goes as we look
        return


def _changed(session: Path) -> float:
    """Return when anything changed there last; a session that cannot be read changes now."""
    try:
        newest = session.stat().st_mtime
        logs = session / "logs"
        if logs.is_dir():
            with os.scandir(logs) as entries:
                times = [one.stat().st_mtime for one in islice(entries, _MOST_FILES)]
            newest = max([newest, *times])
    except OSError:
        return time.time()
    return newest


def _living() -> frozenset[str]:
    """Return the sessions that processes name in their command lines."""
    return frozenset(name for _, line in command_lines() for name in _NAME.findall(line))
