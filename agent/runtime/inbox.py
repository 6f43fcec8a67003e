"""One queue of events, so that one loop sees everything in order."""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

import anyio

E = TypeVar("E")


class Inbox(Generic[E]):
    """Events from every task, taken one by one."""

    def __init__(self) -> None:
        self._events: deque[E] = deque()
        self._some = anyio.Event()

    def put(self, event: E) -> None:
        """Add an event; never blocks."""
        self._events.append(event)
        self._some.set()

    async def take(self, limit: float | None) -> E | None:
        """Take the next event; None where none came within `limit` seconds."""
        with anyio.move_on_after(limit):
            while not self._events:
                self._some = anyio.Event()
                await self._some.wait()
        return self._events.popleft() if self._events else None
