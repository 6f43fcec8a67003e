"""A node's cache folder and the volume: seed the folder, and write back what is new.

`seed` copies this kind's archive from the volume, checks it, and adds the files that the folder
lacks. `save` writes the folder as a new archive: one node of a kind does in each run, the first
that claims it. If another run has written an archive meanwhile, its files are added first. Two
writers at once each put a whole archive there, and the last one stays; the next write adds the
rest.

Whatever is wrong with a volume or an archive is a sentence, and the node starts cold.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
import stat
import tempfile
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.base import times
from agent.base.text import error_text, mib
from agent.caches import cache_archive
from agent.caches.cache_archive import Trust, UnusableArchiveError
from agent.caches.cache_files import (
    STATE,
    CacheFile,
    OldArchive,
    Target,
    choose_files,
    has_news,
    is_of_python,
    outdated,
    settled,
)
from agent.caches.cache_folder import (
    NOTHING_NEW,
    OTHER_WRITES,
    PART_SUFFIX,
    CachePlace,
    KnownArchive,
    Seeded,
    clear_other_kind,
    list_files,
    make_private,
    note_uncompiled,
    read_known,
    remove_cut,
    remove_parts,
    scan,
    uncompiled_since,
    write_known,
    write_seeded,
)
from agent.caches.python_files import file_of, lacks_compiled, list_compiled, target_of

if TYPE_CHECKING:
    from collections.abc import Callable

_CLAIM_SUFFIX = ".claim"
_NAME = re.compile(r"[A-Za-z0-9_-]+-[0-9a-f]{16}-[us][0-9a-f]+\.caches")
"""An archive's file name: the GPU or the architecture, the kind, who signs."""
_BESIDE = re.compile(rf"\.{_NAME.pattern}\.(.+\{_CLAIM_SUFFIX}|[0-9a-f]+\{PART_SUFFIX})")
"""A claim's name, and that of an archive that is being written."""
_LONGEST_NAME = 255  # bytes of a node's name that are read
_TRIES = 5  # to read an archive that other runs replace
_SPARE = 1 << 30  # bytes that stay free on either disk


# --- seed ----------------------------------------------------------------------------------------


def seed(
    place: CachePlace, trust: Trust, enough: Callable[[Seeded], None] = lambda _: None
) -> Seeded:
    """Seed the node's folder from the volume; raise PreflightError if the folder is not its own.

    Python's own files come last, and `enough` is called before them: a job need not wait for them,
    since it compiles what is not there yet.
    """
    began = time.monotonic()

    def noted(seeded: Seeded) -> Seeded:
        seeded = replace(seeded, seconds=round(time.monotonic() - began, 2))
        write_seeded(place, seeded)
        return seeded

    make_private(place, trust.uid)
    clear_other_kind(place)
    remove_parts(place.root)
    remove_cut(place.root)
    if place.packages and not uncompiled_since(place.root):
        note_uncompiled(place.root)

    # Nothing of the volume may end a run.
    try:
        seeded = Seeded("cold", f"no archive of this kind of node in {place.volume} yet")
        if _is_there(place.path):
            seeded = _add_archive(place, trust, lambda seeded: enough(noted(seeded)))
    except UnusableArchiveError as fault:
        seeded = Seeded("cold", f"{place.path} is not used: {fault}")
    except OSError as error:
        seeded = Seeded("cold", f"{place.path} cannot be read: {error_text(error)}")

    # An earlier run on this machine may have left what it compiled.
    here = choose_files(list_files(place.root))
    if seeded.state == "cold" and here:
        sentence = f"from this node's own disk; {seeded.sentence}"
        seeded = Seeded("seeded", sentence, len(here), sum(file.size for file in here))
    return noted(seeded)


def _add_archive(
    place: CachePlace, trust: Trust, enough: Callable[[Seeded], None], tries: int = _TRIES
) -> Seeded:
    """Add the archive's files that the folder lacks, of a newer one if it is replaced meanwhile."""
    try:
        return _add_newest(place, trust, enough)
    except OSError as error:
        # On NFS a file that another node replaces is gone for those that read it.
        if error.errno != errno.ESTALE or tries == 1:
            raise
    return _add_archive(place, trust, enough, tries - 1)


