"""Replies of an HTTP server: sent within a deadline; errors as JSON, logged only as bugs."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import anyio
from aiohttp import web
from aiohttp.http import HttpProcessingError

from agent.base import times

if TYPE_CHECKING:
    from collections.abc import Mapping

_BYTES_PER_DEADLINE = 32 << 20  # Of a reply that may take times.READER_STALLED more
_PASSED_ON = ("Allow", "Retry-After")  # Headers of aiohttp's errors


def error_reply(status: int, why: str, headers: dict[str, str] | None = None) -> web.Response:
    """Return an error as JSON."""
    return web.json_response({"error": why}, status=status, headers=headers)


async def send(
    request: web.Request, body: bytes, headers: Mapping[str, str] | None = None
) -> web.Response:
    """Send JSON; return once the client has accepted it, or was disconnected since it does not.

    Until then a handler counts the memory: what a client does not read stays in this process.
    """
    reply = web.Response(body=body, content_type="application/json", headers=headers)
    limit = times.READER_STALLED * (1 + len(body) / _BYTES_PER_DEADLINE)
    with anyio.move_on_after(limit) as sending:
        await reply.prepare(request)
        await reply.write_eof()
    if sending.cancelled_caught and request.transport is not None:
        request.transport.abort()
    return reply


def reply_to_error(refusal: web.HTTPException, more: str = "") -> web.Response:
    """Return aiohttp's own error as JSON: no such path or method, a body too long or late."""
    headers = {name: text for name, text in refusal.headers.items() if name in _PASSED_ON}
    return error_reply(refusal.status, f"{refusal.reason}{more}", headers)


def is_compressed(content_encoding: str) -> bool:
    """Return whether a body is compressed, by its header: inflated it would take any memory."""
    return content_encoding.strip().lower() not in {"", "identity"}


def log_only_bugs() -> None:
    """Log no invalid HTTP and no closed connection of a client."""
    logging.getLogger("aiohttp.server").addFilter(_is_bug)


def _is_bug(record: logging.LogRecord) -> bool:
    problem = record.exc_info[1] if record.exc_info else None
    return not isinstance(problem, (HttpProcessingError, ConnectionError))
