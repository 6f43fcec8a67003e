"""The data requests behind a front: counts, and which member answers none.

A wedged engine answers its probe, but no request. A member is found wedged if a request waits there
for longer than any that was answered lately, while it sends no byte and others answer; or if it has
answered each request with an error for as long, while others have not. Time during a pause does not
count: paused engines send nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

WEDGED_LEAST = 60.0
"""Seconds without a byte that every engine may take: a long prompt under load, or a compilation."""
WEDGED_TIMES = 5
"""How much longer than the longest request lately: the next one may be longer than all before."""
FAILED_LEAST = 10
"""Requests that a member fails in a row: fewer may be at fault themselves."""
LATELY = 600.0
"""Seconds for which a request counts as recent: several steps of a training."""
_PERIODS = 10  # of LATELY, each with one longest request


class Flight:
    """One request that a member has not answered yet."""

    __slots__ = ("began", "cancel", "has_byte", "port")

    def __init__(self, port: int, began: float, cancel: Callable[[], None]) -> None:
        self.port = port
        self.began = began
        self.cancel = cancel
        self.has_byte = False
        """Whether a part of its reply was sent on."""


class MemberTraffic:
    """The requests of one member."""

    __slots__ = (
        *("completed_at", "errors", "failed", "failing_since"),
        *("flights", "last_byte", "requests"),
    )

    def __init__(self) -> None:
        self.requests = 0
        self.errors = 0
        self.flights: dict[Flight, None] = {}  # the oldest first
        self.last_byte = 0.0
        self.completed_at = -1.0
        """When it last answered a request without an error."""
        self.failed = 0
        """The requests that it has answered with an error since."""
        self.failing_since = 0.0
        """When the first of them ended."""


class _Longest(NamedTuple):
    """The longest request that ended in a period."""

    period: int
    seconds: float


class Traffic:
    """The requests of all members; times are seconds of a monotonic clock."""

    def __init__(self) -> None:
        self._members: dict[int, MemberTraffic] = {}
        self._longest: list[_Longest] = []
        self._paused_since: float | None = None
        self._paused = 0.0

    def of(self, port: int) -> MemberTraffic:
        """Return the requests of the member behind a port."""
        traffic = self._members.get(port)
        if traffic is None:
            traffic = self._members[port] = MemberTraffic()
        return traffic

    def pause(self, *, is_paused: bool, now: float) -> None:
        """Stop or continue the clock by which silence is measured."""
        if is_paused and self._paused_since is None:
            self._paused_since = now
        elif not is_paused and self._paused_since is not None:
            self._paused += now - self._paused_since
            self._paused_since = None

    def _clock(self, now: float) -> float:
        return (now if self._paused_since is None else self._paused_since) - self._paused

    def begin(self, port: int, now: float, cancel: Callable[[], None]) -> Flight:
        """Count a request that is sent to a member."""
        flight = Flight(port, self._clock(now), cancel)
        traffic = self.of(port)
        traffic.requests += 1
        traffic.flights[flight] = None
        return flight

    def note_byte(self, flight: Flight, now: float) -> None:
        """Note that a member has sent a part of a reply."""
        flight.has_byte = True
        self._members[flight.port].last_byte = self._clock(now)

    def end(self, flight: Flight, now: float, *, is_answered: bool, is_error: bool) -> None:
        """Count a request as over."""
        traffic = self._members[flight.port]
        traffic.flights.pop(flight, None)
        traffic.errors += is_error
        if not is_answered:
            return
        clock = self._clock(now)
        traffic.last_byte = clock
        if is_error:
            traffic.failing_since = traffic.failing_since if traffic.failed else clock
            traffic.failed += 1
            return
        traffic.failed = 0
        traffic.completed_at = clock
        self._note_duration(clock, clock - flight.began)

    def _note_duration(self, clock: float, seconds: float) -> None:
        period = int(clock * _PERIODS / LATELY)
        if not self._longest or self._longest[-1].period != period:
            recent = [one for one in self._longest if one.period > period - _PERIODS]
            self._longest = [*recent, _Longest(period, seconds)]
        elif seconds > self._longest[-1].seconds:
            self._longest[-1] = _Longest(period, seconds)

    def cancel(self, port: int) -> None:
        """Cancel all requests that a member has not answered; the next ones may be another's."""
        self.of(port).failed = 0
        for flight in [*self.of(port).flights]:
            flight.cancel()

    def least_busy(self, ports: Collection[int]) -> int:
        """Return the port whose member has the fewest requests."""
        return min(ports, key=lambda port: len(self.of(port).flights))

    def silence_limit(self, now: float) -> float:
        """Return after how many seconds without a byte a member is wedged."""
        first = int(self._clock(now) * _PERIODS / LATELY) - _PERIODS
        recent = (one.seconds for one in self._longest if one.period > first)
        return max(WEDGED_LEAST, WEDGED_TIMES * max(recent, default=0.0))

    def wedged(self, now: float) -> Iterator[tuple[int, str]]:
        """Yield the port of each member that is found wedged, and why."""
        clock = self._clock(now)
        limit = self.silence_limit(now)
        for port, traffic in self._members.items():
            if traffic.flights:
                since = max(next(iter(traffic.flights)).began, traffic.last_byte)
                if clock - since > limit and self._others_answered(port, since):
                    seconds = clock - since
                    yield port, f"has answered no request for {seconds:.0f} s, while others did"
                    continue
            since = traffic.failing_since
            has_failed = traffic.failed >= FAILED_LEAST and clock - since > WEDGED_LEAST
            if has_failed and self._others_answered(port, since):
                what = f"each request with an error for {clock - since:.0f} s, while others did not"
                yield port, f"has answered {what}"

    def _others_answered(self, port: int, since: float) -> bool:
        """Return whether another member has answered a request without an error since a time."""
        return any(
            other.completed_at > since for its, other in self._members.items() if its != port
        )
