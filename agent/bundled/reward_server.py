"""The bundled reward server: scores answers to mathematical questions over HTTP.

Requests and replies:

- `{"query": […], "prompts": […], "labels": […]}` gets `rewards`, `scores` and `extra_logs`, as
  OpenRLHF reads them; with `--dialect openrlhf-m` `rewards`, `format_rewards` and `acc_rewards`
- `{"prompt": …, "response": …, "label": …}`, as slime and miles send it, gets the bare number

OpenRLHF-M turns every key of a reply into a tensor: each is a list of numbers there.

Numbers and texts are compared here, expressions by math-verify if it is installed. A pair that
needs more than its CPU time scores 0 and is marked in `undecided` (of `extra_logs`, or beside the
rewards for OpenRLHF-M): a list as long as the rewards, 1.0 for such an item. A batch that cannot be
scored within --limit, or whose processes crash repeatedly, gets a 503 with Retry-After, never
rewards that depend on the load; verdicts so far are remembered for the retry.
"""

from __future__ import annotations

import argparse
import asyncio
import errno
import hmac
import json
import logging
import math
import os
import signal
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from aiohttp import web
from aiohttp.http import HttpProcessingError

from agent.bundled import maths
from agent.bundled.math_verify_pool import MathVerifyPool, NoVerdictError, Verdict, is_installed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiohttp.typedefs import Handler

_SETTINGS_WRONG = 78
# Small enough that requests take turns, and that a stop need not wait for a huge batch.
_CHUNK = 256
# Clients wait for 180 s (OpenRLHF 0.5 to 0.9, five times): they need a 503 before that to retry.
_REQUEST_SECONDS = 120.0
_LAST_REQUESTS_SECONDS = 3.0
_RETRY_AFTER = 2
_MAX_BODY = 64 << 20
_Kinds = tuple[str, tuple[type, ...]]
_TEXT: _Kinds = ("a string", (str,))
_LABEL: _Kinds = ("a string, a finite number or null", (str, int, float, type(None)))
WITHOUT_MATH_VERIFY = (
    "math-verify is not installed: numbers are compared by value, expressions, sets and intervals "
    "as text; `pip install math-verify` compares them too"
)
OPENRLHF, OPENRLHF_M = "openrlhf", "openrlhf-m"


class ServerSetupError(Exception):
    """Why the server cannot listen, and the remedy."""


class BadRequestError(Exception):
    """An error in a request, naming the field."""


ScoredItem = tuple[str, "str | None", "str | float | None"]
"""A text to score, with its prompt and label if the request has them."""


def read_request(body: bytes) -> tuple[list[ScoredItem], bool]:
    """Return the texts of a body, and whether the reply is one number; or raise BadRequestError."""
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError) as problem:
        raise BadRequestError(f"body: not JSON ({problem})") from None
    if not isinstance(fields, dict):
        raise BadRequestError(f"body: expected an object with `query`, got {_kind(fields)}")
    if fields.get("query") is None and fields.get("response") is not None:
        # One sample in the format of slime and miles; its prompt may be a list of messages.
        prompt, label = fields.get("prompt"), fields.get("label")
        _check("response", fields["response"], _TEXT)
        _check("label", label, _LABEL)
        known = prompt if isinstance(prompt, str) else None
        return [(fields["response"], known, label)], True
    if fields.get("query") is None:
        raise BadRequestError("query: missing; expected a list of strings")
    query = _items(fields, "query", _TEXT)
    prompts = _items(fields, "prompts", _TEXT, len(query))
    labels = _items(fields, "labels", _LABEL, len(query))
    return list(zip(query, prompts, labels, strict=True)), False


def _items(fields: dict[str, Any], name: str, kinds: _Kinds, size: int | None = None) -> list[Any]:
    items = fields.get(name)
    if items is None:
        return [None] * (size or 0)
    if not isinstance(items, list):
        raise BadRequestError(f"{name}: expected a list, got {_kind(items)}")
    if size is not None and len(items) != size:
        raise BadRequestError(f"{name}: has {len(items)} items where query has {size}")
    for index, item in enumerate(items):
        _check(f"{name}[{index}]", item, kinds)
    return items


def _check(name: str, item: object, kinds: _Kinds) -> None:
    expected, types = kinds
    if isinstance(item, bool) or not isinstance(item, types) or _is_endless(item):
        raise BadRequestError(f"{name}: expected {expected}, got {_kind(item)}")


def _is_endless(value: object) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _kind(value: object) -> str:
    """Return the name of a JSON value's type."""
    if _is_endless(value):
        return "NaN or Infinity"
    names = {bool: "a boolean", str: "a string", list: "a list", dict: "an object"}
    return "null" if value is None else names.get(type(value), "a number")


