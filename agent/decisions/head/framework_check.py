"""The installed framework's check of the job's command, beside the boot.

It is asked at the start, and nothing waits for its answer. A refusal that comes before the job is
submitted ends the run; a later one is a warning. Prepare steps may install another version of it:
unless it accepts the command before they end, it is asked again then, and that answer counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.decisions.head import head_state as h
from agent.decisions.head.head_state import HeadPhase, HeadState, leave
from agent.decisions.shared import Step

if TYPE_CHECKING:
    from agent.decisions.head.head_state import Turn


def ask(state: HeadState) -> HeadState:
    """Ask the framework, in place of an earlier question that is not answered yet."""
    return replace(state, framework_may_change=_prepares(state)).do(h.AskFramework())


def follow_framework(state: HeadState, turn: Turn) -> HeadState:
    """Act on the answer, or ask again after the prepare steps."""
    if isinstance(turn.event, h.FrameworkAnswered):
        return _apply(state, turn.event, turn.now)
    is_unsure = state.framework_may_change and state.phase is HeadPhase.BOOTING
    return ask(state) if is_unsure and not _prepares(state) else state


def _apply(state: HeadState, answer: h.FrameworkAnswered, now: float) -> HeadState:
    name = state.goal.framework
    refusal = answer.refusal
    words = answer.unknown if refusal is None else refusal.reason
    if not words:
        state = replace(state, framework_may_change=False)
        return state.log(f"{name} accepts the job's command", "debug")

    # May a prepare step still install it, or another version?
    if state.phase is HeadPhase.BOOTING and state.framework_may_change:
        text = f"{words}: asked again after the prepare steps, which may install another version"
        return state.log(text, "debug" if refusal is None else "warning")

    if refusal is None:
        text = f"the job's command is not checked: {name} cannot be asked: {words}"
        return state.log(text, "warning")
    if state.phase is HeadPhase.BOOTING and not state.goal.ray_is_given:
        return leave(state, refusal, now)
    why = "Ray may run it elsewhere" if state.goal.ray_is_given else "it is submitted already"
    return state.log(f"{words}; the job goes on, since {why}. {refusal.remedy}", "warning")


def _prepares(state: HeadState) -> bool:
    return any(item.step is Step.PENDING for item in state.steps.by_key.values())