def _add_newest(place: CachePlace, trust: Trust, enough: Callable[[Seeded], None]) -> Seeded:
    """Add the files of the archive that is there now."""
    known = read_known(place)
    if _has_all(place, known) and not lacks_compiled(place.packages):
        size = sum(size for _, size in known.files)
        sentence = f"by {place.archive}, which this node has read or written"
        _touch(place.path)
        return Seeded("seeded", sentence, len(known.files), size)

    files: list[tuple[str, int]] = []
    with tempfile.TemporaryFile(dir=place.root / STATE) as copy:
        _check_room(place.root, place.path.stat().st_size)
        signature, contents = cache_archive.copy_checked(place.path, copy, place.kind, trust)
        _check_room(place.root, contents.size)
        packages = [folder for folder in place.packages if _takes_files(folder, contents.size)]
        seeded = Seeded("seeded", f"from {place.path}", contents.files, contents.size)
        is_enough = False

        def target(entry: CacheFile) -> Target | None:
            nonlocal is_enough
            files.append((entry.path, entry.size))
            if is_of_python(entry.path):
                if not is_enough:
                    is_enough = True
                    enough(seeded)
                return target_of(entry.path, packages)
            path = place.root / entry.path
            if os.path.lexists(path):
                return None
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            return Target(str(path))

        cache_archive.unpack(copy, contents, target)
    write_known(place, KnownArchive(signature, tuple(files)))
    _touch(place.path)
    return seeded


def _has_all(place: CachePlace, known: KnownArchive) -> bool:
    """Return whether the archive is the known one, and its files are here still."""
    if not known.signature or cache_archive.signature_at(place.path) != known.signature:
        return False
    own = (path for path, _ in known.files if not is_of_python(path))
    return all(os.path.lexists(place.root / path) for path in own)


def _is_there(path: Path) -> bool:
    """Return whether something has this path; raise OSError if it cannot be known."""
    try:
        path.lstat()
    except FileNotFoundError:
        return False
    return True


