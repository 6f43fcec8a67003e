"""Draw a status with rich, again and again in the same place of a terminal."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING

from msgspec import UNSET
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from agent.base.text import Terminal
from agent.port.brief_status import brief_lines
from agent.port.status import one_line

if TYPE_CHECKING:
    from typing_extensions import Self

    from agent.base.text import Line
    from agent.cli.running_head import Received
    from agent.port.status_model import JudgedStatus

_STYLES = {"title": "bold", "good": "green", "busy": "yellow", "bad": "bold red", "dim": "dim"}


def rich_view(status: JudgedStatus, outage: str, height: int, width: int) -> Group:
    """Return at most `height` lines: the status in one look, then the job's last output."""
    shown = [_text(outage, "bad")] if outage else []
    terminal = Terminal(width)
    for line in brief_lines(status):
        first, *more = terminal.render([line], str).splitlines() or [""]
        shown.append(_labelled(first, line))
        shown += [_text(text, "") for text in more]
    tail = [
        _text(line, "dim")
        for line in map(one_line, () if status.job_tail is UNSET else status.job_tail)
    ]
    room = max(0, height - len(shown))
    return Group(*shown[:height], *tail[len(tail) - min(room, len(tail)) :])


def _labelled(text: str, line: Line) -> Text:
    """Return a line with the color of its label alone; a title has no other text."""
    shown = _text(text, "")
    style = _STYLES.get(line.tone)
    if style:
        shown.stylize(style, 0, len(line.label))
    return shown


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

    def __call__(self, received: Received, outage: str) -> None:
        """Show a status, and why there is no newer one."""
        view = rich_view(received.status, outage, self._console.height - 1, self._console.width)
        self._live.update(view, refresh=True)
