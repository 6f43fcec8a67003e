"""The installed framework's check of the job's command, beside the boot.

It is asked at the start, and nothing waits for its answer. A refusal that comes before the job is
submitted ends the run; a later one is a warning. Prepare steps may install another version of it:
with some left, a refusal is only logged, and it is asked again after them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.decisions.head import head_state as h
from agent.decisions.head.head_state import HeadPhase, HeadState, leave
from agent.decisions.shared import Step

if TYPE_CHECKING:
    from agent.decisions.head.head_state import Turn


def follow_framework(state: HeadState, turn: Turn) -> HeadState:
    """Act on the answer, or ask again after the prepare steps."""
    if isinstance(turn.event, h.FrameworkAnswered):
        return _apply(state, turn.event, turn.now)
    if not state.asks_framework_again or state.phase is not HeadPhase.BOOTING or _may_change(state):
        return state
    return replace(state, asks_framework_again=False).do(h.AskFramework())


def _apply(state: HeadState, answer: h.FrameworkAnswered, now: float) -> HeadState:
    name = state.goal.framework
    refusal = answer.refusal
    words = answer.unknown if refusal is None else refusal.reason
    if not words:
        return state.log(f"{name} accepts the job's command", "debug")

    # May a prepare step still install it, or another version?
    if state.phase is HeadPhase.BOOTING and _may_change(state):
        text = f"{words}: asked again after the prepare steps, which may install another version"
        level = "debug" if refusal is None else "warning"
        return replace(state, asks_framework_again=True).log(text, level)

    if refusal is None:
        text = f"the job's command is not checked: {name} cannot be asked: {words}"
        return state.log(text, "warning")
    if state.phase is HeadPhase.BOOTING and not state.goal.ray_is_given:
        return leave(state, refusal, now)
    why = "Ray may run it elsewhere" if state.goal.ray_is_given else "it is submitted already"
    return state.log(f"{words}; the job goes on, since {why}. {refusal.remedy}", "warning")


def _may_change(state: HeadState) -> bool:
    return any(item.step is Step.PENDING for item in state.steps.by_key.values())
