"""Read the bodies of requests as they arrive, each and all within limits.

Nothing is reserved for what a request announces. What has arrived counts, beyond the part that any
connection buffers; a body that arrives too slowly is a 408. Where the memory is full, the oldest
request still gets more, so that it ends; the others wait, and get a 503 after a while.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio
from aiohttp import web

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

BODY = 10.0  # For a request's body, and as long again for every 32 MiB.
BODY_QUEUE = 20.0  # A request waits so long for the bodies of others, then it gets a 503.
RETRY_AFTER = 2  # Seconds, in a 503
BUFFERED = 1 << 16
"""Bytes of a body that do not count: a connection's buffers take as much before it is read."""
_LEAST_RATE = 3 << 20  # Bytes a second; a pause of BODY is allowed once for all of them


class Body:
    """A body, and the memory that its request takes."""

    def __init__(self, memory: Memory) -> None:
        self.data = bytearray()
        self._memory = memory
        self._size = 0

    async def take(self, size: int) -> None:
        """Count so many bytes more; wait until there is room for them, or raise an HTTP 503."""
        try:
            with anyio.fail_after(BODY_QUEUE):
                await self._memory.wait_for(self, size)
        except TimeoutError:
            raise web.HTTPServiceUnavailable(
                reason="too many requests take memory: retry",
                headers={"Retry-After": str(RETRY_AFTER)},
            ) from None
        self._size += size

    def keep(self, size: int) -> None:
        """Count only `size` bytes from now on, if it were more."""
        returned = max(0, self._size - size)
        self._size -= returned
        self._memory.give_back(returned)


class Memory:
    """The memory that requests share; the oldest of those that take some may exceed the limit."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.used = 0
        self._takers: dict[Body, None] = {}  # The oldest first
        self._changed = anyio.Event()

    async def wait_for(self, body: Body, size: int) -> None:
        """Wait until there is room for so many bytes more, and count them."""
        self._takers.setdefault(body)
        while self.used + size > self._most and body is not next(iter(self._takers)):
            await self._changed.wait()
        self.used += size

    def give_back(self, size: int) -> None:
        """Count these bytes no longer."""
        self.used -= size
        self._wake()

    def end(self, body: Body) -> None:
        """Forget a request that is over."""
        body.keep(0)
        self._takers.pop(body, None)
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()


class Bodies:
    """All request bodies of a server: each of `longest` bytes at most.

    The clients that `is_own` confirms share `most` bytes of memory, and all others as many, so that
    no stranger takes what the run's own nodes need.
    """

    def __init__(
        self, longest: int, most: int, is_own: Callable[[str], bool] = lambda _ip: True
    ) -> None:
        self.longest = longest
        self._is_own = is_own
        self._own = Memory(most)
        self._others = Memory(most)

    @property
    def used(self) -> int:
        """Return the bytes that count now."""
        return self._own.used + self._others.used

    @asynccontextmanager
    async def read(self, request: web.Request) -> AsyncIterator[Body]:
        """Read a body as it arrives; it counts until the block ends. Raise a 413, 408 or 503."""
        announced = request.content_length or 0
        if announced > self.longest:
            raise self._too_long(announced)
        memory = self._own if self._is_own(request.remote or "") else self._others
        body = Body(memory)
        try:
            await self._read(request, body)
            yield body
        finally:
            memory.end(body)

    async def _read(self, request: web.Request, body: Body) -> None:
        left = BODY
        while True:
            began = anyio.current_time()
            try:
                with anyio.fail_after(left):
                    part = await request.content.readany()
            except TimeoutError:
                raise web.HTTPRequestTimeout(reason="the body arrives too slowly") from None
            if not part:
                return
            body.data += part
            if len(body.data) > self.longest:
                raise self._too_long(len(body.data))

            # What arrives quickly gains time for what follows, but a pause never gets more.
            waited = anyio.current_time() - began
            left = min(BODY, left - waited + len(part) / _LEAST_RATE)
            if len(body.data) > BUFFERED:
                await body.take(len(part))

    def _too_long(self, size: int) -> web.HTTPException:
        why = f"a body has at most {self.longest} bytes"
        return web.HTTPRequestEntityTooLarge(self.longest, size, reason=why)


# --- JSON, before it is parsed: small values take many times their size ---------------------------

_SEPARATORS = (b",", b"[", b"{")


def has_more_values(body: bytes | bytearray, most: int) -> bool:
    """Return whether JSON has more than `most` values; names of fields and brackets count, too."""
    # Most bodies have so few of these signs that it does not matter whether they are in a text.
    signs = sum(body.count(sign) for sign in _SEPARATORS)
    if signs + body.count(b'"') // 2 <= most:
        return False

    # Count each text, and the separators between two texts.
    body = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    values = 0
    at = 0
    while values <= most:
        begins = body.find(b'"', at)
        ends = body.find(b'"', begins + 1)
        if begins < 0 or ends < 0:
            return values + sum(body.count(sign, at) for sign in _SEPARATORS) > most
        values += 1 + sum(body.count(sign, at, begins) for sign in _SEPARATORS)
        at = ends + 1
    return True
