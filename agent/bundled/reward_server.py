"""The bundled reward server: scores answers to mathematical questions over HTTP."""

from __future__ import annotations

import argparse
import asyncio
import errno
import json
import logging
import math
import signal
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

from aiohttp import web
from aiohttp.http import HttpProcessingError

from agent.bundled import maths
from agent.bundled.second_opinion import SecondOpinion

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_SETTINGS_WRONG = 78
# Small enough that requests take turns, and that a stop need not wait for a huge batch.
_CHUNK = 256
_SECOND_OPINIONS_SECONDS = 30.0
_LAST_REQUESTS_SECONDS = 3.0


class BadRequestError(Exception):
    """What is wrong with a request, naming the field."""


class SetupError(Exception):
    """Why the server cannot listen, and the remedy."""


class Item(NamedTuple):
    """One text to score, with its prompt and its label where the request has them."""

    query: str
    prompt: str | None
    label: str | float | None


def read_batch(body: bytes) -> list[Item]:
    """Check a request's body, or say what is wrong with which field."""
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError) as problem:
        raise BadRequestError(f"body: not JSON ({problem})") from None
    if not isinstance(fields, dict):
        raise BadRequestError(f"body: expected an object with `query`, got {_kind(fields)}")
    if fields.get("query") is None:
        raise BadRequestError("query: missing; expected a list of strings")
    query = _items(fields, "query", (str,), "a string")
    prompts = _items(fields, "prompts", (str,), "a string", len(query))
    label = (str, int, float, type(None))
    labels = _items(fields, "labels", label, "a string, a finite number or null", len(query))
    return [Item(*item) for item in zip(query, prompts, labels, strict=True)]


def _items(
    fields: dict[str, Any], name: str, kinds: tuple[type, ...], expected: str, size: int = 0
) -> list[Any]:
    items = fields.get(name)
    if items is None:
        return [None] * size
    if not isinstance(items, list):
        raise BadRequestError(f"{name}: expected a list, got {_kind(items)}")
    if name != "query" and len(items) != size:
        raise BadRequestError(f"{name}: has {len(items)} items where query has {size}")
    for index, item in enumerate(items):
        if isinstance(item, bool) or not isinstance(item, kinds) or _is_endless(item):
            raise BadRequestError(f"{name}[{index}]: expected {expected}, got {_kind(item)}")
    return items


def _is_endless(value: object) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _kind(value: object) -> str:
    if _is_endless(value):
        return "NaN or Infinity"
    if value is None or isinstance(value, bool):
        return "null" if value is None else "a boolean"
    if isinstance(value, (int, float)):
        return "a number"
    if isinstance(value, str):
        return "a string"
    return "a list" if isinstance(value, list) else "an object"


class Scorer:
    """Scores batches off the event loop, chunk by chunk."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(max_workers=2, thread_name_prefix="score")
        self._opinion = SecondOpinion()

    async def read(self, body: bytes) -> list[Item]:
        """Parse and check a body."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, read_batch, body)

    async def score(self, batch: list[Item]) -> list[maths.Grade]:
        """Grade every item of a batch, in order."""
        loop = asyncio.get_running_loop()
        grades: list[maths.Grade] = []
        for start in range(0, len(batch), _CHUNK):
            chunk = batch[start : start + _CHUNK]
            grades += await loop.run_in_executor(self._threads, _grades, chunk)
        if self._opinion.available:
            await self._look_again(grades)
        return grades

    async def _look_again(self, grades: list[maths.Grade]) -> None:
        """Let math-verify find what our own comparison missed, within a budget of time."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _SECOND_OPINIONS_SECONDS
        for index, (reward, answer, gold) in enumerate(grades):
            if reward or not maths.worth_a_second_look(answer, gold):
                continue
            if loop.time() > deadline or not self._opinion.available:
                break
            if await self._opinion.agrees(answer or "", gold or ""):
                grades[index] = maths.Grade(1.0, answer, gold)

    async def close(self, _app: web.Application) -> None:
        """Let go of the threads and of math-verify's process."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        await self._opinion.close()


def _grades(batch: list[Item]) -> list[maths.Grade]:
    return [maths.grade(*item) for item in batch]


def reply_to(grades: Sequence[maths.Grade], *, flat: bool) -> dict[str, Any]:
    """Shape the reply; flat has only lists, for clients that turn every key into a tensor."""
    rewards = [grade.reward for grade in grades]
    logs = {
        "correct": rewards,
        "answered": [float(grade.answer is not None) for grade in grades],
        "unlabelled": [float(grade.gold is None) for grade in grades],
    }
    return {"rewards": rewards, "scores": rewards, **(logs if flat else {"extra_logs": logs})}


