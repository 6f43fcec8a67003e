"""Requests rewards from a reward server, with retries; needs only the standard library.

The rehearsal sends it to each node by value, and trl_grpo.py loads it from its own folder: neither
needs the agent there. A missing server never causes a reward of 0.
"""

from __future__ import annotations

import http.client
import json
import math
import os
import random
import time
import urllib.error
import urllib.request
from typing import Any

_REQUEST_SECONDS = 180.0
"""The bundled server replies 503 to a batch after 120 s: a request must last longer."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 10.0
_LATER = {408, 425, 429}
"""Statuses to retry after; any other 4xx means that the request is wrong."""


class RewardError(RuntimeError):
    """Why there are no rewards: no server, a refusal, or an invalid reply."""


class _BusyError(Exception):
    """A temporary failure of the server, and the seconds it asks to wait."""

    def __init__(self, text: str, retry_after: str) -> None:
        super().__init__(text)
        self.pause = min(float(retry_after), _LONGEST_PAUSE) if retry_after.isdecimal() else 0.0


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirected POST would arrive as a GET."""

    def redirect_request(self, *_about: object) -> None:
        """Refuse to follow."""


class RewardClient:
    """Requests rewards from one server, which may be down for some seconds."""

    def __init__(self, url: str, seconds: float) -> None:
        self._url = url
        self._seconds = seconds
        token = os.environ.get("AGENT_REWARD_TOKEN", "").strip()
        self._headers = {"Content-Type": "application/json"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"
        # The server is within the cluster: an environment's proxy is not meant for it.
        proxies = urllib.request.ProxyHandler({})
        self._opener = urllib.request.build_opener(proxies, _NoRedirects)

    def rewards(self, request: dict[str, Any]) -> list[float]:
        """Return a reward for each text of `query`; raise RewardError on failure."""
        until = time.monotonic() + self._seconds
        pause = _FIRST_PAUSE
        while True:
            least = 0.0
            left = until - time.monotonic()
            try:
                return self._once(request, min(_REQUEST_SECONDS, max(left, 1.0)))
            except (OSError, http.client.HTTPException) as error:
                why = getattr(error, "reason", None) or error
            except _BusyError as busy:
                why, least = busy, busy.pause
            if time.monotonic() + least + pause >= until:
                raise RewardError(
                    f"{self._url} returned no rewards for {self._seconds:g} s: {why}; is it up, at "
                    "an address that this node can reach?"
                )
            # Jittered, so that the retries of all processes do not arrive at the same time.
            time.sleep(least + random.uniform(pause / 2, pause))  # noqa: S311 - no secret
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _once(self, request: dict[str, Any], seconds: float) -> list[float]:
        posted = urllib.request.Request(  # noqa: S310 - the reward server's own URL
            self._url,
            data=json.dumps(request, default=str).encode(),
            headers=self._headers,
        )
        try:
            with self._opener.open(posted, timeout=seconds) as reply:
                return self._parsed(reply.read(), len(request["query"]))
        except urllib.error.HTTPError as error:
            text = f"{error.code} {error.read(200).decode(errors='replace').strip()}"
            if error.code < 500 and error.code not in _LATER:
                raise RewardError(f"{self._url} refuses to score: {text}") from error
            raise _BusyError(text, error.headers.get("Retry-After", "")) from error

    def _parsed(self, body: bytes, count: int) -> list[float]:
        try:
            fields = json.loads(body)
        except ValueError:
            fields = None
        rewards = fields.get("rewards") if isinstance(fields, dict) else None
        if (
            isinstance(rewards, list)
            and len(rewards) == count
            and all(isinstance(one, (int, float)) and math.isfinite(one) for one in rewards)
        ):
            return [float(one) for one in rewards]
        text = body[:200].decode(errors="replace")
        expected = f"`rewards` with {count} finite numbers"
        raise RewardError(f"{self._url} replied {text!r}, and not {expected}")
