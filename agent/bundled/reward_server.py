"""The bundled reward server: scores answers to mathematical questions over HTTP.

Requests and replies:

- `{"query": […], "prompts": […], "labels": […]}` gets `rewards`, `scores` and `extra_logs`, as
  OpenRLHF reads them; with `--dialect openrlhf-m` `rewards`, `format_rewards` and `acc_rewards`
- `{"prompt": …, "response": …, "label": …}`, as slime and miles send it, gets the bare number

OpenRLHF-M turns every key of a reply into a tensor: each is a list of numbers there.

Numbers and texts are compared here, expressions by math-verify if it is installed. A pair that
needs more than its CPU time scores 0. A batch that cannot be scored within --limit, or whose
processes crash repeatedly, gets a 503 with Retry-After, never rewards that depend on the load;
verdicts so far are remembered for the retry.
"""

from __future__ import annotations

import argparse
import asyncio
import hmac
import logging
import math
import os
import signal
import sys
from itertools import starmap
from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import web
from aiohttp.http import HttpProcessingError
from msgspec import Struct

from agent.bundled import maths
from agent.bundled.math_verify_pool import MathVerifyPool, NoVerdictError, is_installed, say

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
WITHOUT_MATH_VERIFY = (
    "math-verify is not installed: numbers are compared by value, expressions, sets, percentages "
    "and short units as text; `pip install math-verify` compares them too"
)
OPENRLHF, OPENRLHF_M = "openrlhf", "openrlhf-m"


class BadRequestError(Exception):
    """An error in a request, naming the field."""


ScoredItem = tuple[str, "str | None", "str | float | None"]
"""A text to score, with its prompt and label if the request has them."""


class _Request(Struct):
    """A batch, or one sample in the format of slime and miles, with its names in the singular."""

    query: list[str] | None = None
    prompts: list[str] | None = None
    labels: list[str | float | None] | None = None
    response: str | None = None
    prompt: Any = None  # A text, or a list of messages
    label: str | float | None = None


def read_request(body: bytes) -> tuple[list[ScoredItem], bool]:
    """Return the texts of a body, and whether the reply is one number; or raise BadRequestError."""
    try:
        asked = msgspec.json.decode(body, type=_Request)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as problem:
        raise BadRequestError(f"body: {problem}") from None
    if asked.query is None and asked.response is not None:
        prompt = asked.prompt if isinstance(asked.prompt, str) else None
        return [(asked.response, prompt, asked.label)], True
    if asked.query is None:
        raise BadRequestError("query: missing; expected a list of strings")
    size = len(asked.query)
    for name, items in (("prompts", asked.prompts), ("labels", asked.labels)):
        if items is not None and len(items) != size:
            raise BadRequestError(f"{name}: has {len(items)} items where query has {size}")
    nothing: list[None] = [None] * size
    prompts, labels = asked.prompts or nothing, asked.labels or nothing
    return list(zip(asked.query, prompts, labels, strict=True)), False


async def score(pool: MathVerifyPool, batch: list[ScoredItem]) -> list[maths.Grade]:
    """Return grades in order; math-verify compares what may be equal as expressions."""
    scored: list[maths.Grade] = []
    for start in range(0, len(batch), _CHUNK):
        grades = starmap(maths.grade, batch[start : start + _CHUNK])
        scored += await asyncio.to_thread(list, grades)
    verdicts = await pool.decide((one.answer, one.gold) for one in scored if one.is_open)
    return [
        one._replace(reward=1.0) if verdicts.get((one.answer, one.gold)) else one for one in scored
    ]


def reply_to(scored: Sequence[maths.Grade], dialect: str) -> dict[str, Any]:
    """Build the reply to a batch."""
    rewards = [one.reward for one in scored]
    answered = [float(one.answer is not None) for one in scored]
    if dialect == OPENRLHF_M:
        return {"rewards": rewards, "format_rewards": answered, "acc_rewards": rewards}
    unlabeled = [float(one.gold is None) for one in scored]
    logs = {"correct": rewards, "answered": answered, "unlabelled": unlabeled}
    return {"rewards": rewards, "scores": rewards, "extra_logs": logs}


