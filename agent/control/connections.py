"""Connections to the agent's port: taken, limited, closed by deadline."""

from __future__ import annotations

import asyncio
import math
import resource
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, NamedTuple, cast

from aiohttp import web

from agent.base import times
from agent.control.sockets import BACKLOG
from agent.record.log import say

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable, Iterator

    Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

MAX_OPEN = 16_384  # Limit of open connections, where half the limit of open files is more
MAX_UNTRUSTED_PER_ADDRESS = 1024
"""Limit of untrusted connections from an address that has no trusted one.

It is half the limit of all where that is less. A thousand workers may call at once from behind one
address, and none of them is trusted before its first report is read.
"""
_ACCEPTED_PER_TURN = 16  # Connections accepted in one turn of the loop, before any is counted


class _Peer(NamedTuple):
    """The open connections from one address, the oldest first."""

    untrusted: dict[Connection, None]
    trusted: dict[Connection, None]


class Connections:
    """The open connections of one port, on all of its sockets."""

    def __init__(self) -> None:
        self._peers: dict[str, _Peer] = {}
        self._open = 0
        self._next_warning = 0.0

    def admit(self, connection: Connection) -> bool:
        """Count a connection; at a limit close another for it, or return False to refuse it."""
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        # the other half of the open files is the agent's
        most = MAX_OPEN if soft == resource.RLIM_INFINITY else min(MAX_OPEN, soft // 2)
        peer = self._peers.get(connection.ip, _Peer({}, {}))
        if not peer.trusted and len(peer.untrusted) >= min(MAX_UNTRUSTED_PER_ADDRESS, most // 2):
            why = f"{len(peer.untrusted)} of them are not authenticated"
            self._close_oldest(peer.untrusted, why)
        elif self._open >= most:
            # of the address with the most untrusted ones; where all are trusted, an address gives
            # way only to one that has fewer
            group = max((one.untrusted for one in self._peers.values()), key=len)
            trusted = max((one.trusted for one in self._peers.values()), key=len)
            if not group and len(trusted) > len(peer.trusted) + 1:
                group = trusted
            why = f"{self._open} connections are open"
            if not group:
                self._warn(connection.ip, why)
                return False
            self._close_oldest(group, why)
        self._peers.setdefault(connection.ip, peer).untrusted[connection] = None
        self._open += 1
        return True

    def trust(self, connection: Connection) -> None:
        """Note that a connection is trusted, unless it is closed."""
        peer = self._peers.get(connection.ip)
        if peer is not None and connection in peer.untrusted:
            del peer.untrusted[connection]
            peer.trusted[connection] = None

    def forget(self, connection: Connection) -> None:
        """Stop counting a connection."""
        peer = self._peers.get(connection.ip)
        for kind in () if peer is None else peer:
            if connection in kind:
                del kind[connection]
                self._open -= 1
        if peer is not None and not any(peer):
            del self._peers[connection.ip]

    def _close_oldest(self, group: dict[Connection, None], why: str) -> None:
        oldest = next(iter(group))
        oldest.close()
        self._warn(oldest.ip, why)

    def _warn(self, ip: str, why: str) -> None:
        now = asyncio.get_running_loop().time()
        if now >= self._next_warning:
            self._next_warning = now + times.FULL_WARNING
            say(f"the agent's port closes connections from {ip}: {why}", "warning")


class Connection(asyncio.Protocol):
    """One connection: aiohttp's protocol, with deadlines and counted."""

    def __init__(self, connections: Connections, protocol: asyncio.Protocol) -> None:
        self._connections, self._protocol = connections, protocol
        self._is_admitted = False
        self._unsent = math.inf  # Bytes that its peer had not taken at the last deadline
        self._timer: asyncio.TimerHandle
        self.ip = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start to wait for a request, unless there are too many connections."""
        self._transport = cast("asyncio.Transport", transport)
        self.ip = str(transport.get_extra_info("peername")[0])
        self._is_admitted = self._connections.admit(self)
        if not self._is_admitted:
            self._transport.abort()
            return
        self._wait(times.HEADER)
        self._protocol.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Clean up."""
        if self._is_admitted:
            self._timer.cancel()
            self._connections.forget(self)
            self._protocol.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Pass on what was received."""
        self._protocol.data_received(data)

    def eof_received(self) -> bool | None:
        """Pass on that the peer sends no more."""
        return self._protocol.eof_received()

    def pause_writing(self) -> None:
        """Pass on that the peer is slow."""
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        """Pass on that the peer has caught up."""
        self._protocol.resume_writing()

    def close(self) -> None:
        """Close it at once."""
        self._connections.forget(self)
        self._transport.abort()

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Suspend the deadline while a request is handled; its handler has own limits."""
        self._timer.cancel()
        try:
            yield
        finally:
            if not self._transport.is_closing():
                self._unsent = math.inf
                self._wait(times.CONNECTION_IDLE)

    def _wait(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._overdue)

    def _overdue(self) -> None:
        """Close it, unless its peer still reads a long answer."""
        unsent = self._transport.get_write_buffer_size()
        if 0 < unsent < self._unsent:
            self._unsent = unsent
            self._wait(times.CONNECTION_IDLE)
        else:
            self.close()


CONNECTIONS = web.AppKey("connections", Connections)


class PortSite(web.BaseSite):
    """One socket on which an application is served, as by aiohttp's SockSite."""

    def __init__(self, runner: web.AppRunner, listening: socket.socket) -> None:
        super().__init__(runner)
        self._app_runner = runner
        self._listening = listening
        self._serving: asyncio.Server | None = None

    @property
    def name(self) -> str:
        """Where it listens."""
        return str(self._listening.getsockname())

    async def start(self) -> None:
        """Accept connections."""
        await super().start()
        make = self._app_runner.server
        assert make is not None  # noqa: S101 - aiohttp checks it as a site is made
        connections = self._app_runner.app[CONNECTIONS]
        self._serving = await asyncio.get_running_loop().create_server(
            lambda: Connection(connections, make()),
            sock=self._listening,
            backlog=_ACCEPTED_PER_TURN,
        )
        self._listening.listen(BACKLOG)  # asyncio takes one number for both

    async def stop(self) -> None:
        """Accept no more."""
        if self._serving is not None:
            # asyncio leaks what it has accepted just before its server closes: two turns of the
            # loop pass that on to aiohttp, which closes it
            asyncio.get_running_loop().remove_reader(self._listening)
            for _ in range(2):
                await asyncio.sleep(0)
            self._serving.close()
        await super().stop()


@web.middleware
async def suspend_deadline(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Suspend a connection's deadline while a request on it is handled."""
    connection = _connection_of(request)
    with nullcontext() if connection is None else connection.serving():
        return await handler(request)


def trust(request: web.Request) -> None:
    """Note that a request was authenticated."""
    connection = _connection_of(request)
    if connection is not None:
        request.app[CONNECTIONS].trust(connection)


def _connection_of(request: web.Request) -> Connection | None:
    """Return the connection of a request, if it is still open."""
    protocol = None if request.transport is None else request.transport.get_protocol()
    return protocol if isinstance(protocol, Connection) else None
