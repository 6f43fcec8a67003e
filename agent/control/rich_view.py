"""Draw a status with rich, on a screen that updates itself."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING, Any, NoReturn

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from agent.control.status import view_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from types import FrameType

    from agent.control.status import Section


_STYLES = {"title": "bold", "good": "green", "busy": "yellow", "bad": "bold red", "dim": "dim"}

_PER_SECOND = 2
_MAX_LAST_LINES = 40
"""Lines of the last view that stay on the terminal."""


def rich_view(view: Iterable[Section]) -> Group:
    """Return a renderable of a view: one line per row, cut at the terminal's width."""
    return Group(*(part for section in view for part in _renderables(section)))


def _renderables(section: Section) -> list[Text | Table]:
    title = [_text(section.title, "bold")] if section.title else []
    if not section.rows:
        return [*title]
    columns = len(section.rows[0].cells)
    if columns == 1:
        rows = [_text(row.cells[0], _STYLES.get(row.tone, "")) for row in section.rows]
        return [*title, *rows]
    table = Table.grid(padding=(0, 2, 0, 0), expand=True)
    for number in range(columns):
        is_last = number == columns - 1
        table.add_column(no_wrap=True, overflow="ellipsis", ratio=1 if is_last else None)
    for row in section.rows:
        style = _STYLES.get(row.tone, "")
        table.add_row(*(_text(cell, style) for cell in row.cells))
    return [*title, table]


def _text(text: str, style: str) -> Text:
    """Return a text without interpreting rich's markup."""
    return Text(text, style=style, no_wrap=True, overflow="ellipsis", end="\n")


class LiveScreen:
    """Shows the newest status; its clocks run on between two updates."""

    def __init__(self) -> None:
        self._console = Console()
        self._status: Mapping[str, Any] | None = None
        self._received_at = 0.0
        self._outage = ""
        self._live = Live(
            console=self._console,
            screen=True,
            get_renderable=self._render,
            refresh_per_second=_PER_SECOND,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    @property
    def can_show(self) -> bool:
        """Return whether this terminal can move its cursor."""
        return self._console.is_terminal and not self._console.is_dumb_terminal

    def __enter__(self) -> None:
        signal.signal(signal.SIGTERM, _leave)  # restores the terminal's screen
        self._live.start()

    def __exit__(self, *_error: object) -> None:
        self._live.stop()

    def show(self, status: Mapping[str, Any]) -> None:
        """Show a status; raises here, not while drawing, for one that cannot be shown."""
        view_of(status, self._console.height)
        self._status, self._received_at, self._outage = status, time.monotonic(), ""

    def show_outage(self, why: str) -> None:
        """Show why the head does not answer."""
        self._outage = why

    def show_last(self) -> None:
        """Print the last view to the restored screen."""
        if self._status is not None:
            height = min(_MAX_LAST_LINES, self._console.height - 1)
            self._console.print(rich_view(view_of(self._status, height, outage=self._outage)))

    def _render(self) -> Group:
        status, age = self._status, time.monotonic() - self._received_at
        if status is None:
            return Group("asking the head …")
        outage = f"{self._outage}; what is shown is {age:.0f} s old" if self._outage else ""
        return rich_view(view_of(status, self._console.height, age, outage))


def _leave(signum: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + signum)
