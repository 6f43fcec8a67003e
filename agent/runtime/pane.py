"""A few lines at the foot of a terminal that stay, while all who write there scroll above them.

The terminal itself keeps them apart, by its scroll region: the log, the job's output and whatever
a child writes go on as if the terminal were shorter, half lines and progress bars included. Each
change of ours is one write, which puts the cursor back where it was.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from agent.base.value import dataclass
from agent.runtime.exiting import before_exit

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Draw = Callable[[int, int], Sequence[str]]

LEAST_ROWS = 16
"""A lower terminal has no room for both."""
_SHARE = 3
"""One part in so many of a terminal's rows is ours at most."""
_PAUSE = 1.0
_LAST_WORDS = 0.5
"""Longest that the end waits for a terminal that takes nothing."""
_SAVE, _RESTORE = "\0337", "\0338"
_WHOLE_REGION = "\033[r"
_DOWN = "\033D"
"""One row down in the same column; at the foot everything scrolls up."""
_PLAIN, _CLEAR_REST_OF_LINE, _CLEAR_BELOW = "\033[0m", "\033[K", "\033[J"
_NO_WRAP, _WRAP = "\033[?7l", "\033[?7h"


@dataclass(frozen=True)
class Area:
    """A terminal of so many rows and columns, and how many rows at its foot are ours."""

    rows: int
    columns: int
    ours: int

    @property
    def first(self) -> int:
        """Return the first row of ours, counted from 1."""
        return self.rows - self.ours + 1


def most_rows(rows: int) -> int:
    """Return how many rows of a terminal may be ours."""
    return rows // _SHARE if rows >= LEAST_ROWS else 0


def shown(before: Area | None, area: Area, lines: Sequence[str]) -> str:
    """Return what puts lines into an area, whatever was there before."""
    if area != before:
        made = ("" if before is None else given_back(before, area.rows)) + _reserved(area)
    else:
        made = ""
    rows = [
        f"\033[{area.first + number};1H{_PLAIN}{line}{_PLAIN}{_CLEAR_REST_OF_LINE}"
        for number, line in enumerate([*lines, *[""] * area.ours][: area.ours])
    ]
    return f"{made}{_SAVE}{_NO_WRAP}{''.join(rows)}{_WRAP}{_RESTORE}"


def given_back(area: Area, rows: int) -> str:
    """Return what makes the whole terminal everybody's again."""
    whole = f"{_SAVE}{_WHOLE_REGION}{_RESTORE}{_SAVE}"
    if rows == area.rows:
        return f"{whole}\033[{area.first};1H{_PLAIN}{_CLEAR_BELOW}{_RESTORE}"
    # it was made larger or smaller, which moved our lines: they are somewhere below the cursor
    return f"{whole}\033[E{_PLAIN}{_CLEAR_BELOW}{_RESTORE}"


def _reserved(area: Area) -> str:
    """Return what makes room at the foot, and keeps others out of it."""
    down = f"{_DOWN * area.ours}\033[{area.ours}A"
    # an agent that was killed left the region as it was
    return f"{_SAVE}{_WHOLE_REGION}{_RESTORE}{down}{_SAVE}\033[1;{area.first - 1}r{_RESTORE}"


class Pane:
    """Draws again and again, from a thread of its own: a terminal that is held blocks only it."""

    def __init__(self, draw: Draw, terminal: int = 2) -> None:
        self._draw = draw
        self._terminal = os.dup(terminal)
        self._area: Area | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pane", daemon=True)

    def start(self) -> None:
        """Begin to draw, where a thread can be had."""
        with suppress(RuntimeError):  # pids.max
            self._thread.start()
        before_exit(self.close)

    def close(self) -> None:
        """Give the terminal back."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(_LAST_WORDS)

    def _run(self) -> None:
        pause = 0.0
        with suppress(OSError):  # the terminal is gone
            try:
                while not self._over.wait(pause):
                    pause = _PAUSE
                    self._redraw(os.get_terminal_size(self._terminal))
            finally:
                self._give_back(os.get_terminal_size(self._terminal))
        os.close(self._terminal)

    def _redraw(self, size: os.terminal_size) -> None:
        most = most_rows(size.lines)
        lines = self._draw(size.columns, most) if most else ()
        if not lines:
            self._give_back(size)
            return
        area = Area(size.lines, size.columns, len(lines))
        self._write(shown(self._area, area, lines))
        self._area = area

    def _give_back(self, size: os.terminal_size) -> None:
        if self._area is not None:
            self._write(given_back(self._area, size.lines))
            self._area = None

    def _write(self, text: str) -> None:
        """Write it in one piece, as far as the terminal takes it so."""
        left = text.encode(errors="replace")
        while left:
            left = left[os.write(self._terminal, left) :]