def _check_room(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed + _SPARE:
        raise UnusableArchiveError(f"{folder} has {mib(free)} free, and {mib(needed)} are needed")


def _takes_files(folder: str, size: int) -> bool:
    """Return whether files may be added to a folder of packages, and have room there."""
    return os.access(folder, os.W_OK) and shutil.disk_usage(folder).free >= size + _SPARE


def _touch(path: Path) -> None:
    """Show that an archive is used; where that is not allowed, its age counts from its write."""
    with suppress(OSError):
        os.utime(path)


# --- save ----------------------------------------------------------------------------------------


def save(
    place: CachePlace, trust: Trust, run_id: str, node: str, settled_for: float | None = None
) -> str:
    """Write the archive if this node has something new, and is the one that writes; say so.

    After a failure, files that changed within the last `settled_for` seconds may be incomplete.
    """
    before_ns = None if settled_for is None else time.time_ns() - int(settled_for * 1e9)

    # Has this node something new?
    known = read_known(place)
    since = uncompiled_since(place.root)
    compiled = list_compiled(place.packages, since) if since else []
    chosen = _files_of(place, compiled, known, before_ns)
    if not chosen or (not has_news(chosen, {*known.files}) and place.path.exists()):
        return NOTHING_NEW
    if before_ns is not None and (free := shutil.disk_usage(place.root).free) < _SPARE:
        return f"not written back: {place.root} has {mib(free)} free, and files may be cut"

    volume = Path(place.volume)
    try:
        # Is it the one that writes?
        volume.mkdir(mode=0o700, parents=True, exist_ok=True)
        holder = _claim(place, run_id, node)
        if holder != node:
            return f"{OTHER_WRITES}{holder} writes this kind's archive"

        # What another run has written meanwhile is part of the new archive.
        if _add_archive_of_others(place, trust, known):
            compiled = list_compiled(place.packages, since) if since else []
        known = read_known(place)
        chosen = _files_of(place, compiled, known, before_ns)
        if not has_news(chosen, {*known.files}) and place.path.exists():
            return NOTHING_NEW
        size = sum(file.size for file in chosen)

        # Is there room for it, without what is outdated?
        _prune(volume, place.archive, trust.uid)
        free = shutil.disk_usage(volume).free
        if free < size + _SPARE:
            return f"not written back: {volume} has {mib(free)} free, and {mib(size)} may be needed"

        signature, written = cache_archive.write_archive(
            place.path, partial(_source_of, place), chosen, place.kind, trust.seal
        )
    except OSError as error:
        return f"not written back: {place.path} cannot be written: {error_text(error)}"

    # The next write is compared with this one.
    files = tuple((file.path, file.size) for file in written)
    write_known(place, KnownArchive(signature, files))
    packed = place.path.stat().st_size
    return f"{len(files)} file(s) ({mib(size)}, packed {mib(packed)}) written to {place.path}"


def _source_of(place: CachePlace, entry: CacheFile) -> str:
    """Return where a file is that is archived."""
    if is_of_python(entry.path):
        return file_of(entry.path)
    return str(place.root / entry.path)


def _files_of(
    place: CachePlace, compiled: list[CacheFile], known: KnownArchive, before_ns: int | None
) -> tuple[CacheFile, ...]:
    """Return the files to archive, of all or of those that were there before a failure."""
    files = [*list_files(place.root), *compiled]
    if before_ns is not None:
        files = [*settled(files, {*known.files}, before_ns)]
    chosen = choose_files(files)

    # Python's own files come last, in the order in which a job has imported their sources.
    python = [file for file in chosen if is_of_python(file.path)]
    python.sort(key=lambda file: file.mtime_ns)
    return (*(file for file in chosen if not is_of_python(file.path)), *python)


def _claim(place: CachePlace, run_id: str, node: str) -> str:
    """Return the node that writes this kind's archive in this run: the first that claims it.

    A claim of which no write has come for long counts no more: its node may be lost.
    """
    claim = Path(place.volume, f".{place.archive}.{run_id}{_CLAIM_SUFFIX}")
    try:
        _write_new(claim, node)
    except FileExistsError:
        holder = _holder_of(claim)
        if holder not in {"", node}:
            return holder

        # Its own one counts from now on, and one that counts no more is replaced.
        part = claim.with_name(f".{place.archive}.{secrets.token_hex(4)}{PART_SUFFIX}")
        _write_new(part, node)
        part.rename(claim)
    return node


def _write_new(file: Path, text: str) -> None:
    """Write a file that is not there yet."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with open(os.open(file, flags, 0o600), "w", encoding="utf-8") as out:  # noqa: PTH123 - a descriptor
        out.write(text)


def _holder_of(claim: Path) -> str:
    """Return the node that has claimed an archive; '' if the claim counts no more."""
    try:
        descriptor = os.open(claim, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:  # it is gone, or a link
        return ""
    with open(descriptor, "rb") as file:  # noqa: PTH123 - a descriptor
        status = os.fstat(descriptor)
        is_fresh = time.time() - status.st_mtime < times.CACHES_CLAIM
        if not is_fresh or not stat.S_ISREG(status.st_mode):
            return ""
        name = file.read(_LONGEST_NAME).decode(errors="replace")
    is_name = name and name.isprintable()  # it is empty while its node writes it
    return name if is_name else "another node"


def _add_archive_of_others(place: CachePlace, trust: Trust, known: KnownArchive) -> bool:
    """Add what others have written since, or what a job has removed here; return whether any is."""
    if not cache_archive.signature_at(place.path) or _has_all(place, known):
        return False
    with suppress(UnusableArchiveError):  # it is replaced
        _add_archive(place, trust, lambda _: None)
        return True
    return False


def _prune(volume: Path, keep: str, uid: int) -> None:
    """Remove this user's old archives, and what killed programs left on the volume."""
    now = time.time()
    archives = []
    for file in scan(volume):
        try:
            status = file.stat(follow_symlinks=False)
        except FileNotFoundError:  # another node has removed or renamed it
            continue
        if status.st_uid != uid or not file.is_file(follow_symlinks=False):
            continue
        if _NAME.fullmatch(file.name):
            archives.append(OldArchive(file.name, status.st_size, status.st_mtime))
        if _BESIDE.fullmatch(file.name) and status.st_mtime + times.CACHES_ABANDONED < now:
            Path(file.path).unlink(missing_ok=True)
    for name in outdated(archives, keep, now):
        (volume / name).unlink(missing_ok=True)
