"""Waits as they change, told to a person now and then and to the record always."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.decisions.shared import Wait

_REMINDER = 30.0
_QUIET = 2.0


class Narrator:
    """Says what is waited for when that changes, and again every half minute."""

    def __init__(
        self, record: Callable[[dict[str, object]], None], say: Callable[[str], None]
    ) -> None:
        self._record = record
        self._say = say
        self._told: dict[str, tuple[str, float]] = {}
        self._recorded: tuple[Wait, ...] = ()
        self._due: float | None = None

    def tell(self, waits: tuple[Wait, ...], now: float) -> None:
        """Say what is new since it was told last, and what was told half a minute ago."""
        if waits != self._recorded:
            self._recorded = waits
            listed = [{"what": w.what, "until": w.deadline, "evidence": w.evidence} for w in waits]
            self._record({"at": round(now, 3), "event": "waits", "waits": listed})
        news = [wait for wait in waits if not wait.what.startswith("word ")]  # following is none
        self._due = min((self._tell_one(wait, now) for wait in news), default=None)
        gone = self._told.keys() - {wait.what for wait in waits}
        for what in gone:
            del self._told[what]

    def patience(self, deadline: float | None, now: float) -> float | None:
        """Return how long nothing need be done: to the deadline, or until there is a word due."""
        times = [time for time in (deadline, self._due) if time is not None]
        return max(0.0, min(times) - now) if times else None

    def _tell_one(self, wait: Wait, now: float) -> float:
        """Say this wait if it is time to; return when it will be."""
        gist = re.sub(r"\d+", "", wait.evidence)
        old, at = self._told.get(wait.what, ("", -_REMINDER))
        due = at + (_REMINDER if gist == old else _QUIET)
        if now < due:
            return due
        self._told[wait.what] = (gist, now)
        self._say(wait.sentence(now))
        return now + _REMINDER
