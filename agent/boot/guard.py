"""Drop messages of other nodes on which the decision functions raise."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Generic, TypeVar

from agent.decisions.values import Tick
from agent.record.log import say

if TYPE_CHECKING:
    from collections.abc import Callable


S = TypeVar("S")
E = TypeVar("E")
A = TypeVar("A")
_MOST = 32
"""At most this many distinct errors are logged."""


class Guard(Generic[S, E, A]):
    """Calls the decision function; drops an event of another node on which it raises."""

    def __init__(
        self,
        decide: Callable[[S, E, float], tuple[S, tuple[A, ...]]],
        remote_events: tuple[type, ...],
        record: Callable[[object], None],
    ) -> None:
        self._decide = decide
        self._remote_events = remote_events
        self._record = record
        self._logged: set[str] = set()

    def decide(self, state: S, event: E, now: float) -> tuple[E | Tick, S, tuple[A, ...]]:
        """Return the event, the new state and the actions; a tick for a dropped event."""
        try:
            return event, *self._decide(state, event, now)
        except Exception as error:
            if not isinstance(event, self._remote_events):
                raise
            self._log(type(event), error)
            return Tick(), state, ()

    def _log(self, kind: type, error: Exception) -> None:
        from agent.record.codec import wire_name  # noqa: PLC0415 - hardly ever
        from agent.record.events import Dropped  # noqa: PLC0415 - hardly ever

        event = wire_name(kind)
        last = traceback.extract_tb(error.__traceback__)[-1]
        why = f"{type(error).__name__} at {last.name}, line {last.lineno}"
        message = f"{event}: {why}"
        if message in self._logged or len(self._logged) >= _MOST:
            return
        self._logged.add(message)
        self._record(Dropped(event, f"{why}: {error}"))
        say(
            f"a bug in the agent, the message of another node is dropped: {message}: {error}",
            "error",
        )
