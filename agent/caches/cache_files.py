"""Which files of a cache folder are archived, which archives are removed, and when to write."""

from __future__ import annotations

import struct
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, NamedTuple

from agent.base import times
from agent.base.value import Value
from agent.job.compile_caches import LIBRARY_CACHES

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

MOST_BYTES = 4 << 30  # of the files in an archive
MOST_FILES = 100_000
LARGEST_FILE = 512 << 20
LONGEST_PATH = 1024
MOST_OF_VOLUME = 20 << 30  # of all archives of this user or token
STATE = ".pod-agent"  # the program's own folder within a node's cache folder

PYTHON = "python"
"""The folder in archives of Python's compiled files, which python_files.py has."""
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


class Target(NamedTuple):
    """Where a file of an archive is written."""

    path: str
    head: bytes = b""  # what its first bytes are replaced by
    is_public: bool = False  # whether others may read it


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


def is_archived(path: str) -> bool:
    """Return whether a file is archived, by its path."""
    if not is_safe(path):
        return False
    if is_of_python(path):
        return True
    names = path.split("/")[1:]
    return not any(fnmatchcase(name, pattern) for name in names for pattern in _LEFT_OUT)


def is_of_python(path: str) -> bool:
    """Return whether a file of an archive is one of Python's own, beside its source."""
    return path.startswith(f"{PYTHON}/")


def choose_files(files: Iterable[CacheFile]) -> tuple[CacheFile, ...]:
    """Return the files to archive, the newest first where not all fit."""
    wanted = [file for file in files if is_archived(file.path) and file.size <= LARGEST_FILE]
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
    python_since: float = 0.0  # since when Python's own files count, too; 0.0 where they do not

    @property
    def has_any(self) -> bool:
        """Return whether there may be something to archive."""
        return self.files > 0 or self.python_since > 0

    def differs_from(self, other: CacheLook) -> bool:
        """Return whether there are other files."""
        here = (self.files, self.size, self.python_since)
        return here != (other.files, other.size, other.python_since)


def look_of(chosen: Sequence[CacheFile], python_since: float = 0.0) -> CacheLook:
    """Return the look at a folder of which these files would be archived."""
    newest = max((file.mtime_ns for file in chosen), default=0)
    size = sum(file.size for file in chosen)
    return CacheLook(len(chosen), size, max(newest / 1e9, python_since), python_since)


def is_due(look: CacheLook, saved: CacheLook, now: float, next_save: float) -> bool:
    """Return whether to write the archive now: the job has compiled, and compiles no more.

    `saved` is what the folder was like at the last write, `next_save` when another one may be.
    """
    is_quiet = look.changed + times.CACHES_QUIET <= now
    return look.has_any and look.differs_from(saved) and is_quiet and now >= next_save
