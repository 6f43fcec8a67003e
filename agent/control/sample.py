"""A sample of the network: some MB from a fellow's agent, drawn through the agents' own port.

It is small and short, one at a time on each side, so that it measures the way and not the crowd.
"""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import anyio

from agent.base.addresses import in_url
from agent.runtime.probes import reason

if TYPE_CHECKING:
    from collections.abc import Callable

    import aiohttp
    from aiohttp import web

PATH = "/sample"
RUN = "run"
SIZE = 8 << 20
"""The most that goes over a way."""
SECONDS = 1.0
"""The longest that is looked at."""
_ENOUGH = 2 << 20
_FAST = 6e8
"""Bits a second: a way that shows so much is not slow, and needs no longer look."""
_CHUNK = 1 << 16
_QUEUE = 8.0
_CONNECT = 3.0


Drawn = tuple[int, float]
"""Bytes, and the seconds in which they came."""


class Samples:
    """What a node gives to those that measure the way to it: one at a time."""

    def __init__(self, run_id: Callable[[], str]) -> None:
        self._run_id = run_id
        self._turn = asyncio.Lock()
        self._bytes = os.urandom(_CHUNK)  # what some network between might compress tells nothing

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Send a sample to a node of the same run."""
        from aiohttp import web  # noqa: PLC0415 - late, as the server itself

        own = self._run_id()
        if not own or request.query.get(RUN) != own:
            return web.json_response({"error": "this node belongs to another run"}, status=409)
        try:
            with anyio.fail_after(_QUEUE):
                await self._turn.acquire()
        except TimeoutError:
            return web.json_response({"error": "others measure already"}, status=503)
        try:
            answer = web.StreamResponse(headers={"Content-Type": "application/octet-stream"})
            answer.force_close()
            with suppress(ConnectionError), anyio.move_on_after(SECONDS * 2) as limit:
                await answer.prepare(request)
                for _ in range(SIZE // _CHUNK):
                    await answer.write(self._bytes)
            if limit.cancelled_caught and request.transport is not None:
                request.transport.abort()  # it has its sample, or reads none
        finally:
            self._turn.release()
        return answer


async def draw(ip: str, port: int, token: str | None, run_id: str, limit: float) -> Drawn | str:
    """Draw a sample; return how much came in how long, or a sentence why none did."""
    import aiohttp  # noqa: PLC0415 - late, as everywhere

    headers = {"Authorization": f"Bearer {token}"} if token else {}
    timeout = aiohttp.ClientTimeout(total=limit, connect=_CONNECT)
    at = f"{in_url(ip)}:{port}"
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, headers=headers) as session,
            session.get(f"http://{at}{PATH}", params={RUN: run_id}) as answer,
        ):
            if answer.status != 200:
                return f"{at} answered {answer.status}"
            return await _measured(answer.content)
    except (TimeoutError, asyncio.TimeoutError):  # two things until Python 3.11
        return f"nothing came from {at} within {limit:g} s"
    except (aiohttp.ClientError, OSError) as error:
        return f"{reason(getattr(error, 'os_error', None) or error)} by {at}"


async def _measured(content: aiohttp.StreamReader) -> Drawn:
    """Count from the first piece on: how long that one took tells of the sender."""
    size, began = 0, None
    with anyio.CancelScope() as scope:
        async for piece in content.iter_any():
            now = time.monotonic()
            if began is None:
                began, scope.deadline = now, anyio.current_time() + SECONDS
                continue
            size += len(piece)
            if size >= _ENOUGH and size * 8 > _FAST * (now - began):
                break
    return size, time.monotonic() - (began or time.monotonic())
