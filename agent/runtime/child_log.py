"""A child's output: through a pipe that never breaks or blocks for it, into a file that may.

With the file as its stdout a full disk ends `ray start` and services, and a disk that stalls holds
them up for ever. The child itself keeps the pipe open for reading, too: an agent that is killed
takes no reader away, and the one in its stead opens the same pipe by /proc.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from agent.record.log import disk
from agent.record.writer import Writer, appending

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_CHUNK = 1 << 16
_SIZE = 1 << 20
"""So much waits in the pipe while nobody reads, for a second or two."""
_KEPT = 1 << 14
"""So much of the end is remembered, also where no disk takes it."""
_PAUSE = 0.02
_PATIENCE = 50
"""Steps of `_PAUSE`, in all a second, in which the disk takes the last words."""


class ChildLog:
    """Takes a child's output in as it comes; for the loop, which it never holds up."""

    def __init__(self, log: Callable[[], Path]) -> None:
        self.path = log
        name = log().name
        self._writer = Writer(name, appending(log), trouble=partial(disk.tell, name))
        disk.watch(name, self._writer.busy_since)
        self._fd = -1
        self._is_over = False
        """True once nobody waits for what the file has."""
        self.end = b""
        """The end of what it has written."""

    @contextmanager
    def childs_end(self) -> Iterator[int]:
        """Make the pipe; yield what is to be the child's stdout."""
        self._fd, writing = os.pipe()
        os.set_blocking(self._fd, False)
        with suppress(OSError):  # more than a user may have in pipes
            fcntl.fcntl(self._fd, fcntl.F_SETPIPE_SZ, _SIZE)
        try:
            both = os.open(f"/proc/self/fd/{writing}", os.O_RDWR | os.O_CLOEXEC)
        except OSError:  # without /proc the pipe breaks where this agent is killed
            both = writing
        else:
            os.close(writing)
        try:
            yield both
        except BaseException:
            self.close()
            self._writer.close()
            raise
        finally:
            os.close(both)

    def reopen(self, pid: int) -> None:
        """Go on with the output of a child that a killed agent has started."""
        self._fd = _open_pipe_of(pid)

    def follow(self) -> None:
        """Begin to take in what comes."""
        if self._fd >= 0:
            asyncio.get_running_loop().add_reader(self._fd, self._read)

    def take_rest(self) -> None:
        """Take in what is there by now."""
        for _ in range(_SIZE // _CHUNK + 1):
            if not self._take():
                return

    def when_written(self, act: Callable[[], None], patience: int = _PATIENCE) -> None:
        """Act once the file has everything that was taken in, or will not have it."""
        if self._writer.is_idle or self._writer.is_failing or patience == 0:
            self._is_over = True
            if self._fd < 0:
                self._writer.close()
            act()
        else:
            later = asyncio.get_running_loop().call_later
            later(_PAUSE, self.when_written, act, patience - 1)

    def close(self) -> None:
        """Take nothing more in; what was taken in is written yet."""
        if self._fd >= 0:
            with suppress(RuntimeError):  # no loop runs any more
                asyncio.get_running_loop().remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _read(self) -> None:
        """Take some in; while the disk comes along slowly, the child waits for it."""
        if self._writer.is_behind:
            loop = asyncio.get_running_loop()
            loop.remove_reader(self._fd)
            loop.call_later(_PAUSE, self.follow)
        else:
            self._take()

    def _take(self) -> bool:
        """Take one piece in; say whether there was one."""
        if self._fd < 0:
            return False
        try:
            data = os.read(self._fd, _CHUNK)
        except BlockingIOError:
            return False
        if not data:  # all who could write to it are gone
            self.close()
            if self._is_over:
                self._writer.close()
            return False
        self.end = (self.end + data)[-_KEPT:]
        self._writer.pass_on(data)
        return True


def _open_pipe_of(leader: int) -> int:
    """Open the pipe into which a session writes its output, for reading; -1 where there is none.

    No other pipe is open both ways at one descriptor.
    """
    for pid in (leader, *_session(leader)):
        for number in (1, 2):
            place = f"/proc/{pid}/fd/{number}"
            with suppress(OSError, ValueError, IndexError):
                info = Path(f"/proc/{pid}/fdinfo/{number}").read_text(encoding="ascii")
                flags = int(info.partition("flags:")[2].split()[0], 8)
                is_ours = Path(place).readlink().name.startswith("pipe:")
                if is_ours and flags & os.O_ACCMODE == os.O_RDWR:
                    return os.open(place, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    return -1


def _session(leader: int) -> Iterator[int]:
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            if os.getsid(int(entry.name)) == leader:
                yield int(entry.name)
