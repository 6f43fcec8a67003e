"""A node's cache folder: its owner, its files, and the records about it."""

from __future__ import annotations

import json
import os
import shutil
import stat
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from msgspec import DecodeError, field, to_builtins

from agent.base import times
from agent.base.errors import PreflightError
from agent.base.text import mib
from agent.base.typed import decode
from agent.base.value import Bytes, Count, Value
from agent.caches.cache_files import HEAD_BYTES, MOST_FILES, STATE, CacheFile, is_object, is_whole

if TYPE_CHECKING:
    from collections.abc import Iterator

NOTHING_NEW = "nothing new to write back"
OTHER_WRITES = f"{NOTHING_NEW}: "  # and which node writes this kind's archive
PART_SUFFIX = ".part"  # of a file that is being written
_KNOWN = "known.json"  # what the archive on the volume is known to have
_SEEDED = "seeded.json"  # how the folder was seeded last
_KIND = "kind"
_UNCOMPILED = "uncompiled"  # there where Python's packages came without .pyc files


class CachePlace(Value):
    """Where the caches of a node are, and its archive."""

    volume: str
    folder: str
    archive: str  # a file name
    kind: str
    packages: tuple[str, ...] = ()  # folders of Python and packages that came without .pyc files

    @property
    def root(self) -> Path:
        """Return the node's cache folder."""
        return Path(self.folder)

    @property
    def path(self) -> Path:
        """Return the archive."""
        return Path(self.volume, self.archive)

    def state(self, name: str) -> Path:
        """Return a file about the folder."""
        return self.root / STATE / name


class Seeded(Value):
    """How a node's cache folder was seeded."""

    state: Literal["seeded", "cold"]
    sentence: str
    files: Count = 0
    size: Bytes = 0
    seconds: float = 0.0

    def in_words(self) -> str:
        """Return what came of it."""
        if self.state == "cold":
            return f"cold: {self.sentence}"
        counted = f"{self.files} file(s), {mib(self.size)}, in {self.seconds:.1f} s"
        return f"seeded {self.sentence} ({counted})"


class KnownArchive(Value):
    """The archive as this node read or wrote it last."""

    signature: str = ""
    files: tuple[tuple[str, int], ...] = field(default=())


# --- whose it is ----------------------------------------------------------------------------------


def make_private(place: CachePlace, uid: int) -> None:
    """Create the node's folder; raise PreflightError unless it and the one around are this user's.

    The job runs what is there: it is emptied where others could write to it.
    """
    for folder in (place.root.parent, place.root, place.root / STATE):
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700, parents=folder == place.root.parent)
        status = folder.lstat()
        is_own = stat.S_ISDIR(status.st_mode) and status.st_uid == uid
        if is_own and status.st_mode & 0o022:
            folder.chmod(0o700)
            if folder != place.root.parent:
                _empty(folder)
        if not is_own:
            what = f"{folder}, the folder for compile caches, is not this user's own"
            remedy = "Remove it, or set AGENT_CACHE_DIR=off"
            raise PreflightError(what, remedy=remedy, culprit="AGENT_CACHE_DIR")


def clear_other_kind(place: CachePlace) -> None:
    """Empty a folder of another kind of node: its driver was replaced, or its disk moved."""
    file = place.state(_KIND)
    former = ""
    with suppress(OSError, UnicodeDecodeError):
        former = file.read_text(encoding="utf-8")
    if former == place.kind:
        return
    _empty(place.root)
    place.state("").mkdir(mode=0o700, exist_ok=True)
    file.write_text(place.kind, encoding="utf-8")


def _empty(folder: Path) -> None:
    for entry in [*folder.iterdir()]:
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)


def remove_parts(root: Path) -> None:
    """Remove what a killed program was unpacking; another one may unpack right now."""
    oldest = time.time() - 2 * times.CACHES_SEED
    for file in _walk(root):
        if is_part(file.name):
            with suppress(OSError):
                if file.stat(follow_symlinks=False).st_ctime < oldest:
                    Path(file.path).unlink()


def is_part(name: str) -> bool:
    """Return whether a file was being written when its program was killed."""
    return name.startswith(".") and name.endswith(PART_SUFFIX)


# --- what is recorded about it --------------------------------------------------------------------


def read_seeded(folder: Path) -> Seeded | None:
    """Return how a node's folder was seeded; None while it is not."""
    with suppress(OSError, DecodeError):  # there is none, or it is broken
        return decode((folder / STATE / _SEEDED).read_bytes(), Seeded)
    return None


def write_seeded(place: CachePlace, seeded: Seeded) -> None:
    """Record how the folder was seeded."""
    _write_state(place, _SEEDED, seeded)


def read_known(place: CachePlace) -> KnownArchive:
    """Return what is known of the archive; nothing at first."""
    with suppress(OSError, DecodeError):  # there is none, or it is broken
        return decode(place.state(_KNOWN).read_bytes(), KnownArchive)
    return KnownArchive()


def write_known(place: CachePlace, known: KnownArchive) -> None:
    """Record what the archive has."""
    _write_state(place, _KNOWN, known)


def note_uncompiled(folder: Path) -> None:
    """Record that packages came without .pyc files: the next start finds those of this one."""
    with suppress(OSError):
        (folder / STATE / _UNCOMPILED).touch()


def uncompiled_since(folder: Path) -> float:
    """Return since when it is recorded that packages came without .pyc files, or 0.0."""
    with suppress(OSError):
        return (folder / STATE / _UNCOMPILED).stat().st_mtime
    return 0.0


def _write_state(place: CachePlace, name: str, state: Value) -> None:
    """Write a file about the folder; without it the archive is read or written once more."""
    part = place.state(f"{name}{PART_SUFFIX}")
    with suppress(OSError):
        part.write_text(json.dumps(to_builtins(state)), encoding="utf-8")
        part.replace(place.state(name))


def remove_cut(root: Path) -> None:
    """Remove libraries and kernels that a killed run has left cut: the next one would load them."""
    settled = time.time_ns() - int(times.CACHES_SETTLED * 1e9)
    for file in list_files(root):
        if not is_object(file.path) or file.mtime_ns >= settled:
            continue
        path = root / file.path
        if not is_whole(file.path, _head_of(path), file.size):
            with suppress(OSError):
                path.unlink()


def _head_of(path: Path) -> bytes:
    """Return the first bytes of a file; none if it cannot be read."""
    with suppress(OSError), path.open("rb") as file:
        return file.read(HEAD_BYTES)
    return b""


# --- files ---------------------------------------------------------------------------------------


def list_files(root: Path) -> list[CacheFile]:
    """Return the regular files below a cache folder, without links and the program's own."""
    files = []
    start = len(str(root)) + 1
    for file in _walk(root):
        with suppress(OSError):  # it is gone
            status = file.stat(follow_symlinks=False)
            is_program = bool(status.st_mode & 0o100)
            files.append(
                CacheFile(file.path[start:], status.st_size, status.st_mtime_ns, is_program)
            )
        if len(files) >= 2 * MOST_FILES:  # more than an archive takes: enough to choose from
            break
    return files


def _walk(root: Path | str) -> Iterator[os.DirEntry[str]]:
    folders = [str(root)]
    while folders:
        for entry in scan(folders.pop()):
            if entry.is_file(follow_symlinks=False):
                yield entry
            elif entry.is_dir(follow_symlinks=False) and entry.name != STATE:
                folders.append(entry.path)


def scan(folder: Path | str) -> list[os.DirEntry[str]]:
    """Return the entries of a folder; none if it is gone or may not be read."""
    try:
        with os.scandir(folder) as entries:
            return [*entries]
    except OSError:
        return []
