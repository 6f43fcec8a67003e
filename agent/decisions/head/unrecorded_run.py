"""Attempts of this run of which the head has no record.

The record is lost with its disk. What remains is what a worker that outlived the former head
reports, and the list of jobs of a given Ray. If the last attempt may still run where this head
can follow it, it is followed; else it counts as lost, and the next one begins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.base import ends
from agent.decisions import attempts
from agent.decisions.attempts import Attempt, EndedAttempt, submission_id_of
from agent.decisions.durable import EPOCH_STEP
from agent.decisions.head import head_state as h
from agent.decisions.head.head_state import HeadPhase, answer_of, leave
from agent.decisions.shared import Step

if TYPE_CHECKING:
    from collections.abc import Collection

    from agent.decisions.head.head_state import HeadEvent, HeadState


_MOST_DIGITS = 10  # of an attempt's number in a job's id


def look_for_jobs(state: HeadState, event: HeadEvent) -> HeadState:
    """Ask a given Ray for the jobs of this run: an agent without a record may have begun some."""
    if answer_of(event, h.JobsListed) is not None:
        return state.with_ray(jobs_known=True)
    ray = state.ray
    if not state.goal.asks_for_jobs or ray.jobs_asked or ray.item.step is not Step.READY:
        return state
    prefix = state.goal.submission_id or state.durable.run_id
    return state.with_ray(jobs_asked=True).do(h.Ask(h.ListJobs(prefix)))


def unrecorded_attempts(state: HeadState, event: HeadEvent) -> h.RunRemembered | None:
    """Return the attempts that a worker or a given Ray reports, if the head has no record."""
    listed = answer_of(event, h.JobsListed)
    if listed is not None and not state.ray.jobs_known:
        run_id = state.durable.run_id
        newest = _newest_job(run_id, state.goal.submission_id, listed.ids)
        return h.RunRemembered(run_id, newest) if newest else None
    if not isinstance(event, h.RunRemembered) or state.attempt.number > 1:
        return None
    if not state.goal.has_job:  # workers count a running cluster as an attempt
        event = replace(event, attempt=0)
    is_known = (event.run_id, event.attempt, event.epoch) == (state.durable.run_id, 0, 0)
    was_asked_for = (
        state.has_resumed and event.run_id == state.durable.run_id
    )  # Ray has no such job
    return None if is_known or (was_asked_for and not event.epoch) else event


def _newest_job(run_id: str, fixed: str | None, ids: Collection[str]) -> int:
    """Return the number of a run's newest attempt in Ray; 0 for none."""
    numbers = [1] if fixed in ids else []
    for submission_id in ids:
        _, _, digits = submission_id.rpartition("-")
        number = int(digits) if digits.isdecimal() and len(digits) < _MOST_DIGITS else 0
        if number and submission_id_of(run_id, number, fixed) == submission_id:
            numbers.append(number)
    return max(numbers, default=0)


def may_run_on(state: HeadState, event: h.RunRemembered) -> bool:
    """Return whether the attempt that a worker reports may run on this node's Ray.

    A killed agent has started that Ray, and the worker follows no later one.
    """
    is_former_ray = state.goal.has_former_ray and not state.ray.item.restarts
    return is_former_ray and bool(event.attempt) and not event.epoch


def follow_remembered(state: HeadState, event: h.RunRemembered, now: float) -> HeadState:
    """Follow an attempt that has no record, if Ray has its job; else it is the next to begin."""
    run_id = event.run_id
    number = event.attempt
    attempt = Attempt(
        submission_id_of(run_id, number, state.goal.submission_id),
        number,
        submitted=now,
        start=state.utc(now),
        required=state.required,
    )
    ended = _lost_attempts(run_id, number - 1, state.utc(now))
    state = state.with_durable(run_id=run_id, ended=ended, attempt=attempt)
    state = replace(state, has_resumed=True).enter(HeadPhase.RESUMING, now)
    state = state.with_ray(jobs_known=True)
    return state.log(f"attempt {number} of run {run_id} has no record: looking for its job")


def adopt_run(state: HeadState, event: h.RunRemembered, now: float) -> HeadState:
    """Continue the run that a worker reports; leave if no attempt is left."""
    if event.attempt and not state.goal.ray_is_given:  # its last attempt may still run there
        state = state.with_earlier(leftovers={**state.earlier.leftovers, "the former head": now})
    number = event.attempt + 1
    state = state.with_attempt(id=submission_id_of(event.run_id, number), number=number)
    state = state.with_durable(
        run_id=event.run_id,
        ended=_lost_attempts(event.run_id, event.attempt, state.utc(now)),
        epoch=max(state.durable.epoch, event.epoch + EPOCH_STEP),
    )
    text = f"a worker reports run {event.run_id}: continuing it, attempts so far: {event.attempt}"
    state = state.log(text)
    over = attempts.retries_exhausted(state.lost_attempts, state.goal.retries)
    return state if over is None else leave(state, over, now)


def _lost_attempts(run_id: str, count: int, utc: str) -> tuple[EndedAttempt, ...]:
    """Return so many attempts of which nothing is known but that they were lost with their head."""
    end = ends.HEAD_LOST
    return tuple(
        EndedAttempt(
            number, f"{run_id}-{number}", utc, utc, end.reason, end.exit_code, plain=end.reason
        )
        for number in range(1, count + 1)
    )
