"""A node's folder of compile caches: which of its files are archived, and how it was seeded.

The program that seeds and archives it (cache_program.py) and the agent, which only looks at it,
have this in common.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Literal

from msgspec import DecodeError

from agent.base.typed import decode
from agent.base.value import Bytes, Count, Value
from agent.job.compile_caches import LIBRARY_CACHES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

UNCHANGED = 3  # The exit code of a save that had nothing new to write
OWN_FOLDER = ".pod-agent"  # The program's own folder within a node's cache folder
SEEDED_FILE = "seeded.json"  # A `Seeded` in that folder

MOST_BYTES = 4 << 30  # Of the files in an archive; the newest ones are taken
MOST_FILES = 100_000
LARGEST_FILE = 512 << 20  # Larger ones are left out

_FOLDERS = {library.folder for library in LIBRARY_CACHES if library.is_archived}
_LEFT_OUT = (
    # A lock that is left behind makes torch's extensions wait forever.
    *("lock", "*.lock", "*.lck", ".ninja_lock"),
    *("*.tmp", "*.tmp.*", "tmp.*", "*.part", "*.pid", ".nfs*"),
    # vLLM: which GPUs of this machine reach each other, and images that it has fetched.
    *("gpu_p2p_access_cache*", "assets"),
    *("locks", "tmp"),
)
"""Names of files and folders that are of no use, or wrong, on another node."""


class Seeded(Value):
    """How a node's cache folder was seeded."""

    state: Literal["seeded", "cold"]
    sentence: str
    files: Count = 0  # of this role's archive
    size: Bytes = 0

    def in_words(self) -> str:
        """Return what came of it."""
        if self.state == "cold":
            return f"cold: {self.sentence}"
        return f"seeded {self.sentence}"


def read_seeded(folder: Path) -> Seeded | None:
    """Return how a node's folder was seeded; None while it is not."""
    with suppress(OSError, DecodeError):  # there is none, or it is broken
        return decode((folder / OWN_FOLDER / SEEDED_FILE).read_bytes(), Seeded)
    return None


def is_safe(path: str) -> bool:
    """Return whether a path of an archive stays below the cache folder, in one of its folders."""
    parts = path.split("/")
    is_plain = path.isprintable() and "\\" not in path and len(parts) > 1
    return is_plain and parts[0] in _FOLDERS and not {"", ".", "..", OWN_FOLDER}.intersection(parts)


class CacheFile(Value):
    """A file below a node's cache folder."""

    path: str  # relative
    size: int
    mtime_ns: int
    is_program: bool  # whether it may be executed


def list_files(root: Path, before_ns: int | None = None) -> list[CacheFile]:
    """Return the files to archive, the newest first and no more than an archive takes.

    `before_ns` leaves out what changed later.
    """
    files = []
    for path, status in _walk(root):
        is_settled = before_ns is None or status.st_mtime_ns < before_ns
        if is_settled and status.st_size <= LARGEST_FILE and is_wanted(path):
            is_program = bool(status.st_mode & stat.S_IXUSR)
            files.append(CacheFile(path, status.st_size, status.st_mtime_ns, is_program))
    files.sort(key=lambda file: (-file.mtime_ns, file.path))

    chosen = []
    room = MOST_BYTES
    for file in files[:MOST_FILES]:
        room -= file.size
        if room < 0:
            break
        chosen.append(file)
    return chosen


def is_wanted(path: str) -> bool:
    """Return whether a file is archived, by its path."""
    names = path.split("/")[1:]
    is_left_out = any(fnmatchcase(name, pattern) for name in names for pattern in _LEFT_OUT)
    return is_safe(path) and not is_left_out


def _walk(root: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Yield the regular files below a folder; what is gone or may not be read is left out."""
    folders = [str(root)]
    while folders:
        with suppress(OSError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                elif entry.is_file(follow_symlinks=False):
                    with suppress(OSError):
                        status = entry.stat(follow_symlinks=False)
                        yield entry.path[len(str(root)) + 1 :], status
