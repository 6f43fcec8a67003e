"""How the head leaves: with an outcome, which the workers hear."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from agent.base.outcome import Kind, Outcome
from agent.decisions.head import state as h
from agent.decisions.head.state import Phase

if TYPE_CHECKING:
    from agent.decisions.head.state import HeadAction, HeadState

    Decision = tuple[HeadState, tuple[HeadAction, ...]]


def leave(state: HeadState, outcome: Outcome, now: float) -> Decision:
    """Leave with an outcome, which is also the end of an attempt under way."""
    outcome = outcome if outcome.phase else replace(outcome, phase=state.phase.value)
    attempt = state.attempt
    attempt = attempt if attempt.submitted is None else attempt.over(now, outcome)
    state = replace(state, verdict=outcome, attempt=attempt)
    return state.to(Phase.LEAVING, now), (h.Leave(outcome),)


def leave_with(state: HeadState, now: float, code: int, reason: str, culprit: str) -> Decision:
    """Leave with one of the codes that say who failed: 69, 75 or 78."""
    kind = {69: Kind.UNAVAILABLE, 75: Kind.LOST, 78: Kind.REFUSED}[code]
    return leave(state, Outcome(kind, code, reason, culprit=culprit), now)


def ray_lost(reason: str) -> Outcome:
    """Return the outcome of a run whose Ray is lost."""
    return Outcome(Kind.LOST, 75, reason, culprit="ray")
