"""Reading and atomic writing of small files, and file locks."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import secrets
import stat
from contextlib import contextmanager, suppress
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, BinaryIO, ClassVar, TypeVar

from msgspec import ValidationError, to_builtins

from agent.base.text import error_text, iso_time, seconds_between
from agent.base.typed import convert
from agent.base.value import Value
from agent.record.background import run_within
from agent.record.log_dir import LogDir, log_dir
from agent.record.memory import record_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from typing_extensions import Self

_FILE_LOCK = 2.0  # For a lock of the run folder on a network disk.


T = TypeVar("T")

PART_SUFFIX = ".part"  # suffix of a file that is being written
_LONGEST_NAME = 200
_MOST_NUMBERS = 10_000
_READ_AGAIN = 3  # further tries to read a record
_MOST_COUNTED = 256 << 20  # bytes whose lines are counted: a fraction of a second
_COUNTED_AT_ONCE = 1 << 20  # bytes


def safe_name(name: str) -> str:
    """Return a name as a file name that cannot leave its folder."""
    return re.sub(r"[^\w.-]", "-", name).strip(".")[:_LONGEST_NAME] or "node"


def numbered_names(name: str) -> Iterator[str]:
    """Yield a name, then the same with `-2`, `-3` and so on."""
    yield name
    yield from (f"{name}-{number}" for number in range(2, _MOST_NUMBERS))


def seconds_of(text: str) -> float:
    """Return an ISO time in seconds since 1970; 0 if it is invalid."""
    return seconds_between(iso_time(0.0), text)


def appending(path: Path | Callable[[], Path]) -> Callable[[], int]:
    """Return an opener that appends to a file; a path that may change is a function."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    return lambda: log_dir.open(path() if callable(path) else path, flags)


def rotate(path: Path, most: int) -> None:
    """Rename a file of more than `most` bytes to its former one, `NAME.1.log` for `NAME.log`."""
    if log_dir.exists(path) and log_dir.stat(path).st_size > most:
        log_dir.rename(path, path.with_name(f"{path.stem}.1{path.suffix}"))


