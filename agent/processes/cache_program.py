"""`pod-agent compile-caches`: reads or writes the archive of a node's compile caches.

An archive is a gzipped tar of the node's cache folder, and a signature of its name and contents
behind it. `seed` copies it from the volume, checks it, and adds the files that the folder lacks: a
running job may use those that are there. `save` writes a new archive aside and renames it. Of two
runs that write at once the last archive stays; the next start adds what it lacks.

What is in an archive will run. With a token its signature must be right; without one the file must
belong to this user, and nobody else may write to it.

A program of its own, since a volume may hang: a child does the work, and is abandoned at the
deadline. Whatever is wrong with a volume or an archive is the last line, and the node starts cold.
"""

from __future__ import annotations

import argparse
import errno
import hashlib
import hmac
import io
import os
import re
import secrets
import shutil
import stat
import struct
import subprocess
import sys
import tarfile
import tempfile
import time
import zlib
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING

from msgspec.json import encode

from agent.base import times
from agent.base.errors import PreflightError
from agent.base.text import error_text, mib, own_command
from agent.base.value import Value
from agent.job.compile_caches import PROGRAM, SEAL
from agent.processes import cache_folder
from agent.processes.cache_folder import (
    OWN_FOLDER,
    SEEDED_FILE,
    UNCHANGED,
    Seeded,
    is_safe,
    list_files,
)
from agent.processes.page_cache import lower_priority

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from agent.processes.cache_folder import CacheFile

_NOTHING_NEW = "nothing new to write back"
REFUSED = 78  # The exit code where the node's folder is not this user's own
_KIND = "kind"  # The kind of node that the folder is of
_KNOWN = "known"  # When the archive was written that this node has read or written last

MOST_OF_VOLUME = 20 << 30  # Of all archives of this user or token
UNUSED = 30 * 24 * 3600.0  # An archive that seeded no node for so long is removed
ABANDONED = 24 * 3600.0  # A part of a killed program is removed after so long
_SPARE = 1 << 30  # Bytes that stay free on either disk
_PIECE = 1 << 20
_SIGNED = 32  # Bytes of a signature
_ARCHIVE = r"[A-Za-z0-9_-]+-[0-9a-f]{16}-(?:head|worker)-[us][0-9a-f]+\.tar\.gz"
"""An archive's file name: the GPU or the architecture, the kind, the role, who signs."""
_PART = rf"\.{_ARCHIVE}\.[0-9a-f]+\.part"  # One that is being written

_LINKED = (".so", ".o")  # Files that linkers and compilers write in place
_ELF_TABLE = struct.Struct("<40xQ10xHH")  # Where the table of sections begins, its rows and number


class CachePlace(Value):
    """Where the caches of a node are, and its archives."""

    volume: str
    folder: str
    archives: tuple[str, ...]  # file names: that of this node's role, and those to read without it
    kind: str
    seal: str = ""  # the key of signatures; '' without a token

    @property
    def root(self) -> Path:
        """Return the node's cache folder."""
        return Path(self.folder)

    @property
    def own_archive(self) -> Path:
        """Return the archive that this node writes."""
        return Path(self.volume, self.archives[0])


class UnusableArchiveError(Exception):
    """An archive that is not used, and why."""


# --- seed ----------------------------------------------------------------------------------------


def seed(place: CachePlace) -> Seeded:
    """Seed the node's folder; raise PreflightError if it is not this user's own."""
    _make_private(place.root)
    _clear_other_kind(place)
    _remove_cut(place.root)
    seeded = _seeded(place)
    with suppress(OSError):  # without it the status has no state, and the archive is written again
        (place.root / OWN_FOLDER / SEEDED_FILE).write_bytes(encode(seeded))
    return seeded


def _seeded(place: CachePlace) -> Seeded:
    """Add the archive's files; return what came of it, whatever is wrong with the volume."""
    began = time.monotonic()
    path: Path | None = None
    try:
        path = _newest_archive(place)
        why = f"no archive of this kind of node in {place.volume} yet"
        if path is not None:
            files, size = _add_archive(place, path)
            took = f"in {time.monotonic() - began:.1f} s"
            sentence = f"from {path} ({files} file(s), {mib(size)}, {took})"
            is_own = path == place.own_archive
            return Seeded("seeded", sentence, files * is_own, size * is_own)
    except UnusableArchiveError as fault:
        why = f"{path} is not used: {fault}"
    except OSError as error:
        why = f"{path or place.volume} cannot be read: {error_text(error)}"

    # An earlier run on this machine may have left what it compiled.
    if list_files(place.root):
        return Seeded("seeded", f"from this node's own disk; {why}")
    return Seeded("cold", why)


