"""What earlier agents of this head's node recorded of the run: their timelines, from events."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.base.value import dataclass
from agent.decisions.head.state import Phase, ServiceGone, ServiceReady, WorkerReported
from agent.record.events import FILE, FORMER, PhaseEntered, read_events
from agent.record.story import Life, lives
from agent.record.timeline import Timeline

if TYPE_CHECKING:
    from pathlib import Path

MOST_BYTES = 4 << 20
"""Records larger than this take too long to read at a run's end."""


@dataclass(frozen=True)
class FormerLife:
    """One earlier agent: when its clock stood at 0, what it showed last, and what it noted."""

    began: str
    seconds: float
    timeline: Timeline


def former_lives(folder: Path) -> list[FormerLife]:
    """Return all but the last life that a node's folder tells of; none where that is too much."""
    files = (folder / FORMER, folder / FILE)
    if sum(path.stat().st_size for path in files if path.is_file()) > MOST_BYTES:
        return []
    before = lives(read_events(folder))[:-1]
    return [
        FormerLife(life.began.started_at, life.end, _timeline_of(life))
        for life in before
        if life.began.role == "head"
    ]


def _timeline_of(life: Life) -> Timeline:
    """Note a life's events again; of what they led to only the phases are known."""
    made = Timeline()
    made.entered(Phase.BOOTING.value, 0.0)
    for at, event in life.events:
        if isinstance(event, PhaseEntered):
            made.entered(event.phase, at)
        elif isinstance(event, WorkerReported):
            made.heard(event.worker, at)
        elif isinstance(event, ServiceReady | ServiceGone):
            made.service(event.node, event.name, is_up=isinstance(event, ServiceReady), now=at)
    return made
