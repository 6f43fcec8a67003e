"""verl's custom reward function that queries a reward server; needs only aiohttp.

verl loads this file by its path on every node where it scores, and awaits `compute_score` for each
answer. Requests are retried with growing pauses for `within` seconds; then the error ends the job.
A missing server never causes a reward of 0.

Its keywords are `reward_kwargs` of verl's configuration: `url`, and optionally `within` (seconds)
and `parallel` (concurrent requests of each process).
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import random
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import aiohttp

_WITHIN = 300.0
_PARALLEL = 64
_CONNECT_SECONDS = 10.0
# The bundled server replies 503 to a batch after 120 s: the request must last longer.
_REQUEST_SECONDS = 180.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0
_LONGEST_RETRY_AFTER = 30.0
_WRONG_REPLIES = 3
_LATER = {408, 425, 429}  # statuses to retry after; any other 4xx means that the request is wrong


class _NotYetError(Exception):
    """A temporary failure of the server; its arguments: why, and the seconds it asks to wait."""


class _WrongReplyError(Exception):
    """An invalid reply of the server."""


async def compute_score(  # noqa: PLR0913 - verl's names
    data_source: str,  # noqa: ARG001 - the server decides by prompt and label
    solution_str: str,
    ground_truth: object,
    extra_info: dict[str, Any] | None = None,
    *,
    url: str,
    within: float = _WITHIN,
    parallel: int = _PARALLEL,
    **_others: object,
) -> float:
    """Return the server's reward for one answer; raise RuntimeError on failure."""
    request: dict[str, Any] = {"query": [solution_str], "labels": [_label(ground_truth)]}
    named = ((extra_info or {}).get(name) for name in ("question", "prompt"))
    texts = [text for text in named if isinstance(text, str)]
    if texts:  # the data set has the question beside the answer
        request["prompts"] = texts[:1]
    return await _asker(url, float(within), int(parallel)).ask(request)


def _label(truth: object) -> str | float | None:
    """Return a ground truth for the request: text, a number or null."""
    if hasattr(truth, "tolist"):  # numpy's scalars and arrays
        truth = truth.tolist()
    if truth is None or isinstance(truth, str):
        return truth
    if isinstance(truth, (int, float)) and not isinstance(truth, bool) and math.isfinite(truth):
        return truth
    return json.dumps(truth, default=str, ensure_ascii=False)


class _Asker:
    """Queries one server from one event loop, with limited concurrency."""

    def __init__(self, url: str, within: float, parallel: int) -> None:
        self._url, self._within = url, within
        self._slots = asyncio.Semaphore(parallel)
        # The semaphore bounds requests; a second bound inside would make connecting time out.
        unbounded = aiohttp.TCPConnector(limit=0)
        token = os.environ.get("AGENT_REWARD_TOKEN", "").strip()
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.session = aiohttp.ClientSession(connector=unbounded, headers=headers)

    async def ask(self, request: dict[str, Any]) -> float:
        """Retry until there is a reward, or until the deadline."""
        async with self._slots:
            loop = asyncio.get_running_loop()
            began, pause, wrong = loop.time(), _FIRST_PAUSE, 0
            while True:
                try:
                    return await self._request(request, began + self._within - loop.time())
                except _WrongReplyError as problem:
                    wrong += 1
                    if wrong == _WRONG_REPLIES:
                        raise RuntimeError(self._sentence(f"{problem}, {wrong} times")) from None
                    least = 0.0
                except _NotYetError as problem:
                    last, least = problem.args
                    silent = loop.time() - began
                    if silent + least >= self._within:
                        why = f"no reward for {silent:.0f} s, the last time: {last}"
                        raise RuntimeError(self._sentence(why)) from None
                # Jittered, so that a thousand retries do not arrive at the same time.
                await asyncio.sleep(least + random.uniform(pause / 2, pause))  # noqa: S311 - no secret
                pause = min(2 * pause, _LONGEST_PAUSE)

    async def _request(self, request: dict[str, Any], left: float) -> float:
        limit = max(min(left, _REQUEST_SECONDS), _FIRST_PAUSE)
        timeout = aiohttp.ClientTimeout(total=limit, sock_connect=_CONNECT_SECONDS)
        try:
            async with self.session.post(self._url, json=request, timeout=timeout) as reply:
                return self._reward(reply, await reply.text(errors="replace"))
        except aiohttp.InvalidURL:
            raise RuntimeError(self._sentence("has an invalid URL")) from None
        except asyncio.TimeoutError as problem:
            raise _NotYetError(str(problem) or f"no reply within {limit:.0f} s", 0.0) from None
        except (aiohttp.ClientError, OSError) as problem:
            raise _NotYetError(str(problem) or type(problem).__name__, 0.0) from None

    def _reward(self, reply: aiohttp.ClientResponse, text: str) -> float:
        if 400 <= reply.status < 500 and reply.status not in _LATER:
            what = f"refuses the request with {reply.status}: {text[:300]}"
            raise RuntimeError(self._sentence(what))
        if not 200 <= reply.status < 300:
            wish = reply.headers.get("Retry-After", "")  # a date is ignored
            pause = min(float(wish), _LONGEST_RETRY_AFTER) if wish.isdecimal() else 0.0
            raise _NotYetError(f"{reply.status}: {text[:300]}", pause)
        with suppress(ValueError, LookupError, TypeError, RecursionError, OverflowError):
            (reward,) = json.loads(text)["rewards"]
            is_number = isinstance(reward, (int, float)) and not isinstance(reward, bool)
            if is_number and math.isfinite(reward):
                return float(reward)
        what = "replies without one finite number in `rewards`"
        raise _WrongReplyError(f"{what}: {text[:300]}")

    def _sentence(self, what: str) -> str:
        parts = urlsplit(self._url)  # credentials stay out of logs
        address = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        look = "Its log has the reason (see `pod-agent status`); AGENT_REWARD chooses the server"
        return f"reward server {address} {what}. {look}"


_ASKERS: dict[tuple[asyncio.AbstractEventLoop, str], _Asker] = {}


def _asker(url: str, within: float, parallel: int) -> _Asker:
    """Return the client of this server in the running event loop."""
    loop = asyncio.get_running_loop()
    for other, old in [key for key in _ASKERS if key[0].is_closed()]:
        _ASKERS.pop((other, old)).session.detach()  # it can no longer be closed
    if (loop, url) not in _ASKERS:
        _ASKERS[loop, url] = _Asker(url, within, parallel)
    return _ASKERS[loop, url]
