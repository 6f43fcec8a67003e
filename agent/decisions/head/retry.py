"""The head's decisions on attempts: what counts as lost, whether another follows, and why."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from agent.base.outcome import Kind, Outcome
from agent.base.words import listed
from agent.decisions.attempts import (
    Attempt,
    Tried,
    id_of,
    in_vain,
    is_loss,
    pause_after,
    spent,
)
from agent.decisions.head import clearing
from agent.decisions.head import state as h
from agent.decisions.head.state import HeadAction, HeadState, Phase
from agent.decisions.items import Step
from agent.decisions.shared import Said
from agent.decisions.verdict import out_of_memory, verdict_of
from agent.plan import waits as planned

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.decisions.shared import Wait
    from agent.decisions.verdict import JobReport

MOST_GONE = 20_000
"""So many lost nodes of an attempt are known by name, the last ones."""
_RECENT = 60.0
"""A job that fails so soon after a loss failed because of it."""


def noticed(state: HeadState, left: Mapping[str, str], now: float) -> HeadState:
    """Remember that nodes were lost while an attempt ran, by address and name."""
    attempt = state.attempt
    if not left or attempt.submitted is None or attempt.ended is not None:
        return state
    gone = tuple(dict.fromkeys((*attempt.gone, *left.values())))[-MOST_GONE:]
    own = {ip: name for ip, name in left.items() if ip in attempt.places}
    attempt = replace(attempt, gone=gone, missed={**attempt.missed, **own})
    loss = f"{listed(left.values())} {'was' if len(left) == 1 else 'were'} lost"
    return replace(state, attempt=attempt, loss=loss, lost_at=now)


def noticed_late(state: HeadState, now: float) -> HeadState:
    """Count the workers of an attempt that left while no agent of the head ran as lost."""
    attempt, alive = state.attempt, state.fleet.alive
    seen = {*alive, *attempt.missed}
    return noticed(state, {ip: w for ip, w in attempt.places.items() if ip not in seen}, now)


def with_required(state: HeadState) -> HeadState:
    """Fix which workers an attempt requires as it is submitted, and how many of them.

    One that is sized for its nodes requires each worker that its size counts: one that is lost
    leaves ranks without a peer, however few workers were expected. Where more were expected than
    its size counts, it requires all that joined. In a job without a size any worker may be a spare.
    """
    places, required = state.fleet.alive, state.required
    if state.goal.is_sized:
        sized = _sized(state)
        places = sized if len(sized) >= required else places
        required = len(places)
    return replace(state, attempt=replace(state.attempt, places=places), required=required)


def _sized(state: HeadState) -> Mapping[str, str]:
    """Return the workers that the job's size counts: those with GPUs, where any node has some."""
    alive = state.fleet.alive
    having = {ip for ip, size in state.sizes.items() if size.gpus}
    if having.isdisjoint({state.ray_head, *alive}):
        return alive
    return {ip: name for ip, name in alive.items() if ip in having}


def away(state: HeadState) -> tuple[str, ...]:
    """Name those of the running attempt that were lost and are not back, here or elsewhere."""
    missed, alive = state.attempt.missed, state.fleet.alive
    there = set(alive.values()) if missed else set()
    return tuple(name for ip, name in missed.items() if ip not in alive and name not in there)


def is_short(state: HeadState) -> bool:
    """Say whether too few workers are there; for those of a running attempt no spare stands in."""
    if state.goal.by_torchrun:
        return bool(state.parts.absent)
    places = state.attempt.places
    if len(state.fleet.alive) < state.required or not places:
        return len(state.fleet.alive) < state.required
    return len(places) - len(away(state)) < state.required


def recent_loss(state: HeadState, now: float) -> str:
    """Say which loss may be why a job fails now, or ''."""
    if state.ray.step is Step.LOST:
        return f"Ray was lost on the head: {state.ray.evidence}"
    recent = state.lost_at is not None and now < state.lost_at + _RECENT
    return state.loss if recent else ""


def out_of_memory_at(state: HeadState) -> str:
    """Say which node has just run out of memory, where the kernel ended something for it; or ''."""
    nodes = {worker.name: worker.memory for worker in state.fleet.workers.values()}
    nodes[state.goal.node or "the head"] = state.memory
    return "; ".join(f"on {name} {memory}" for name, memory in nodes.items() if memory)


def must_ask(state: HeadState, report: JobReport, now: float) -> bool:
    """Say whether a job's end waits for the nodes' word: it failed, and a node may be to blame."""
    failed = report.status == "FAILED" and not report.blames_runtime_env
    if not failed or report.ran_out_of_memory or recent_loss(state, now):
        return False
    return state.goal.wants_job and bool(state.fleet.alive)


