"""A slow, read-only disk: a folder mounted by FUSE, whose reads take a while.

It answers the kernel's requests at /dev/fuse itself, so that no library is needed; only root may
mount it. Each read of the page cache takes a while, as on a network volume, and all together have
the speed of the volume. What the page cache holds is not read again.
"""

from __future__ import annotations

import argparse
import ctypes
import errno
import os
import signal
import struct
import sys
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_LIBC = ctypes.CDLL(None, use_errno=True)
_DETACH = 2
_IN = struct.Struct("<IIQQIIII")  # length, operation, number, node, user, group, process, 0
_OUT = struct.Struct("<IiQ")  # length, -errno, number
_ATTR = struct.Struct("<6Q10I")
_READ_IN = struct.Struct("<QQI")
_LONGEST_READ = 1 << 17
_REQUEST_BYTES = 1 << 18
_VALID = 3600  # Seconds for which the kernel may keep names and attributes
_KEEP_CACHE = 2
_ASYNC_READ = 1
_INIT = 26
_NO_REPLY = {2, 36, 42}  # FORGET, INTERRUPT, BATCH_FORGET
_THREADS = 16
_UNUSED_AFTER = 1.0  # seconds, for each thread


class Speed(NamedTuple):
    """How slow the disk is."""

    delay: float  # seconds of each read of up to 128 KiB
    rate: float  # bytes a second of all reads together


class SlowDisk:
    """The file system's answers."""

    def __init__(self, source: Path, speed: Speed) -> None:
        self._speed = speed
        self._nodes = {1: source}
        self._numbers = {source: 1}
        self._newest = 1
        self._lock = threading.Lock()
        self._free_at = 0.0
        self._acts: dict[int, Callable[[Path, bytes], bytes]] = {
            1: self._look_up,
            3: self._get_attributes,
            5: self._read_link,
            14: self._open,
            15: self._read,
            17: self._statistics,
            18: self._release,
            25: self._nothing,  # FLUSH
            27: self._open_folder,
            28: self._list_folder,
            29: self._nothing,  # RELEASEDIR
            34: self._nothing,  # ACCESS
            38: self._nothing,  # DESTROY
        }
        self.reads = 0
        self.bytes_read = 0

    def answer(self, operation: int, node: int, body: bytes) -> bytes:
        """Return the answer to a request; raise OSError with its error."""
        if operation == _INIT:  # of no node
            sizes = (_LONGEST_READ, _ASYNC_READ, 64, 48, 4096, 1, 32, 0, 0)
            return struct.pack("<IIIIHHIIHHI28x", 7, 31, *sizes)
        act = self._acts.get(operation)
        if act is None:
            raise OSError(errno.ENOSYS, "not here")
        return act(self._nodes[node], body)

    def _look_up(self, path: Path, body: bytes) -> bytes:
        child = path / body.rstrip(b"\0").decode()
        return self._entry(child)

    def _entry(self, child: Path) -> bytes:
        head = struct.pack("<QQQQII", self._number(child), 0, _VALID, _VALID, 0, 0)
        return head + self._attributes(child)

    def _get_attributes(self, path: Path, _body: bytes) -> bytes:
        return struct.pack("<QII", _VALID, 0, 0) + self._attributes(path)

    def _read_link(self, path: Path, _body: bytes) -> bytes:
        return os.fsencode(path.readlink())

    def _open(self, path: Path, _body: bytes) -> bytes:
        return struct.pack("<QII", os.open(path, os.O_RDONLY), _KEEP_CACHE, 0)

    def _read(self, _path: Path, body: bytes) -> bytes:
        fd, offset, size = _READ_IN.unpack_from(body)
        data = os.pread(fd, size, offset)
        self._take_time(len(data))
        return data

    def _release(self, _path: Path, body: bytes) -> bytes:
        os.close(struct.unpack_from("<Q", body)[0])
        return b""

    def _statistics(self, _path: Path, _body: bytes) -> bytes:
        return struct.pack("<5Q4I24x", 1 << 20, 0, 0, 1000, 0, 4096, 255, 4096, 0)

    def _open_folder(self, _path: Path, _body: bytes) -> bytes:
        return struct.pack("<QII", 0, 0, 0)

    def _nothing(self, _path: Path, _body: bytes) -> bytes:
        return b""

    def _number(self, path: Path) -> int:
        with self._lock:
            os.lstat(path)
            if path not in self._numbers:
                self._newest += 1
                self._numbers[path] = self._newest
            number = self._numbers[path]
            self._nodes[number] = path
            return number

    def _attributes(self, path: Path) -> bytes:
        found = os.lstat(path)
        number = self._numbers.get(path, 1)
        times = (int(found.st_mtime),) * 3
        more = (found.st_mode, 1, 0, 0, 0, 4096, 0)
        return _ATTR.pack(number, found.st_size, found.st_blocks, *times, 0, 0, 0, *more)

    def _list_folder(self, path: Path, body: bytes) -> bytes:
        _, offset, size = _READ_IN.unpack_from(body)
        data = b""
        for at, child in enumerate(sorted(path.iterdir()), start=1):
            if at <= offset:
                continue
            name = os.fsencode(child.name)
            entry = struct.pack("<QQII", 1, at, len(name), 0) + name
            entry += b"\0" * (-len(entry) % 8)
            if len(data) + len(entry) > size:
                break
            data += entry
        return data

    def _take_time(self, size: int) -> None:
        """Wait as long as this read takes: its delay, and its turn at the disk's speed."""
        now = time.monotonic()
        with self._lock:
            self.reads += 1
            self.bytes_read += size
            self._free_at = max(now, self._free_at) + size / self._speed.rate
            ready = max(now + self._speed.delay, self._free_at)
        time.sleep(ready - now)


