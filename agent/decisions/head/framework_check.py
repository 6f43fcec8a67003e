"""The installed framework's check of the job's command, beside the boot.

It is asked at the start. What it refuses ends the run before any worker is awaited. Prepare steps
may install another version of it: with some left, a refusal is only logged, and it is asked again
after them. Without an answer in time the job is submitted, and a later refusal is a warning.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.decisions.head import head_state as h
from agent.decisions.head.head_state import FrameworkCheck, HeadPhase, HeadState, leave
from agent.decisions.shared import Step, Wait
from agent.plan import waits as wait_keys

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.decisions.head.head_state import Turn


def ask(state: HeadState, now: float) -> HeadState:
    """Ask the framework; where Ray may run the job elsewhere, nothing waits for the answer."""
    until = None
    if not state.goal.ray_is_given:
        until = now + state.goal.limits[wait_keys.FRAMEWORK]
    return state.with_framework(FrameworkCheck(until)).do(h.AskFramework())


def framework_waits(state: HeadState) -> Iterator[Wait]:
    """Yield the wait for an answer."""
    if state.framework.until is not None:
        what = f"{state.goal.framework} to check the job's command"
        yield Wait(wait_keys.FRAMEWORK, what, state.framework.until)


def give_up(state: HeadState) -> HeadState:
    """Submit the job without an answer."""
    late = f"{state.goal.framework} has not checked the job's command in time"
    return state.with_framework(FrameworkCheck()).log(
        f"{late}: the job is submitted without it", "warning"
    )


def follow_framework(state: HeadState, turn: Turn) -> HeadState:
    """Act on the answer, or ask again after the prepare steps."""
    if isinstance(turn.event, h.FrameworkAnswered):
        return _apply(state, turn.event, turn.now)
    is_doubtful = state.framework.doubt and state.phase is HeadPhase.BOOTING
    return ask(state, turn.now) if is_doubtful and not _may_change(state) else state


def _apply(state: HeadState, answer: h.FrameworkAnswered, now: float) -> HeadState:
    name = state.goal.framework
    refusal = answer.refusal
    words = answer.unknown if refusal is None else refusal.reason
    if not words:
        return state.with_framework(FrameworkCheck()).log(
            f"{name} accepts the job's command", "debug"
        )

    # May a prepare step still install it, or another version?
    if state.phase is HeadPhase.BOOTING and _may_change(state):
        text = f"{words}: asked again after the prepare steps, which may install another version"
        level = "debug" if refusal is None else "warning"
        return state.with_framework(FrameworkCheck(doubt=words)).log(text, level)

    state = state.with_framework(FrameworkCheck())
    if refusal is None:
        text = f"the job's command is not checked before it runs: {name} cannot be asked: {words}"
        return state.log(text, "warning")
    is_ours = state.phase is HeadPhase.BOOTING and not state.goal.ray_is_given
    if is_ours:
        return leave(state, refusal, now)
    why = "Ray may run it elsewhere" if state.goal.ray_is_given else "it is submitted already"
    return state.log(f"{words}; the job goes on, since {why}. {refusal.remedy}", "warning")


def _may_change(state: HeadState) -> bool:
    return any(item.step is Step.PENDING for item in state.steps.by_key.values())
