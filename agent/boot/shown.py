"""The live view below the log of a head whose stderr is a terminal, where rich is installed."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import anyio

from agent.runtime.waiting import NotYet, until

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import Console

    from agent.boot.watched import Watched

_EVERY = 1.0
_SHARE = 50.0
"""A look at the status may take one part in so many of the loop's time."""


async def show_live(watched: Watched, style: str) -> None:
    """Show the run until cancelled; where it cannot be shown so, the log's lines tell it."""
    if style != "auto" or sys.stderr is None or not sys.stderr.isatty():
        return
    view = await anyio.to_thread.run_sync(_view)  # rich takes 0.1 s, which nobody must wait for
    if view is None:
        return
    from agent.runtime.pane import Pane  # noqa: PLC0415 - for a terminal alone

    pane = Pane(view.lines)
    pane.start()
    next_look = 0.0

    async def look() -> NotYet:
        nonlocal next_look
        began = time.monotonic()
        if began >= next_look:
            view.take({**watched.status(), **watched.more()})
            next_look = began + max(_EVERY, _SHARE * (time.monotonic() - began))
        return NotYet()

    try:
        await until(look, None, step=_EVERY, longest=_EVERY)
    finally:
        pane.close()


def _view() -> _View | None:
    """Return the view of this terminal; None where it is not to be had."""
    try:
        from rich.console import Console  # noqa: PLC0415 - optional, and late

        from agent.control.drawn import lines_of  # noqa: PLC0415 - same
    except ImportError:
        return None
    terminal = Console(stderr=True)
    if terminal.is_dumb_terminal or not terminal.is_terminal:
        return None
    return _View(terminal, lines_of)


class _View:
    """The newest status as lines of a terminal; asked from another thread than it is told."""

    def __init__(self, terminal: Console, lines_of: Callable[..., list[str]]) -> None:
        self._terminal = terminal
        self._lines_of = lines_of
        self._taken: tuple[dict[str, object], float] | None = None

    def take(self, status: dict[str, object]) -> None:
        """Take the newest status."""
        self._taken = status, time.monotonic()

    def lines(self, columns: int, rows: int) -> Sequence[str]:
        """Return the lines to show; none before there is a status."""
        from agent.control.view import view_of  # noqa: PLC0415 - with rich

        if self._taken is None:
            return ()
        status, heard = self._taken
        passed = time.monotonic() - heard
        # the job's output passes by above, unless stdout leads elsewhere
        tail = not (sys.stdout is not None and sys.stdout.isatty())
        rule = "─" * (columns - 1)
        view = view_of(status, rows - 1, passed, with_tail=tail)
        return [rule, *self._lines_of(view, columns - 1, self._terminal)]
