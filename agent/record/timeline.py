"""When what happened on the head and its nodes: phases with their beginnings.

The decisions need none of it; it is kept for those who look at a run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.base.value import dataclass
from agent.decisions.head import state as h

if TYPE_CHECKING:
    from agent.decisions.head.state import HeadEvent, HeadState

MOST = 32
"""So many phases of a node are kept: the first one and the last ones."""


@dataclass(frozen=True)
class Span:
    """A phase and when it began; the next one's beginning is its end."""

    phase: str
    start: float


class Timeline:
    """Notes what an event changed; what it costs does not grow with the number of nodes."""

    def __init__(self) -> None:
        self.phases: list[Span] = []
        self.nodes: dict[str, list[Span]] = {}
        """By a worker's agent."""

    def note(self, event: HeadEvent, state: HeadState, now: float) -> None:
        """Look at what an event may have changed; `state` is the one that follows it."""
        _enter(self.phases, state.phase.value, state.since)
        if isinstance(event, h.WorkerReported):
            spans = self.nodes.setdefault(event.worker.key, [])
            _enter(spans, "left" if event.worker.gone else event.worker.phase, now)
        elif isinstance(event, h.WorkerSilent) and event.key in self.nodes:
            _enter(self.nodes[event.key], "silent", now)
        elif isinstance(event, h.WorkerReplaced):
            self.nodes.pop(event.key, None)


def _enter(spans: list[Span], phase: str, now: float) -> None:
    if spans and spans[-1].phase == phase:
        return
    spans.append(Span(phase, now))
    if len(spans) > MOST:
        del spans[1]
