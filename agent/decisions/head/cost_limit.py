"""AGENT_MAX_COST: announce that most of the money is used, and stop the job at the limit.

A price that only RunPod gives may come later: until then nothing ends the run, and from then on all
of its hours count.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from agent.base import ends
from agent.base.text import duration_text
from agent.decisions.head import phases
from agent.plan.node_price import MOST_OF_COST

if TYPE_CHECKING:
    from agent.decisions.head.head_state import HeadState, Turn


def cost_deadline(state: HeadState) -> float | None:
    """Return when most of the money is used, or all of it; None if neither follows."""
    goal = state.goal
    if state.stop.verdict is not None or goal.price is None or math.isinf(goal.max_cost):
        return None
    return goal.costs_at(goal.max_cost * (1.0 if state.stop.cost_warned else MOST_OF_COST))


def end_by_cost(state: HeadState, turn: Turn) -> HeadState:
    """Announce the end by AGENT_MAX_COST; then stop the job, with its grace to save."""
    goal = state.goal
    now = turn.now
    due = cost_deadline(state)
    if due is None or now < due:
        return state

    ends_at = goal.costs_at(goal.max_cost)
    if not state.stop.cost_warned:
        cost = goal.cost(now) or 0.0
        used = f"${cost:.2f} of AGENT_MAX_COST=${goal.max_cost:.2f} are used"
        left = duration_text(max(0.0, ends_at - now))
        stopped = "job" if goal.has_job else "cluster"
        what = f"{used}: the {stopped} is stopped in {left}"
        state = state.with_stop(cost_warned=True).log(what, "warning")

    if now < ends_at:
        return state
    return phases.end_now(state, ends.MAX_COST.outcome(cost=goal.max_cost), now, saves=True)
