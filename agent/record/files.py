"""Small files that others read while we write them, and the lock that says who writes."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import stat
import threading
from contextlib import suppress
from datetime import datetime, timezone
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LARGEST = 4 << 20
"""No record of ours comes near it; what is larger is none."""
PART = ".part"
"""How a file ends that is still being written."""
_NO_FSYNC = {errno.EINVAL, errno.ENOTSUP, errno.ENOSYS}
_LOCK_LIMIT = 2.0
_LONGEST_NAME = 200
_MOST_NUMBERS = 10_000


def safe(name: str) -> str:
    """Return a name as a file's, which leads out of no folder."""
    return re.sub(r"[^\w.-]", "-", name).strip(".")[:_LONGEST_NAME] or "node"


def numbered(name: str) -> Iterator[str]:
    """Yield a name, then `-2`, `-3` and so on behind it."""
    yield name
    yield from (f"{name}-{number}" for number in range(2, _MOST_NUMBERS))


def iso_time(seconds: float) -> str:
    """Write a time as records have it: UTC, ISO 8601."""
    text = datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


def seconds_between(start: str, end: str) -> float:
    """Return how long it was from one such time to another; 0 where either is none."""
    try:
        first, last = (datetime.fromisoformat(t.replace("Z", "+00:00")) for t in (start, end))
        return max(0.0, (last - first).total_seconds())
    except (TypeError, ValueError):
        return 0.0


def why(error: OSError) -> str:
    """Say an error of the disk in words."""
    return error.strerror or str(error)


def read_small(path: Path) -> str:
    """Return a file's text; raises OSError, or ValueError where it is no file of ours.

    A pipe in its place must not hold us up, nor a huge file fill the memory.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:  # noqa: PTH123 - a descriptor has no path
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode):
            raise ValueError("it is no file")
        data = file.read(LARGEST + 1)
    if len(data) > LARGEST:
        raise ValueError(f"it has more than {LARGEST} bytes")
    return data.decode()


def end_of(path: Path, most: int) -> bytes | None:
    """Return the last bytes of a file; None where none can be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:  # noqa: PTH123 - a descriptor has no path
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return None  # as above: a pipe must not hold us up
            file.seek(max(0, file.seek(0, os.SEEK_END) - most))
            return file.read(most)
    except OSError:
        return None


def write_atomically(path: Path, text: str, *, durable: bool = True) -> OSError | None:
    """Put a file in its place whole, or leave what is there; return why it could not be.

    Where `durable`, it is on the disk before it takes the place of the former one.
    """
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}{PART}")
    try:
        with part.open("x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            if durable:
                _sync(file.fileno())
        part.replace(path)
    except OSError as error:
        with suppress(OSError):
            part.unlink()
        return error
    return None


def _sync(descriptor: int) -> None:
    try:
        os.fsync(descriptor)
    except OSError as error:  # some disks know no such thing
        if error.errno not in _NO_FSYNC:
            raise


class Claim(Enum):
    """What became of a try to lock."""

    OURS = "ours"
    THEIRS = "theirs"
    UNKNOWN = "unknown"
    """This disk has no locks, or does not answer about them."""


class FileLock:
    """An exclusive lock on a file: it ends with the process that holds it, however that ends."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None
        self._answer = Claim.UNKNOWN
        self.inode = 0
        """The number of the file that is locked; 0 where none is, or no lock is certain."""

    def take(self, limit: float = _LOCK_LIMIT) -> Claim:
        """Try to lock, without waiting for who holds it.

        A disk that knows no locks goes unlocked. Over NFS 3 the kernel may wait for a lock server
        for ever: hence a thread, which may be left behind.
        """
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        try:
            self._descriptor = os.open(self._path, flags, 0o644)
        except PermissionError:
            return Claim.THEIRS
        except OSError as error:
            if error.errno in {errno.ENOSPC, errno.EDQUOT}:
                return Claim.UNKNOWN
            raise
        asking = threading.Thread(target=self._ask, args=(self._descriptor,), daemon=True)
        try:
            asking.start()
        except RuntimeError:  # no thread can be had (pids.max): rather unlocked than not at all
            return Claim.UNKNOWN
        asking.join(limit)
        if asking.is_alive():
            self._descriptor = None  # the thread's from now on
            return Claim.UNKNOWN
        if self._answer is Claim.THEIRS:
            self.release()
        return self._answer

    def now_on_disk(self) -> float | None:
        """Return the time by the clock of the disk, which may be another machine's."""
        if self._descriptor is None:
            return None
        try:
            os.utime(self._descriptor)
            return os.fstat(self._descriptor).st_mtime
        except OSError:
            return None

    def release(self) -> None:
        """Give the lock back."""
        if self._descriptor is not None:
            with suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = None

    def _ask(self, descriptor: int) -> None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.inode = os.fstat(descriptor).st_ino
        except BlockingIOError:
            self._answer = Claim.THEIRS
        except OSError:  # no locks on this disk
            self._answer = Claim.UNKNOWN
        else:
            self._answer = Claim.OURS
