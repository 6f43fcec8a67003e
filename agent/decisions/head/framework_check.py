"""The installed framework's check of the job's command, beside the boot.

It is an item of the head's node from the start, and nothing waits for it. A refusal that comes
before the job is submitted ends the run; a later one is a warning. Prepare steps may install
another version of the framework: unless it accepts the command before they end, the check is wanted
anew then, and that answer counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.decisions.head.head_state import HeadPhase, HeadState, leave
from agent.decisions.shared import CHECK, JobItem, Step

if TYPE_CHECKING:
    from agent.decisions.head.head_state import Turn


def ask(state: HeadState) -> HeadState:
    """Ask the framework, in place of an earlier question that is not answered yet."""
    again = state.check.generation + 1
    check = replace(state.check, generation=again, may_change=_prepares(state))
    return replace(state, check=check)


def follow_framework(state: HeadState, turn: Turn) -> HeadState:
    """Act on the answer, or ask again after the prepare steps."""
    check = state.check
    item = state.items.get(CHECK)
    is_new = item is not None and item.generation == check.generation > check.answered
    if isinstance(item, JobItem) and is_new and item.step is not Step.PENDING:
        state = replace(state, check=replace(check, answered=item.generation))
        return _apply(state, item, turn.now)
    is_unsure = check.may_change and state.phase is HeadPhase.BOOTING
    return ask(state) if is_unsure and not _prepares(state) else state


def _apply(state: HeadState, answer: JobItem, now: float) -> HeadState:
    name = state.goal.framework
    refusal = answer.refusal
    words = answer.evidence if refusal is None else refusal.reason
    if not words:
        state = replace(state, check=replace(state.check, may_change=False))
        return state.log(f"{name} accepts the job's command", "debug")

    # May a prepare step still install it, or another version?
    if state.phase is HeadPhase.BOOTING and state.check.may_change:
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
