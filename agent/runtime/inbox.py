"""One queue of events, so that one loop sees everything in order."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Generic, TypeVar

import anyio

if TYPE_CHECKING:
    from collections.abc import Callable

E = TypeVar("E")


class Inbox(Generic[E]):
    """Events from every task, taken one by one, each cleaned of secrets on its way in."""

    def __init__(self, clean: Callable[[E], E]) -> None:
        self._clean = clean
        self._events: deque[E] = deque()
        self._some = anyio.Event()

    def put(self, event: E) -> None:
        """Add an event; never blocks."""
        self._events.append(self._clean(event))
        self._some.set()

    def discard(self, *kinds: type) -> None:
        """Drop what is there of these kinds."""
        self._events = deque(event for event in self._events if not isinstance(event, kinds))

    @property
    def is_empty(self) -> bool:
        """Say whether there is nothing to take now."""
        return not self._events

    async def take(self, limit: float | None) -> E | None:
        """Take the next event; None where none came within `limit` seconds."""
        with anyio.move_on_after(limit):
            while not self._events:
                self._some = anyio.Event()
                await self._some.wait()
        return self._events.popleft() if self._events else None
