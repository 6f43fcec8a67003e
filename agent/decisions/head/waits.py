"""What the head waits for in each phase, with deadline and evidence."""

from __future__ import annotations

from agent.decisions.head.state import HeadState, Phase
from agent.decisions.head.workers import alive_workers, describe_missing
from agent.decisions.items import Step
from agent.decisions.shared import Wait, listed

WORKERS = "workers"
_STALE = 60.0
"""A worker reports every few seconds; unheard for this long, it prepares nothing any more."""


def _boot_waits(state: HeadState) -> list[Wait]:
    goal, found = state.goal, []
    if state.ray.step is Step.PENDING:
        before = f"the last one: {state.last_ray}" if state.last_ray else ""
        evidence = "; ".join(filter(None, (state.ray.evidence, before)))
        found.append(Wait(goal.ray, goal.head_deadline, evidence))
    found += [
        Wait(name, item.deadline or goal.reward_deadline, item.evidence)
        for name, item in state.services.items()
        if item.step is Step.PENDING
    ]
    if state.prepare.step is Step.PENDING:
        found.append(Wait(listed(goal.steps), goal.prepare_deadline, state.prepare.evidence))
    if len(alive_workers(state)) < state.required:
        here = [w for w in state.workers.values() if not w.gone and not w.refused]
        # one that prepares has longer, for as long as it is heard of
        heard = max((w.heard + _STALE for w in here if w.preparing), default=0.0)
        until = max(goal.workers_deadline, min(goal.prepare_deadline, heard))
        found.append(Wait(WORKERS, until, describe_missing(state, None)))
    return found


def _running_waits(state: HeadState) -> list[Wait]:
    found = []
    if state.goal.wants_job:
        status = state.job.status.lower() if state.job else "submitted"
        until = state.job_heard + state.goal.silence_limit
        found.append(Wait("word of the job from Ray", until, f"last: {status}"))
    found += [
        Wait(name, item.deadline, item.evidence)
        for name, item in state.services.items()
        if item.step is Step.PENDING and item.deadline is not None
    ]
    return found


def _submitting_waits(state: HeadState) -> list[Wait]:
    until = state.since + state.goal.submit_limit
    return [Wait("Ray to take the job", until, state.ray.evidence)]


def _stopping_waits(state: HeadState) -> list[Wait]:
    return [Wait("the job to stop", state.since + state.goal.job_stop_grace)]


_WAITS = {
    Phase.BOOTING: _boot_waits,
    Phase.SUBMITTING: _submitting_waits,
    Phase.RUNNING: _running_waits,
    Phase.STOPPING: _stopping_waits,
}


def waits(state: HeadState) -> tuple[Wait, ...]:
    """Return everything that the head waits for in its phase, with deadline and evidence."""
    return tuple(_WAITS[state.phase](state)) if state.phase in _WAITS else ()
