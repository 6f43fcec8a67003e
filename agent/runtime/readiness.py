"""Whether a service is ready, asked as its specification says."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING

from agent.runtime.probes import names_an_address, port_answers, reason, reward_answers
from agent.work.services import Listens, Logs, Replies, Scores

if TYPE_CHECKING:
    from pathlib import Path

    from agent.work.services import Readiness
    from agent.work.where import Place

_LONGEST_REPLY = 1 << 20
_CHUNK = 1 << 20
_CONNECTS = 2.0
"""A connection stands at once, or not at all: the kernel makes it."""


class Probe:
    """Asks one service of one place whether it is ready."""

    def __init__(self, ready: Readiness, place: Place, log: Path) -> None:
        self._ready = ready
        self._place = place
        self._log = _LogSearch(log)

    async def ask(self, limit: float = 10.0) -> str:
        """Return '' where it is ready, else a sentence why not."""
        match self._ready:
            case Scores(url):
                return await reward_answers(self._place.fill(url), limit)
            case Replies(url, body, expect):
                return await reply_evidence(self._place.fill(url), body, expect, limit)
            case Listens(port):
                return await port_answers(self._place.node_ip, port, min(limit, _CONNECTS))
            case Logs(pattern):
                return self._log.evidence(pattern)


class _LogSearch:
    """Looks for a line in a log that grows, from where it ended when the search began."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = path.stat().st_size if path.exists() else 0
        self._rest = ""

    def evidence(self, pattern: str) -> str:
        """Return '' once a line matches."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._at)
                new = file.read(_CHUNK)
        except OSError as error:
            return f"its output cannot be read: {error.strerror}"
        self._at += len(new)
        text = self._rest + new.decode(errors="replace")
        if re.search(pattern, text, re.MULTILINE):
            return ""
        self._rest = text.rpartition("\n")[2][-10_000:]
        return f"no line of its output matches {pattern!r} so far"


async def reply_evidence(url: str, body: str | None, expect: str, limit: float = 10.0) -> str:
    """Send one request; return '' for the reply that is wanted, else a sentence what is wrong."""
    import aiohttp  # noqa: PLC0415 - late: it costs 0.2 s that Ray's start must not wait for

    timeout = aiohttp.ClientTimeout(total=limit)
    headers = {"Content-Type": "application/json"} if body is not None else {}
    method = "GET" if body is None else "POST"
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, trust_env=not names_an_address(url)) as session,
            session.request(method, url, data=body, headers=headers) as reply,
        ):
            text = b""
            async for chunk in reply.content.iter_any():
                text += chunk
                if len(text) > _LONGEST_REPLY:
                    return f"its reply is longer than {_LONGEST_REPLY} bytes"
    except (TimeoutError, asyncio.TimeoutError):  # two things until Python 3.11
        return f"no answer within {limit:g} s"
    except (aiohttp.ClientError, OSError, ValueError) as error:
        return reason(getattr(error, "os_error", None) or error)
    shown = text[:120].decode(errors="replace").strip()
    if not 200 <= reply.status < 300:
        return f"it answered {reply.status}: {shown}"
    if expect and expect not in text.decode(errors="replace"):
        return f"its reply lacks {expect!r}: {shown}"
    return ""
