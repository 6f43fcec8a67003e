"""The bundled reward server: scores answers to mathematical questions over HTTP.

Requests and replies:

- `{"query": […], "prompts": […], "labels": […]}` gets `rewards`, `scores` and `extra_logs`, as
  OpenRLHF reads them; with `--dialect openrlhf-m` `rewards`, `format_rewards` and `acc_rewards`
- `{"prompt": …, "response": …, "label": …}`, as slime and miles send it, gets the bare number

OpenRLHF-M turns every key of a reply into a tensor: each is a list of numbers there.

With `--judge` models are asked for each grade (judge.py); the replies to batches keep their form.
While no judge answers, requests are held as long as their clients wait. The agent's probes, which
name the judges of a run, get the grade that they got before; without one a 503 with the reason, and
with a header that says that only the judge is late.

Numbers and texts are compared here, expressions by math-verify if it is installed. A pair that
needs more than its CPU time scores 0. A batch that cannot be scored within --limit, or whose
processes crash repeatedly, gets a 503 with Retry-After, never rewards that depend on the load;
verdicts so far are remembered for the retry.
"""

from __future__ import annotations

import argparse
import asyncio
import hmac
import math
import os
import sys
from itertools import starmap
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from msgspec import Struct

from agent.base.arguments import VerbParser
from agent.base.text import is_loopback, quota_key
from agent.bundled import maths
from agent.bundled.judge import KEY, GivenGrade, Judge, JudgeSpec, NoGradeError, ScoredItem
from agent.bundled.math_verify_pool import MathVerifyPool, NoVerdictError, is_installed, say
from agent.bundled.turns import Turns
from agent.serving.bodies import RETRY_AFTER, Bodies, Body, has_more_values
from agent.serving.connections import is_local, trust
from agent.serving.program import Program
from agent.serving.replies import error_reply, send

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aiohttp import web

T = TypeVar("T")

# Small enough that requests take turns, and that a stop need not wait for a huge batch.
_CHUNK = 256
# Clients wait for 180 s (OpenRLHF 0.5 to 0.9, five times): they need a 503 before that to retry.
_REQUEST_SECONDS = 120.0
_PROBE_SECONDS = 8.0  # of a probe for which there is no grade: the agent waits for 10 s
_MAX_BODY = 64 << 20
_MOST_MEMORY = 256 << 20  # of all requests together
_MOST_ITEMS = 1 << 18  # of one request
_MOST_VALUES = 6 * _MOST_ITEMS + 16  # in three lists, each a text and a comma, with their names
_ITEM_BYTES = 300  # of an item while it is graded, without its texts
_GRADE_BYTES = 100  # of a grade
_TEXT_BYTES = 60  # of a text, without its characters
WITHOUT_MATH_VERIFY = (
    "math-verify is not installed: numbers are compared by value, expressions, sets, percentages "
    "and short units as text; `pip install math-verify` compares them too"
)
OPENRLHF = "openrlhf"
OPENRLHF_M = "openrlhf-m"
NODES = "Run-Nodes"
"""The header of the agent's probes with the addresses of the run's nodes: they come first."""
JUDGES = "Run-Judges"
"""The header of the agent's probes with the judges' URLs as they are now; '': all are given up."""
PROBE_KEY = "Probe-Key"
"""The header by which a probe shows that it is the agent's, with what KEY_VARIABLE has."""
KEY_VARIABLE = "AGENT_FRONT_KEY"
_STRANGERS = "strangers"  # The client as which all others take turns
AWAITED = "Judge-Awaited"
"""The header of a 503 of a server that is well: only its judge is late."""
TOTALS = "Judge-Totals"
"""The header of each reply with what the judge was asked, and what it cost."""


class BadRequestError(Exception):
    """An error in a request, naming the field."""


