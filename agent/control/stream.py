"""`/events`: the status as server-sent events, to a few readers, whenever it changes."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import anyio
from aiohttp import web

from agent.control.lasting import lasting
from agent.runtime.waiting import NotYet, TimedOutError, until

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MOST = 16
"""So many may read at a time; each costs memory, and a little of the loop."""
PAUSE = 0.5
"""The status is looked at no more often than this, for all readers together."""
BEAT = 5.0
"""A status that stays the same is told so often: a reader knows that the head lives."""
SLOW = 10.0
"""Longest that a reader may take to make room for a status; then it is dropped."""
_SHARE = 50.0
"""A look may take one part in so many of the loop's time, however large the cluster."""


class Stream:
    """Looks at the status for all who read, and hands each the newest, never a queue of them."""

    def __init__(
        self, look: Callable[[], Mapping[str, object]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._look = look
        self._clock = clock
        self._readers = 0
        self._next_look = 0.0
        self._status: Mapping[str, object] = {}
        self._lasting: object = None
        self._text = ""
        """The status as JSON; '' until somebody is told of it."""
        self._number = 0
        """Counts what was news."""

    @property
    def is_full(self) -> bool:
        """Say whether no further reader can be served."""
        return self._readers >= MOST

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Tell one reader until it leaves, is too slow, or the port closes."""
        self._readers += 1
        try:
            answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await answer.prepare(request)
            await self._tell(answer)
            if request.transport is not None:  # what it has not taken would hold the port's end up
                request.transport.abort()
            return answer
        finally:
            self._readers -= 1

    async def _tell(self, answer: web.StreamResponse) -> None:
        """Write each status that is news; return once the reader takes none."""
        seen = 0

        async def news() -> bool | NotYet:
            self._look_again()
            return NotYet() if seen == self._number else True

        while True:
            with suppress(TimedOutError):
                await until(news, BEAT, step=PAUSE, longest=PAUSE)
            seen = self._number
            try:
                with anyio.fail_after(SLOW):
                    await answer.write(f"data: {self._newest()}\n\n".encode())
            except (TimeoutError, ConnectionError):
                return

    def _look_again(self) -> None:
        """Look at the status, if it is time to."""
        began = self._clock()
        if began < self._next_look:
            return
        self._status, self._text = self._look(), ""
        lasts = lasting(self._status)
        if lasts != self._lasting:
            self._lasting = lasts
            self._number += 1
        self._next_look = began + max(PAUSE, _SHARE * (self._clock() - began))

    def _newest(self) -> str:
        """Return the last status that was seen, made into text once for all readers."""
        self._text = self._text or json.dumps(self._status)
        return self._text
