"""The bodies of requests to an HTTP server: limits for one and for all, and deadlines.

A body is read once there is room for its Content-Length; without one, for the largest body.
Requests wait in order. One address gets half of the room at most, so that it cannot use up all.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio
from aiohttp import web

from agent.base import times
from agent.base.text import quota_key

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

RETRY_AFTER = 2  # Seconds, in a 503
_BYTES_PER_DEADLINE = 32 << 20  # Of a body that may take times.BODY more


class HeldMemory:
    """A part of a room; `keep` returns what its request no longer needs."""

    def __init__(self, room: MemoryRoom, client: str, size: int) -> None:
        self._room = room
        self._client = client
        self._size = size

    def keep(self, size: int) -> None:
        """Count only `size` bytes from now on."""
        returned = max(0, self._size - size)
        self._size -= returned
        self._room.give_back(self._client, returned)


class MemoryRoom:
    """The memory that requests share: they wait for it in order, half is the most for an address.

    What waits for two rooms waits for them in the same order everywhere.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self.half = most // 2
        self._used = 0
        self._used_by: Counter[str] = Counter()
        self._waiting: dict[asyncio.Future[None], tuple[str, int]] = {}  # the oldest first

    @asynccontextmanager
    async def hold(self, ip: str, size: int) -> AsyncIterator[HeldMemory]:
        """Wait for so many bytes, and hold them until the block ends; raise an HTTP 503."""
        client = quota_key(ip)
        await self._wait(client, size)
        held = HeldMemory(self, client, size)
        try:
            yield held
        finally:
            held.keep(0)

    def used(self) -> dict[str, int]:
        """Return the bytes that each address uses now."""
        return dict(self._used_by)

    async def _wait(self, client: str, size: int) -> None:
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[granted] = client, size
        self._grant()
        try:
            with anyio.fail_after(times.BODY_QUEUE):
                await granted
        except BaseException as error:
            is_granted = self._waiting.pop(granted, None) is None
            self.give_back(client, size if is_granted else 0)
            if not isinstance(error, TimeoutError):
                raise
            raise web.HTTPServiceUnavailable(
                reason="too many bodies are being read: retry",
                headers={"Retry-After": str(RETRY_AFTER)},
            ) from None

    def give_back(self, client: str, size: int) -> None:
        """Count these bytes no longer."""
        self._used -= size
        self._used_by[client] -= size
        if not self._used_by[client]:
            del self._used_by[client]
        self._grant()

    def _grant(self) -> None:
        """Give room in order; a request that only its own address blocks is passed."""
        for granted, (client, size) in [*self._waiting.items()]:
            if self._used_by[client] + size > self.half:
                continue
            if self._used + size > self._most:
                break
            del self._waiting[granted]
            self._used += size
            self._used_by[client] += size
            granted.set_result(None)


class Body:
    """A body in memory; `keep` returns the room that its request no longer needs."""

    def __init__(self, data: bytearray, held: HeldMemory) -> None:
        self.data = data
        self.keep = held.keep


class Bodies:
    """All request bodies of a server: each of `longest` bytes at most, together `most`."""

    def __init__(self, longest: int, most: int) -> None:
        self.longest = longest
        self._room = MemoryRoom(max(most, 2 * longest))
        self.used = self._room.used

    @asynccontextmanager
    async def read(self, request: web.Request) -> AsyncIterator[Body]:
        """Read a body, which counts until the block ends; raise an HTTP 413, 408 or 503."""
        size = request.content_length
        if size is None:  # chunked, if it has a body at all
            size = self.longest if request.body_exists else 0
        if size > self.longest:
            raise self._too_long(size)

        # A larger body gets more time; it counts until the caller is done with it.
        limit = times.BODY * (1 + size / _BYTES_PER_DEADLINE)
        async with self._room.hold(request.remote or "", size) as held:
            try:
                with anyio.fail_after(limit):
                    data = await self._read(request)
            except TimeoutError:
                raise web.HTTPRequestTimeout(reason=f"no body within {limit:g} s") from None
            yield Body(data, held)

    async def _read(self, request: web.Request) -> bytearray:
        data = bytearray()
        async for part in request.content.iter_any():
            data += part
            if len(data) > self.longest:
                raise self._too_long(len(data))
        return data

    def _too_long(self, size: int) -> web.HTTPException:
        why = f"a body has at most {self.longest} bytes"
        return web.HTTPRequestEntityTooLarge(self.longest, size, reason=why)
