"""Probes: ports, reward servers, readiness and liveness of services."""

from __future__ import annotations

import asyncio
import json
import math
import re
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import aiohttp
import anyio
from aiohttp.abc import AbstractResolver
from msgspec import Meta

from agent.base.text import error_text, is_ip
from agent.base.typed import convert
from agent.base.value import Value
from agent.job.services import (
    JUDGE_AWAITED,
    JUDGE_TOTALS,
    RUN_NODES,
    HttpProbe,
    JudgeCost,
    LogPattern,
    ScoringProbe,
    TcpProbe,
)
from agent.processes.connecting import ConnectionRefused, PerhapsBusy, port_answers, reason
from agent.processes.resolving import resolve
from agent.processes.waiting import NotYet, until
from agent.record.files import reading

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
    from pathlib import Path

    from aiohttp.abc import ResolveResult

    from agent.job.services import LivenessCheck, Placeholders, Readiness
    from agent.processes.connecting import PortAnswers

_LOCAL_CONNECT = 2.0  # The kernel accepts a local connection at once, or not at all.
_MAX_REPLY = 1 << 20

_TRY_DELAYS = (0.0, 0.5, 1.0, 1.5)
REWARD_REQUEST = {
    "query": ["What is 1+1? The answer is \\boxed{2}"],
    "prompts": ["What is 1+1?"],
    "labels": ["2"],
}
_CHUNK = 1 << 20
_NODES_OF_HEADER = 100
_NO_HEADERS: Mapping[str, str] = {}
_BUSY = {429, 503}  # Codes of a server that has no room for a request
_BUSY_SHARE = 0.02  # Of a core: a busy service uses more, and one that hangs uses none


async def first_answer(ask: Callable[[], Awaitable[str]], limit: float) -> str:
    """Send a request up to four times in parallel; return the first answer.

    After packet loss the kernel repeats a SYN after 1 s only, and a request after 3 s; a new
    connection may succeed earlier. A refused connection is an answer, too; only silence takes
    `limit`.
    """
    answers: list[str] = []
    with anyio.move_on_after(limit):
        async with anyio.create_task_group() as tasks:

            async def attempt(after: float) -> None:
                await anyio.sleep(after)
                answers.append(await ask())
                tasks.cancel_scope.cancel()

            for after in _TRY_DELAYS:
                tasks.start_soon(attempt, after)
    return answers[0] if answers else PerhapsBusy(f"no answer within {limit:g} s")


class _RewardReply(Value):
    rewards: Annotated[list[float], Meta(min_length=1, max_length=1)]


def check_reward_reply(body: bytes) -> str:
    """Return '' for a scoring reply with one finite number, else what is wrong with it."""
    excerpt = body[:120].decode(errors="replace").strip()
    try:
        (reward,) = convert(json.loads(body), _RewardReply).rewards
    except (ValueError, RecursionError, OverflowError) as error:
        return f'its reply is not JSON with "rewards", a list of one number ({error}): {excerpt}'
    return "" if math.isfinite(reward) else f"its reward is not a finite number: {excerpt}"


async def reward_answers(  # noqa: PLR0913 - what a request has
    url: str,
    limit: float = 10.0,
    token: str | None = None,
    on_headers: Callable[[Mapping[str, str]], None] = lambda _headers: None,
    nodes: Collection[str] = (),
    headers: Mapping[str, str] = _NO_HEADERS,
) -> str:
    """Request one score; return '' for a valid reply, else what is wrong."""
    body = json.dumps(REWARD_REQUEST)
    reply = await send_request(
        "POST", url, limit, body=body, token=token, nodes=nodes, headers=headers
    )
    if isinstance(reply, str):
        return reply
    on_headers(reply.headers)
    if not reply.is_success:
        return reply.refusal
    return check_reward_reply(reply.body)


async def reply_evidence(
    url: str, body: str | None, expect: str, limit: float = 10.0, *, follows_redirects: bool = True
) -> str:
    """Send one request; return '' for the expected reply, else what is wrong."""
    method = "GET" if body is None else "POST"
    reply = await send_request(method, url, limit, body=body, follows_redirects=follows_redirects)
    if isinstance(reply, str):
        return reply
    if not reply.is_success:
        return reply.refusal
    text = reply.body.decode(errors="replace")
    return "" if expect in text else f"its reply lacks {expect!r}: {text[:120].strip()}"


class ServerReply(Value):
    """What a server answered."""

    status: int
    body: bytes
    headers: Mapping[str, str]

    @property
    def is_success(self) -> bool:
        """Return whether the request was accepted."""
        return self.status < 400

    @property
    def refusal(self) -> str:
        """Return in words what it answered instead."""
        start = self.body[:120].decode(errors="replace").strip()
        text = f"it answered {self.status}: {start}" if start else f"it answered {self.status}"
        return PerhapsBusy(text) if self.status in _BUSY else text