def make_app(path: str, max_body: int, *, flat: bool = False) -> web.Application:
    """Build the application: one path that scores, one that tells that it lives."""
    scorer = Scorer()

    async def score(request: web.Request) -> web.Response:
        try:
            batch = await scorer.read(await request.read())
        except BadRequestError as problem:
            return _error(400, str(problem))
        return web.json_response(reply_to(await scorer.score(batch), flat=flat))

    async def healthz(_request: web.Request) -> web.Response:
        return web.json_response({"ok": True})

    @web.middleware
    async def errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except web.HTTPNotFound:
            return _error(404, f"no such path: {request.path}; POST to {path}")
        except web.HTTPMethodNotAllowed as refusal:
            allowed = ", ".join(sorted(refusal.allowed_methods))
            message = f"{request.path} takes {allowed}, not {request.method}"
            return _error(405, message, {"Allow": allowed})
        except web.HTTPRequestEntityTooLarge:
            message = f"body: larger than {max_body} bytes; send smaller batches or set --max-body"
            return _error(413, message)

    app = web.Application(client_max_size=max_body, middlewares=[errors_as_json])
    app.router.add_post(path, score)
    app.router.add_get("/healthz", healthz)
    app.on_cleanup.append(scorer.close)
    return app


def _error(status: int, message: str, headers: dict[str, str] | None = None) -> web.Response:
    return web.json_response({"error": message}, status=status, headers=headers)


async def serve(app: web.Application, hosts: Sequence[str], port: int, path: str) -> None:
    """Listen on every host until SIGTERM or SIGINT, then finish what was begun."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=_LAST_REQUESTS_SECONDS)
    await runner.setup()
    try:
        urls = []
        for host in hosts:
            try:
                await web.TCPSite(runner, host, port).start()
            except OSError as problem:
                raise SetupError(_why_not(problem, host, port)) from None
            port = port or runner.addresses[-1][1]  # 0: any free one, but the same everywhere
            urls.append(f"http://{f'[{host}]' if ':' in host else host}:{port}{path}")
        print(f"reward server listening on {', '.join(urls)}", file=sys.stderr, flush=True)
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


def _arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="pod-agent reward-server", description="Score mathematical answers over HTTP."
    )
    add = parser.add_argument
    add("--host", action="append", metavar="HOST[,HOST]", help="where to listen (127.0.0.1)")
    add("--port", type=int, default=5000, help="0 for any free one (%(default)s)")
    add("--path", default="/get_reward", help="what to POST to (%(default)s)")
    add("--max-body", type=int, default=64 << 20, help="bytes of a request (64 MiB)")
    add("--flat", action="store_true", help="lists only, no extra_logs object (OpenRLHF-M)")
    options = parser.parse_args(argv)
    if not options.path.startswith("/") or options.path == "/healthz" or "{" in options.path:
        parser.error(f"--path: expected a path like /get_reward, got {options.path!r}")
    if not 0 <= options.port < 65536 or options.max_body < 1:
        parser.error("--port: expected 0 to 65535; --max-body: expected at least 1")
    hosts = [h.strip() for given in options.host or ["127.0.0.1"] for h in given.split(",")]
    anywhere = "0.0.0.0"  # noqa: S104 # compared with, not chosen
    if anywhere in hosts:  # it holds every other IPv4 address, which could not be bound again
        hosts = [anywhere, *(host for host in hosts if ":" in host)]
    options.hosts = list(dict.fromkeys(host for host in hosts if host))
    return options


def _is_our_fault(record: logging.LogRecord) -> bool:
    """Tell a bug, which deserves its traceback, from a peer that talks no HTTP or is gone."""
    problem = record.exc_info[1] if record.exc_info else None
    return not isinstance(problem, (HttpProcessingError, ConnectionError))


def main(argv: list[str]) -> int:
    """Serve until told to stop: 0 then, 2 for a wrong flag, 78 where it cannot listen."""
    try:
        options = _arguments(argv)
    except SystemExit as end:
        return int(end.code or 0)
    logging.getLogger("aiohttp.server").addFilter(_is_our_fault)
    app = make_app(options.path, options.max_body, flat=options.flat)
    try:
        asyncio.run(serve(app, options.hosts, options.port, options.path))
    except SetupError as problem:
        print(f"reward server: {problem}", file=sys.stderr)
        return _SETTINGS_WRONG
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
