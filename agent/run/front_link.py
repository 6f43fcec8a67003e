"""Send a front the members of its service, and read which of them serve.

The front is a service on the head, a program of its own (agent/front). Twice a second it is sent
its slots, and replies with the state of each member: a change is an event for the head's decisions.
"""

from __future__ import annotations

import hmac
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from msgspec import DecodeError, json

from agent.base import times
from agent.base.typed import decode
from agent.decisions.head.head_state import FrontSeen, SeenMember
from agent.decisions.head.members import slots_of
from agent.decisions.shared import Answered
from agent.job.front_protocol import CONTROL_PATH, FrontOrder, FrontStatus
from agent.job.services import control_port
from agent.processes.probing import send_request
from agent.record.background import in_thread
from agent.record.run_keys import front_key

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agent.decisions.head.head_state import HeadEvent, HeadState
    from agent.job.services import ServiceSpec
    from agent.run.node_run import NodeRun

LOOK = 0.5
"""Between two messages to a front."""
_RATE_OVER = 10.0  # seconds over which requests are counted
_MOST_CHANGES = 10_000  # between engines with and without requests, for some 20 steps
_ANSWERS = 3.0  # A front that computes nothing; the machine may be busy.


class RequestRates:
    """How many requests a second the members behind a front get, over the last seconds."""

    def __init__(self) -> None:
        self._counts: deque[tuple[float, Mapping[int, int]]] = deque()  # when, and by port

    def add(self, now: float, status: FrontStatus) -> None:
        """Add what a front replies at a moment."""
        counts = self._counts
        if counts and now <= counts[-1][0]:
            return
        counts.append((now, {one.port: one.requests for one in status.members}))
        while len(counts) > 2 and counts[1][0] <= now - _RATE_OVER:
            counts.popleft()

    def by_port(self) -> dict[int, float]:
        """Return the requests a second of each member; {} before there are two replies."""
        if len(self._counts) < 2:
            return {}
        began, first = self._counts[0]
        ended, last = self._counts[-1]
        # A front that was started again counts anew.
        return {
            port: max(0, count - first.get(port, 0)) / (ended - began)
            for port, count in last.items()
        }


class IdleTimes:
    """When no member behind a front had a request: the engines waited for the trainer."""

    def __init__(self) -> None:
        self._changes: deque[tuple[float, bool]] = deque(maxlen=_MOST_CHANGES)
        self._requests = 0

    def add(self, now: float, status: FrontStatus) -> None:
        """Add what a front replies at a moment."""
        requests = sum(one.requests for one in status.members)
        waiting = status.held + sum(one.waiting for one in status.members)
        is_idle = not waiting and requests == self._requests
        self._requests = requests
        if not self._changes or self._changes[-1][1] != is_idle:
            self._changes.append((now, is_idle))

    def share(self, began: float, ended: float) -> float | None:
        """Return the share of a period without a request; None if that is not known."""
        changes = [*self._changes]
        if not changes or changes[0][0] > began or began >= ended:
            return None
        idle = 0.0
        until = ended
        for at, is_idle in reversed(changes):
            since = max(at, began)
            if is_idle and since < until:
                idle += until - since
            until = min(until, since)
        return idle / (ended - began)


class FrontLink:
    """The link to the front of one service."""

    def __init__(
        self,
        run: NodeRun,
        spec: ServiceSpec,
        get_state: Callable[[], HeadState],
        send: Callable[[HeadEvent], None],
    ) -> None:
        self._run = run
        self._spec = spec
        self._get_state = get_state
        self._send = send
        self._seen: FrontSeen | None = None
        self._key = ""
        self.status: FrontStatus | None = None
        """The last reply."""
        self.rates = RequestRates()
        self.idle = IdleTimes()

    async def look(self) -> None:
        """Send the slots, and pass on what has changed."""
        self._key = self._key or await front_key_of(self._run)
        state = self._get_state()
        slots = slots_of(state, self._spec)
        order = FrontOrder(state.attempt.number, slots)
        reply = await send_request(
            "PUT",
            f"http://127.0.0.1:{control_port(self._spec)}{CONTROL_PATH}",
            _ANSWERS,
            body=json.encode(order).decode(),
            token=self._key,
        )
        if isinstance(reply, str) or not reply.is_success:
            return  # its own probe says what is wrong
        try:
            self.status = decode(reply.body, FrontStatus)
        except (DecodeError, RecursionError):
            return
        self.rates.add(self._run.now(), self.status)
        self.idle.add(self._run.now(), self.status)

        # What has changed?
        seen = front_seen(self._spec.name, self.status, self._seen)
        if seen != self._seen:
            self._seen = seen
            self._send(Answered(seen))


def front_seen(service: str, status: FrontStatus, former: FrontSeen | None) -> FrontSeen:
    """Return what the head's decisions need of a front's reply; `former` is that of the last one.

    While the trainer updates one member after the other, the others are stale for a moment: they
    stay as they were, and the newest version too, unless their process is another one or one is
    wedged.
    """
    is_update = status.is_paused and not any(one.is_wedged for one in status.members)
    kept = {}
    version = status.version
    if is_update and former is not None:
        kept = {(one.port, one.generation): one for one in former.members}
        version = former.version
    members = tuple(
        kept.get((one.port, one.generation))
        or SeenMember(one.port, one.generation, one.state, one.version, one.why, one.is_wedged)
        for one in status.members
    )
    return FrontSeen(service, members, version)


async def front_key_of(run: NodeRun) -> str:
    """Return the key of this run's fronts, which an agent that replaces this one reads, too.

    With a token it follows from it; else it is in a file that only this node's user can read.
    """
    token = run.plan.secret()
    if token is not None:
        return hmac.new(token.encode(), f"front {run.run_id}".encode(), "sha256").hexdigest()
    key = await in_thread(partial(front_key, run.folder.path), times.STALLED_DISK)
    return key or ""
