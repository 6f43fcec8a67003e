"""The archive of compile caches: one signed file, checked as a whole before it is read.

A line says what it is, a line has the signature of all that follows, a line of JSON the contents in
numbers; then comes a gzip stream. In it each file is a line of JSON with path, size, mode and time,
and its bytes. Links, devices and owners cannot be expressed.

What is in an archive will run. With a token its signature must be right; without one the file must
belong to this user, and nobody else may write to it.
"""

from __future__ import annotations

import gzip
import hashlib
import hmac
import json
import os
import secrets
import stat
import zlib
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, TypeVar

from msgspec import DecodeError, to_builtins

from agent.base.typed import decode
from agent.base.value import Bytes, Count, Value
from agent.caches.cache_files import (
    LARGEST_FILE,
    MOST_BYTES,
    MOST_FILES,
    CacheFile,
    Target,
    is_safe,
    is_whole,
)
from agent.caches.cache_folder import PART_SUFFIX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_V = TypeVar("_V", bound=Value)

_MAGIC = b"pod-agent compile caches 1\n"
_LONGEST_LINE = 8192
_MOST_PACKED = MOST_BYTES + (256 << 20)  # files that cannot be compressed, and the lines
_PIECE = 1 << 20
_WORST_MODE = stat.S_IWGRP | stat.S_IWOTH


class UnusableArchiveError(Exception):
    """An archive that is not used, and why."""


class Contents(Value):
    """What an archive has, in numbers."""

    kind: str
    files: Count
    size: Bytes


class Trust(Value):
    """By what an archive is trusted: the key of its signature, or its owner."""

    seal: str  # '' without a token
    uid: int


class _Sealed:
    """Writes to a file, and computes the signature of what was written."""

    def __init__(self, file: IO[bytes], seal: str) -> None:
        self._file = file
        self._digest = _digest_of(seal)

    def write(self, data: bytes) -> int:
        self._digest.update(data)
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()

    def signature(self) -> str:
        return self._digest.hexdigest()


def _digest_of(seal: str) -> hmac.HMAC | hashlib._Hash:
    """Return what computes a signature; without a key it only shows damage."""
    if seal:
        return hmac.new(bytes.fromhex(seal), digestmod=hashlib.sha256)
    return hashlib.sha256()


def _signature_line(signature: str, seal: str) -> bytes:
    return f"{'signed' if seal else 'digest'} {signature}\n".encode()


# --- write ---------------------------------------------------------------------------------------


def write_archive(
    target: Path,
    source_of: Callable[[CacheFile], str],
    files: Iterable[CacheFile],
    kind: str,
    seal: str,
) -> tuple[str, list[CacheFile]]:
    """Write an archive beside `target`, then put it there; return its signature and its files.

    `source_of` says where a file is. Files that are gone, cannot be read or are cut are left out.
    """
    part = target.with_name(f".{target.name}.{secrets.token_hex(4)}{PART_SUFFIX}")
    chosen = [*files]
    descriptor = os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(descriptor, "wb") as file:  # noqa: PTH123 - a descriptor
            # The line of the signature is filled in at the end.
            file.write(_MAGIC)
            file.write(_signature_line("0" * 64, seal))

            # All that is signed: the contents in numbers, then the files.
            sealed = _Sealed(file, seal)
            contents = Contents(kind, len(chosen), sum(entry.size for entry in chosen))
            sealed.write(json.dumps(to_builtins(contents)).encode() + b"\n")
            with gzip.GzipFile(fileobj=sealed, mode="wb", compresslevel=1, mtime=0) as stream:
                written = [entry for entry in chosen if _pack(stream, source_of(entry), entry)]

            file.seek(len(_MAGIC))
            file.write(_signature_line(sealed.signature(), seal))
            file.flush()
            os.fsync(file.fileno())
        part.rename(target)
    except BaseException:
        with suppress(OSError):
            part.unlink()
        raise

    _sync_folder(target.parent)
    return sealed.signature(), written


def _pack(stream: gzip.GzipFile, source: str, entry: CacheFile) -> bool:
    """Add one file; return False where it is gone, replaced by a link, still growing, or cut."""
    try:
        descriptor = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    with open(descriptor, "rb") as file:  # noqa: PTH123 - a descriptor
        data = file.read(LARGEST_FILE + 1)
    if len(data) != entry.size or not is_whole(entry.path, data, entry.size):
        return False
    stream.write(json.dumps(to_builtins(entry)).encode() + b"\n")
    for start in range(0, len(data), _PIECE):
        stream.write(data[start : start + _PIECE])
    return True


