"""Which of the head's events are recorded, and in which form."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.decisions.head import head_state as h
from agent.decisions.shared import ItemsReported, Tick
from agent.record.events import NodesCounted

if TYPE_CHECKING:
    from agent.decisions.head.fleet import Fleet, Worker
    from agent.node.facts import Facts

_POLLED = (h.JobReported, h.RaySeen)
"""Events sent at every poll: recorded only when one differs from the last of its type."""
_WAIT_EVENTS = (h.SubmitWaits, ItemsReported)
"""Events of pending waits, of which several may alternate."""
_MOST_NODES = 256  # up to this many nodes, GCS's node list is recorded in full


class EventFilter:
    """Selects the events to record: repeated ones are skipped."""

    def __init__(self) -> None:
        self._states: dict[type, h.HeadEvent] = {}
        self._complaints: list[h.HeadEvent] = []  # since any other event

    def is_new(self, event: h.HeadEvent, fleet: Fleet) -> bool:
        """Return whether an event adds information to the workers' known state in `fleet`."""
        if isinstance(event, Tick) or event in self._complaints:
            return False

        # Evidence of pending waits alternates: each text is recorded once between other events.
        is_silence = isinstance(event, h.RaySeen) and event.evidence != ""
        if is_silence or isinstance(event, _WAIT_EVENTS):
            self._complaints.append(event)
            return True

        # Does a report or a poll repeat the last one?
        if isinstance(event, h.WorkerReported):
            known = fleet.workers.get(event.worker.key)
            if known is not None and _reported_state(known) == _reported_state(event.worker):
                return False
        elif isinstance(event, _POLLED):
            last = self._states.get(type(event))
            self._states[type(event)] = event
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
    if not isinstance(event, h.RaySeen) or len(event.nodes) <= _MOST_NODES:
        return event
    alive = sum(node.alive for node in event.nodes)
    return NodesCounted(alive, len(event.nodes) - alive)


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
