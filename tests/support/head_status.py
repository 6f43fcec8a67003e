"""Statuses of a head after histories of events."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.record.summary import Timeline
from support.fake_runs import status_of
from support.heads import REWARD, History, Trace, goal, nodes, pending, reported
from support.worlds import SECRET, plan_of

if TYPE_CHECKING:
    from agent.port.status_model import HeadStatus

EVIL = '<script>alert("x")</script>'
SERVED: History = [
    (1.0, pending(REWARD, EVIL)),
    (2.0, reported(2, rank=1, reported_at=2.0)),
    (3.0, nodes(2, 3)),
    (4.0, reported(4, EVIL, joined=False, reported_at=4.0)),
]


def status_after(history: History) -> HeadStatus:
    """Return a head's status after a history."""
    plan = plan_of({"RAY_AUTH_TOKEN": SECRET, "EXPECTED_WORKERS": "2"})
    trace, timeline = Trace(goal(2, services=(REWARD,)), ()), Timeline()
    for at, event in history:
        trace.take(event, at)
        timeline.add(event, trace.state, at)
    return status_of(trace.state, plan, timeline).status()