def _sync_folder(folder: Path) -> None:
    """Make a rename last; some file systems cannot sync a folder."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


# --- read ----------------------------------------------------------------------------------------


def signature_at(path: Path) -> str:
    """Return the signature in an archive, unchecked: whether it is still the known one; or ''."""
    with suppress(OSError, UnusableArchiveError, UnicodeDecodeError), _opened(path) as file:
        return _head_of(file)[1]
    return ""


def copy_checked(path: Path, copy: IO[bytes], kind: str, trust: Trust) -> tuple[str, Contents]:
    """Copy an archive of this kind that is trusted; return its signature and contents.

    It is copied first, so that what was checked is what is read. The copy is at its gzip stream.
    """
    with _opened(path) as file:
        _check_owner(os.fstat(file.fileno()), trust)
        marker, signature = _head_of(file)
        if trust.seal and marker != "signed":
            raise UnusableArchiveError("it is not signed, and this run has a token")
        if not trust.seal and marker != "digest":
            raise UnusableArchiveError("it is signed, and this run has no token")

        # All that follows, and whether it is what was signed.
        digest = _digest_of(trust.seal)
        size = 0
        while data := file.read(_PIECE):
            size += len(data)
            if size > _MOST_PACKED:
                raise UnusableArchiveError("it is too large")
            digest.update(data)
            copy.write(data)

    if not hmac.compare_digest(digest.hexdigest(), signature):
        fault = "its signature is wrong: damaged, or of another token" if trust.seal else "damaged"
        raise UnusableArchiveError(fault)

    copy.seek(0)
    contents = _read_line(copy, Contents)
    if contents.kind != kind:
        raise UnusableArchiveError("it is of another kind of node")
    if contents.files > MOST_FILES or contents.size > MOST_BYTES:
        raise UnusableArchiveError("it has too many files or bytes")
    return signature, contents


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    """Open a regular file, no link: a pipe in its place would block."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with open(os.open(path, flags), "rb") as file:  # noqa: PTH123 - a descriptor
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise UnusableArchiveError("it is no file")
        yield file


def _check_owner(status: os.stat_result, trust: Trust) -> None:
    """Refuse a file of another user, or one that others may write, where no token signs."""
    if trust.seal:
        return
    remedy = "set RAY_AUTH_TOKEN on all nodes, which signs archives"
    if status.st_uid != trust.uid:
        raise UnusableArchiveError(f"it belongs to user {status.st_uid}, not {trust.uid}; {remedy}")
    if status.st_mode & _WORST_MODE:
        mode = stat.S_IMODE(status.st_mode)
        raise UnusableArchiveError(f"others may write to it (mode {mode:04o}); {remedy}")


def _head_of(file: IO[bytes]) -> tuple[str, str]:
    """Return how an archive is protected, `signed` or `digest`, and the signature."""
    if file.readline(_LONGEST_LINE) != _MAGIC:
        raise UnusableArchiveError("it is no archive of this version")
    marker, _, signature = file.readline(_LONGEST_LINE).decode("ascii", "replace").partition(" ")
    if marker not in {"signed", "digest"}:
        raise UnusableArchiveError("it has no signature")
    return marker, signature.strip()


def unpack(
    copy: IO[bytes], contents: Contents, place: Callable[[CacheFile], Target | None]
) -> None:
    """Write the files of a checked copy to where `place` says; None leaves one out.

    What is there already is never written to: a running job may use it.
    """
    room = contents.size
    try:
        with gzip.GzipFile(fileobj=copy, mode="rb") as stream:
            for _ in range(contents.files):
                if not _ahead(stream):
                    break
                entry = _read_line(stream, CacheFile)
                room -= entry.size
                is_fitting = 0 <= entry.size <= LARGEST_FILE and room >= 0
                if not is_safe(entry.path) or not is_fitting:
                    raise UnusableArchiveError(f"it has the entry {entry.path[:80]!r}")
                _unpack_file(stream, entry, place(entry))
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise UnusableArchiveError("it ends too early, or is damaged") from None


def _ahead(stream: gzip.GzipFile) -> bool:
    """Return whether there is another file: those that were gone are counted, but left out."""
    return bool(stream.peek(1))


def _unpack_file(stream: gzip.GzipFile, entry: CacheFile, target: Target | None) -> None:
    """Write one file; its name is there once it is whole."""
    # A part beside its name, and nothing for a file that is left out.
    part: Path | None = None
    file: IO[bytes] | None = None
    if target is not None:
        part = Path(target.path).with_name(f".{secrets.token_hex(8)}{PART_SUFFIX}")
        mode = 0o700 if entry.is_program else 0o600
        if target.is_public:
            mode = 0o644
        file = _created(part, mode, may_fail=target.is_public)

    try:
        # A file that is left out is read, too: the next one is behind it.
        missing = entry.size
        while missing > 0:
            data = stream.read(min(missing, _PIECE))
            if not data:
                raise UnusableArchiveError("it ends too early")
            missing -= len(data)
            if file is not None:
                file.write(data)

        # It is whole: now it gets its name.
        if file is None or part is None or target is None:
            return
        if target.head:
            file.seek(0)
            file.write(target.head)
        file.close()
        if not target.head:
            os.utime(part, ns=(entry.mtime_ns, entry.mtime_ns))  # ninja compares times
        part.rename(target.path)
        part = None
    finally:
        if file is not None:
            file.close()
        if part is not None:
            with suppress(OSError):
                part.unlink()


def _created(part: Path, mode: int, *, may_fail: bool) -> IO[bytes] | None:
    """Create a file; None where its folder takes none, if it need not be there."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return open(os.open(part, flags, mode), "wb")  # noqa: PTH123 - a descriptor
    except OSError:
        if may_fail:
            return None
        raise


def _read_line(stream: IO[bytes] | gzip.GzipFile, kind: type[_V]) -> _V:
    line = stream.readline(_LONGEST_LINE)
    try:
        return decode(line, kind)
    except (DecodeError, UnicodeDecodeError, RecursionError):
        raise UnusableArchiveError("it has a broken line") from None
