"""`status --watch` at a terminal: the view on a screen of its own, by rich."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING, NoReturn

from rich.console import Console, Group
from rich.live import Live as RichLive

from agent.control.drawn import drawn
from agent.control.view import view_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import FrameType
    from typing import Any

_PER_SECOND = 2
_HIGHEST_LAST = 40
"""So many lines of the last view stay on the terminal at most."""


class Live:
    """Shows the newest status, with clocks that go on between two of them."""

    def __init__(self) -> None:
        self._console = Console()
        self._status: Mapping[str, Any] | None = None
        self._heard = 0.0
        self._why = ""
        self._live = RichLive(
            console=self._console,
            screen=True,
            get_renderable=self._now,
            refresh_per_second=_PER_SECOND,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    @property
    def can_show(self) -> bool:
        """Say whether this terminal can move its cursor."""
        return self._console.is_terminal and not self._console.is_dumb_terminal

    def __enter__(self) -> None:
        signal.signal(signal.SIGTERM, _leave)  # the terminal's own screen must come back
        self._live.start()

    def __exit__(self, *_error: object) -> None:
        self._live.stop()

    def show(self, status: Mapping[str, Any]) -> None:
        """Take the newest status; one that cannot be shown raises here, not while it is drawn."""
        view_of(status, self._console.height)
        self._status, self._heard, self._why = status, time.monotonic(), ""

    def silent(self, why: str) -> None:
        """Say in the view that nobody answers."""
        self._why = why

    def show_last(self) -> None:
        """Leave the last view on the terminal."""
        if self._status is not None:
            height = min(_HIGHEST_LAST, self._console.height - 1)
            self._console.print(drawn(view_of(self._status, height, gone=self._why)))

    def _now(self) -> Group:
        status, passed = self._status, time.monotonic() - self._heard
        if status is None:
            return Group("asking the head …")
        gone = f"{self._why}; what is shown is {passed:.0f} s old" if self._why else ""
        return drawn(view_of(status, self._console.height, passed, gone))


def _leave(signum: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + signum)
