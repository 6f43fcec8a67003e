"""Run an HTTP server as a program: listen on every host until a signal, with limits.

`run_server` binds, prints one line with the URLs, serves, and on SIGTERM or SIGINT finishes the
requests that it has. Connections, bodies and errors are limited as those of the agent's port.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from contextlib import ExitStack, asynccontextmanager, suppress
from typing import TYPE_CHECKING

from aiohttp import web

from agent.base.open_files import raise_open_files
from agent.base.ports import BACKLOG
from agent.serving.connections import PortRunner, PortSite, suspend_deadline
from agent.serving.replies import error_reply, is_compressed, log_only_bugs, reply_to_error

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Sequence

    from aiohttp.typedefs import Handler

_LAST_REQUESTS = 3.0  # A bundled server that is stopped finishes what it answers within this.
SETTINGS_WRONG = 78
_CHOICES = 20  # of a port by the system, at most


class Program:
    """One HTTP server: its name in the log, and the path of its POST requests."""

    def __init__(self, name: str, path: str, handler: Handler) -> None:
        self.name = name
        self._path = path
        self.app = web.Application(middlewares=[suspend_deadline, self._errors_as_json])
        self.app.router.add_post(path, handler)

    def say(self, line: str) -> None:
        """Write a line to the server's log."""
        print(f"{self.name}: {line}"[:500], file=sys.stderr, flush=True)

    def run(self, hosts: str, port: int, ready: Callable[[], None] = lambda: None) -> int:
        """Serve on `HOST[,HOST]` until a signal: 0 then, 78 if it cannot listen."""
        log_only_bugs()
        raise_open_files()
        try:
            listening = _listening_somewhere(list(dict.fromkeys(hosts.split(","))), port)
        except OSError as problem:
            where = f"cannot listen on {hosts}, port {port}"
            self.say(f"{where} ({problem}): choose others by --host and --port")
            return SETTINGS_WRONG
        asyncio.run(self._serve(listening, ready))
        return 0

    async def _serve(self, listening: dict[str, socket.socket], ready: Callable[[], None]) -> None:
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        async with self.served(listening.values()):
            urls = ", ".join(f"http://{where}{self._path}" for where in listening)
            print(f"{self.name} listening on {urls}", file=sys.stderr, flush=True)
            ready()
            await stop.wait()

    @asynccontextmanager
    async def served(self, sockets: Iterable[socket.socket]) -> AsyncIterator[None]:
        """Serve on listening sockets during the block."""
        runner = PortRunner(
            self.app,
            self.say,
            shutdown_timeout=_LAST_REQUESTS,
            handler_cancellation=True,  # a client that left needs no reply, and its memory is free
        )
        await runner.setup()
        try:
            for listener in sockets:
                await PortSite(runner, listener).start()
            yield
        finally:
            await runner.cleanup()

    @web.middleware
    async def _errors_as_json(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if is_compressed(request.headers.get("Content-Encoding", "")):
            return error_reply(415, "Content-Encoding: send the body without compression")
        try:
            return await handler(request)
        except web.HTTPException as refusal:
            return reply_to_error(refusal, f"; POST to {self._path}")


def _listening_somewhere(hosts: Sequence[str], port: int) -> dict[str, socket.socket]:
    """Listen on these hosts; a port that was free on one and taken on another is chosen anew."""
    for _ in range(_CHOICES if port == 0 else 0):
        with suppress(OSError):
            return listening_on(hosts, port)
    return listening_on(hosts, port)


def listening_on(hosts: Sequence[str], port: int) -> dict[str, socket.socket]:
    """Listen on every address of these hosts, by `HOST:PORT`; port 0 is any, the same for all."""
    sockets: dict[str, socket.socket] = {}
    with ExitStack() as until_all:
        for host in hosts:
            for family, _, _, _, address in socket.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            ):
                listener = until_all.enter_context(socket.socket(family, socket.SOCK_STREAM))
                _listen(listener, (address[0], port, *address[2:]))
                port = port or listener.getsockname()[1]
                where = f"[{address[0]}]" if family == socket.AF_INET6 else address[0]
                sockets[f"{where}:{port}"] = listener
        until_all.pop_all()
    return sockets


def _listen(listener: socket.socket, address: tuple[object, ...]) -> None:
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if listener.family == socket.AF_INET6:
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    listener.setblocking(False)  # noqa: FBT003 - the socket module's own signature
    listener.bind(address)
    listener.listen(BACKLOG)