async def send_request(  # noqa: PLR0913 - what a request has
    method: str,
    url: str,
    limit: float,
    *,
    body: str | None = None,
    token: str | None = None,
    follows_redirects: bool = True,
    nodes: Collection[str] = (),
    headers: Mapping[str, str] = _NO_HEADERS,
) -> ServerReply | str:
    """Send one request; return the reply, or why there is none."""
    sent = [*headers.items(), *((RUN_NODES, ",".join(some)) for some in _groups([*nodes]))]
    if body is not None:
        sent.append(("Content-Type", "application/json"))
    if token is not None:
        sent.append(("Authorization", f"Bearer {token}"))

    text = b""
    try:
        async with (
            aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(resolver=ThreadResolver(limit)),
                timeout=aiohttp.ClientTimeout(total=limit),
                trust_env=not is_ip(urlsplit(url).hostname or ""),  # addresses need no proxy
            ) as session,
            session.request(
                method, url, data=body, headers=sent, allow_redirects=follows_redirects
            ) as reply,
        ):
            async for chunk in reply.content.iter_any():
                text += chunk
                if len(text) > _MAX_REPLY:
                    return f"its reply is longer than {_MAX_REPLY} bytes"
            return ServerReply(reply.status, text, reply.headers)
    except (TimeoutError, asyncio.TimeoutError):  # two things until Python 3.11
        return PerhapsBusy(f"no answer within {limit:g} s")
    except (aiohttp.ClientError, OSError, ValueError) as error:
        return reason(getattr(error, "os_error", None) or error)


def _groups(nodes: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield addresses in groups, since a server limits the length of each header."""
    for start in range(0, len(nodes), _NODES_OF_HEADER):
        yield nodes[start : start + _NODES_OF_HEADER]


class ReadinessProbe:
    """Probes whether one service is ready.

    A reward server gets `token`, `nodes`, and `headers` as they are at each probe.
    """

    def __init__(  # noqa: PLR0913 - what a probe sends, most with a default
        self,
        ready: Readiness,
        place: Placeholders,
        log: Path,
        token: str | None = None,
        connect: PortAnswers = port_answers,
        nodes: Callable[[], Collection[str]] = tuple,
        headers: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        self._ready = ready
        self._placeholders = place
        self._log = log
        self._token = token
        self._port_answers = connect
        self._nodes = nodes
        self._headers = headers
        self._offset = log.stat().st_size if log.exists() else 0
        self.judge_cost: JudgeCost | None = None  # By a reward server's last reply
        self.awaits_judge = False  # By its last reply, too: nothing else is wrong with it
        self._rest = ""  # The start of a line of the log whose end was not written yet

    async def ask(self, limit: float = 10.0) -> str:
        """Return '' if it is ready, else why not."""
        self.awaits_judge = False
        place = self._placeholders
        match self._ready:
            case ScoringProbe(url):
                return await reward_answers(
                    place.fill(url),
                    limit,
                    self._token,
                    self._read_cost,
                    self._nodes(),
                    self._headers(),
                )
            case HttpProbe(url, body, expect):
                return await reply_evidence(place.fill(url), body, expect, limit)
            case TcpProbe(port):
                limit = min(limit, _LOCAL_CONNECT)
                return await self._port_answers(place.node_ip, port, limit)
            case LogPattern(pattern):
                return self._search_log(pattern)

    def _read_cost(self, headers: Mapping[str, str]) -> None:
        self.judge_cost = JudgeCost.read(headers.get(JUDGE_TOTALS, ""))
        self.awaits_judge = JUDGE_AWAITED in headers

    def _search_log(self, pattern: str) -> str:
        """Return '' once a new line of the log matches, else why not."""
        try:
            with reading(self._log) as file:
                file.seek(self._offset)
                new = file.read(_CHUNK)
        except (OSError, ValueError) as error:
            why = error_text(error) if isinstance(error, OSError) else error
            return f"its output cannot be read: {why}"

        # The rest of a line is searched again with what follows.
        self._offset += len(new)
        text = self._rest + new.decode(errors="replace")
        if re.search(pattern, text, re.MULTILINE):
            return ""
        self._rest = text.rpartition("\n")[2][-10_000:]
        return f"no line of its output matches {pattern!r} so far"


class ThreadResolver(AbstractResolver):
    """aiohttp resolver that uses `resolve`, with its timeout."""

    def __init__(self, limit: float) -> None:
        self._limit = limit

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Return a host's addresses in aiohttp's form."""
        del family  # both families are tried, in order
        addresses = await resolve(host, self._limit)
        if isinstance(addresses, str):
            raise OSError(addresses)
        return [
            {
                "hostname": host,
                "host": address,
                "port": port,
                "family": socket.AF_INET6 if ":" in address else socket.AF_INET,
                "proto": 0,
                "flags": socket.AI_NUMERICHOST,
            }
            for address in addresses
        ]

    async def close(self) -> None:
        """Do nothing."""


async def until_dead(
    ask: Callable[[float], Awaitable[str]], alive: LivenessCheck, cpu: Callable[[], float]
) -> str:
    """Probe a service until it is dead; return why. One that uses CPU (`cpu`) may answer late."""
    misses = 0

    async def probe() -> str | NotYet:
        nonlocal misses
        before = cpu()
        began = anyio.current_time()
        evidence = await ask(alive.within)
        if not evidence:
            misses = 0
            return NotYet()

        # Is it only busy? One that hangs uses no CPU.
        has_worked = cpu() - before > _BUSY_SHARE * (anyio.current_time() - began)
        if isinstance(evidence, PerhapsBusy) and has_worked:
            return NotYet()

        # Nothing listens: it is dead. Otherwise it may miss some probes in a row.
        if isinstance(evidence, ConnectionRefused):
            return str(evidence)
        misses += 1
        if misses < alive.misses:
            return NotYet()
        return f"{evidence}, {misses} times in a row"

    return await until(probe, None, step=alive.every, longest=alive.every)