@contextmanager
def reading(path: Path, place: LogDir = log_dir) -> Iterator[BinaryIO]:
    """Open a file; raise ValueError if it is none: a pipe in its place would block."""
    descriptor = place.open_as_is(path, os.O_RDONLY | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:  # noqa: PTH123 - a descriptor has no path
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError("it is no file")
        yield file


def read_small(path: Path) -> str:
    """Return a file's text; raise OSError, or ValueError if it is none."""
    with reading(path) as file:
        return file.read().decode()


class NoRecord(Value):
    """There is no readable record, and why; `is_missing` if there is no file."""

    why: str
    is_missing: bool = False


def read_json(path: Path, to_record: Callable[[object], T | NoRecord]) -> T | NoRecord:
    """Convert the content of a JSON file; NoRecord if there is none, or it cannot be read."""
    return _parse(partial(read_small, path), to_record)


def _parse(read: Callable[[], str], to_record: Callable[[object], T | NoRecord]) -> T | NoRecord:
    try:
        return to_record(json.loads(read()))
    except FileNotFoundError:
        return NoRecord("there is none", is_missing=True)
    except OSError as error:
        return NoRecord(error_text(error))
    except (ValueError, RecursionError) as error:
        return NoRecord(f"it is broken: {error}")


class Record(Value):
    """The content of a JSON file that the next agent reads."""

    outlives_its_disk: ClassVar[bool] = False  # kept in memory while the disk takes no write
    version: ClassVar[int] = 1  # of its form: one of another version is not read
    of_another_release: ClassVar[str] = ""  # what to do where another release wrote it

    def to_dict(self) -> dict[str, object]:
        """Return the content of the file."""
        return {"version": self.version, **to_builtins(self)}

    @classmethod
    def from_dict(cls, data: object) -> Self | NoRecord:
        """Convert the content of a file; NoRecord if it is invalid or of another version."""
        if not isinstance(data, dict):
            return NoRecord("it is no JSON object")
        version = data.get("version")
        if version != cls.version or isinstance(version, bool):
            remedy = cls.of_another_release and f" ({cls.of_another_release})"
            return NoRecord(f"its version is {version!r}, not {cls.version}{remedy}")
        try:
            return convert(data, cls)
        except ValidationError as error:
            return NoRecord(f"it is no such record: {error}")

    @classmethod
    def read(cls, path: Path) -> Self | NoRecord:
        """Read a file, or what a killed agent could not write to it.

        The file counts if a head with a later epoch has written it since.
        """
        on_disk = read_json(path, cls.from_dict)
        text = record_memory.text_of(path) if cls.outlives_its_disk else None
        if text is None:
            return on_disk
        in_memory = _parse(lambda: text, cls.from_dict)
        if isinstance(in_memory, NoRecord):
            return on_disk
        is_superseded = getattr(on_disk, "epoch", 0) > getattr(in_memory, "epoch", 0)
        return on_disk if is_superseded else in_memory

    @classmethod
    def read_patiently(cls, path: Path) -> Self | NoRecord:
        """Read a file; if it cannot be read, open it again: a network disk may have a new one."""
        record = cls.read(path)
        for _ in range(_READ_AGAIN):
            if not isinstance(record, NoRecord) or record.is_missing:
                break
            record = cls.read(path)
        return record

    def write(self, path: Path, *, durable: bool = True) -> OSError | None:
        """Replace the file as a whole; return the error on failure."""
        if self.outlives_its_disk:  # before the write, which may fail, or take for ever
            self.keep_in_memory(path)
        return self.write_kept(path, durable=durable)

    def keep_in_memory(self, path: Path) -> bool:
        """Keep the content until the disk has it; return whether the next agent gets it."""
        return record_memory.keep(path, self._text())

    def write_kept(self, path: Path, *, durable: bool = True) -> OSError | None:
        """Replace the file by a content that is kept in memory, which then forgets it."""
        text = self._text()
        error = write_atomically(path, text, durable=durable)
        if error is None and self.outlives_its_disk:
            record_memory.forget(path, text)
        return error

    def _text(self) -> str:
        return json.dumps(self.to_dict(), indent=2) + "\n"


def read_end(path: Path, most: int, since: int = 0) -> bytes | None:
    """Return the last bytes of a file, from offset `since` on; None if it cannot be read."""
    try:
        with reading(path) as file:
            file.seek(max(since, file.seek(0, os.SEEK_END) - most))
            return file.read(most)
    except (OSError, ValueError):
        return None


def read_end_from(path: Path, most: int, since: int = 0) -> tuple[bytes, int | None]:
    """Return a file's last bytes as `read_end` does, and the number of their first line.

    The number counts from 1 on. It is None where the lines before would take too long to count, or
    the file cannot be read.
    """
    try:
        with reading(path) as file:
            begin = max(since, file.seek(0, os.SEEK_END) - most)
            number = _line_at(file, begin)
            file.seek(begin)
            return file.read(most), number
    except (OSError, ValueError):
        return b"", None


def _line_at(file: BinaryIO, offset: int) -> int | None:
    """Return the number of the line at an offset of a file."""
    if offset > _MOST_COUNTED:
        return None
    file.seek(0)
    number = 1
    remaining = offset
    while remaining > 0:
        part = file.read(min(remaining, _COUNTED_AT_ONCE))
        if not part:
            return None
        number += part.count(b"\n")
        remaining -= len(part)
    return number


def remove_file(path: Path) -> None:
    """Remove a file if it is there; writing the new one reports an error of the disk."""
    with suppress(OSError):
        log_dir.remove(path)


def write_atomically(
    path: Path, text: str, *, durable: bool = True, mode: int | None = None
) -> OSError | None:
    """Replace a file as a whole; on failure keep the old one and return the error.

    With `durable`, the new content is synced to disk first. Without a `mode`, it is the one of
    files of a run.
    """
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}{PART_SUFFIX}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    try:
        if mode is None:
            descriptor = log_dir.open(part, flags)
        else:
            descriptor = log_dir.open_as_is(part, flags, mode)
        with open(descriptor, "w", encoding="utf-8") as file:  # noqa: PTH123 - a descriptor
            file.write(text)
            file.flush()
            if durable:
                _sync(descriptor)
        log_dir.rename(part, path)
    except OSError as error:
        with suppress(OSError):
            log_dir.remove(part)
        return error
    return None


def _sync(descriptor: int) -> None:
    try:
        os.fsync(descriptor)
    except OSError as error:  # some file systems have no fsync
        if error.errno not in {errno.EINVAL, errno.ENOTSUP, errno.ENOSYS}:
            raise


class LockHolder(Enum):
    """Who holds a lock after a try to take it."""

    OURS = "ours"
    THEIRS = "theirs"
    UNKNOWN = "unknown"  # the disk has no locks, or does not answer


class FileLock:
    """An exclusive file lock; the kernel releases it when the process exits."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None
        self.inode = 0  # the inode of the locked file; 0 unless the lock is held for certain

    def take(self, limit: float = _FILE_LOCK) -> LockHolder:
        """Try to take the lock without waiting for its holder.

        On NFS 3 the kernel may wait forever for a lock server: a thread asks, for `limit` seconds.
        """
        try:
            descriptor = log_dir.open(self._path, os.O_RDWR | os.O_CREAT)
        except PermissionError:
            return LockHolder.THEIRS
        except OSError as error:
            if error.errno in {errno.ENOSPC, errno.EDQUOT}:
                return LockHolder.UNKNOWN
            raise

        def ask() -> LockHolder:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return LockHolder.THEIRS
            except OSError:  # no locks on this disk
                return LockHolder.UNKNOWN
            return LockHolder.OURS

        answer = run_within(limit, ask)
        if answer is None:  # the thread owns the descriptor now
            return LockHolder.UNKNOWN
        self._descriptor = descriptor
        if answer is LockHolder.OURS:
            self.inode = os.fstat(descriptor).st_ino
        if answer is LockHolder.THEIRS:
            self.release()
        return answer

    def release(self) -> None:
        """Release the lock."""
        if self._descriptor is not None:
            with suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = None
