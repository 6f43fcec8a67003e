"""The live view below the head's log, on a terminal with rich installed."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import anyio

from agent.runtime.waiting import NotYet, until

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import Console

    from agent.boot.head_status import RunStatus

_EVERY = 1.0
_SHARE = 50.0
"""Rendering the status takes at most this fraction (1/n) of the event loop's time."""


async def show_live(run_status: RunStatus, style: str) -> None:
    """Show the live view until canceled; do nothing where stderr is no terminal."""
    if style != "auto" or sys.stderr is None or not sys.stderr.isatty():
        return
    view = await anyio.to_thread.run_sync(_view)  # importing rich takes 0.1 s
    if view is None:
        return
    from agent.runtime.status_area import StatusArea  # noqa: PLC0415 - for a terminal alone

    pane = StatusArea(view.lines)
    pane.start()
    next_refresh = 0.0

    async def refresh() -> NotYet:
        nonlocal next_refresh
        began = time.monotonic()
        if began >= next_refresh:
            view.update({**run_status.status(), **run_status.private_details()})
            next_refresh = began + max(_EVERY, _SHARE * (time.monotonic() - began))
        return NotYet()

    try:
        await until(refresh, None, step=_EVERY, longest=_EVERY)
    finally:
        pane.close()


def _view() -> _View | None:
    """Return the terminal's view; None if rich or the terminal does not support it."""
    try:
        from rich.console import Console  # noqa: PLC0415 - optional, and late

        from agent.control.rich_view import lines_of  # noqa: PLC0415 - same
    except ImportError:
        return None
    terminal = Console(stderr=True)
    if terminal.is_dumb_terminal or not terminal.is_terminal:
        return None
    return _View(terminal, lines_of)


class _View:
    """The newest status as terminal lines; `lines` runs in another thread than `update`."""

    def __init__(self, terminal: Console, lines_of: Callable[..., list[str]]) -> None:
        self._terminal = terminal
        self._lines_of = lines_of
        self._latest: tuple[dict[str, object], float] | None = None

    def update(self, status: dict[str, object]) -> None:
        """Store the newest status."""
        self._latest = status, time.monotonic()

    def lines(self, columns: int, rows: int) -> Sequence[str]:
        """Return the lines to show; none before the first status."""
        from agent.control.view import view_of  # noqa: PLC0415 - with rich

        if self._latest is None:
            return ()
        status, received = self._latest
        passed = time.monotonic() - received
        # the job's output scrolls by above, unless stdout is no terminal
        tail = not (sys.stdout is not None and sys.stdout.isatty())
        rule = "─" * (columns - 1)
        view = view_of(status, rows - 1, passed, with_tail=tail)
        return [rule, *self._lines_of(view, columns - 1, self._terminal)]