def _newest_archive(place: CachePlace) -> Path | None:
    """Return this role's archive, or the other one's where there is none yet."""
    for name in place.archives:
        path = Path(place.volume, name)
        with suppress(FileNotFoundError):
            path.lstat()
            return path
    return None


def _add_archive(place: CachePlace, path: Path) -> tuple[int, int]:
    """Add the files that the folder lacks; return number and size of those in the archive."""
    try:
        return _add_checked(place, path)
    except OSError as error:
        if error.errno != errno.ESTALE:
            raise
    # On NFS a file that another node replaces is gone for those that read it.
    return _add_checked(place, path)


def _add_checked(place: CachePlace, path: Path) -> tuple[int, int]:
    root = place.root
    with tempfile.TemporaryFile(dir=root / OWN_FOLDER) as copy:
        written_ns = _copy_checked(place, path, copy)
        copy.seek(0)
        sizes = _unpack(copy, root)
    if path == place.own_archive:
        _note_known(place, written_ns)
    with suppress(OSError):  # it is used: archives that are not used are removed
        os.utime(path, ns=(time.time_ns(), written_ns))
    return len(sizes), sum(sizes.values())


def _copy_checked(place: CachePlace, path: Path, copy: IO[bytes]) -> int:
    """Copy an archive that is trusted; return when it was written.

    It is copied first, so that what was checked is what is read.
    """
    # A link leads elsewhere, and a pipe in its place would block.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with open(os.open(path, flags), "rb") as file:  # noqa: PTH123 - a descriptor
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_size <= _SIGNED:
            raise UnusableArchiveError("it is no archive")
        if not place.seal:
            _check_owner(status)
        why = _why_full(place.root, status.st_size)
        if why:
            raise UnusableArchiveError(why)

        digest = _new_digest(place.seal, path.name)
        for data in _pieces(file, status.st_size - _SIGNED):
            digest.update(data)
            copy.write(data)
        signature = file.read(_SIGNED)

    if not hmac.compare_digest(digest.digest(), signature):
        why = "its signature is wrong: damaged, or of another token" if place.seal else "damaged"
        raise UnusableArchiveError(why)
    return status.st_mtime_ns


def _check_owner(status: os.stat_result) -> None:
    """Refuse a file of another user, or one that others may write, where no token signs."""
    remedy = "set RAY_AUTH_TOKEN on all nodes, which signs archives"
    if status.st_uid != os.getuid():
        owner = f"it belongs to user {status.st_uid}, not {os.getuid()}"
        raise UnusableArchiveError(f"{owner}; {remedy}")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        mode = stat.S_IMODE(status.st_mode)
        raise UnusableArchiveError(f"others may write to it (mode {mode:04o}); {remedy}")


def _new_digest(seal: str, name: str) -> hmac.HMAC:
    """Return what signs an archive, whose name is its kind; without a key it shows damage."""
    return hmac.new(bytes.fromhex(seal), name.encode(), hashlib.sha256)


def _pieces(file: IO[bytes], size: int) -> Iterator[bytes]:
    """Yield the next `size` bytes of a file."""
    while size > 0 and (data := file.read(min(size, _PIECE))):
        size -= len(data)
        yield data


def _unpack(copy: IO[bytes], root: Path) -> dict[str, int]:
    """Write the files that are not there yet; return the sizes of all in the archive.

    `tarfile` checks its members itself only from Python 3.10.12 and 3.11.4 on.
    """
    sizes: dict[str, int] = {}
    room = cache_folder.MOST_BYTES
    try:
        with tarfile.open(fileobj=copy, mode="r:gz") as archive:
            for member in archive:
                room -= member.size
                if not member.isreg() or not is_safe(member.name) or room < 0:
                    raise UnusableArchiveError(f"it has the entry {member.name[:80]!r}")
                sizes[member.name] = member.size
                content = archive.extractfile(member)
                if content is not None and not os.path.lexists(root / member.name):
                    _write_file(content, member, root)
    except (tarfile.TarError, zlib.error, EOFError):
        raise UnusableArchiveError("it is no archive, or damaged") from None
    return sizes


def _write_file(content: IO[bytes], member: tarfile.TarInfo, root: Path) -> None:
    """Write one file; its name is there once it is whole."""
    why = _why_full(root, member.size)
    if why:
        raise UnusableArchiveError(why)
    part = root / OWN_FOLDER / f"{secrets.token_hex(8)}.part"
    try:
        with part.open("xb") as file:
            shutil.copyfileobj(content, file)
        part.chmod(0o700 if member.mode & stat.S_IXUSR else 0o600)
        os.utime(part, (member.mtime, member.mtime))  # ninja compares times
        target = root / member.name
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        part.rename(target)
    finally:
        part.unlink(missing_ok=True)


