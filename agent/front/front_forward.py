"""Send requests of clients on to members, and their replies back.

`pass_on` streams a reply as it arrives; `call` reads the whole reply of a short request. Both raise
`UnreachableError` where nothing accepts the connection, and `BrokenError` where it ended before the
reply: the caller sends the request elsewhere.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

import aiohttp
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

    from typing_extensions import Self

CONNECT = 5.0  # Seconds for a connection: a lost SYN is sent again after 1 s and 3 s.
_REUSED = 2.0
"""Seconds for which an idle connection is used again: servers close theirs after 5 s (uvicorn), and
a request on a connection that is being closed is lost.
"""
_SMALL = 64 << 10  # A reply of so many bytes is sent as one.
_PART = 256 << 10  # of a large request; aiohttp warns of more than 1 MiB at once
_OF_ONE_CONNECTION = frozenset(
    {
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization"),
        *("proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"),
        *("host", "content-length", "expect"),
    }
)
"""Headers that concern one connection, or that aiohttp writes itself."""
# refused; no answer within CONNECT; an address that is none
_NO_CONNECTION = (aiohttp.ClientConnectorError, aiohttp.ServerTimeoutError, ValueError)
_ADDED_BY_AIOHTTP = ("User-Agent", "Accept", "Accept-Encoding", "Content-Type")


class UnreachableError(Exception):
    """A member does not accept connections: nothing of the request was sent.

    `has_ended` where nothing listens at its port: its process has ended.
    """

    def __init__(self, problem: BaseException) -> None:
        cause = problem.os_error if isinstance(problem, aiohttp.ClientConnectorError) else problem
        why = cause.strerror if isinstance(cause, OSError) else ""
        super().__init__(f"cannot connect: {why}" if why else _why(problem))
        self.has_ended = isinstance(cause, ConnectionRefusedError)


class BrokenError(Exception):
    """A member's connection ended before its reply."""


class MemberReply(NamedTuple):
    """A whole reply."""

    status: int
    content_type: str
    body: bytes


class Forwarder:
    """Connections to the members; used within one event loop."""

    async def __aenter__(self) -> Self:
        """Open the sessions."""
        self._data = _session(aiohttp.TCPConnector(limit=0, keepalive_timeout=_REUSED))
        # A verb counts once: it is never lost with an old connection.
        self._control = _session(aiohttp.TCPConnector(limit=0, force_close=True))
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close all connections."""
        await self._data.close()
        await self._control.close()

    async def call(
        self,
        address: str,
        method: str,
        path: str,
        body: bytes | bytearray,
        headers: Iterable[tuple[str, str]],
    ) -> MemberReply:
        """Send a request, and return the whole reply."""
        try:
            async with self._control.request(
                method,
                _url(address, path),
                data=_data(body),
                headers=_sent_headers(headers, len(body)),
                allow_redirects=False,
            ) as reply:
                content_type = reply.headers.get("Content-Type", "application/octet-stream")
                return MemberReply(reply.status, content_type, await reply.read())
        except _NO_CONNECTION as problem:
            raise UnreachableError(problem) from None
        except (aiohttp.ClientError, OSError, TimeoutError) as problem:
            raise BrokenError(_why(problem)) from None

    async def reach(self, address: str) -> None:
        """Connect to a member, and no more."""
        host, _, port = address.rpartition(":")
        try:
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
        except (OSError, ValueError, OverflowError) as problem:
            raise UnreachableError(problem) from None
        writer.close()

    async def pass_on(
        self,
        request: web.Request,
        body: bytes | bytearray,
        address: str,
        note_byte: Callable[[], None],
    ) -> web.StreamResponse:
        """Send a client's request, and its reply to the client.

        `note_byte` is called for each part of a reply that is sent on as it arrives.
        """
        try:
            reply = await self._data.request(
                request.method,
                _url(address, request.raw_path),
                data=_data(body),
                headers=_sent_headers(request.headers.items(), len(body)),
                allow_redirects=False,
            )
        except _NO_CONNECTION as problem:
            raise UnreachableError(problem) from None
        except (aiohttp.ClientError, OSError, TimeoutError) as problem:
            raise BrokenError(_why(problem)) from None
        async with reply:
            length = reply.content_length
            if length is None or length > _SMALL or request.method == "HEAD":
                return await _stream(request, reply, note_byte)
            try:
                content = await reply.read()
            except (aiohttp.ClientError, OSError, TimeoutError) as problem:
                raise BrokenError(_why(problem)) from None
            return web.Response(
                status=reply.status,
                reason=reply.reason,
                headers=_kept_headers(reply.headers.items()),
                body=content,
            )


async def _stream(
    request: web.Request, reply: aiohttp.ClientResponse, note_byte: Callable[[], None]
) -> web.StreamResponse:
    """Send a reply on as it arrives."""
    sent = web.StreamResponse(
        status=reply.status, reason=reply.reason, headers=_kept_headers(reply.headers.items())
    )
    if reply.content_length is not None:
        sent.content_length = reply.content_length
    note_byte()
    await sent.prepare(request)
    async for part in _parts(reply):
        note_byte()
        await sent.write(part)
    await sent.write_eof()
    return sent


async def _parts(reply: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """Yield the parts of a member's reply; what fails here is not the client's connection."""
    while True:
        try:
            part = await reply.content.readany()
        except (aiohttp.ClientError, OSError, TimeoutError) as problem:
            raise BrokenError(_why(problem)) from None
        if not part:
            return
        yield part


def _session(connector: aiohttp.TCPConnector) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=connector,
        auto_decompress=False,
        skip_auto_headers=_ADDED_BY_AIOHTTP,
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT),
    )


def _url(address: str, path: str) -> URL:
    return URL(f"http://{address}{path}", encoded=True)


def _data(body: bytes | bytearray) -> bytes | bytearray | AsyncIterator[bytes] | None:
    if len(body) > _PART:
        return _in_parts(body)
    return body or None


async def _in_parts(body: bytes | bytearray) -> AsyncIterator[bytes]:
    for start in range(0, len(body), _PART):
        yield bytes(memoryview(body)[start : start + _PART])


def _kept_headers(headers: Iterable[tuple[str, str]]) -> CIMultiDict[str]:
    return CIMultiDict(
        [(name, text) for name, text in headers if name.lower() not in _OF_ONE_CONNECTION]
    )


def _sent_headers(headers: Iterable[tuple[str, str]], length: int) -> CIMultiDict[str]:
    kept = _kept_headers(headers)
    if length > _PART:
        kept["Content-Length"] = str(length)  # else the parts would be sent as chunks
    return kept


def _why(problem: BaseException) -> str:
    return f"{type(problem).__name__}: {problem}" if str(problem) else type(problem).__name__
