"""What a next agent must know of the attempt under way, should this one be killed.

All else is told anew: by Ray, by the workers, by the job. What was lost before, and why the job is
being stopped, only this agent knows; so it is written down before anything follows from it.
"""

from __future__ import annotations

from dataclasses import field, replace
from typing import TYPE_CHECKING

from agent.base.value import dataclass
from agent.decisions.attempts import Attempt, id_of
from agent.decisions.head.state import Phase

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.base.outcome import Outcome
    from agent.decisions.head.state import HeadState


@dataclass(frozen=True)
class Underway:
    """An attempt that was submitted; times are on the run's clock, negative before its start."""

    number: int
    submitted: float
    required: int
    """Workers without which it cannot go on."""
    checkpoint: int | None = None
    """The newest checkpoint's step when it began."""
    nodes: tuple[str, ...] = ()
    """The workers that an earlier agent saw while it ran, by name."""
    gone: tuple[str, ...] = ()
    """Those that were lost meanwhile."""
    dead: frozenset[str] = frozenset()
    """The nodes that did not answer any more, by the ids under which GCS may list them still."""
    loss: str = ""
    """The last loss in words."""
    lost_at: float | None = None
    short_since: float | None = None
    """Since when fewer workers than required are there."""
    end: Outcome | None = None
    """As what it is to end, once its job has stopped."""
    stopped_at: float = 0.0
    """When that was ordered."""
    places: Mapping[str, str] = field(default_factory=dict)
    """Its workers as it was submitted, address to name."""
    missed: Mapping[str, str] = field(default_factory=dict)
    """Those of them that were lost meanwhile: address to name."""
    signaled: bool = False
    """True once the agent itself sent SIGTERM to its driver."""
    id: str = ""
    """What Ray knows it by."""

    @property
    def is_telling(self) -> bool:
        """Say whether there is anything that Ray and the nodes would not tell a next agent."""
        return bool(self.loss or self.dead) or self.end is not None or self.short_since is not None

    def later(self, seconds: float) -> Underway:
        """Return it on a clock that began so many seconds before."""
        lost_at = None if self.lost_at is None else self.lost_at + seconds
        short_since = None if self.short_since is None else self.short_since + seconds
        return replace(
            self,
            submitted=self.submitted + seconds,
            stopped_at=self.stopped_at + seconds,
            lost_at=lost_at,
            short_since=short_since,
        )


def of(state: HeadState) -> Underway | None:
    """Return what is to be known of the attempt under way; None where none is."""
    attempt = state.attempt
    if attempt.submitted is None or attempt.ended is not None or not state.goal.wants_job:
        return None
    is_stopping = state.phase is Phase.STOPPING
    return Underway(
        number=attempt.number,
        submitted=attempt.submitted,
        required=state.required,
        checkpoint=attempt.checkpoint,
        nodes=attempt.nodes,
        gone=attempt.gone,
        places=attempt.places,
        missed=attempt.missed,
        dead=state.fleet.dead,
        loss=state.loss,
        lost_at=state.lost_at,
        short_since=state.short_since,
        end=state.verdict if is_stopping else None,
        stopped_at=state.since if is_stopping else 0.0,
        signaled=attempt.signaled,
        id=attempt.id,
    )


def is_news(before: HeadState, known: Underway | None) -> bool:
    """Say whether that is to be written down: it differs from what stands in the record."""
    if known is None or not known.is_telling:
        return False
    return known != (of(before) or before.goal.underway)


def taken_up(state: HeadState, known: Underway) -> HeadState:
    """Return a first state with an attempt that an earlier agent left under way."""
    goal = state.goal
    attempt = Attempt(
        known.id or id_of(goal.run_id, known.number, goal.submission_id),
        known.number,
        gone=known.gone,
        places=known.places,
        missed=known.missed,
        nodes=known.nodes,
        checkpoint=known.checkpoint,
        signaled=known.signaled,
    )
    return replace(
        state,
        phase=Phase.RESUMING,
        attempt=attempt,
        required=known.required,
        fleet=replace(state.fleet, dead=known.dead),
        loss=known.loss,
        lost_at=known.lost_at,
        short_since=known.short_since,
        verdict=known.end,
        leftovers={},
    )
