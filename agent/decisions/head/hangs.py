"""What of the head's Ray only hangs, beside GCS and raylet: its dashboard, and its agents.

A job that runs needs none of them. Where one is to be submitted, or nobody's runs, Ray is taken for
lost after half a minute, and started again as after any death; meanwhile no job is submitted. One
that is just being submitted may have begun: that waits until its own deadline.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from agent.decisions.head import state as h
from agent.decisions.head.state import Phase
from agent.decisions.shared import Said, Wait
from agent.plan import waits as planned

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.decisions.head.state import HeadEvent, HeadState


def noted(state: HeadState, event: h.RayHangs, now: float) -> HeadState:
    """Take in that a part has stopped or goes on; time counts while no job stands against it."""
    if not event.evidence:
        return replace(state, hang=None)
    before = state.hang
    lasts = before is not None and before.beside_job == event.beside_job
    return replace(state, hang=event, hangs_since=state.hangs_since if lasts else now)


def judged(state: HeadState, now: float) -> HeadState:
    """Take a Ray for lost that hangs for too long where it is needed."""
    if state.hang is None or not _is_needed(state) or now < _until(state):
        return state
    evidence = f"{state.hang.evidence} for {round(now - state.hangs_since)} s"
    return replace(state, ray=state.ray.lost(evidence), last_ray=evidence, hang=None)


def waits(state: HeadState) -> Iterator[Wait]:
    """Wait for it to go on; nobody is told again, since a remark has said what follows."""
    if state.hang is not None and _is_needed(state):
        what = "what of Ray is stopped to go on"
        yield Wait(planned.HANG, what, _until(state), state.hang.evidence, is_following=True)


def remarks(before: HeadState, after: HeadState, event: HeadEvent) -> Iterator[Said]:
    """Say that something hangs, and what follows; or that it goes on."""
    if not isinstance(event, h.RayHangs):
        return
    if after.hang is None:
        if before.hang is not None:
            yield Said("Ray goes on: nothing of it is stopped any more")
        return
    follows = "left alone, since a job runs that does not need it"
    if _is_needed(after):
        limit = round(planned.HANG_LIMIT)
        follows = f"Ray is started again unless it goes on within {limit} s"
    elif after.phase is Phase.SUBMITTING and not after.hang.beside_job:
        follows = "the submission of the job waits for it"
    yield Said(f"Ray hangs, {after.hang.evidence}: {follows}", "warning")


def _is_needed(state: HeadState) -> bool:
    assert state.hang is not None  # noqa: S101 - asked only of what hangs
    if state.phase is Phase.RUNNING and state.goal.wants_job:
        return False
    return state.phase in {Phase.BOOTING, Phase.RUNNING} and not state.hang.beside_job


def _until(state: HeadState) -> float:
    return state.hangs_since + planned.HANG_LIMIT
