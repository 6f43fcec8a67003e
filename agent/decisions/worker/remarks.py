"""What a person would want to know of a head that is not heard of, whatever follows from it."""

from __future__ import annotations

from dataclasses import replace

from agent.decisions.shared import Said
from agent.decisions.worker.state import HeadSilent, HeadSpoke, Phase, WorkerEvent, WorkerState
from agent.plan import waits as planned

SAID_AFTER = 2.0
"""On a bad line a call fails now and then, and the next one gets through."""


def of_silence(
    state: WorkerState, event: WorkerEvent, now: float
) -> tuple[WorkerState, tuple[Said, ...]]:
    """Say that a head which was followed is silent, once, and that it speaks again."""
    since = state.unreached
    if state.phase is not Phase.FOLLOWING:  # what is waited for in the others is told anyway
        return replace(state, silence_said=False), ()
    if isinstance(event, HeadSpoke) and since is None and state.silence_said:
        answers = Said(f"the head {state.goal.head} answers again")
        return replace(state, silence_said=False), (answers,)
    late = since is not None and now >= since + SAID_AFTER
    if not isinstance(event, HeadSilent) or not late or state.silence_said:
        return state, ()
    left = round(state.heard + state.goal.limits[planned.SILENT_HEAD] - now)
    silent = f"the head {state.goal.head} is silent ({state.evidence})"
    leaves = f"this node leaves unless it answers within {max(0, left)} s (AGENT_HEAD_GRACE)"
    return replace(state, silence_said=True), (Said(f"{silent}: {leaves}", "warning"),)
