"""Which of the head's events are recorded, and in which form."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.decisions.head import head_state as h
from agent.decisions.shared import ItemsReported, JobItem, Tick
from agent.record.events import NodesCounted

if TYPE_CHECKING:
    from agent.decisions.head.fleet import Fleet, Worker
    from agent.node.facts import Facts

_MOST_NODES = 256  # up to this many nodes, GCS's node list is recorded in full


class EventFilter:
    """Selects the events to record: repeated ones are skipped."""

    def __init__(self) -> None:
        self._states: dict[type, h.HeadEvent] = {}
        self._complaints: list[h.HeadEvent] = []  # since any other event

    def is_new(self, event: h.HeadEvent, fleet: Fleet) -> bool:
        """Return whether an event adds information to the workers' known state in `fleet`."""
        event = _as_recorded(event)
        is_silence = isinstance(event, h.RaySeen) and event.evidence != ""
        is_polled = isinstance(event, h.RaySeen | ItemsReported) and not is_silence
        if isinstance(event, Tick) or event in self._complaints:
            return False

        # Does a report or a poll repeat the last one?
        if isinstance(event, h.WorkerReported):
            known = fleet.workers.get(event.worker.key)
            if known is not None and _reported_state(known) == _reported_state(event.worker):
                return False
        elif is_polled:
            last = self._states.get(type(event))
            self._states[type(event)] = event
            if event == last:
                return False

        # Evidence of pending waits alternates: each text is recorded once between other events.
        if is_silence or isinstance(event, ItemsReported):
            self._complaints.append(event)
            return True
        self._complaints.clear()
        return True


def recorded_form(event: h.HeadEvent) -> object:
    """Return the form in which an event is recorded.

    A very long node list becomes a count; facts lose their addresses, and findings are left out
    (they are in that node's own log). When Ray last answered about the job is the event's own time.
    """
    event = _as_recorded(event)
    if isinstance(event, h.WorkerIntroduced):
        return replace(event, facts=without_addresses(event.facts), findings=())
    if not isinstance(event, h.RaySeen) or len(event.nodes) <= _MOST_NODES:
        return event
    alive = sum(node.alive for node in event.nodes)
    return NodesCounted(alive, len(event.nodes) - alive)


def _as_recorded(event: h.HeadEvent) -> h.HeadEvent:
    """Return an event of this node's items without what is no news, or in a file of its own."""
    if not isinstance(event, ItemsReported):
        return event
    items = (
        replace(item, status_at=None, words="") if isinstance(item, JobItem) else item
        for item in event.items
    )
    return ItemsReported(tuple(items))


def without_addresses(facts: Facts) -> Facts:
    """Return facts without network addresses, which are private."""
    return replace(facts, interfaces={}, default_source=None)


def _reported_state(worker: Worker) -> tuple[object, ...]:
    """Return the parts of a worker's state that are worth a new record."""
    return (
        worker.phase,
        worker.detail,
        worker.has_left,
        worker.items,
        worker.answers,
        worker.notice is None,
    )
