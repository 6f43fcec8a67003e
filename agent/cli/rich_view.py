"""Draw a status with rich, again and again in the same place of a terminal."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from agent.port.status import node_rows, one_line, run_lines

if TYPE_CHECKING:
    from typing_extensions import Self

    from agent.port.status import Status

_STYLES = {"title": "bold", "good": "green", "busy": "yellow", "bad": "bold red", "dim": "dim"}

_NAME_WIDTH = 40


def rich_view(status: Status, outage: str, height: int) -> Group:
    """Return at most `height` lines, cut at the width: to draw thousands of nodes takes seconds."""
    lines = [_text(outage, "bad")] if outage else []
    lines += [_text(line.label, line.tone) for line in run_lines(status)]
    lines += [_text(line, "dim") for line in map(one_line, status.get("job_tail", []))]
    nodes = Table.grid(padding=(0, 2, 0, 0), expand=True)
    for tone, cells in node_rows(status)[: max(0, height - len(lines))]:
        nodes.add_row(*(_text(cell, tone) for cell in cells))
    for column in nodes.columns:
        column.overflow = "ellipsis"
    # where the width is scarce, rich narrows the other columns before these: rank and name
    for column in nodes.columns[:2]:
        column.no_wrap = True
        column.max_width = _NAME_WIDTH
    return Group(*lines[:height], *([nodes] if nodes.rows else []))


def _text(text: str, tone: str) -> Text:
    """Return a text without interpreting rich's markup."""
    return Text(text, style=_STYLES.get(tone, ""), no_wrap=True, overflow="ellipsis")


class LiveScreen:
    """Shows the newest status; the last one stays."""

    def __init__(self) -> None:
        self._console = Console()
        self._live = Live(console=self._console, auto_refresh=False, vertical_overflow="crop")
        self.can_show = self._console.is_terminal and not self._console.is_dumb_terminal
        """Whether this terminal can move its cursor."""

    def __enter__(self) -> Self:
        # the exit shows the terminal's cursor again
        signal.signal(signal.SIGTERM, lambda signum, _: sys.exit(128 + signum))
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def __call__(self, status: Status, outage: str) -> None:
        """Show a status, and why there is no newer one; raises for one that cannot be shown."""
        view = rich_view(status, outage, self._console.height - 1)
        self._live.update(view, refresh=True)
