"""One word for all files of a run folder: that its disk takes nothing, and that it does again."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from agent.record.writer import Place

STALLED_AFTER = 10.0
"""A write that takes longer than this is told of: a disk that is merely slow does not."""
_FOLLOWS = "Logs and records of this node are not kept; the job goes on, and its output here"
_REMEDY = "Free space there, or choose another disk in AGENT_LOG_DIR"
_STALLS = "Mend that disk, or choose another in AGENT_LOG_DIR"


class DiskWord:
    """Gathers the troubles of several writers, from any thread; tells the first and the last."""

    def __init__(self, say: Callable[[str, str], None]) -> None:
        self._say = say
        self._changed = threading.Lock()
        self._folder: Callable[[], Path] | None = None
        self._failing: dict[str, str] = {}
        self._stalled: set[str] = set()
        self._watched: dict[str, Callable[[], float | None]] = {}

    def of(self, folder: Callable[[], Path]) -> None:
        """Say which folder it is; it may move."""
        self._folder = folder

    def watch(self, name: str, busy_since: Callable[[], float | None]) -> None:
        """Look at a writer now and then: since when its write has been under way."""
        with self._changed:
            self._watched = {**self._watched, name: busy_since}

    def watch_place(self, name: str, place: Place) -> None:
        """Look at a place now and then."""
        self.watch(name, lambda: place.busy_since)

    def tell(self, name: str, why: str, remedy: str = _REMEDY) -> None:
        """Hear why a file cannot be written, or, by '', that it can be again."""
        with self._changed:
            before = bool(self._failing)
            if why:
                self._failing[name] = why
            else:
                self._failing.pop(name, None)
            after = bool(self._failing)
        if before == after:
            return
        place = name if self._folder is None else str(self._folder())
        if after:
            first = "" if self._folder is None else f" ({name})"
            told = f"{place} cannot be written: {why}{first}. {_FOLLOWS}. {remedy}"
        else:
            told = f"{place} can be written again"
        self._say(told, "warning")

    def look(self, now: float | None = None) -> None:
        """Tell of writes that do not end, and of those that did after all."""
        now = time.monotonic() if now is None else now
        for name, busy_since in self._watched.items():
            since = busy_since()
            if since is not None and now - since > STALLED_AFTER:
                if name not in self._stalled:
                    self._stalled.add(name)
                    self.tell(name, f"a write takes longer than {STALLED_AFTER:g} s", _STALLS)
            elif name in self._stalled:
                self._stalled.discard(name)
                self.tell(name, "")
