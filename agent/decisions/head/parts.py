"""A job that torchrun starts: every node's share of it, and the verdict that follows from them all.

With Ray one driver's end is the job's; here every node has a torchrun, and each tells its own end.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from agent.base.outcome import Kind, Outcome
from agent.base.value import dataclass
from agent.decisions.items import HERE
from agent.decisions.shared import listed
from agent.decisions.verdict import JobReport, verdict_of
from agent.plan import waits as planned
from agent.work.recipes.recipe import NodeSize

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agent.decisions.head.state import HeadState
    from agent.decisions.head.workers import Worker
    from agent.work.torchrun import PartEnd


@dataclass(frozen=True)
class Part:
    """One node's share of an attempt."""

    node: str
    """The node by its name."""
    size: NodeSize
    end: PartEnd | None = None
    failed_at: float = 0.0
    """When its first rank failed, on the head's clock, however the node's own is set."""


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
    return replace(state, parts=parts)


def ended(state: HeadState, key: str, attempt: int, end: PartEnd, now: float) -> HeadState:
    """Take in that a node's share of this attempt is over; it ends once."""
    part = state.parts.get(key)
    if part is None or part.end is not None or attempt != state.attempt.number:
        return state
    over = replace(part, end=end, failed_at=now - end.ago)
    return replace(state, parts={**state.parts, key: over})


def reported(state: HeadState, worker: Worker, now: float) -> HeadState:
    """Take in what a worker says of its share."""
    word = worker.part
    if word is None:
        return state
    return ended(state, worker.key, word.attempt, word.end, now)


def report(state: HeadState) -> JobReport | None:
    """Return what all shares together say of the job; None while they say nothing yet."""
    parts = state.parts
    failed = [part for part in parts.values() if part.end is not None and part.end.failed]
    if failed:
        return _failure(min(failed, key=lambda part: part.failed_at))
    if parts and all(part.end is not None and part.end.code == 0 for part in parts.values()):
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
    return listed(
        state.parts[key].node
        for key in _without_end(state)
        if not _is_there(state, key) and key != HERE
    )


def settled(state: HeadState) -> bool:
    """Say whether nothing more is to be heard of an attempt: all have ended, or are not there."""
    return all(key != HERE and not _is_there(state, key) for key in _without_end(state))


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
    waited_for = any(_may_speak(state, key) for key in _without_end(state))
    return state.since + state.goal.limits[planned.JOB] if waited_for else None


def looked(state: HeadState, now: float) -> HeadState:
    """Count those out who have said nothing since they were to stop: they would have, at once."""
    until = next_look(state)
    if until is None or now < until:
        return state
    mute = [key for key in _without_end(state) if _may_speak(state, key)]
    return replace(state, fleet=state.fleet.silenced(mute, now))


def _may_speak(state: HeadState, key: str) -> bool:
    """Say whether a node counts, of which nothing was heard since the attempt is being stopped."""
    worker = state.fleet.workers.get(key)
    return worker is not None and _is_there(state, key) and worker.heard < state.since


def _without_end(state: HeadState) -> Iterator[str]:
    yield from (k for k, part in state.parts.items() if part.end is None or part.end.lost)


def _is_there(state: HeadState, key: str) -> bool:
    worker, part = state.fleet.workers.get(key), state.parts.get(key)
    has_lost_it = part is not None and part.end is not None and part.end.lost
    return worker is not None and state.fleet.counts(worker) and not has_lost_it


def sizes(parts: Mapping[str, Part]) -> tuple[NodeSize, ...]:
    """Return every node's size, in the order of ranks."""
    return tuple(part.size for part in parts.values())
