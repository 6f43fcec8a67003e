"""Draw a status with rich, on a screen that updates itself."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from agent.control.status import sections

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from agent.control.status import Section

_STYLES = {"title": "bold", "good": "green", "busy": "yellow", "bad": "bold red", "dim": "dim"}

_PER_SECOND = 2
_MAX_LAST_LINES = 40  # Lines of the last view that are printed to the restored screen


def rich_view(view: Iterable[Section], height: int) -> Group:
    """Return at most `height` lines, cut at the width: to draw thousands of nodes takes seconds."""
    parts: list[Text | Table] = []
    for section in view:
        rows = section.rows[: max(0, height - bool(section.title))]
        if not rows:
            continue
        more = len(section.rows) - len(rows)
        if section.title:
            cut = f" ({more} more not shown)" if more else ""
            parts.append(_text(section.title + cut, "bold"))
        height -= len(rows) + bool(section.title)
        lines = [[_text(cell, _STYLES.get(row.tone, "")) for cell in row.cells] for row in rows]
        columns = len(rows[0].cells)
        if columns == 1:
            parts += [line[0] for line in lines]
            continue
        table = Table.grid(padding=(0, 2, 0, 0), expand=True)
        for number in range(1, columns + 1):
            ratio = 1 if number == columns else None
            table.add_column(no_wrap=True, overflow="ellipsis", ratio=ratio)
        for line in lines:
            table.add_row(*line)
        parts.append(table)
    return Group(*parts)


def _text(text: str, style: str) -> Text:
    """Return a text without interpreting rich's markup."""
    return Text(text, style=style, no_wrap=True, overflow="ellipsis", end="\n")


class LiveScreen:
    """Shows the newest status on the terminal's alternate screen."""

    def __init__(self) -> None:
        self._console = Console()
        self._status: Mapping[str, Any] | None = None
        self._outage = ""
        self._live = Live(
            Group("asking the head …"),
            console=self._console,
            screen=True,
            refresh_per_second=_PER_SECOND,
            redirect_stdout=False,
            redirect_stderr=False,
        )

        self.can_show = self._console.is_terminal and not self._console.is_dumb_terminal
        """Whether this terminal can move its cursor."""

    def __enter__(self) -> None:
        # the exit restores the terminal's screen
        signal.signal(signal.SIGTERM, lambda signum, _: sys.exit(128 + signum))
        self._live.start()

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        self._live.stop()
        if error is None and self._status is not None:
            self._console.print(self._drawn(min(_MAX_LAST_LINES, self._console.height - 1)))

    def show(self, status: Mapping[str, Any]) -> None:
        """Show a status; raises for one that cannot be shown."""
        self._status, self._outage = status, ""
        self._live.update(self._drawn(self._console.height))

    def show_outage(self, why: str) -> None:
        """Show why the head does not answer."""
        self._outage = why
        self._live.update(self._drawn(self._console.height))

    def _drawn(self, height: int) -> Group:
        if self._status is None:
            return Group(_text(self._outage, ""))
        return rich_view(sections(self._status, self._outage), height)