class _Request(Struct):
    """A batch, or one sample in the format of slime and miles, with its names in the singular."""

    query: list[str] | None = None
    prompts: list[str] | None = None
    labels: list[str | float | None] | None = None
    response: str | None = None
    prompt: msgspec.Raw = msgspec.Raw(b"null")  # A text, or a list of messages
    label: str | float | None = None


# Made once: msgspec describes a type at its first use, and crashes if two threads do so at once.
_requests = msgspec.json.Decoder(_Request)


def read_request(body: bytes | bytearray) -> tuple[list[ScoredItem], bool]:
    """Return the texts of a body, and whether the reply is one number; or raise BadRequestError."""
    if has_more_values(body, _MOST_VALUES):
        raise BadRequestError(f"query: at most {_MOST_ITEMS} items in one request")
    try:
        asked = _requests.decode(body)
        prompt = _text_or_none(asked.prompt)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as problem:
        raise BadRequestError(f"body: {problem}") from None
    if asked.query is None and asked.response is not None:
        return [(asked.response, prompt, asked.label)], True
    if asked.query is None:
        raise BadRequestError("query: missing; expected a list of strings")
    size = len(asked.query)
    if size > _MOST_ITEMS:
        raise BadRequestError(f"query: has {size} items; at most {_MOST_ITEMS} in one request")
    for name, items in (("prompts", asked.prompts), ("labels", asked.labels)):
        if items is not None and len(items) != size:
            raise BadRequestError(f"{name}: has {len(items)} items where query has {size}")
    nothing: list[None] = [None] * size
    prompts = asked.prompts or nothing
    labels = asked.labels or nothing
    return list(zip(asked.query, prompts, labels, strict=True)), False


def memory_of(body: bytes | bytearray) -> int:
    """Return about the most memory that a body takes while it is read and graded."""
    per_byte = 1 if body.isascii() and rb"\u" not in body else 4  # one emoji widens a whole text
    return per_byte * len(body) + _ITEM_BYTES * (1 + body.count(b","))


def memory_of_items(items: list[ScoredItem]) -> int:
    """Return about the memory that items take while a judge is asked."""
    texts = (text for item in items for text in item if isinstance(text, str))
    return _ITEM_BYTES * len(items) + sum(map(sys.getsizeof, texts))


def memory_of_grades(graded: list[maths.Grade]) -> int:
    """Return about the memory that grades take."""
    texts = [text for grade in graded for text in (grade.answer, grade.gold) if text is not None]
    return _GRADE_BYTES * len(graded) + sum(_TEXT_BYTES + len(text) for text in texts)


def _text_or_none(raw: msgspec.Raw) -> str | None:
    """Return a text; a list of messages is not decoded, since its parts take much memory."""
    if bytes(memoryview(raw)[:1]) != b'"':
        return None
    return msgspec.json.decode(raw, type=str)


async def grade(batch: list[ScoredItem]) -> list[maths.Grade]:
    """Return grades in order, without math-verify."""
    graded: list[maths.Grade] = []
    for start in range(0, len(batch), _CHUNK):
        grades = starmap(maths.grade, batch[start : start + _CHUNK])
        graded += await in_thread(list, grades)
    return graded


async def in_thread(run: Callable[..., T], *arguments: object) -> T:
    """Call a function in a thread; if canceled, end with it: until then it takes memory."""
    thread = asyncio.ensure_future(asyncio.to_thread(run, *arguments))
    try:
        return await asyncio.shield(thread)
    except asyncio.CancelledError:
        await asyncio.wait([thread])
        raise


async def decide(pool: MathVerifyPool, graded: list[maths.Grade], client: str) -> list[maths.Grade]:
    """Return the grades after math-verify has compared what may be equal as expressions."""
    pairs = ((grade.answer, grade.gold) for grade in graded if grade.is_open)
    verdicts = await pool.decide(pairs, client)

    def decided(grade: maths.Grade) -> maths.Grade:
        is_equal = verdicts.get((grade.answer, grade.gold), False)
        return grade._replace(reward=1.0) if is_equal else grade

    return [*map(decided, graded)]