class Scorer:
    """Scores batches off the event loop, chunk by chunk."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._threads = ThreadPoolExecutor(max_workers=2, thread_name_prefix="score")
        self.pool = MathVerifyPool()

    async def read(self, body: bytes) -> tuple[list[ScoredItem], bool]:
        """Parse a body, as `read_request` does."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, read_request, body)

    async def score(self, batch: list[ScoredItem]) -> tuple[list[maths.Grade], set[int]]:
        """Return grades in order, and what is undecided; raise NoVerdictError if time runs out."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._seconds
        scored: list[maths.Grade] = []
        undecided: set[int] = set()
        pairs: dict[int, tuple[str, str]] = {}
        for start in range(0, len(batch), _CHUNK):
            if loop.time() > deadline:
                raise NoVerdictError(f"{start} of {len(batch)} done within {self._seconds:.0f} s")
            chunk = batch[start : start + _CHUNK]
            grades = await loop.run_in_executor(self._threads, _grades, chunk)
            for grade, is_open in grades:
                if is_open:
                    pairs[len(scored)] = (grade.answer or "", grade.gold or "")
                scored.append(grade)
        if pairs and self.pool.installed:
            verdicts = await self.pool.decide(pairs.values(), deadline - loop.time())
            for index, pair in pairs.items():
                if verdicts[pair] is Verdict.EQUAL:
                    scored[index] = scored[index]._replace(reward=1.0)
                elif verdicts[pair] is Verdict.UNDECIDED:
                    undecided.add(index)
        return scored, undecided

    async def close_pool(self, _app: web.Application) -> None:
        """End math-verify's processes; pending requests get a 503."""
        await self.pool.close()

    async def close(self, _app: web.Application) -> None:
        """End the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _grades(batch: list[ScoredItem]) -> list[tuple[maths.Grade, bool]]:
    """Score a chunk; return too which pairs math-verify should compare."""
    grades = [maths.grade(*item) for item in batch]
    return [(one, not one.reward and maths.is_open(one.answer, one.gold)) for one in grades]


def reply_to(
    scored: Sequence[maths.Grade], dialect: str, undecided: set[int] | None
) -> dict[str, Any]:
    """Build the reply to a batch; `undecided` is None without math-verify."""
    rewards = [one.reward for one in scored]
    answered = [float(one.answer is not None) for one in scored]
    marks: dict[str, list[float]] = {}
    if undecided is not None:
        marks = {"undecided": [float(index in undecided) for index in range(len(scored))]}
    if dialect == OPENRLHF_M:
        return {"rewards": rewards, "format_rewards": answered, "acc_rewards": rewards, **marks}
    unlabeled = [float(one.gold is None) for one in scored]
    logs = {"correct": rewards, "answered": answered, "unlabelled": unlabeled, **marks}
    return {"rewards": rewards, "scores": rewards, "extra_logs": logs}


def make_app(
    path: str, max_body: int, limit: float, dialect: str = OPENRLHF, token: str = ""
) -> web.Application:
    """Build the application: a path for scoring, with the token if any, and one for health."""
    scorer = Scorer(limit)

    async def score(request: web.Request) -> web.Response:
        kind, _, given = request.headers.get("Authorization", "").partition(" ")
        known = hmac.compare_digest(given.strip().encode(errors="replace"), token.encode())
        if token and (kind.lower() != "bearer" or not known):
            return error(401, "Authorization: expected `Bearer` and AGENT_REWARD_TOKEN")
        try:
            items, is_single = await scorer.read(await request.read())
            scored, undecided = await scorer.score(items)
        except BadRequestError as problem:
            return error(400, str(problem))
        except NoVerdictError as problem:
            message = f"no rewards yet, retry: {problem}"
            return error(503, message, {"Retry-After": str(_RETRY_AFTER)})
        if is_single:
            return web.json_response(scored[0].reward)
        marked = undecided if scorer.pool.installed else None
        return web.json_response(reply_to(scored, dialect, marked))

    async def healthz(_request: web.Request) -> web.Response:
        return web.json_response({"ok": True})

    @web.middleware
    async def errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
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

    app = web.Application(client_max_size=max_body, middlewares=[errors_as_json])
    app.router.add_post(path, score)
    app.router.add_get("/healthz", healthz)
    app.on_shutdown.append(scorer.close_pool)
    app.on_cleanup.append(scorer.close)
    return app


def error(status: int, message: str, headers: dict[str, str] | None = None) -> web.Response:
    """Return an error as JSON."""
    return web.json_response({"error": message}, status=status, headers=headers)


async def _serve(app: web.Application, hosts: Sequence[str], port: int, path: str) -> None:
    """Listen on every host until SIGTERM or SIGINT, then finish open requests."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    limit = _LAST_REQUESTS_SECONDS
    # Decompressed, a small body would take any amount of memory.
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=limit, auto_decompress=False)
    await runner.setup()
    try:
        urls = []
        for host in hosts:
            try:
                await web.TCPSite(runner, host, port).start()
            except OSError as problem:
                raise ServerSetupError(_cannot_listen(problem, host, port)) from None
            port = port or runner.addresses[-1][1]  # 0: any free one, but the same everywhere
            urls.append(f"http://{f'[{host}]' if ':' in host else host}:{port}{path}")
        print(f"reward server listening on {', '.join(urls)}", file=sys.stderr, flush=True)
        if not is_installed():
            print(f"reward server: {WITHOUT_MATH_VERIFY}", file=sys.stderr, flush=True)
        await stop.wait()
    finally:
        await runner.cleanup()


