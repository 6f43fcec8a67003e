"""Measure the bandwidth between two nodes: download a few MB through the agent's port.

Each node serves and runs one measurement at a time, so that they do not slow each other down.
"""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import aiohttp
import anyio
from aiohttp import web
from yarl import URL

from agent.base import times
from agent.base.text import in_url
from agent.control.proof import TRIES, Prover, ReplyProof
from agent.runtime.probes import reason

if TYPE_CHECKING:
    from collections.abc import Callable


PATH = "/sample"
RUN_PARAMETER = "run"
MAX_BYTES = 8 << 20
"""The most bytes sent in one measurement."""
_MIN_BYTES = 2 << 20
_FAST_BITS_PER_SECOND = 1.2e9
"""A link that reaches this rate is not slow; its measurement ends early."""
_CHUNK = 1 << 16


SampleResult = tuple[int, float]
"""Bytes received, and the seconds that took."""


class SampleServer:
    """Serves measurements to other nodes, one at a time."""

    def __init__(self, run_id: Callable[[], str]) -> None:
        self._run_id = run_id
        self._lock = asyncio.Lock()
        self._bytes = os.urandom(_CHUNK)  # random: a network may compress

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Send the bytes of one measurement to a node of the same run."""
        own = self._run_id()
        if not own or request.query.get(RUN_PARAMETER) != own:
            return web.json_response({"error": "this node belongs to another run"}, status=409)
        try:
            with anyio.fail_after(times.SAMPLE_QUEUE):
                await self._lock.acquire()
        except TimeoutError:
            return web.json_response({"error": "others measure already"}, status=503)
        try:
            answer = web.StreamResponse(headers={"Content-Type": "application/octet-stream"})
            answer.force_close()
            with suppress(ConnectionError), anyio.move_on_after(times.SAMPLE_LENGTH * 2) as limit:
                await answer.prepare(request)
                for _ in range(MAX_BYTES // _CHUNK):
                    await answer.write(self._bytes)
            if limit.cancelled_caught and request.transport is not None:
                request.transport.abort()  # it has measured enough, or does not read
        finally:
            self._lock.release()
        return answer


async def download_sample(
    ip: str, port: int, token: str | None, run_id: str, limit: float
) -> SampleResult | str:
    """Download from a node; return bytes and seconds, or a sentence why it failed."""
    timeout = aiohttp.ClientTimeout(total=limit, connect=times.SAMPLE_CONNECT)
    at, prover = f"{in_url(ip)}:{port}", Prover(token)
    url = URL(f"http://{at}{PATH}").with_query({RUN_PARAMETER: run_id})
    try:
        async with aiohttp.ClientSession(timeout=timeout) as session:
            for _ in range(TRIES):
                signed = prover.sign("GET", url.raw_path_qs)
                async with session.get(url, headers=signed.headers) as answer:
                    # only the start of a stream is proven, and another status ends it anyway
                    verdict = prover.check(signed, answer.status, answer.headers, None)
                    if verdict is ReplyProof.PROVEN and answer.status == 200:
                        return await _measure(answer.content)
                if verdict is not ReplyProof.AGAIN:
                    break
            if answer.status != 200:
                return f"{at} answered {answer.status}"
            return f"{at} does not prove that it holds this node's RAY_AUTH_TOKEN"
    except (TimeoutError, asyncio.TimeoutError):  # two things until Python 3.11
        return f"nothing came from {at} within {limit:g} s"
    except (aiohttp.ClientError, OSError) as error:
        return f"{reason(getattr(error, 'os_error', None) or error)} by {at}"


async def _measure(content: aiohttp.StreamReader) -> SampleResult:
    """Measure from the second chunk on: the first one includes the sender's start."""
    size, began = 0, None
    with anyio.CancelScope() as scope:
        async for chunk in content.iter_any():
            now = time.monotonic()
            if began is None:
                began, scope.deadline = now, anyio.current_time() + times.SAMPLE_LENGTH
                continue
            size += len(chunk)
            if size >= _MIN_BYTES and size * 8 > _FAST_BITS_PER_SECOND * (now - began):
                break
    return size, time.monotonic() - (began or time.monotonic())
