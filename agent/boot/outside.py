"""Events that other nodes cause, and on which the decisions fail: dropped, and the run goes on.

What a message may hold is declared by its types, so this is a mistake of ours all the same. It is
recorded and said once; the state stays as it was. An event of this node's own is not guarded: an
agent that fails on it cannot go on.
"""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Generic, TypeVar

from agent.decisions.shared import Tick
from agent.record.log import say

if TYPE_CHECKING:
    from collections.abc import Callable

S = TypeVar("S")
E = TypeVar("E")
A = TypeVar("A")
_MOST = 32
"""So many mistakes are told of; whoever causes more of them has found enough."""


class Guard(Generic[S, E, A]):
    """Decides on events; one from outside on which that fails is dropped."""

    def __init__(
        self,
        decide: Callable[[S, E, float], tuple[S, tuple[A, ...]]],
        outside: tuple[type, ...],
        record: Callable[[object], None],
    ) -> None:
        self._decide = decide
        self._outside = outside
        self._record = record
        self._told: set[str] = set()

    def decided(self, state: S, event: E, now: float) -> tuple[E | Tick, S, tuple[A, ...]]:
        """Return what happened, the new state and what to do; where that was dropped, a tick."""
        try:
            return event, *self._decide(state, event, now)
        except Exception as error:
            if not isinstance(event, self._outside):
                raise
            self._tell(type(event).__name__, error)
            return Tick(), state, ()

    def _tell(self, event: str, error: Exception) -> None:
        from agent.record.events import Dropped  # noqa: PLC0415 - hardly ever

        last = traceback.extract_tb(error.__traceback__)[-1]
        why = f"{type(error).__name__} at {last.name}, line {last.lineno}"
        told = f"{event}: {why}"
        if told in self._told or len(self._told) >= _MOST:
            return
        self._told.add(told)
        self._record(Dropped(event, f"{why}: {error}"))
        say(f"a bug in the agent, the message of another node is dropped: {told}: {error}", "error")
