"""A job that torchrun starts: every node's share of it, and the verdict that follows from them all.

With Ray one driver's end is the job's; here every node has a torchrun, and each tells its own end.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from agent.base.outcome import Kind, Outcome
from agent.base.words import listed
from agent.decisions.head.shares import Part, Parts
from agent.decisions.items import HERE
from agent.decisions.verdict import JobReport, verdict_of
from agent.plan import waits as planned
from agent.work.recipes.recipe import NodeSize

if TYPE_CHECKING:
    from agent.decisions.head.state import HeadState
    from agent.decisions.head.workers import Worker
    from agent.work.torchrun import PartEnd


def begin(state: HeadState) -> HeadState:
    """Share the job out among all that have come: the head first, then the others by their ranks.

    Where the platform gave none, they stand in the order in which they were first heard of.
    """
    fleet, goal = state.fleet, state.goal
    there = [worker for worker in fleet.workers.values() if fleet.counts(worker)]
    there.sort(key=lambda worker: (worker.number is None, worker.number or 0))
    parts = {HERE: Part(goal.node, goal.size)}
    for worker in there:
        facts = fleet.facts.get(worker.key)
        size = NodeSize(worker.gpus)
        if facts is not None:
            size = NodeSize(worker.gpus, facts.cpus, facts.memory)
        parts[worker.key] = Part(worker.name, size)
    return replace(state, parts=Parts.begun(parts))


def ended(state: HeadState, key: str, attempt: int, end: PartEnd, now: float) -> HeadState:
    """Take in that a node's share of this attempt is over; it ends once."""
    part = state.parts.of.get(key)
    if part is None or part.end is not None or attempt != state.attempt.number:
        return state
    return replace(state, parts=state.parts.ended(key, end, now - end.ago))


def reported(state: HeadState, worker: Worker, now: float) -> HeadState:
    """Take in what a worker says of its share."""
    word = worker.part
    if word is None:
        return state
    return ended(state, worker.key, word.attempt, word.end, now)


def counted(before: HeadState, state: HeadState) -> HeadState:
    """Find anew whose nodes are not there, where a node has come or gone since."""
    then, now = before.fleet, state.fleet
    if then.alive is now.alive and then.by_ip is now.by_ip:
        return state
    running = state.parts.running
    absent = frozenset(key for key in running if key != HERE and not _is_there(state, key))
    return replace(state, parts=replace(state.parts, absent=absent)) if running else state


def report(state: HeadState) -> JobReport | None:
    """Return what all shares together say of the job; None while they say nothing yet."""
    parts = state.parts
    if parts.first:
        return _failure(parts.of[parts.first])
    if parts.of and parts.succeeded == len(parts.of):
        return JobReport("SUCCEEDED", driver_exit_code=0)
    return None


def _failure(part: Part) -> JobReport:
    end = part.end
    assert end is not None  # noqa: S101 - asked only of one that failed
    rank = "torchrun itself" if end.local_rank is None else f"local rank {end.local_rank}"
    return JobReport("FAILED", end.words, end.code, place=f"{rank} on {part.node}")


def missing(state: HeadState) -> str:
    """Name the nodes whose share still runs, as far as anybody knows, and which are not there.

    An agent that was started anew has none of the job's processes, though its node is back.
    """
    parts = state.parts
    return listed(part.node for key, part in parts.of.items() if key in parts.absent)


def verdict(state: HeadState) -> Outcome:
    """Return the end of an attempt whose shares have ended.

    Where a node cannot tell how its share ended, it was lost, and what others say follows from it.
    """
    gone = missing(state)
    if gone:
        reason = f"lost a needed node while the job ran: {gone} (no word of its share)"
        return Outcome(Kind.LOST, 75, reason, culprit="node")
    found = report(state)
    assert found is not None  # noqa: S101 - asked only where one failed, or all have ended
    return verdict_of(found, state.loss)


def next_look(state: HeadState) -> float | None:
    """Return when it is clear who of an attempt that is being stopped says nothing."""
    if state.parts.settled or state.parts.mute_are_out:
        return None
    return state.since + state.goal.limits[planned.JOB]


def looked(state: HeadState, now: float) -> HeadState:
    """Count those out who have said nothing since they were to stop: they would have, at once."""
    until = next_look(state)
    if until is None or now < until:
        return state
    workers = state.fleet.workers
    there = [key for key in state.parts.running if key != HERE and _is_there(state, key)]
    mute = [key for key in there if workers[key].heard < state.since]
    out = replace(state, fleet=state.fleet.silenced(mute, now))
    out = counted(state, out)
    return replace(out, parts=replace(out.parts, mute_are_out=True))


def _is_there(state: HeadState, key: str) -> bool:
    worker, end = state.fleet.workers.get(key), state.parts.of[key].end
    has_lost_it = end is not None and end.lost
    return worker is not None and state.fleet.counts(worker) and not has_lost_it
