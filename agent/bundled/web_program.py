"""What the bundled servers share: listening, stopping, and errors as JSON."""

from __future__ import annotations

import asyncio
import errno
import logging
import signal
import socket
import sys
from typing import TYPE_CHECKING

from aiohttp import web
from aiohttp.http import HttpProcessingError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Awaitable, Callable, Sequence

    from aiohttp.typedefs import Middleware

    Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

SETTINGS_WRONG = 78
_LAST_REQUESTS_SECONDS = 3.0


class ServerSetupError(Exception):
    """Why the server cannot listen, and the remedy."""


class BadRequestError(Exception):
    """An error in a request, naming the field."""


def error(status: int, message: str, headers: dict[str, str] | None = None) -> web.Response:
    """Return an error as JSON."""
    return web.json_response({"error": message}, status=status, headers=headers)


def errors_as_json(path: str, max_body: int) -> Middleware:
    """Return a middleware that returns aiohttp's own errors as JSON."""

    @web.middleware
    async def answer(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.headers.get("Content-Encoding", "").strip().lower() not in {"", "identity"}:
            return error(415, "Content-Encoding: send the body without compression")
        try:
            return await handler(request)
        except web.HTTPNotFound:
            return error(404, f"no such path: {request.path}; POST to {path}")
        except web.HTTPMethodNotAllowed as refusal:
            allowed = ", ".join(sorted(refusal.allowed_methods))
            message = f"{request.path} takes {allowed}, not {request.method}"
            return error(405, message, {"Allow": allowed})
        except web.HTTPRequestEntityTooLarge:
            message = f"body: larger than {max_body} bytes; send smaller batches or set --max-body"
            return error(413, message)

    return answer


def app_of(path: str, max_body: int, answer: Handler) -> web.Application:
    """Build an application: one path for requests and one for health."""
    app = web.Application(client_max_size=max_body, middlewares=[errors_as_json(path, max_body)])
    app.router.add_post(path, answer)
    app.router.add_get("/healthz", healthz)
    return app


def add_place(parser: argparse.ArgumentParser, port: int, path: str, mib: int) -> None:
    """Add the arguments for listening and limits."""
    add = parser.add_argument
    add("--host", action="append", metavar="HOST[,HOST]", help="where to listen (127.0.0.1)")
    add("--port", type=int, default=port, help="0 for any free one (%(default)s)")
    add("--path", default=path, help="what to POST to (%(default)s)")
    add("--max-body", type=int, default=mib << 20, help=f"bytes of a request ({mib} MiB)")


def check_place(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Check the arguments, exit with 2 on error; split the hosts."""
    if not options.path.startswith("/") or options.path == "/healthz" or "{" in options.path:
        usual = parser.get_default("path")
        parser.error(f"--path: expected a path like {usual}, got {options.path!r}")
    if not 0 <= options.port < 65536 or options.max_body < 1:
        parser.error("--port: expected 0 to 65535; --max-body: expected at least 1")
    options.hosts = hosts_of(options.host)


async def healthz(_request: web.Request) -> web.Response:
    """Report that the server runs."""
    return web.json_response({"ok": True})


def kind_of(value: object) -> str:
    """Return the name of a JSON value's type."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else "a boolean"
    if isinstance(value, (int, float)):
        return "a number"
    if isinstance(value, str):
        return "a string"
    return "a list" if isinstance(value, list) else "an object"


def hosts_of(given: Sequence[str] | None) -> list[str]:
    """Return the hosts to listen on, from lists such as `10.0.0.4,127.0.0.1`."""
    hosts = [h.strip() for one in given or ["127.0.0.1"] for h in one.split(",")]
    anywhere = "0.0.0.0"  # noqa: S104 # compared with, not chosen
    if anywhere in hosts:  # it holds every other IPv4 address, which could not be bound again
        hosts = [anywhere, *(host for host in hosts if ":" in host)]
    return list(dict.fromkeys(host for host in hosts if host))


def run(name: str, app: web.Application, hosts: Sequence[str], port: int, path: str) -> int:
    """Serve until SIGTERM: 0 then, 78 if it cannot listen."""
    logging.getLogger("aiohttp.server").addFilter(_is_our_fault)
    try:
        asyncio.run(_serve(name, app, hosts, port, path))
    except ServerSetupError as problem:
        print(f"{name}: {problem}", file=sys.stderr)
        return SETTINGS_WRONG
    return 0


async def _serve(
    name: str, app: web.Application, hosts: Sequence[str], port: int, path: str
) -> None:
    """Listen on every host until SIGTERM or SIGINT, then finish open requests."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    runner = web.AppRunner(
        app,
        access_log=None,
        shutdown_timeout=_LAST_REQUESTS_SECONDS,
        auto_decompress=False,  # a small body would take any amount of memory
    )
    await runner.setup()
    try:
        urls = []
        for host in hosts:
            try:
                await web.TCPSite(runner, host, port).start()
            except OSError as problem:
                raise ServerSetupError(_why_not(problem, host, port)) from None
            port = port or runner.addresses[-1][1]  # 0: any free one, but the same everywhere
            urls.append(f"http://{f'[{host}]' if ':' in host else host}:{port}{path}")
        print(f"{name} listening on {', '.join(urls)}", file=sys.stderr, flush=True)
        await stop.wait()
    finally:
        await runner.cleanup()


def _why_not(problem: OSError, host: str, port: int) -> str:
    if problem.errno == errno.EADDRINUSE:
        return (
            f"port {port} on {host} is taken: end what listens there "
            f"(`ss -ltnp 'sport = :{port}'` names it), or choose another with --port"
        )
    # Python 3.13's asyncio skips addresses that are not there; left with none, it gives no number
    if problem.errno in {errno.EADDRNOTAVAIL, None} or isinstance(problem, socket.gaierror):
        return f"{host} is no address of this machine: give one that it owns with --host"
    if problem.errno == errno.EACCES:
        return f"port {port} needs root: choose one from 1024 on with --port"
    return f"cannot listen on {host}:{port}: {problem}"


def _is_our_fault(record: logging.LogRecord) -> bool:
    """Return whether an error is a bug, and not a disconnect or invalid HTTP of a peer."""
    problem = record.exc_info[1] if record.exc_info else None
    return not isinstance(problem, (HttpProcessingError, ConnectionError))
