"""AGENT_MAX_HOURS and AGENT_MAX_COST: their end is announced, then the job is stopped.

A price that only RunPod gives may come later: until then AGENT_MAX_COST ends nothing, and from then
on all hours count.
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

_HOURS_WARNING = 600.0  # AGENT_MAX_HOURS is announced this long before, or a tenth of a short run.


def hours_deadline(state: HeadState) -> float | None:
    """Return when AGENT_MAX_HOURS is to be announced, or is over; None if neither follows."""
    if state.outcome is not None or math.isinf(state.goal.max_hours):
        return None
    tenth = state.goal.max_hours * 360  # a tenth of the hours, in seconds
    warned_before = min(_HOURS_WARNING, tenth)
    return state.goal.ends_at - (0.0 if state.ending.hours_warned else warned_before)


def end_by_hours(state: HeadState, turn: Turn) -> HeadState:
    """Announce the end by AGENT_MAX_HOURS; then stop the job, with its grace to save."""
    goal = state.goal
    now = turn.now
    over = hours_deadline(state)
    if over is None or now < over:
        return state

    if not state.ending.hours_warned:
        nodes = goal.nodes
        left = max(0.0, goal.ends_at - now)
        cost = "" if goal.price is None else f", ${goal.price.cost(goal.max_hours, nodes):.2f}"
        used = f"{goal.max_hours:g} h of {nodes} node(s){cost}"
        stopped = "job" if goal.has_job else "cluster"
        what = f"the {stopped} is stopped in {round(left)} s: AGENT_MAX_HOURS allows {used}"
        state = state.with_ending(hours_warned=True).log(what, "warning")

    if now < goal.ends_at:
        return state
    return phases.end_now(state, ends.MAX_HOURS.outcome(hours=goal.max_hours), now, saves=True)


def cost_deadline(state: HeadState) -> float | None:
    """Return when most of the money is used, or all of it; None if neither follows."""
    goal = state.goal
    if state.outcome is not None or goal.price is None or math.isinf(goal.max_cost):
        return None
    return goal.costs_at(goal.max_cost * (1.0 if state.ending.cost_warned else MOST_OF_COST))


def end_by_cost(state: HeadState, turn: Turn) -> HeadState:
    """Announce the end by AGENT_MAX_COST; then stop the job, with its grace to save."""
    goal = state.goal
    now = turn.now
    due = cost_deadline(state)
    if due is None or now < due:
        return state

    ends_at = goal.costs_at(goal.max_cost)
    if not state.ending.cost_warned:
        cost = goal.cost(now) or 0.0
        used = f"${cost:.2f} of AGENT_MAX_COST=${goal.max_cost:.2f} are used"
        left = duration_text(max(0.0, ends_at - now))
        stopped = "job" if goal.has_job else "cluster"
        what = f"{used}: the {stopped} is stopped in {left}"
        state = state.with_ending(cost_warned=True).log(what, "warning")

    if now < ends_at:
        return state
    return phases.end_now(state, ends.MAX_COST.outcome(cost=goal.max_cost), now, saves=True)
