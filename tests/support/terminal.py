"""A real terminal (a pty) with a program, and an emulator that renders its output."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import termios
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import pyte

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

SECONDS = 60.0


class Terminal:
    """A program's output on a terminal of this size."""

    def __init__(self, pid: int, descriptor: int, rows: int, columns: int) -> None:
        self.pid = pid
        self._descriptor = descriptor
        self._screen = pyte.HistoryScreen(columns, rows, history=5000)
        self._stream = pyte.ByteStream(self._screen)
        self.raw = b""
        self.code: int | None = None

    def resize(self, rows: int, columns: int) -> None:
        """Change its size."""
        size = struct.pack("HHHH", rows, columns, 0, 0)
        fcntl.ioctl(self._descriptor, termios.TIOCSWINSZ, size)
        self._screen.resize(rows, columns)

    def press_enter(self) -> None:
        """Send an empty line to the program."""
        os.write(self._descriptor, b"\n")

    def lines(self) -> list[str]:
        """Return the lines on the screen."""
        return [line.rstrip() for line in self._screen.display]

    def history(self) -> list[str]:
        """Return the scrollback."""
        columns = range(self._screen.columns)
        return [
            "".join(line[column].data for column in columns).rstrip()
            for line in self._screen.history.top
        ]

    def wait_for(self, what: str, check: Callable[[], bool], limit: float = SECONDS) -> None:
        """Read until a text appears."""
        until = time.monotonic() + limit
        while not check():
            assert time.monotonic() < until, f"{what}: not shown:\n" + "\n".join(self.lines())
            assert self._read(0.1), f"{what}: the program ended:\n" + "\n".join(self.lines())

    def to_the_end(self, limit: float = SECONDS) -> int:
        """Read until the program exits; return its exit code."""
        until = time.monotonic() + limit
        while self._read(0.1):
            assert time.monotonic() < until, "it has not ended:\n" + "\n".join(self.lines())
        self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.code

    def _read(self, limit: float) -> bool:
        """Read available output; return whether more may come."""
        if not select.select([self._descriptor], [], [], limit)[0]:
            return True
        try:
            data = os.read(self._descriptor, 1 << 16)
        except OSError:  # the program's end is closed
            return False
        self.raw += data
        self._stream.feed(data)
        return bool(data)


@contextmanager
def on_a_terminal(
    argv: list[str], env: Mapping[str, str], rows: int = 40, columns: int = 100
) -> Iterator[Terminal]:
    """Run a program on this terminal."""
    pid, descriptor = pty.fork()
    if pid == 0:
        os.execve(argv[0], argv, {"TERM": "xterm-256color", **env})  # noqa: S606 - no shell is wanted
    terminal = Terminal(pid, descriptor, rows, columns)
    try:
        terminal.resize(rows, columns)
        yield terminal
    finally:
        os.close(descriptor)
        if terminal.code is None:
            with suppress(ProcessLookupError):
                os.kill(pid, 9)
            os.waitpid(pid, 0)