def serve(fd: int, disk: SlowDisk) -> None:
    """Answer requests until the disk is unmounted."""
    while True:
        try:
            request = os.read(fd, _REQUEST_BYTES)
        except OSError as error:
            if error.errno in {errno.EINTR, errno.ENOENT}:
                continue
            return  # unmounted
        _, operation, number, node, *_ = _IN.unpack_from(request)
        if operation in _NO_REPLY:
            continue
        try:
            data = disk.answer(operation, node, request[_IN.size :])
            answer = _OUT.pack(_OUT.size + len(data), 0, number) + data
        except (OSError, KeyError) as error:
            code = getattr(error, "errno", None) or errno.EIO
            answer = _OUT.pack(_OUT.size, -code, number)
        with suppress(OSError):  # the caller has left
            os.write(fd, answer)


@contextmanager
def mounted(source: Path, place: Path, speed: Speed) -> Iterator[SlowDisk]:
    """Mount the slow disk during the block, served by threads of this process.

    Only other processes may read it: a read of this one could wait for a thread that it blocks.
    """
    disk = SlowDisk(source, speed)
    fd = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={fd},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
    if _LIBC.mount(b"slow-disk", os.fsencode(place), b"fuse", 0, options) != 0:
        number = ctypes.get_errno()
        os.close(fd)
        raise OSError(number, os.strerror(number))
    threads = [
        threading.Thread(target=serve, args=(fd, disk), daemon=True) for _ in range(_THREADS)
    ]
    try:
        for thread in threads:
            thread.start()
        yield disk
    finally:
        _LIBC.umount2(os.fsencode(place), _DETACH)
        # They end once nothing uses the disk. Until then another file must not get this number:
        # they would read its data as requests.
        for thread in threads:
            thread.join(_UNUSED_AFTER)
        if not any(thread.is_alive() for thread in threads):
            os.close(fd)


def main() -> int:
    """Mount a folder until a signal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("place", type=Path)
    parser.add_argument("--delay", type=float, default=0.005, help="seconds of each read")
    parser.add_argument("--rate", type=float, default=300e6, help="bytes a second")
    given = parser.parse_args()
    signals = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    with mounted(given.source, given.place, Speed(given.delay, given.rate)) as disk:
        print("mounted", flush=True)
        signal.sigwait(signals)
        print(f"{disk.reads} reads, {disk.bytes_read} bytes", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
