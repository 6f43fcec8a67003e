"""The events that the head's record keeps."""

from __future__ import annotations

from msgspec.structs import replace

from agent.decisions.head import head_state as h
from agent.decisions.head.fleet import Fleet
from agent.decisions.shared import ItemsReported
from agent.record.event_filter import EventFilter
from support.heads import REWARD, TICK, job, nodes, pending, reported

SILENT = h.RaySeen(evidence="no answer")
WAITS = pending(REWARD, "connection refused")


def kept(*events: h.HeadEvent) -> list[h.HeadEvent]:
    """Return the events of a history that are recorded."""
    news, fleet, found = EventFilter(), Fleet(), []
    for event in events:
        if news.is_new(event, fleet):
            found.append(event)
        if isinstance(event, h.WorkerReported):
            fleet = fleet.with_report(event.worker)
    return found


def test_alternating_complaints_are_recorded_once() -> None:
    """Two alternating wait messages do not fill the record."""
    history: list[h.HeadEvent] = [SILENT, WAITS, TICK]
    assert kept(*history * 50) == [SILENT, WAITS]


def test_a_complaint_after_another_event_is_recorded_again() -> None:
    """A node that becomes silent again after a reply is recorded again."""
    assert kept(SILENT, nodes(), SILENT) == [SILENT, nodes(), SILENT]


def test_a_state_is_recorded_when_it_changes_even_back() -> None:
    """A node that was lost and came back leaves two events."""
    states: list[h.HeadEvent] = [nodes(2), nodes(2), nodes(dead=(2,)), nodes(2)]
    history = [*states, job("RUNNING"), job("RUNNING")]
    assert kept(*history) == [nodes(2), nodes(dead=(2,)), nodes(2), job("RUNNING")]


def test_a_job_that_runs_on_is_recorded_once() -> None:
    """Ray answers every few seconds, whatever else happens meanwhile."""
    runs = job("RUNNING").items[0]
    later = [ItemsReported((replace(runs, status_at=float(at)),)) for at in range(3)]
    assert kept(later[0], nodes(), later[1], nodes(2), later[2]) == [later[0], nodes(), nodes(2)]


def test_an_unchanged_report_is_not_recorded() -> None:
    """Its heartbeats are not recorded, its changes are."""
    again, left = reported(2, reported_at=9.0), reported(2, reported_at=10.0, has_left=True)
    assert kept(reported(2), again, left) == [reported(2), left]
