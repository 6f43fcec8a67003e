"""A slow disk that several clients write to, as pods write to a network volume.

Each mount of it is a client with a page cache of its own. Each request takes a while, and a file
that another one has replaced is gone for those that read it: `Stale file handle`, as with NFS.
"""

from __future__ import annotations

import errno
import os
import random
import struct
import time
from typing import TYPE_CHECKING

from tools.lab.slow_disk import SlowDisk, Speed

if TYPE_CHECKING:
    from pathlib import Path

_SET_IN = struct.Struct("<II6Q8I")
_SIZE = 8
_MTIME_NOW = 256
_MTIME = 32
_MODE = 1
_CREATE_IN = struct.Struct("<IIII")
_MKDIR_IN = struct.Struct("<II")
_RENAME_IN = struct.Struct("<Q")
_WRITE_IN = struct.Struct("<QQIIQII")
_OPENED = struct.Struct("<QII")
_AT_ONCE = 1e9


class SlowVolume(SlowDisk):
    """The file system's answers; a request takes up to `delay` seconds."""

    valid = 0  # another client may change it

    def __init__(self, source: Path, delay: float) -> None:
        super().__init__(source, Speed(0.0, _AT_ONCE))
        self._delay = delay
        self._acts |= {
            4: self._set_attributes,
            9: self._make_folder,
            10: self._unlink,
            12: self._rename,
            16: self._write,
            20: self._nothing,  # FSYNC
            30: self._nothing,  # FSYNCDIR
            35: self._create,
        }

    def answer(self, operation: int, node: int, body: bytes) -> bytes:
        """Return the answer to a request, after a while."""
        time.sleep(random.uniform(0.0, self._delay))  # noqa: S311 - a delay
        if node and node not in self._nodes:
            raise OSError(errno.ESTALE, "replaced")
        return super().answer(operation, node, body)

    # --- files ----------------------------------------------------------------------------------

    def _open(self, path: Path, body: bytes) -> bytes:
        (flags,) = struct.unpack_from("<I", body)
        return _OPENED.pack(os.open(path, flags & ~os.O_NOFOLLOW), 0, 0)

    def _create(self, path: Path, body: bytes) -> bytes:
        flags, mode, _, _ = _CREATE_IN.unpack_from(body)
        child = _child(path, body[_CREATE_IN.size :])
        fd = os.open(child, flags, mode & 0o7777)
        return self._entry(child) + _OPENED.pack(fd, 0, 0)

    def _read(self, path: Path, body: bytes) -> bytes:
        fd = struct.unpack_from("<Q", body)[0]
        if os.fstat(fd).st_nlink == 0:
            raise OSError(errno.ESTALE, "replaced")
        return super()._read(path, body)

    def _write(self, _path: Path, body: bytes) -> bytes:
        fd, offset, size, *_ = _WRITE_IN.unpack_from(body)
        data = body[_WRITE_IN.size : _WRITE_IN.size + size]
        return struct.pack("<II", os.pwrite(fd, data, offset), 0)

    def _set_attributes(self, path: Path, body: bytes) -> bytes:
        fields = _SET_IN.unpack_from(body)
        which = fields[0]
        if which & _SIZE:
            os.truncate(path, fields[3])
        if which & _MODE:
            path.chmod(fields[11] & 0o7777)
        if which & _MTIME_NOW:
            os.utime(path)
        elif which & _MTIME:
            os.utime(path, (fields[6], fields[6]))
        return self._get_attributes(path, b"")

    def _statistics(self, _path: Path, _body: bytes) -> bytes:
        free = 1 << 30  # blocks
        return struct.pack("<5Q4I24x", free, free, free, 1 << 20, 1 << 20, 4096, 255, 4096, 0)

    # --- names ----------------------------------------------------------------------------------

    def _make_folder(self, path: Path, body: bytes) -> bytes:
        mode, _ = _MKDIR_IN.unpack_from(body)
        child = _child(path, body[_MKDIR_IN.size :])
        child.mkdir(mode & 0o7777)
        return self._entry(child)

    def _unlink(self, path: Path, body: bytes) -> bytes:
        child = _child(path, body)
        with self._lock:
            child.unlink()
            self._drop(child)
        return b""

    def _rename(self, path: Path, body: bytes) -> bytes:
        (folder,) = _RENAME_IN.unpack_from(body)
        old, new = body[_RENAME_IN.size :].rstrip(b"\0").split(b"\0")
        former = _child(path, old)
        later = _child(self._nodes[folder], new)
        with self._lock:
            former.rename(later)
            self._drop(later)
            number = self._numbers.pop(former)
            self._numbers[later] = number
            self._nodes[number] = later
        return b""

    def _drop(self, path: Path) -> None:
        number = self._numbers.pop(path, None)
        if number is not None:
            del self._nodes[number]


def _child(folder: Path, name: bytes) -> Path:
    return folder / os.fsdecode(name.rstrip(b"\0"))
