"""An attempt that a killed agent left under way: looked for, and gone on with where that agent was.

Nothing is awaited for it but Ray's word: what the job needed it found when it was submitted, and
a node that is away since is judged as for any running job.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from agent.decisions.attempts import Attempt
from agent.decisions.head import retry
from agent.decisions.head import state as h
from agent.decisions.head.booting import booting
from agent.decisions.head.leaving import leave, ray_lost
from agent.decisions.head.running import running
from agent.decisions.head.state import Phase
from agent.decisions.head.stopping import attempt_over, followed, stop_job
from agent.decisions.head.waits import waits
from agent.decisions.items import Step
from agent.decisions.shared import Said, Tick, Unfit

if TYPE_CHECKING:
    from agent.decisions.head.leaving import Decision
    from agent.decisions.head.state import HeadEvent, HeadState
    from agent.decisions.shared import Wait


def resuming(  # noqa: PLR0911 - one case, one return
    state: HeadState, event: HeadEvent, now: float
) -> Decision:
    """Have the job followed once Ray is there; go on as soon as Ray has spoken of it."""
    own = state.attempt.id
    if isinstance(event, Unfit):
        return leave(state, event.outcome, now)
    if state.ray.step is Step.LOST:
        lost = ray_lost(f"Ray was lost on the head: {state.ray.evidence}")
        state, _ = followed(state, now)
        return attempt_over(state, state.verdict or lost, now)
    if isinstance(event, h.NeverSubmitted) and event.id == own:
        return _begin_anew(state, now)
    if isinstance(event, h.Submitted | h.JobHeard) and event.id == own:
        said = Said(f"attempt {state.attempt.number} goes on: its job is followed again")
        state = retry.noticed_late(state.to(Phase.RUNNING, now), now)
        after, actions = running(state, event, now)
        return after, (said, *actions)
    late = next((wait for wait in waits(state) if wait.over(now)), None)
    if late is not None:
        return _too_late(state, late, now)
    if state.ray.step is Step.READY and state.attempt.submitted is None:
        return _follow(state, now)
    return state, ()


def _follow(state: HeadState, now: float) -> Decision:
    known = state.goal.underway
    assert known is not None  # noqa: S101 - entered only with an attempt under way
    state, follow = followed(state, now)
    here = {*state.fleet.alive, *state.attempt.missed}  # what is missed has its loss on record
    left = {ip: name for ip, name in state.attempt.places.items() if ip not in here}
    state = retry.noticed(state, left, now)
    if state.verdict is None:
        return state, follow
    said = Said(f"{state.verdict.reason}: stopping the job, as the killed agent did")
    return state.to(Phase.STOPPING, known.stopped_at), (said, *follow, h.StopJob(state.attempt.id))


def _too_late(state: HeadState, late: Wait, now: float) -> Decision:
    """End what cannot be looked for: as the killed agent would have ended it, else as lost.

    On a Ray that outlives us the job may live all the same: it is told to stop, perhaps once more.
    """
    why = f"timed out after the agent was killed, waiting for {late.what}"
    end = state.verdict or ray_lost(f"{why}: {late.evidence}" if late.evidence else why)
    if state.goal.ray_is_given:
        return stop_job(state, end, now, (Said(f"{end.reason}: stopping the job"),))
    state, _ = followed(state, now)
    return attempt_over(state, end, now)


def _begin_anew(state: HeadState, now: float) -> Decision:
    """Boot as ever, for the same attempt: the agent was killed before it was submitted."""
    attempt = Attempt(state.attempt.id, state.attempt.number, began=now)
    state = replace(state, attempt=attempt, required=state.goal.expected_workers)
    state = replace(state, short_since=None, loss="", lost_at=None, hangs_since=now)
    return booting(state.to(Phase.BOOTING, now), Tick(), now)
