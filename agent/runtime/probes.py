"""Probes: is a port open, does a reward server score."""

from __future__ import annotations

import asyncio
import json
import math
import os
from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import anyio

from agent.base.addresses import in_url, is_ip
from agent.runtime.names import resolve

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

_LONGEST_REPLY = 1 << 20


async def port_answers(host: str, port: int, limit: float = 2.0) -> str:
    """Try a TCP connection; return '' where it stands, else a sentence why not."""
    where = f"{in_url(host)}:{port}"
    why = f"no answer from {where} within {limit:g} s"
    deadline = anyio.current_time() + limit
    found = await resolve(host, limit)
    if isinstance(found, str):
        return found
    with anyio.CancelScope(deadline=deadline):
        for address in found:
            try:
                stream = await anyio.connect_tcp(address, port)
            except OSError as error:
                why = f"{reason(error.__cause__ or error)} by {where}"
                continue
            with suppress(OSError, anyio.BrokenResourceError):
                await stream.aclose()
            return ""
    return why


_ASKED_AGAIN_AFTER = (0.0, 0.5, 1.0, 1.5)


async def first_answer(ask: Callable[[], Awaitable[str]], limit: float) -> str:
    """Ask, and again beside that while nothing is heard; return what the first answer says.

    Where packets are lost, a connection waits for the kernel, which sends a lost SYN again after
    1 s, and after that a lost request after 3 s; a new connection may come through meanwhile. What
    says no, such as a refused connection, is an answer as well, and silence alone takes `limit`.
    """
    heard: list[str] = []
    with anyio.move_on_after(limit):
        async with anyio.create_task_group() as tasks:

            async def one(after: float) -> None:
                await anyio.sleep(after)
                heard.append(await ask())
                tasks.cancel_scope.cancel()

            for after in _ASKED_AGAIN_AFTER:
                tasks.start_soon(one, after)
    return heard[0] if heard else f"no answer within {limit:g} s"


def reason(error: BaseException) -> str:
    """Name an OS error as a person would: 'connection refused'."""
    if isinstance(error, OSError) and error.errno is not None and error.errno > 0:
        return os.strerror(error.errno).lower()
    return str(error) or type(error).__name__


SAMPLE = {
    "query": ["What is 1+1? The answer is \\boxed{2}"],
    "prompts": ["What is 1+1?"],
    "labels": ["2"],
}


def judge_reward_reply(status: int, body: bytes) -> str:
    """Return '' for a proper scoring reply, else a sentence what is wrong with it."""
    shown = body[:120].decode(errors="replace").strip()
    if status != 200:
        return f"it answered {status}: {shown}"
    try:
        data = json.loads(body)
    except (ValueError, RecursionError):
        return f"its reply is not JSON: {shown}"
    rewards = data.get("rewards") if isinstance(data, dict) else None
    if not isinstance(rewards, list) or len(rewards) != 1:
        return f'its reply has no "rewards" list of one number: {shown}'
    value = rewards[0]
    if not _is_finite(value):
        return f"its reward is not a finite number: {shown}"
    return ""


def _is_finite(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond every float
        return False


async def reward_answers(url: str, limit: float = 10.0) -> str:
    """Ask for one score; return '' for a proper answer, else a sentence what is wrong."""
    import aiohttp  # noqa: PLC0415 - late: it costs 0.2 s that Ray's start must not wait for

    from agent.runtime.http_names import OwnResolver  # noqa: PLC0415 - aiohttp again

    timeout = aiohttp.ClientTimeout(total=limit)
    try:
        async with (
            aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(resolver=OwnResolver(limit)),
                timeout=timeout,
                trust_env=not names_an_address(url),
            ) as session,
            session.post(url, json=SAMPLE) as reply,
        ):
            body = b""
            async for chunk in reply.content.iter_any():
                body += chunk
                if len(body) > _LONGEST_REPLY:
                    return f"its reply is longer than {_LONGEST_REPLY} bytes"
            return judge_reward_reply(reply.status, body)
    except (TimeoutError, asyncio.TimeoutError):  # two things until Python 3.11
        return f"no answer within {limit:g} s"
    except (aiohttp.ClientError, OSError, ValueError) as error:
        cause = getattr(error, "os_error", None) or error
        return reason(cause)


def names_an_address(url: str) -> bool:
    """Say whether a URL names an address rather than a host that a proxy might know."""
    try:
        return is_ip(urlsplit(url).hostname or "")
    except ValueError:  # brackets around no address
        return False
