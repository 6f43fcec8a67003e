"""A status region in the last rows of a terminal, below the scrolling output.

It uses the terminal's scroll region, so that all other output, half lines and progress bars
included, behaves as on a shorter terminal. Each update is one write and restores the cursor.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from agent.base.value import dataclass
from agent.runtime.signals import before_exit

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Draw = Callable[[int, int], Sequence[str]]


MIN_TERMINAL_ROWS = 16
"""On a lower terminal there is no status region."""
_ROW_SHARE = 3
"""At most one third of the rows is reserved."""
_REDRAW_INTERVAL = 1.0
_CLOSE_LIMIT = 0.5
"""Longest that the exit waits for a blocked terminal."""
_SAVE, _RESTORE = "\0337", "\0338"
_WHOLE_REGION = "\033[r"
_DOWN = "\033D"
"""Moves the cursor one row down; on the last row everything scrolls up."""
_PLAIN, _CLEAR_REST_OF_LINE, _CLEAR_BELOW = "\033[0m", "\033[K", "\033[J"
_NO_WRAP, _WRAP = "\033[?7l", "\033[?7h"


@dataclass(frozen=True)
class Region:
    """A terminal's size, and the number of rows reserved at its end."""

    rows: int
    columns: int
    reserved: int

    @property
    def first(self) -> int:
        """Return the first reserved row, counted from 1."""
        return self.rows - self.reserved + 1


def max_rows(rows: int) -> int:
    """Return how many rows of a terminal may be reserved."""
    return rows // _ROW_SHARE if rows >= MIN_TERMINAL_ROWS else 0


def render(before: Region | None, region: Region, lines: Sequence[str]) -> str:
    """Return the text that draws lines in a region, and changes the former region to it."""
    if region != before:
        change = ("" if before is None else release(before, region.rows)) + _reserve(region)
    else:
        change = ""
    rows = [
        f"\033[{region.first + number};1H{_PLAIN}{line}{_PLAIN}{_CLEAR_REST_OF_LINE}"
        for number, line in enumerate([*lines, *[""] * region.reserved][: region.reserved])
    ]
    return f"{change}{_SAVE}{_NO_WRAP}{''.join(rows)}{_WRAP}{_RESTORE}"


def release(region: Region, rows: int) -> str:
    """Return the text that removes a region from a terminal of `rows` rows."""
    whole = f"{_SAVE}{_WHOLE_REGION}{_RESTORE}{_SAVE}"
    if rows == region.rows:
        return f"{whole}\033[{region.first};1H{_PLAIN}{_CLEAR_BELOW}{_RESTORE}"
    # after a resize the lines are somewhere below the cursor
    return f"{whole}\033[E{_PLAIN}{_CLEAR_BELOW}{_RESTORE}"


def _reserve(region: Region) -> str:
    """Return the text that scrolls up and sets the scroll region."""
    down = f"{_DOWN * region.reserved}\033[{region.reserved}A"
    # first reset the region of a killed agent
    return f"{_SAVE}{_WHOLE_REGION}{_RESTORE}{down}{_SAVE}\033[1;{region.first - 1}r{_RESTORE}"


class StatusArea:
    """Redraws the region from a thread, so that a blocked terminal stalls nothing else."""

    def __init__(self, draw: Draw, terminal: int = 2) -> None:
        self._draw = draw
        self._terminal = os.dup(terminal)
        self._region: Region | None = None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pane", daemon=True)

    def start(self) -> None:
        """Start drawing, unless no thread can be started."""
        with suppress(RuntimeError):  # pids.max
            self._thread.start()
        before_exit(self.close)

    def close(self) -> None:
        """Remove the region."""
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join(_CLOSE_LIMIT)

    def _run(self) -> None:
        pause = 0.0
        with suppress(OSError):  # the terminal is gone
            try:
                while not self._closed.wait(pause):
                    pause = _REDRAW_INTERVAL
                    self._redraw(os.get_terminal_size(self._terminal))
            finally:
                self._release(os.get_terminal_size(self._terminal))
        os.close(self._terminal)

    def _redraw(self, size: os.terminal_size) -> None:
        most = max_rows(size.lines)
        lines = self._draw(size.columns, most) if most else ()
        if not lines:
            self._release(size)
            return
        region = Region(size.lines, size.columns, len(lines))
        self._write(render(self._region, region, lines))
        self._region = region

    def _release(self, size: os.terminal_size) -> None:
        if self._region is not None:
            self._write(release(self._region, size.lines))
            self._region = None

    def _write(self, text: str) -> None:
        """Write the text, in one call if the terminal accepts it."""
        left = text.encode(errors="replace")
        while left:
            left = left[os.write(self._terminal, left) :]
