"""What of all that the head hears is news: the record keeps that, and no repetitions."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

from agent.decisions.head import state as h
from agent.decisions.shared import Tick
from agent.record.events import NodesCounted

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.decisions.head.workers import Fleet, Worker
    from agent.node.facts import Facts
    from agent.runtime.memory_watch import MemoryWatch

_STATES = (h.JobHeard, h.RayNodes)
"""Told again and again; one that differs from the last is news, though it was so before."""
_COMPLAINTS = (h.RaySilent, h.SubmitWaits, h.ServiceWaits)
"""Several things may be waited for at once, each with its own: they take turns."""
_MOST_COMPLAINTS = 16
_MOST_NODES = 256
"""Of so many nodes the record keeps GCS's whole list."""


class News:
    """Remembers what was heard lately."""

    def __init__(self) -> None:
        self._states: dict[type, h.HeadEvent] = {}
        self._complaints: deque[h.HeadEvent] = deque(maxlen=_MOST_COMPLAINTS)
        """Those since anything else happened."""

    def is_news(self, event: h.HeadEvent, fleet: Fleet) -> bool:
        """Say whether an event tells more than is known; `fleet` is what is known of workers."""
        if isinstance(event, _COMPLAINTS):
            if event in self._complaints:
                return False
            self._complaints.append(event)
            return True
        if isinstance(event, Tick) or self._is_known(event, fleet):
            return False
        self._complaints.clear()
        return True

    def _is_known(self, event: h.HeadEvent, fleet: Fleet) -> bool:
        if isinstance(event, h.WorkerReported):
            known = fleet.workers.get(event.worker.key)
            return known is not None and _said(known) == _said(event.worker)
        if not isinstance(event, _STATES):
            return False
        last, self._states[type(event)] = self._states.get(type(event)), event
        return event == last


def as_recorded(event: h.HeadEvent) -> object:
    """Return what the record keeps of an event: of a very long list of nodes, their number.

    Of a machine's facts it keeps no addresses: those of other networks are nobody's business. What
    its checks found is in its own log.
    """
    if isinstance(event, h.WorkerIntroduced):
        return replace(event, facts=without_addresses(event.facts), findings=())
    if not isinstance(event, h.RayNodes) or len(event.nodes) <= _MOST_NODES:
        return event
    alive = sum(node.alive for node in event.nodes)
    return NodesCounted(alive, len(event.nodes) - alive)


def without_addresses(facts: Facts) -> Facts:
    """Return a machine's facts without its addresses."""
    return replace(facts, interfaces={}, default_source=None)


def _said(one: Worker) -> tuple[object, ...]:
    """Return what a worker says; that it says it now is no news."""
    plain = (one.phase, one.detail, one.joined, one.preparing, one.gone, one.error)
    return (*plain, one.items, one.answers)


def with_memory(
    tell: Callable[[h.HeadEvent], None], memory: MemoryWatch
) -> Callable[[h.HeadEvent], None]:
    """Have a job's failure told with what the kernel did for want of memory a moment before."""

    def told(event: h.HeadEvent) -> None:
        if isinstance(event, h.JobHeard) and event.report.ended and not event.report.succeeded:
            event = replace(event, report=replace(event.report, memory=memory.recent()))
        tell(event)

    return told