def _why_full(folder: Path, needed: int) -> str:
    """Return why a disk has no room for so many bytes, or ''."""
    free = shutil.disk_usage(folder).free
    if free >= needed + _SPARE:
        return ""
    return f"{folder} has {mib(free)} free, and {mib(needed)} may be needed"


# --- the node's folder ---------------------------------------------------------------------------


def _make_private(root: Path) -> None:
    """Create the node's folder; raise PreflightError unless it and the one around are this user's.

    The job runs what is there: it is emptied where others could write to it.
    """
    for folder in (root.parent, root):
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700, parents=folder == root.parent)
        status = folder.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
            what = f"{folder}, the folder for compile caches, is not this user's own"
            remedy = "Remove it, or set AGENT_CACHE_DIR=off"
            raise PreflightError(what, remedy=remedy, culprit="AGENT_CACHE_DIR")
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            folder.chmod(0o700)
            if folder == root:
                _empty(root)


def _clear_other_kind(place: CachePlace) -> None:
    """Empty a folder of another kind of node: its driver was replaced, or its disk moved."""
    file = place.root / OWN_FOLDER / _KIND
    former = ""
    with suppress(OSError, UnicodeDecodeError):
        former = file.read_text(encoding="utf-8")
    if former != place.kind:
        _empty(place.root)
        file.parent.mkdir(mode=0o700)
        file.write_text(place.kind, encoding="utf-8")


def _empty(folder: Path) -> None:
    for entry in [*folder.iterdir()]:
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)


def _remove_cut(root: Path) -> None:
    """Remove libraries that a killed compiler has left cut: the next job would load them."""
    settled_ns = time.time_ns() - int(times.CACHES_SETTLED * 1e9)
    for file in list_files(root, settled_ns):
        with suppress(OSError):
            if file.path.endswith(_LINKED):
                with (root / file.path).open("rb") as opened:
                    head = opened.read(_ELF_TABLE.size)
                if is_cut(file.path, head, file.size):
                    (root / file.path).unlink()


def is_cut(path: str, head: bytes, size: int) -> bool:
    """Return whether a library or object lacks its end, by the first bytes of it.

    Compilers write these in place (torch 2.13's inductor, ninja), and what a killed one leaves is
    loaded for as long as it is there. Linkers write the head last; the table of sections is at the
    end.
    """
    if not path.endswith(_LINKED):
        return False
    if len(head) < _ELF_TABLE.size or not head.startswith(b"\x7fELF"):
        return True
    table, row, rows = _ELF_TABLE.unpack_from(head)
    return bool(table + row * rows > size)


# --- save ----------------------------------------------------------------------------------------


class Saved(Value):
    """What came of a save."""

    sentence: str
    is_unchanged: bool = False  # whether nothing was new


def save(place: CachePlace, settled_for: float | None = None) -> Saved:
    """Write this node's archive; return what came of it.

    After a failure, files that changed within the last `settled_for` seconds may be incomplete.
    """
    root = place.root
    path = place.own_archive
    before_ns = None if settled_for is None else time.time_ns() - int(settled_for * 1e9)
    files = list_files(root, before_ns)
    if not files:
        return Saved(_NOTHING_NEW, is_unchanged=True)
    if settled_for is not None and (why := _why_full(root, 0)):
        return Saved(f"not written back: {why}: files may be cut")

    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Nodes of one role compile the same: the first one of them writes.
        if _is_just_written(place):
            others = f"{_NOTHING_NEW}: another node has just written {path}"
            return Saved(others, is_unchanged=True)

        _prune(path)
        size = sum(file.size for file in files)
        if why := _why_full(path.parent, size):
            return Saved(f"not written back: {why}")
        written = _write_archive(place, files)
        status = path.stat()
        _note_known(place, status.st_mtime_ns)
    except OSError as error:
        return Saved(f"not written back: {path} cannot be written: {error_text(error)}")
    packed = mib(status.st_size)
    return Saved(f"{written} file(s) ({mib(size)}, packed {packed}) written to {path}")


def _is_just_written(place: CachePlace) -> bool:
    """Return whether another node of this role has written the archive lately."""
    try:
        status = place.own_archive.lstat()
    except FileNotFoundError:
        return False
    known = ""
    with suppress(OSError):
        known = (place.root / OWN_FOLDER / _KNOWN).read_text(encoding="utf-8")
    is_fresh = time.time() - status.st_mtime < times.CACHES_SAVED_AGAIN
    return is_fresh and known != str(status.st_mtime_ns)


def _note_known(place: CachePlace, written_ns: int) -> None:
    (place.root / OWN_FOLDER / _KNOWN).write_text(str(written_ns), encoding="utf-8")


