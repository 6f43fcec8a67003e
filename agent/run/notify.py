"""Send messages about a run to the URLs of AGENT_NOTIFY, from the head.

Each message has a thread for each URL, with an event loop of its own: a server that is down, slow
or hostile delays neither the run nor a message to another URL. A request that fails for a moment is
repeated until a deadline. A reply is never read beyond its status, and no redirect is followed,
since the URL is a secret.
"""

from __future__ import annotations

import asyncio
import json
import threading
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import aiohttp
import anyio

from agent.base.proxy import proxy_for
from agent.base.text import listed, map_texts, without_controls
from agent.plan.page_address import page_address
from agent.port.user_notices import Noticed, first_noticed, notice_of_end, notices_of
from agent.processes.waiting import NotYet, TimedOutError, until
from agent.record.background import start_thread
from agent.record.log import say

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.base.ends import Outcome
    from agent.plan.plan import Plan
    from agent.port.status_model import HeadStatus
    from agent.port.user_notices import Notice

NOTIFY_REQUEST = 10.0  # For one request, whatever the server sends.
NOTIFY_RETRY_PAUSE = 1.0  # Before a failed request is repeated; it grows.
NOTIFY_WITHIN = 300.0  # A message that was not accepted within this is no news any more.
NOTIFY_GRACE = 2.0  # The end of a run waits so long for its message to be accepted.
_NOTIFY_LOOK = 2.0  # Between two looks at what is worth a message.
_LONGEST_NOTIFY_PAUSE = 20.0  # A service that limits its requests accepts one again within this.
_PASSES = {408, 425, 429}  # statuses after which the same request may be accepted
_MOST_PENDING = 8  # messages to one URL; further ones are dropped
_LONGEST_EVIDENCE = 200


class Notifier:
    """Sends the messages of one run; without URLs, and on a worker, it sends none."""

    def __init__(self, plan: Plan, clean: Callable[[str], str], run_id: Callable[[], str]) -> None:
        secret = plan.settings.notify
        urls = () if secret is None or not plan.topology.is_head else secret.reveal().split()
        self._plan = plan
        self._clean = clean
        self._run_id = run_id
        self._title = plan.settings.run_name or ""
        self._due = 0.0
        self._noticed: Noticed | None = None
        self._is_over = threading.Event()
        self._targets = [_Target(url, self._is_over) for url in urls]

    def is_due(self, now: float) -> bool:
        """Return whether to look at the run's status again."""
        if not self._targets or self._is_over.is_set() or now < self._due:
            return False
        self._due = now + _NOTIFY_LOOK
        return True

    def look(self, status: HeadStatus) -> None:
        """Send what has happened since the last look."""
        self._title = status.run_name or self._title
        if self._noticed is None:
            self._noticed = first_noticed(status)
        self._noticed, notices = notices_of(self._noticed, status)
        for notice in notices:
            self._send(notice)

    def send_end(self, outcome: Outcome, seconds: float, cost: float | None = None) -> None:
        """Send the run's end, once."""
        if not self._is_over.is_set() and not outcome.is_superseded:
            self._is_over.set()  # messages that were not accepted yet are no news any more
            self._send(notice_of_end(outcome, seconds, cost))

    async def finish(self) -> None:
        """Wait until the end was accepted, or refused, within a short grace."""

        async def are_done() -> bool | NotYet:
            return not any(target.sends_end for target in self._targets) or NotYet()

        try:
            await until(are_done, NOTIFY_GRACE, longest=0.1)
        except TimedOutError:
            late = listed(target.name for target in self._targets if target.sends_end)
            what = f"AGENT_NOTIFY: {late} has not accepted the end of the run"
            say(f"{what} within {NOTIFY_GRACE:g} s", "warning")

    def _send(self, notice: Notice) -> None:
        run_id = self._run_id()
        message = notice.to_json(run_id, self._title or run_id, page_address(self._plan))
        body = json.dumps(map_texts(message, self._clean)).encode()
        for target in self._targets:
            target.send(body, is_end=notice.moment == "end")


class _Target:
    """One URL, and the messages that it has not accepted yet."""

    def __init__(self, url: str, is_over: threading.Event) -> None:
        self._url = url
        self._is_over = is_over
        self._lock = threading.Lock()
        self._pending = 0
        self._has_failed = False
        self.name = urlsplit(url).hostname or ""
        self.sends_end = False

    def send(self, body: bytes, *, is_end: bool) -> None:
        """Send a message from a thread; drop it if too many are pending."""
        if self._pending >= _MOST_PENDING and not is_end:
            return
        with self._lock:
            self._pending += 1
        self.sends_end = is_end
        if start_thread(partial(self._deliver, body, is_end=is_end), "notify") is None:
            self._done("no thread can be started", is_end=is_end)

    def _deliver(self, body: bytes, *, is_end: bool) -> None:
        try:
            failure = anyio.run(self._send_until_accepted, body, is_end)
        except Exception as error:  # noqa: BLE001 - no failure here may reach the run
            failure = f"{type(error).__name__}: {error}"
        self._done(failure, is_end=is_end)

    async def _send_until_accepted(self, body: bytes, is_end: bool) -> str:  # noqa: FBT001 - by anyio.run
        """Send a message, again and again; return '' once it was accepted, else why it was not."""

        async def attempt() -> str | NotYet:
            answer = await _post(self._url, body)
            if isinstance(answer, NotYet) and self._is_over.is_set() and not is_end:
                return ""  # the run's end is what counts now
            return answer

        try:
            return await until(
                attempt,
                NOTIFY_WITHIN,
                step=NOTIFY_RETRY_PAUSE,
                longest=_LONGEST_NOTIFY_PAUSE,
            )
        except TimedOutError as late:
            return str(late)

    def _done(self, failure: str, *, is_end: bool) -> None:
        """Count a message as done; the first of failures in a row is logged."""
        with self._lock:
            self._pending -= 1
        if is_end:
            self.sends_end = False
        if failure and not self._has_failed:
            what = f"AGENT_NOTIFY: {self.name} did not accept a message"
            say(f"{what}: {without_controls(failure)[:_LONGEST_EVIDENCE]}", "warning")
        self._has_failed = bool(failure)


async def _post(url: str, body: bytes) -> str | NotYet:
    """Post once; return '' if it was accepted, why it never will be, or NotYet."""
    timeout = aiohttp.ClientTimeout(total=NOTIFY_REQUEST)
    headers = {"Content-Type": "application/json"}
    options: Any = {"proxy": proxy_for(url), "allow_redirects": False}
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, headers=headers) as session,
            session.post(url, data=body, **options) as reply,
        ):
            code = reply.status
    except (TimeoutError, asyncio.TimeoutError):  # two things until Python 3.11
        return NotYet(f"no answer within {NOTIFY_REQUEST:g} s")
    except (aiohttp.ClientError, OSError, ValueError) as error:
        return NotYet(str(error) or type(error).__name__)

    if 200 <= code < 300:
        return ""
    if code in _PASSES or code >= 500:
        return NotYet(f"it answered {code}")
    if 300 <= code < 400:
        return f"it answered {code}, a redirect: AGENT_NOTIFY needs the address that it leads to"
    return f"it answered {code}"
