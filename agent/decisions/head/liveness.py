"""Whether a node lives, by each that can tell: its agent, its Ray's port, and GCS."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.base.value import dataclass

if TYPE_CHECKING:
    from agent.decisions.head.workers import Fleet, Worker


@dataclass(frozen=True)
class Liveness:
    """One node's, with its evidence; none of the three is believed alone."""

    agent: bool
    """Its connection is held, or it answers a probe."""
    ray: bool | None
    """Its Ray takes connections; None where nobody had to ask."""
    listed: bool
    """GCS lists it as alive, which it does for a while after a node's death."""
    evidence: str = ""
    """Why its agent is not heard of."""

    @property
    def doubt(self) -> str:
        """Say in what they disagree, or ''."""
        if self.agent:
            return "" if self.listed else "its agent answers: Ray does not know it any more"
        if self.ray:
            return "its Ray answers still"
        return "nor does its Ray answer, though GCS lists it still" if self.listed else ""


def of(fleet: Fleet, worker: Worker) -> Liveness:
    """Return what is known of a worker's node."""
    speaks = not worker.silent and not worker.gone
    ray = None if speaks else not worker.lost
    return Liveness(speaks, ray, worker.ip in fleet.ids, worker.silent)
