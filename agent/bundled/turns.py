"""Fair queueing of requests, some with steps of seconds and others of milliseconds.

The client is next whose step would end first if each got an equal share of the time, and of its
requests the one whose step would: a step is taken to be as long as the one before. So a batch of
hard expressions delays the others by the steps that run already, and not by those to come. Whoever
begins or returns starts at the time of the last one that had its turn: nobody saves up turns.
"""

from __future__ import annotations

import itertools

_ASSUMED = 0.1  # Seconds of the first step of a request: others have theirs before its second
_MOST_CLIENTS = 4096  # Clients without a request that are remembered


class QueuedClient:
    """A client: the time that it has used, its last step, and the time of its requests."""

    def __init__(self) -> None:
        self.used = 0.0
        self.step = 0.0
        self.requests = 0
        self.clock = 0.0


class QueuedRequest:
    """One request of a client, the time that it has used, and its last step."""

    def __init__(self, client: QueuedClient) -> None:
        self.client = client
        self.used = client.clock
        self.step = 0.0


class Turns:
    """Requests, the turns that they wait for, and the order of these."""

    def __init__(self) -> None:
        self._clients: dict[str, QueuedClient] = {}  # the least recent first
        self._clock = 0.0
        self._waiting: dict[int, QueuedRequest] = {}
        self._numbers = itertools.count()

    def enter(self, name: str) -> QueuedRequest:
        """Begin a request of a client."""
        client = self._clients.pop(name, None) or QueuedClient()
        self._clients[name] = client
        if not client.requests:
            client.used = max(client.used, self._clock)
        client.requests += 1
        return QueuedRequest(client)

    def leave(self, request: QueuedRequest) -> None:
        """End a request."""
        request.client.requests -= 1
        idle = [name for name, client in self._clients.items() if not client.requests]
        for name in idle[: max(0, len(idle) - _MOST_CLIENTS)]:
            del self._clients[name]

    def begin(self, request: QueuedRequest) -> float:
        """Begin a step; return the time that counts for it until its own is known."""
        client = request.client
        self._clock = max(self._clock, client.used)
        client.clock = max(client.clock, request.used)
        assumed = request.step or _ASSUMED
        client.used += assumed
        request.used += assumed
        return assumed

    def end(self, request: QueuedRequest, assumed: float, seconds: float) -> None:
        """Count the time of a step."""
        for user in (request, request.client):
            user.used += seconds - assumed
            user.step = seconds

    def wait(self, request: QueuedRequest) -> int:
        """Ask for a turn; return its number."""
        number = next(self._numbers)
        self._waiting[number] = request
        return number

    def cancel(self, number: int) -> None:
        """Ask no longer."""
        self._waiting.pop(number, None)

    def next(self) -> int | None:
        """Return the number of the next turn, which waits no longer; None if nobody waits."""
        if not self._waiting:
            return None
        clients = {request.client: None for request in self._waiting.values()}
        client = min(clients, key=lambda client: client.used + client.step)
        number = min(
            (number for number, request in self._waiting.items() if request.client is client),
            key=lambda number: (self._waiting[number].used + self._waiting[number].step, number),
        )
        del self._waiting[number]
        return number

    def remembered(self) -> int:
        """Return how many clients are remembered."""
        return len(self._clients)
