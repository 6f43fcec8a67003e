"""Waits as they change, told to a person now and then and to the record always."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from agent.base.value import dataclass
from agent.record.events import Waited, WaitsOver

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.decisions.shared import Wait

_REMINDER = 30.0
_PROGRESS = 5.0
"""So often is told how far something has come whose end is known."""
_QUIET = 2.0


@dataclass
class _Told:
    """What was said of a wait, and when; and when it was last looked at."""

    gist: str
    evidence: str
    at: float
    looked: float


class WaitTeller:
    """Says what is waited for when that changes, and again every half minute."""

    def __init__(
        self, record: Callable[[Waited | WaitsOver], None], say: Callable[[str], None]
    ) -> None:
        self._record = record
        self._say = say
        self._told: dict[str, _Told] = {}
        self._due: float | None = None

    def tell(self, waits: tuple[Wait, ...], now: float) -> None:
        """Say what is new since it was told last, and what was told half a minute ago."""
        news = [wait for wait in waits if not wait.is_following]
        self._due = min((self._tell_one(wait, now) for wait in news), default=None)
        gone = sorted(self._told.keys() - {wait.what for wait in waits})
        for what in gone:
            del self._told[what]
        if gone:
            self._record(WaitsOver(tuple(gone)))

    def patience(self, deadline: float | None, now: float) -> float | None:
        """Return how long nothing need be done: to the deadline, or until there is a word due."""
        times = [time for time in (deadline, self._due) if time is not None]
        return max(0.0, min(times) - now) if times else None

    def _tell_one(self, wait: Wait, now: float) -> float:
        """Say this wait if it is time to; return when to look at it again.

        Evidence that takes a look at every worker is looked at rarely, however often they report.
        """
        told = self._told.get(wait.what)
        if told is not None:
            quiet = told.at if isinstance(wait.known, str) else max(told.at, told.looked)
            if now < quiet + _QUIET:
                return quiet + _QUIET
        evidence = wait.evidence
        gist = re.sub(r"\d+", "", evidence)
        if told is not None:
            told.looked = now
            moves = wait.share is not None and evidence != told.evidence
            again = told.at + (_PROGRESS if moves else _REMINDER)
            if gist == told.gist and now < again:
                return again
        self._told[wait.what] = _Told(gist, evidence, now, now)
        self._record(Waited(wait.what, wait.deadline, evidence))
        self._say(wait.sentence(now, evidence))
        return now + _REMINDER
