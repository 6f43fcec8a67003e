"""End what a former attempt left on a worker whose Ray stays up for the next one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.decisions.shared import LogLine
from agent.decisions.worker import worker_state as w
from agent.decisions.worker.worker_state import RayStep, enter_joining

if TYPE_CHECKING:
    from agent.decisions.worker.worker_state import WorkerAction, WorkerEvent, WorkerState

_HEAD_BOOTS = "booting"  # the phase in which the head submits nothing yet


def end_former_attempt(
    state: WorkerState, event: WorkerEvent, now: float
) -> tuple[WorkerState, tuple[WorkerAction, ...]]:
    """End what a former attempt left here, in a Ray that stays up for the next one.

    A head that starts Ray anew has another epoch, and this node joins anew. So it does where the
    rest cannot be ended, or where the next attempt runs already: its processes may be here, too.
    """
    is_up = state.ray is RayStep.UP and state.has_agent and not state.head_is_silent
    if not is_up or not 0 < state.ray_attempt < state.head_attempt:
        return state, ()

    why = ""
    if isinstance(event, w.AttemptEnded) and event.attempt == state.ending_for:
        why = event.left
    elif state.head_phase != _HEAD_BOOTS:
        why = f"attempt {state.head_attempt} has begun"
    if why:
        what = f"attempt {state.ray_attempt} cannot be ended beside Ray here ({why})"
        log = LogLine(f"{what}: joining Ray anew", "warning")
        state = replace(enter_joining(state, now), ray=RayStep.STOPPING, ending_for=None)
        return state, (log, w.StopRay())

    if state.ending_for == state.head_attempt:
        return state, ()
    end = w.EndAttempt(state.head_attempt, state.ray_attempt)
    return replace(state, ending_for=state.head_attempt), (end,)
