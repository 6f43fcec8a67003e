"""Errors of an HTTP server: as JSON to the client, and logged only where they are a bug."""

from __future__ import annotations

import logging

from aiohttp import web
from aiohttp.http import HttpProcessingError

_PASSED_ON = ("Allow", "Retry-After")  # Headers of aiohttp's errors


def error_reply(status: int, why: str, headers: dict[str, str] | None = None) -> web.Response:
    """Return an error as JSON."""
    return web.json_response({"error": why}, status=status, headers=headers)


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
