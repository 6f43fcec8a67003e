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

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

RETRY_AFTER = 2  # Seconds, in a 503
_BYTES_PER_DEADLINE = 32 << 20  # Of a body that may take times.BODY more


class Body:
    """A body in memory; `keep` returns the room that its request no longer needs."""

    def __init__(self, bodies: Bodies, ip: str, size: int) -> None:
        self._bodies = bodies
        self._ip = ip
        self.size = size
        self.data = bytearray()

    def keep(self, size: int) -> None:
        """Count only `size` bytes from now on."""
        returned = max(0, self.size - size)
        self.size -= returned
        self._bodies.give_back(self._ip, returned)


class Bodies:
    """All request bodies of a server: each of `longest` bytes at most, together `most`."""

    def __init__(self, longest: int, most: int) -> None:
        self.longest = longest
        self._most = max(most, 2 * longest)
        self._used = 0
        self._used_by: Counter[str] = Counter()
        self._waiting: dict[asyncio.Future[None], tuple[str, int]] = {}  # the oldest first

    @asynccontextmanager
    async def read(self, request: web.Request) -> AsyncIterator[Body]:
        """Read a body, which counts until the block ends; raise an HTTP 413, 408 or 503."""
        size = request.content_length
        if size is None:  # chunked, if it has a body at all
            size = self.longest if request.body_exists else 0
        if size > self.longest:
            raise self._too_long(size)

        ip = request.remote or ""
        await self._wait_for_room(ip, size)

        # A larger body gets more time; it counts until the caller is done with it.
        body = Body(self, ip, size)
        limit = times.BODY * (1 + size / _BYTES_PER_DEADLINE)
        try:
            try:
                with anyio.fail_after(limit):
                    body.data = await self._read(request)
            except TimeoutError:
                raise web.HTTPRequestTimeout(reason=f"no body within {limit:g} s") from None
            yield body
        finally:
            body.keep(0)

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

    async def _wait_for_room(self, ip: str, size: int) -> None:
        room: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[room] = ip, size
        self._grant()
        try:
            with anyio.fail_after(times.BODY_QUEUE):
                await room
        except BaseException as error:
            is_granted = self._waiting.pop(room, None) is None
            self.give_back(ip, size if is_granted else 0)
            if not isinstance(error, TimeoutError):
                raise
            raise web.HTTPServiceUnavailable(
                reason="too many bodies are being read: retry",
                headers={"Retry-After": str(RETRY_AFTER)},
            ) from None

    def used(self) -> dict[str, int]:
        """Return the bytes that each address uses now."""
        return dict(self._used_by)

    def give_back(self, ip: str, size: int) -> None:
        """Count these bytes no longer."""
        self._used -= size
        self._used_by[ip] -= size
        if not self._used_by[ip]:
            del self._used_by[ip]
        self._grant()

    def _grant(self) -> None:
        """Give room in order; a request that only its own address blocks is passed."""
        for room, (ip, size) in [*self._waiting.items()]:
            if self._used_by[ip] + size > self._most // 2:
                continue
            if self._used + size > self._most:
                break
            del self._waiting[room]
            self._used += size
            self._used_by[ip] += size
            room.set_result(None)
