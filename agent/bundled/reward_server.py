"""The bundled reward server: scores answers to mathematical questions over HTTP.

Where math-verify is installed it is asked about answers that our own comparison finds unequal. A
pair on which it spends more than its CPU time earns 0 and is marked in `undecided` (of
`extra_logs`, or beside the rewards with --flat): a list as long as the rewards, 1.0 for such an
item. A batch that cannot be scored within --limit, or whose scorers die again and again, is
answered 503 with Retry-After, never with rewards that depend on the load; what was decided by then
is remembered, so that the retry is quicker.
"""

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
from agent.bundled.second_opinion import NoVerdictError, SecondOpinion, Verdict

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_SETTINGS_WRONG = 78
# Small enough that requests take turns, and that a stop need not wait for a huge batch.
_CHUNK = 256
_LAST_REQUESTS_SECONDS = 3.0
# Clients wait for 180 s (OpenRLHF 0.5 to 0.9, five times): they must hear that they should retry.
_REQUEST_SECONDS = 120.0
_RETRY_AFTER = 2


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


class Scored(NamedTuple):
    """What one item earned, and whether that is for want of a verdict."""

    grade: maths.Grade
    undecided: bool = False


class Scorer:
    """Scores batches off the event loop, chunk by chunk."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._threads = ThreadPoolExecutor(max_workers=2, thread_name_prefix="score")
        self._opinion = SecondOpinion()

    @property
    def has_second_opinion(self) -> bool:
        """Tell whether math-verify is installed, so that items may be undecided."""
        return self._opinion.installed

    async def read(self, body: bytes) -> list[Item]:
        """Parse and check a body."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, read_batch, body)

    async def score(self, batch: list[Item]) -> list[Scored]:
        """Grade every item of a batch, in order; raises NoVerdictError where time does not do."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._seconds
        scored: list[Scored] = []
        doubts: dict[int, tuple[str, str]] = {}
        for start in range(0, len(batch), _CHUNK):
            if loop.time() > deadline:
                raise NoVerdictError(f"{start} of {len(batch)} done within {self._seconds:.0f} s")
            chunk = batch[start : start + _CHUNK]
            grades, open_ones = await loop.run_in_executor(self._threads, _grades, chunk)
            scored += map(Scored, grades)
            doubts |= {start + index: pair for index, pair in open_ones.items()}
        if doubts and self._opinion.installed:
            verdicts = await self._opinion.decide(doubts.values(), deadline - loop.time())
            for index, pair in doubts.items():
                grade, verdict = scored[index].grade, verdicts[pair]
                if verdict is Verdict.EQUAL:
                    grade = grade._replace(reward=1.0)
                scored[index] = Scored(grade, verdict is Verdict.UNDECIDED)
        return scored

    async def give_up(self, _app: web.Application) -> None:
        """Let go of math-verify's processes; who waits for them is told to ask again."""
        await self._opinion.close()

    async def close(self, _app: web.Application) -> None:
        """Let go of the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _grades(batch: list[Item]) -> tuple[list[maths.Grade], dict[int, tuple[str, str]]]:
    """Grade a chunk; name the pairs of which a symbolic comparison might think better."""
    grades = [maths.grade(*item) for item in batch]
    doubts = {
        index: (answer or "", gold or "")
        for index, (reward, answer, gold) in enumerate(grades)
        if not reward and maths.worth_a_second_look(answer, gold)
    }
    return grades, doubts


def reply_to(scored: Sequence[Scored], *, flat: bool, undecided: bool) -> dict[str, Any]:
    """Shape the reply; flat has only lists, for clients that turn every key into a tensor."""
    rewards = [item.grade.reward for item in scored]
    logs = {
        "correct": rewards,
        "answered": [float(item.grade.answer is not None) for item in scored],
        "unlabelled": [float(item.grade.gold is None) for item in scored],
    }
    if undecided:
        logs["undecided"] = [float(item.undecided) for item in scored]
    return {"rewards": rewards, "scores": rewards, **(logs if flat else {"extra_logs": logs})}


def make_app(path: str, max_body: int, limit: float, *, flat: bool = False) -> web.Application:
    """Build the application: one path that scores, one that tells that it lives."""
    scorer = Scorer(limit)

    async def score(request: web.Request) -> web.Response:
        try:
            batch = await scorer.read(await request.read())
        except BadRequestError as problem:
            return _error(400, str(problem))
        try:
            scored = await scorer.score(batch)
        except NoVerdictError as problem:
            message = f"no rewards yet, ask again: {problem}"
            return _error(503, message, {"Retry-After": str(_RETRY_AFTER)})
        return web.json_response(reply_to(scored, flat=flat, undecided=scorer.has_second_opinion))

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
    app.on_shutdown.append(scorer.give_up)
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
        prog="pod-agent reward-server",
        description="Score mathematical answers over HTTP.",
        epilog="Where math-verify is installed, `undecided` of the reply's extra_logs is 1 for an "
        "answer on which it spent too much CPU time; that one earns 0.",
    )
    add = parser.add_argument
    limited = "seconds for a batch, then 503 with Retry-After (%(default)g)"
    add("--host", action="append", metavar="HOST[,HOST]", help="where to listen (127.0.0.1)")
    add("--port", type=int, default=5000, help="0 for any free one (%(default)s)")
    add("--path", default="/get_reward", help="what to POST to (%(default)s)")
    add("--max-body", type=int, default=64 << 20, help="bytes of a request (64 MiB)")
    add("--limit", type=float, default=_REQUEST_SECONDS, help=limited)
    add("--flat", action="store_true", help="lists only, no extra_logs object (OpenRLHF-M)")
    options = parser.parse_args(argv)
    if not options.path.startswith("/") or options.path == "/healthz" or "{" in options.path:
        parser.error(f"--path: expected a path like /get_reward, got {options.path!r}")
    if not 0 <= options.port < 65536 or options.max_body < 1:
        parser.error("--port: expected 0 to 65535; --max-body: expected at least 1")
    if not 0 < options.limit < math.inf:
        parser.error("--limit: expected seconds, more than 0")
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
    app = make_app(options.path, options.max_body, options.limit, flat=options.flat)
    try:
        asyncio.run(serve(app, options.hosts, options.port, options.path))
    except SetupError as problem:
        print(f"reward server: {problem}", file=sys.stderr)
        return _SETTINGS_WRONG
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
