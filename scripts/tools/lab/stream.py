"""Output of several pods on one terminal: line by line, prefixed with the pod's name."""

from __future__ import annotations

import os
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

COLORS = (36, 33, 35, 32, 34, 31)  # cyan, yellow, magenta, green, blue, red


def wants_color(sink: IO[str], environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether to color output to this stream."""
    return sink.isatty() and not environ.get("NO_COLOR")


def prefix(name: str, width: int, index: int, *, color: bool) -> str:
    """Return the prefix of a pod's lines."""
    text = f"{name:<{width}} | "
    return f"\033[{COLORS[index % len(COLORS)]}m{text}\033[0m" if color else text


class Follower:
    """Prints a growing file's lines."""

    def __init__(self, path: Path, before: str, sink: IO[str]) -> None:
        self._file = path.open("rb")
        self._before = before
        self._sink = sink
        self._rest = b""

    def step(self, *, last: bool = False) -> None:
        """Print the lines completed since the last call; with `last`, also an incomplete one."""
        *lines, self._rest = (self._rest + self._file.read()).split(b"\n")
        if last and self._rest:
            lines.append(self._rest)
            self._rest = b""
        for line in lines:
            self._sink.write(f"{self._before}{line.decode(errors='replace')}\n")
        if lines:
            self._sink.flush()

    def close(self) -> None:
        """Print the rest, and close the file."""
        self.step(last=True)
        self._file.close()
