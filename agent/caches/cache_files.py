"""Which files of a cache folder are archived, which archives are removed, and when to write."""

from __future__ import annotations

import re
import struct
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from agent.base import times
from agent.base.value import Value
from agent.job.compile_caches import LIBRARY_CACHES, PYTHON

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

MOST_BYTES = 4 << 30  # of the files in an archive
MOST_FILES = 100_000
LARGEST_FILE = 512 << 20
LONGEST_PATH = 1024
MOST_OF_VOLUME = 20 << 30  # of all archives of this user or token
STATE = ".pod-agent"  # the program's own folder within a node's cache folder

_ARCHIVED = {PYTHON, *(library.folder for library in LIBRARY_CACHES)} - {"hf_modules"}
"""Folders in archives. The models' own code is copied from the hub's cache in milliseconds."""
_LEFT_OUT = (
    # A lock that is left behind makes torch's extensions wait forever.
    *("lock", "*.lock", "*.lck", ".ninja_lock"),
    *("*.tmp", "*.tmp.*", "tmp.*", "*.part", "*.pid", ".nfs*"),
    # vLLM: which GPUs of this machine reach each other, and images that it has fetched.
    *("gpu_p2p_access_cache*", "assets"),
    *("locks", "tmp"),
)
"""Names of files and folders that are of no use, or wrong, on another node."""
_OF_PACKAGES = re.compile(r"/lib(?:64)?/python3(?:\.\d+)?/")
"""In the path of a .pyc file: that of the standard library, or of an installed package."""
_OBJECTS = ("*.so", "*.so.*", "*.o", "*.cubin", "*.hsaco")
_ELF = b"\x7fELF"
_ELF_64_LITTLE = _ELF + b"\x02\x01"
HEAD_BYTES = 64
_ELF_HEAD = struct.Struct("<32xQQ6xHHHH")
"""Of ELF with 64 bits: where its two tables begin, and for each the length and number of rows."""


class CacheFile(Value):
    """A file below a node's cache folder."""

    path: str  # relative
    size: int
    mtime_ns: int
    is_program: bool = False  # whether it may be executed


class OldArchive(Value):
    """An archive or a leftover on the volume, and when it was last written or read."""

    name: str
    size: int
    used: float


def is_safe(path: str) -> bool:
    """Return whether a path of an archive stays below the cache folder, in one of its folders."""
    parts = path.split("/")
    if len(path) > LONGEST_PATH or not path.isprintable() or "\\" in path or len(parts) < 2:
        return False
    return parts[0] in _ARCHIVED and not {"", ".", "..", STATE}.intersection(parts)


def is_archived(path: str, packages: str = "") -> bool:
    """Return whether a file is archived, by its path.

    `packages` is the digest of the packages whose .pyc files are.
    """
    if not is_safe(path):
        return False
    if path.startswith(f"{PYTHON}/"):
        return path.endswith(".pyc") and is_of_packages(path, packages)
    names = path.split("/")[1:]
    return not any(fnmatchcase(name, pattern) for name in names for pattern in _LEFT_OUT)


def is_of_packages(path: str, packages: str) -> bool:
    """Return whether a compiled file is of these installed packages.

    The others are of the user's own code, of which no digest says that it is the same, or of
    packages that Ray installs for one job.
    """
    prefix = f"{PYTHON}/{packages}/"
    if not path.startswith(prefix) or "/runtime_resources/" in path:
        return False
    return _OF_PACKAGES.search(path, len(prefix) - 1) is not None


def choose_files(files: Iterable[CacheFile], packages: str = "") -> tuple[CacheFile, ...]:
    """Return the files to archive, the newest first where not all fit."""
    wanted = [
        file for file in files if is_archived(file.path, packages) and file.size <= LARGEST_FILE
    ]
    wanted.sort(key=lambda file: (-file.mtime_ns, file.path))
    chosen = []
    room = MOST_BYTES
    for file in wanted[:MOST_FILES]:
        if file.size <= room:
            room -= file.size
            chosen.append(file)
    return tuple(chosen)


def settled(
    files: Iterable[CacheFile], known: Collection[tuple[str, int]], before_ns: int
) -> tuple[CacheFile, ...]:
    """Return the files of a folder whose writers may have been killed, as they were before that.

    What the archive is known to have is whole.
    """
    return tuple(
        file for file in files if file.mtime_ns < before_ns or (file.path, file.size) in known
    )


def is_object(path: str) -> bool:
    """Return whether a file is a library, an object or a kernel, by its name."""
    name = path.rpartition("/")[2]
    return any(fnmatchcase(name, pattern) for pattern in _OBJECTS)


def is_whole(path: str, head: bytes, size: int) -> bool:
    """Return whether a file is whole, as far as its format shows; HEAD_BYTES of it are enough.

    Compilers write objects and libraries in place (torch 2.13's inductor, ninja): a killed one
    leaves a part, which is loaded for as long as it is there. One of their two tables is at the
    end, and linkers write the head, which has the places of the tables, last.
    """
    if not is_object(path):
        return True
    if not head.startswith(_ELF) or len(head) < _ELF_HEAD.size:
        return False
    if not head.startswith(_ELF_64_LITTLE):
        return True
    segments, sections, segment, of_segments, section, of_sections = _ELF_HEAD.unpack_from(head)
    ends = (segments + segment * of_segments, sections + section * of_sections)
    return bool(max(ends) <= size)


def has_news(chosen: Iterable[CacheFile], known: Collection[tuple[str, int]]) -> bool:
    """Return whether a file is not among those that the archive is known to have."""
    return any((file.path, file.size) not in known for file in chosen)


def outdated(archives: Sequence[OldArchive], keep: str, now: float) -> tuple[str, ...]:
    """Return the archives to remove: unused for long, or the oldest of too many bytes."""
    newest_first = sorted(archives, key=lambda archive: -archive.used)
    removed = []
    room = MOST_OF_VOLUME
    for archive in newest_first:
        room -= archive.size
        is_old = archive.used + times.CACHES_UNUSED < now
        if archive.name != keep and (is_old or room < 0):
            removed.append(archive.name)
    return tuple(removed)


class CacheLook(Value):
    """What a look at a node's cache folder has found."""

    files: int = 0
    size: int = 0
    changed: float = 0.0  # when its newest file was written, in seconds since 1970


def look_of(chosen: Sequence[CacheFile]) -> CacheLook:
    """Return the look at a folder of which these files would be archived."""
    newest = max((file.mtime_ns for file in chosen), default=0)
    return CacheLook(len(chosen), sum(file.size for file in chosen), newest / 1e9)


def is_due(look: CacheLook, saved: CacheLook, now: float, next_save: float) -> bool:
    """Return whether to write the archive now: the job has compiled, and compiles no more.

    `saved` is what the folder was like at the last write, `next_save` when another one may be.
    """
    is_changed = (look.files, look.size) != (saved.files, saved.size)
    is_quiet = look.changed + times.CACHES_QUIET <= now
    return look.files > 0 and is_changed and is_quiet and now >= next_save