def make_app(path: str, limit: float, dialect: str = OPENRLHF, token: str = "") -> web.Application:
    """Build the application: a path for scoring, with the token if any."""
    pool = MathVerifyPool()

    async def rewards(request: web.Request) -> web.Response:
        kind, _, given = request.headers.get("Authorization", "").partition(" ")
        known = hmac.compare_digest(given.strip().encode(errors="replace"), token.encode())
        if token and (kind.lower() != "bearer" or not known):
            return error(401, "Authorization: expected `Bearer` and AGENT_REWARD_TOKEN")
        try:
            items, is_single = await asyncio.to_thread(read_request, await request.read())
            scored = await asyncio.wait_for(score(pool, items), limit)
        except BadRequestError as problem:
            return error(400, str(problem))
        except (NoVerdictError, asyncio.TimeoutError) as problem:
            why = str(problem) or f"not all is scored within {limit:g} s"
            say(f"no rewards, the client has to retry: {why}")
            return error(503, f"no rewards yet, retry: {why}", {"Retry-After": str(_RETRY_AFTER)})
        if is_single:
            return web.json_response(scored[0].reward)
        return web.json_response(reply_to(scored, dialect))

    @web.middleware
    async def errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.headers.get("Content-Encoding", "").strip().lower() not in {"", "identity"}:
            return error(415, "Content-Encoding: send the body without compression")
        try:
            return await handler(request)
        except web.HTTPException as refusal:
            return error(refusal.status, f"{refusal.text}; POST to {path}")

    async def close(_app: web.Application) -> None:
        await pool.close()

    app = web.Application(client_max_size=_MAX_BODY, middlewares=[errors_as_json])
    app.router.add_post(path, rewards)
    app.on_shutdown.append(close)
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
            await web.TCPSite(runner, host, port).start()
            port = port or runner.addresses[-1][1]  # 0: any free one, but the same everywhere
            urls.append(f"http://{f'[{host}]' if ':' in host else host}:{port}{path}")
        print(f"reward server listening on {', '.join(urls)}", file=sys.stderr, flush=True)
        if not is_installed():
            say(WITHOUT_MATH_VERIFY)
        await stop.wait()
    finally:
        await runner.cleanup()


def _is_server_error(record: logging.LogRecord) -> bool:
    """Return whether an error is a bug, and not a disconnect or invalid HTTP of a client."""
    problem = record.exc_info[1] if record.exc_info else None
    return not isinstance(problem, (HttpProcessingError, ConnectionError))


def _arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="pod-agent reward-server",
        description="Score mathematical answers over HTTP.",
        epilog="Numbers and texts are compared by value. With math-verify installed, so are "
        "expressions, sets and intervals. Where AGENT_REWARD_TOKEN is set, requests need it as "
        "`Authorization: Bearer`.",
    )
    add = parser.add_argument
    hosts = "where to listen (%(default)s)"
    add("--host", default="127.0.0.1", metavar="HOST[,HOST]", help=hosts)
    add("--port", type=int, default=5000, help="0 for any free one (%(default)s)")
    add("--path", default="/get_reward", help="path of the requests (%(default)s)")
    limit = "seconds for a batch, then 503 with Retry-After (%(default)g)"
    add("--limit", type=float, default=_REQUEST_SECONDS, help=limit)
    dialect = "the keys of a reply to a batch (%(default)s)"
    add("--dialect", choices=(OPENRLHF, OPENRLHF_M), default=OPENRLHF, help=dialect)
    options = parser.parse_args(argv)
    if not options.path.startswith("/") or "{" in options.path:
        parser.error(f"--path: expected a path like /get_reward, got {options.path!r}")
    if not 0 <= options.port < 65536:
        parser.error("--port: expected 0 to 65535")
    if not 0 < options.limit < math.inf:
        parser.error("--limit: expected seconds, more than 0")
    return options


def main(argv: list[str]) -> int:
    """Serve until SIGTERM: 0 then, 2 for a wrong flag, 78 if it cannot listen."""
    options = _arguments(argv)
    token = os.environ.get("AGENT_REWARD_TOKEN", "").strip()
    app = make_app(options.path, options.limit, options.dialect, token)
    hosts = list(dict.fromkeys(options.host.split(",")))
    logging.getLogger("aiohttp.server").addFilter(_is_server_error)
    try:
        asyncio.run(_serve(app, hosts, options.port, options.path))
    except OSError as problem:
        where = f"cannot listen on {options.host}, port {options.port}"
        say(f"{where} ({problem}): choose others by --host and --port")
        return _SETTINGS_WRONG
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