def reply_to(scored: Sequence[maths.Grade], dialect: str) -> dict[str, Any]:
    """Build the reply to a batch."""
    rewards = [grade.reward for grade in scored]
    answered = [float(grade.answer is not None) for grade in scored]
    if dialect == OPENRLHF_M:
        return {"rewards": rewards, "format_rewards": answered, "acc_rewards": rewards}
    unlabeled = [float(grade.gold is None) for grade in scored]
    logs = {"correct": rewards, "answered": answered, "unlabelled": unlabeled}
    return {"rewards": rewards, "scores": rewards, "extra_logs": logs}


def reply_of_judge(grades: Sequence[GivenGrade], dialect: str) -> dict[str, Any]:
    """Build the reply to a batch that a judge has graded."""
    rewards = [grade.reward for grade in grades]
    graded = [float(grade.is_graded) for grade in grades]
    if dialect == OPENRLHF_M:
        return {"rewards": rewards, "format_rewards": graded, "acc_rewards": rewards}
    return {"rewards": rewards, "scores": rewards, "extra_logs": {"graded": graded}}


class RewardServer:
    """The server: reads and scores one batch for each request."""

    def __init__(  # noqa: PLR0913 - its options
        self,
        path: str,
        limit: float,
        dialect: str = OPENRLHF,
        token: str = "",
        judge: JudgeSpec | None = None,
        key: str = "",
        probe_key: str = "",
    ) -> None:
        self._judge = None if judge is None else Judge(judge, key, say)
        self._limit = limit
        self._dialect = dialect
        self._token = token
        self._probe_key = probe_key
        self._pool = MathVerifyPool(Turns())
        self._nodes: frozenset[str] = frozenset()  # Of the run, as far as its agent sent them
        self._bodies = Bodies(_MAX_BODY, _MOST_MEMORY, self._is_own)
        self._reading = asyncio.Lock()  # its memory is only estimated
        self.program = Program("reward server", path, self._answer)
        self.program.app.on_shutdown.append(self._close)

    async def _answer(self, request: web.Request) -> web.Response:
        if not self._has_token(request):
            return error_reply(401, "Authorization: expected `Bearer` and AGENT_REWARD_TOKEN")
        ip = request.remote or ""
        if _is_probe(request):
            lists = request.headers.getall(NODES)
            self._nodes = frozenset([ip, *(node for text in lists for node in text.split(","))])
        if self._judge is not None and JUDGES in request.headers and self._is_agents(request):
            self._judge.use(request.headers[JUDGES])
        if self._token or ip in self._nodes:
            trust(request)
        try:
            async with self._bodies.read(request) as body:
                return await self._score_and_send(request, body)
        except BadRequestError as problem:
            return error_reply(400, str(problem))
        except (NoVerdictError, NoGradeError, asyncio.TimeoutError) as problem:
            why = str(problem) or self._why_late()
            say(f"no rewards, the client has to retry: {why}")
            headers = {"Retry-After": str(RETRY_AFTER)}
            is_late = not isinstance(problem, NoGradeError)
            if self._judge is not None and (is_late or self._judge.why_away):
                headers[AWAITED] = "yes"
            return error_reply(503, f"no rewards yet, retry: {why}", headers)

    def _why_late(self) -> str:
        """Return why a request was not answered within its limit."""
        if self._judge is None:
            return f"not all is scored within {self._limit:g} s"
        return self._judge.why_away or "the judge has not graded it yet"

    def _is_agents(self, request: web.Request) -> bool:
        """Return whether a request is a probe of this node's agent."""
        given = request.headers.get(PROBE_KEY, "").encode(errors="replace")
        is_right = hmac.compare_digest(given, self._probe_key.encode())
        return bool(self._probe_key) and is_right and is_local(request)

    def _limit_of(self, request: web.Request) -> float | None:
        """Return the seconds within which a request is answered; None for no limit.

        With a judge a client waits as long as it likes, and an agent's probe for a moment.
        """
        if self._judge is None:
            return self._limit
        return _PROBE_SECONDS if _is_probe(request) else None

    def _is_own(self, ip: str) -> bool:
        """Return whether a client belongs to the run; who shows the token does."""
        return bool(self._token) or not self._nodes or ip in self._nodes or is_loopback(ip)

    def _has_token(self, request: web.Request) -> bool:
        kind, _, given = request.headers.get("Authorization", "").partition(" ")
        known = hmac.compare_digest(given.strip().encode(errors="replace"), self._token.encode())
        return not self._token or (kind.lower() == "bearer" and known)

    async def _score_and_send(self, request: web.Request, body: Body) -> web.Response:
        """Score a body's texts and send the reply; their memory counts until the client has it."""
        await body.take(min(memory_of(body.data), _MOST_MEMORY // 2))
        ip = request.remote or ""
        client = quota_key(ip) if self._is_own(ip) else _STRANGERS
        scoring = self._score(body, client, is_probe=_is_probe(request))
        reply = await asyncio.wait_for(scoring, self._limit_of(request))
        body.keep(len(reply))
        headers = {} if self._judge is None else {TOTALS: self._judge.totals.header()}
        return await send(request, reply, headers)

    async def _score(self, body: Body, client: str, *, is_probe: bool) -> bytes:
        """Return the reply to a body."""
        async with self._reading:
            items, is_single = await in_thread(read_request, body.data)
        body.data = bytearray()
        if self._judge is not None:
            body.keep(memory_of_items(items))  # the request may be held for long
            grades = await self._judge.grade(items, is_probe=is_probe)
            if is_single:
                return msgspec.json.encode(grades[0].reward)
            return msgspec.json.encode(reply_of_judge(grades, self._dialect))
        graded = await grade(items)
        del items
        # what math-verify has to compare is small where the texts are large
        body.keep(memory_of_grades(graded))
        graded = await decide(self._pool, graded, client)
        if is_single:
            return msgspec.json.encode(graded[0].reward)
        return msgspec.json.encode(reply_to(graded, self._dialect))

    async def _close(self, _app: web.Application) -> None:
        await self._pool.close()
        if self._judge is not None:
            await self._judge.close()


def _is_probe(request: web.Request) -> bool:
    """Return whether a request of this node names the run's nodes, as its agent's probes do."""
    return is_local(request) and NODES in request.headers


def read_judge(text: str) -> JudgeSpec:
    """Read the value of --judge."""
    try:
        return msgspec.json.decode(text, type=JudgeSpec)
    except msgspec.MsgspecError as problem:
        raise argparse.ArgumentTypeError(str(problem)) from None


def _arguments(argv: list[str]) -> argparse.Namespace:
    parser = VerbParser(
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
    limit = "seconds for a batch, then 503 with Retry-After; none with a judge (%(default)g)"
    add("--limit", type=float, default=_REQUEST_SECONDS, help=limit)
    dialect = "the keys of a reply to a batch (%(default)s)"
    add("--dialect", choices=(OPENRLHF, OPENRLHF_M), default=OPENRLHF, help=dialect)
    judge = f"JSON: ask models for the grades, as [services.judge] has it; their key is in {KEY}"
    add("--judge", type=read_judge, default=None, metavar="JSON", help=judge)
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
    key = os.environ.get(KEY, "").strip()
    server = RewardServer(
        options.path,
        options.limit,
        options.dialect,
        token,
        options.judge,
        key,
        os.environ.get(KEY_VARIABLE, "").strip(),
    )

    def ready() -> None:
        if options.judge is not None:
            say(f"grades are asked from {options.judge.url}")
        elif not is_installed():
            say(WITHOUT_MATH_VERIFY)

    return server.program.run(options.host, options.port, ready)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