def _cannot_listen(problem: OSError, host: str, port: int) -> str:
    if problem.errno == errno.EADDRINUSE:
        end = f"end the program that listens there (`ss -ltnp 'sport = :{port}'` names it)"
        return f"port {port} on {host} is taken: {end}, or choose another with --port"
    # Python 3.13's asyncio skips addresses that do not exist; with none left, errno is None
    if problem.errno in {errno.EADDRNOTAVAIL, None} or isinstance(problem, socket.gaierror):
        return f"{host} is no address of this machine: give one that it owns with --host"
    return f"cannot listen on {host}:{port}: {problem}"


def _is_server_error(record: logging.LogRecord) -> bool:
    """Return whether an error is a bug, and not a disconnect or invalid HTTP of a client."""
    problem = record.exc_info[1] if record.exc_info else None
    return not isinstance(problem, (HttpProcessingError, ConnectionError))


def hosts_of(given: Sequence[str] | None) -> list[str]:
    """Return the hosts to listen on, from lists such as `10.0.0.4,127.0.0.1`."""
    hosts = [h.strip() for one in given or ["127.0.0.1"] for h in one.split(",")]
    anywhere = "0.0.0.0"  # noqa: S104 # compared with, not chosen
    if anywhere in hosts:  # it includes every other IPv4 address, which could not be bound again
        hosts = [anywhere, *(host for host in hosts if ":" in host)]
    return list(dict.fromkeys(host for host in hosts if host))


def _arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="pod-agent reward-server",
        description="Score mathematical answers over HTTP.",
        epilog="Numbers and texts are compared by value. With math-verify installed, so are "
        "expressions, sets and intervals; `undecided` of the reply's extra_logs is 1 for an answer "
        "that takes it too much CPU time and scores 0. Where AGENT_REWARD_TOKEN is set, "
        "requests need it as `Authorization: Bearer`.",
    )
    add = parser.add_argument
    add("--host", action="append", metavar="HOST[,HOST]", help="where to listen (127.0.0.1)")
    add("--port", type=int, default=5000, help="0 for any free one (%(default)s)")
    add("--path", default="/get_reward", help="path of the requests (%(default)s)")
    add("--max-body", type=int, default=_MAX_BODY, help="bytes of a request (64 MiB)")
    limit = "seconds for a batch, then 503 with Retry-After (%(default)g)"
    add("--limit", type=float, default=_REQUEST_SECONDS, help=limit)
    dialect = "the keys of a reply to a batch (%(default)s)"
    add("--dialect", choices=(OPENRLHF, OPENRLHF_M), default=OPENRLHF, help=dialect)
    options = parser.parse_args(argv)
    if not options.path.startswith("/") or options.path == "/healthz" or "{" in options.path:
        parser.error(f"--path: expected a path like /get_reward, got {options.path!r}")
    if not 0 <= options.port < 65536 or options.max_body < 1:
        parser.error("--port: expected 0 to 65535; --max-body: expected at least 1")
    if not 0 < options.limit < math.inf:
        parser.error("--limit: expected seconds, more than 0")
    return options


def main(argv: list[str]) -> int:
    """Serve until SIGTERM: 0 then, 2 for a wrong flag, 78 if it cannot listen."""
    try:
        options = _arguments(argv)
    except SystemExit as end:
        return int(end.code or 0)
    token = os.environ.get("AGENT_REWARD_TOKEN", "").strip()
    app = make_app(options.path, options.max_body, options.limit, options.dialect, token)
    logging.getLogger("aiohttp.server").addFilter(_is_server_error)
    try:
        asyncio.run(_serve(app, hosts_of(options.host), options.port, options.path))
    except ServerSetupError as problem:
        print(f"reward server: {problem}", file=sys.stderr)
        return _SETTINGS_WRONG
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
