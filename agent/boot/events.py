"""Events of the decisions: which are recorded, and errors on those of other nodes."""

from __future__ import annotations

import traceback
from collections import deque
from typing import TYPE_CHECKING, Generic, TypeVar

from msgspec.structs import replace

from agent.decisions.head import state as h
from agent.decisions.values import ServiceWaits, Tick
from agent.record.events import Dropped, NodesCounted, wire_name
from agent.record.log import say

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.decisions.head.fleet import Fleet, Worker
    from agent.node.facts import Facts


_POLLED = (h.JobHeard, h.RayNodes)
"""Events sent at every poll: recorded only when one differs from the last of its type."""
_WAIT_EVENTS = (h.HeadRaySilent, h.SubmitWaits, ServiceWaits)
"""Events of pending waits, of which several may alternate."""
_MOST_WAIT_EVENTS = 16
_MOST_NODES = 256
"""Up to this many nodes, GCS's node list is recorded in full."""


class EventFilter:
    """Selects the events to record: repeated ones are skipped."""

    def __init__(self) -> None:
        self._states: dict[type, h.HeadEvent] = {}
        self._complaints: deque[h.HeadEvent] = deque(maxlen=_MOST_WAIT_EVENTS)
        """Complaints since any other event."""

    def is_new(self, event: h.HeadEvent, fleet: Fleet) -> bool:
        """Return whether an event adds information to the workers' known state in `fleet`."""
        if isinstance(event, _WAIT_EVENTS):
            if event in self._complaints:
                return False
            self._complaints.append(event)
            return True
        if isinstance(event, Tick):
            return False
        if isinstance(event, h.WorkerReported):
            known = fleet.workers.get(event.worker.key)
            if known is not None and _reported_state(known) == _reported_state(event.worker):
                return False
        elif isinstance(event, _POLLED):
            last, self._states[type(event)] = self._states.get(type(event)), event
            if event == last:
                return False
        self._complaints.clear()
        return True


def recorded_form(event: h.HeadEvent) -> object:
    """Return the form in which an event is recorded.

    A very long node list becomes a count; facts lose their addresses, and findings are left out
    (they are in that node's own log).
    """
    if isinstance(event, h.WorkerIntroduced):
        return replace(event, facts=without_addresses(event.facts), findings=())
    if not isinstance(event, h.RayNodes) or len(event.nodes) <= _MOST_NODES:
        return event
    alive = sum(node.alive for node in event.nodes)
    return NodesCounted(alive, len(event.nodes) - alive)


def without_addresses(facts: Facts) -> Facts:
    """Return facts without network addresses, which are private."""
    return replace(facts, interfaces={}, default_source=None)


def _reported_state(one: Worker) -> tuple[object, ...]:
    """Return the parts of a worker's state that are worth a new record."""
    plain = (one.phase, one.detail, one.joined, one.preparing, one.has_left, one.error)
    return (*plain, one.items, one.answers, one.notice is None)


S = TypeVar("S")
E = TypeVar("E")
A = TypeVar("A")
_MOST = 32
"""At most this many distinct errors are logged."""


class Guard(Generic[S, E, A]):
    """Calls the decision function; drops an event of another node on which it raises."""

    def __init__(
        self,
        decide: Callable[[S, E, float], tuple[S, tuple[A, ...]]],
        remote_events: tuple[type, ...],
        record: Callable[[object], None],
    ) -> None:
        self._decide, self._remote_events, self._record = decide, remote_events, record
        self._logged: set[str] = set()

    def decide(self, state: S, event: E, now: float) -> tuple[E | Tick, S, tuple[A, ...]]:
        """Return the event, the new state and the actions; a tick for a dropped event."""
        try:
            return event, *self._decide(state, event, now)
        except Exception as error:
            if not isinstance(event, self._remote_events):
                raise
            name, last = wire_name(type(event)), traceback.extract_tb(error.__traceback__)[-1]
            why = f"{type(error).__name__} at {last.name}, line {last.lineno}"
            message = f"{name}: {why}"
            if message not in self._logged and len(self._logged) < _MOST:
                self._logged.add(message)
                self._record(Dropped(name, f"{why}: {error}"))
                what = "a bug in the agent, the message of another node is dropped"
                say(f"{what}: {message}: {error}", "error")
            return Tick(), state, ()