def _write_archive(place: CachePlace, files: Sequence[CacheFile]) -> int:
    """Write the archive beside its place, then rename it; return the number of its files."""
    path = place.own_archive
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        with _created(part) as out:
            with tarfile.open(fileobj=out, mode="w:gz", compresslevel=1) as archive:
                written = sum(_pack(archive, place.root, file) for file in files)
            size = out.tell()
            out.seek(0)
            digest = _new_digest(place.seal, path.name)
            for data in _pieces(out, size):
                digest.update(data)
            out.seek(size)
            out.write(digest.digest())
            out.flush()
            os.fsync(out.fileno())
        part.rename(path)
    finally:
        part.unlink(missing_ok=True)
    return written


@contextmanager
def _created(path: Path) -> Iterator[IO[bytes]]:
    """Create a file that only this user can read."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(descriptor, "w+b") as file:  # noqa: PTH123 - a descriptor
        yield file


def _pack(archive: tarfile.TarFile, root: Path, file: CacheFile) -> bool:
    """Add one file; return False where it is gone, replaced by a link, still growing, or cut."""
    try:
        descriptor = os.open(root / file.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    with open(descriptor, "rb") as opened:  # noqa: PTH123 - a descriptor
        data = opened.read(cache_folder.LARGEST_FILE + 1)
    if len(data) != file.size or is_cut(file.path, data, file.size):
        return False
    member = tarfile.TarInfo(file.path)
    member.size = file.size
    member.mtime = file.mtime_ns / 1e9
    member.mode = 0o700 if file.is_program else 0o600
    archive.addfile(member, io.BytesIO(data))
    return True


def _prune(keep: Path) -> None:
    """Remove this user's old archives, and what killed programs left on the volume."""
    now = time.time()
    archives = []
    for path in keep.parent.iterdir():
        with suppress(FileNotFoundError):  # another node has removed or renamed it
            status = path.lstat()
            is_own = stat.S_ISREG(status.st_mode) and status.st_uid == os.getuid()
            if is_own and re.fullmatch(_ARCHIVE, path.name):
                archives.append((max(status.st_atime, status.st_mtime), status.st_size, path))
            is_old_part = status.st_mtime + ABANDONED < now
            if is_own and is_old_part and re.fullmatch(_PART, path.name):
                path.unlink()

    room = MOST_OF_VOLUME
    for used, size, path in sorted(archives, reverse=True):
        room -= size
        if path != keep and (used + UNUSED < now or room < 0):
            path.unlink(missing_ok=True)


# --- the program ---------------------------------------------------------------------------------


def main(argv: Sequence[str]) -> int:
    """Seed or save; return 0, `UNCHANGED`, or 78 if the node's folder is not this user's own."""
    parser = argparse.ArgumentParser(prog=f"pod-agent {PROGRAM}", description=__doc__)
    parser.add_argument("action", choices=("seed", "save"))
    parser.add_argument("--volume", required=True, help="folder of the archives")
    parser.add_argument("--folder", required=True, help="the node's cache folder")
    parser.add_argument("--archive", required=True, action="append", help="its file name")
    parser.add_argument("--kind", required=True, help="digest of this kind of node")
    parser.add_argument("--settled", type=float, help="seconds without a change, after a failure")
    parser.add_argument("--limit", type=float, help="seconds for a child that does the work")
    asked = parser.parse_args(argv)
    if asked.limit is not None:
        return _run_child(argv, asked.limit, asked.volume)

    seal = os.environ.get(SEAL, "")
    place = CachePlace(asked.volume, asked.folder, tuple(asked.archive), asked.kind, seal)
    code = 0
    try:
        if asked.action == "seed":
            sentence = seed(place).in_words()
        else:
            lower_priority()
            saved = save(place, asked.settled)
            sentence = saved.sentence
            code = UNCHANGED if saved.is_unchanged else 0
    except PreflightError as error:
        code = REFUSED
        sentence = error.sentence()
    except OSError as error:
        sentence = f"cold: {asked.folder} cannot be used: {error_text(error)}"
    print(sentence, flush=True)
    return code


def _run_child(argv: Sequence[str], limit: float, volume: str) -> int:
    """Run this program in a child without a limit; print its result, or that it takes too long.

    A child that a hung disk holds cannot be killed before the disk answers: it is not awaited.
    """
    at = [*argv].index("--limit")
    words = [*argv[:at], *argv[at + 2 :]]
    child = subprocess.Popen(
        own_command(sys.executable, PROGRAM, *words), stdout=subprocess.PIPE, errors="replace"
    )
    try:
        output, _ = child.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        child.kill()
        what = "cold" if argv[0] == "seed" else "not written back"
        print(f"{what}: {volume} took longer than {limit:g} s", flush=True)
        return 0
    print(output.strip() or "cold: its program has failed", flush=True)
    return child.returncode if child.returncode in {REFUSED, UNCHANGED} else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
