"""The connections of an HTTP server: accepted, limited, closed by deadline."""

from __future__ import annotations

import asyncio
import resource
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from aiohttp import web

from agent.base.ports import BACKLOG

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable, Iterator

    Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

HEADER = 10.0  # From the start of a connection to its first complete request header.
CONNECTION_IDLE = 30.0  # From an answer to the next header; aiohttp's clients reuse one for 15 s.
MAX_OPEN = 16_384  # Limit of open connections, where half the limit of open files is more
_ACCEPTED_PER_TURN = 16  # Connections accepted in one turn of the loop, before any is counted


class Connections:
    """The open connections of one port, on all of its sockets; `warn` logs a sentence."""

    def __init__(self, warn: Callable[[str], None]) -> None:
        self._log = warn
        self._open: set[Connection] = set()
        self._untrusted: dict[Connection, None] = {}  # The one without a request for longest first
        self._has_warned = False

    def admit(self, connection: Connection) -> bool:
        """Count a connection; at the limit close another for it, or return False to refuse it.

        Only connections that did not show the token are closed, so that whoever has it stays.
        """
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        # the other half of the open files is for the rest of the process
        most = MAX_OPEN if soft == resource.RLIM_INFINITY else min(MAX_OPEN, soft // 2)
        if len(self._open) >= most:
            oldest = next(iter(self._untrusted), None)
            self._warn((oldest or connection).ip)
            if oldest is None:
                return False
            oldest.close()
        self._open.add(connection)
        self._untrusted[connection] = None
        return True

    def note_request(self, connection: Connection) -> None:
        """Note that a connection has sent a request: those without one are closed before it."""
        if connection in self._untrusted:
            del self._untrusted[connection]
            self._untrusted[connection] = None

    def trust(self, connection: Connection) -> None:
        """Close a connection for no other, since it showed the token."""
        self._untrusted.pop(connection, None)

    def forget(self, connection: Connection) -> None:
        """Stop counting a connection."""
        self._open.discard(connection)
        self._untrusted.pop(connection, None)

    def _warn(self, ip: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            why = f"{len(self._open)} connections are open, as many as it can have"
            self._log(f"closes connections, the first from {ip}: {why}")


class Connection:
    """One connection: aiohttp's protocol, with deadlines and counted."""

    def __init__(self, connections: Connections, protocol: asyncio.Protocol) -> None:
        self.connections = connections
        self._protocol = protocol
        self._is_admitted = False
        self._timer: asyncio.TimerHandle
        self.ip = ""

    def __getattr__(self, name: str) -> object:
        """Return a callback of aiohttp's protocol."""
        return getattr(self._protocol, name)

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Start to wait for a request, unless there are too many connections."""
        self._transport = transport
        self.ip = str(transport.get_extra_info("peername")[0])
        self._is_admitted = self.connections.admit(self)
        if not self._is_admitted:
            self._transport.abort()
            return
        self._wait(HEADER)
        self._protocol.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Clean up."""
        if self._is_admitted:
            self._timer.cancel()
            self.connections.forget(self)
            self._protocol.connection_lost(exc)

    def close(self) -> None:
        """Close it at once."""
        self.connections.forget(self)
        self._transport.abort()

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Suspend the deadline while a request is handled; its handler has own limits."""
        self._timer.cancel()
        self.connections.note_request(self)
        try:
            yield
        finally:
            if not self._transport.is_closing():
                self._wait(CONNECTION_IDLE)

    def _wait(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self.close)


class PortRunner(web.AppRunner):
    """Serves an application on connections that are counted."""

    def __init__(
        self,
        app: web.Application,
        warn: Callable[[str], None],
        **options: Any,  # noqa: ANN401 - as aiohttp has it
    ) -> None:
        # aiohttp would inflate a body before the handler checks a token
        super().__init__(app, access_log=None, auto_decompress=False, **options)
        self._connections = Connections(warn)

    @property
    def server(self) -> Any:  # noqa: ANN401 - called like aiohttp's server, of which this makes one
        """Return what makes the protocol of a connection."""
        make = super().server
        return make and (lambda: Connection(self._connections, make()))


class PortSite(web.SockSite):
    """One socket on which an application is served."""

    def __init__(self, runner: web.BaseRunner, listening: socket.socket) -> None:
        super().__init__(runner, listening, backlog=_ACCEPTED_PER_TURN)
        self._listening = listening

    async def start(self) -> None:
        """Accept connections."""
        await super().start()
        self._listening.listen(BACKLOG)  # asyncio takes one number for both

    async def stop(self) -> None:
        """Accept no more."""
        # asyncio leaks what it has accepted just before its server closes: two turns of the
        # loop pass that on to aiohttp, which closes it
        asyncio.get_running_loop().remove_reader(self._listening)
        for _ in range(2):
            await asyncio.sleep(0)
        await super().stop()


@web.middleware
async def suspend_deadline(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Suspend a connection's deadline while a request on it is handled."""
    connection = _connection_of(request)
    with nullcontext() if connection is None else connection.serving():
        return await handler(request)


def trust(request: web.Request) -> None:
    """Note that a request showed the token."""
    connection = _connection_of(request)
    if connection is not None:
        connection.connections.trust(connection)


def is_local(request: web.Request) -> bool:
    """Return whether the client is on this node."""
    if request.transport is None:
        return False
    peer, own = map(request.transport.get_extra_info, ("peername", "sockname"))
    return bool(peer and own) and peer[0] == own[0]


def _connection_of(request: web.Request) -> Connection | None:
    """Return the connection of a request, if it is still open."""
    protocol = None if request.transport is None else request.transport.get_protocol()
    return protocol if isinstance(protocol, Connection) else None
