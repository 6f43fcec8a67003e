"""Probes: is a port open, does a reward server score."""

from __future__ import annotations

import asyncio
import json
import math
import os
from contextlib import suppress

import anyio

from agent.base.addresses import is_ip

_LONGEST_REPLY = 1 << 20


async def port_answers(host: str, port: int, limit: float = 2.0) -> str:
    """Try a TCP connection; return '' where it stands, else a sentence why not."""
    where = f"{host}:{port}"
    try:
        with anyio.fail_after(limit):
            stream = await anyio.connect_tcp(host, port)
    except TimeoutError:
        return f"no answer from {where} within {limit:g} s"
    except OSError as error:
        cause = error.__cause__ or error
        return f"{reason(cause)} by {where}"
    with suppress(OSError, anyio.BrokenResourceError):
        await stream.aclose()
    return ""


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

    timeout = aiohttp.ClientTimeout(total=limit)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, trust_env=not is_private(url)) as session,
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


def is_private(url: str) -> bool:
    """Say whether a URL names an address rather than a host that a proxy might know."""
    host = url.split("//", 1)[-1].split("/", 1)[0].rsplit(":", 1)[0].strip("[]")
    return is_ip(host)