def judged(state: HeadState, report: JobReport, now: float) -> Outcome:
    """Return the end of an attempt whose job has ended: its own, or a loss that may be repaired."""
    report = replace(report, memory=report.memory or out_of_memory_at(state))
    own, loss = verdict_of(report, state.loss), recent_loss(state, now)
    if not loss or own.kind is not Kind.JOB_FAILED or report.ran_out_of_memory:
        return own
    if state.losses >= state.goal.retries:
        return verdict_of(report, loss)
    why = verdict_of(report).reason
    return Outcome(Kind.LOST, 75, f"{loss}, and {why}", culprit="node")


def another(
    state: HeadState, end: Outcome, now: float
) -> tuple[HeadState, tuple[HeadAction, ...]] | Outcome:
    """Begin another attempt after this end, or return the end of the run."""
    if not is_loss(end) or not state.goal.wants_job:
        return end
    memory = out_of_memory_at(state)
    if memory:
        return out_of_memory(f"{end.reason}; {memory}")
    ended = state.attempt.over(now, end)
    earlier = (*state.earlier, ended)
    tried = (*state.goal.tried, *(one.tried for one in earlier))
    if len(tried) > state.goal.retries:
        return replace(end, attempts_are_used_up=True)
    number, pause = ended.number + 1, pause_after(len(tried))
    attempt = Attempt(id_of(state.goal.run_id, number), number, now, now + pause)
    lost = f"attempt {ended.number} of {state.most_attempts} is lost: {end.reason}"
    said = Said(f"{lost}; the next begins in {pause:g} s at the earliest", "warning")
    state = replace(
        clearing.begun(state, now),
        attempt=attempt,
        earlier=earlier,
        required=state.goal.expected_workers,
        short_since=None,
        loss="",
        lost_at=None,
        verdict=None,
    )
    return state.to(Phase.BOOTING, now), (said, h.Retry(ended, attempt))


def no_progress(state: HeadState) -> Outcome | None:
    """Return the end of a run whose attempts come to nothing; None while they may help."""
    tried = (*state.goal.tried, *(one.tried for one in state.earlier))
    return in_vain(tried, state.checkpoint) if state.goal.wants_job else None


def is_news(state: HeadState, event: h.RunRemembered) -> bool:
    """Say whether a worker knows more of this run than a head whose disk is gone."""
    is_fresh = state.attempt.number == 1
    differs = event.run_id != state.goal.run_id or event.attempt > 0 or event.epoch > 0
    return is_fresh and differs


def take_up(
    state: HeadState, event: h.RunRemembered, now: float
) -> tuple[HeadState, tuple[HeadAction, ...], Outcome | None]:
    """Go on with the run that a worker remembers; the end of the run where no attempt is left."""
    state = clearing.taken_up(state, event.attempt, now)
    tried = (Tried(math.inf, "its head was lost"),) * event.attempt
    number = event.attempt + 1
    attempt = replace(state.attempt, id=id_of(event.run_id, number), number=number)
    goal = replace(state.goal, run_id=event.run_id, tried=tried, first_attempt=number)
    told = f"a worker remembers run {event.run_id}: it goes on, attempts so far: {event.attempt}"
    actions = (Said(told), h.TakeUp(event.run_id, event.attempt, event.epoch))
    return replace(state, goal=goal, attempt=attempt), actions, spent(tried, goal.retries)


def code_of(state: HeadState, late: Wait) -> int:
    """Return the code of a wait that is over: what an earlier attempt had was lost."""
    gone = {planned.WORKERS, planned.HEAD, planned.CLEAR}
    had_it = state.attempt.number > 1 and late.key in gone
    return 75 if had_it else 69


def sentence(state: HeadState) -> str:
    """Say which attempt begins, why, and with which nodes."""
    alive = set(state.fleet.alive.values())
    before = state.earlier[-1] if state.earlier else None
    gone = () if before is None else before.gone
    parts = [f"{name} was lost and is {'back' if name in alive else 'away'}" for name in gone]
    if not parts:
        parts = [one.reason for one in state.goal.tried[-1:]]
        parts = parts if before is None or before.end is None else [before.end.reason]
    nodes = f"{len(alive) + 1} of {state.goal.expected_workers + 1} node(s)"
    resumes = (f"resumes from {state.resumes_from}",) if state.resumes_from else ()
    why = "; ".join((*parts, nodes, *resumes))
    return f"attempt {state.attempt.number} of {state.most_attempts}: {why}"
