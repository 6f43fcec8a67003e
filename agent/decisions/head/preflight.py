"""The all-reduce before the job (AGENT_PREFLIGHT): started on all nodes together, awaited, judged.

It is tried once a run, when all that the job needs is there. What goes wrong ends the run: whoever
asked for it would rather know than pay for a job that hangs in its first collective.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from agent.base.outcome import Kind, Outcome
from agent.base.words import listed
from agent.checks.all_reduce import NAME, Share, judged
from agent.decisions.head.actions import Probe
from agent.decisions.items import HERE
from agent.decisions.probing import ALL_REDUCE, Answer, Preflight
from agent.decisions.shared import Said, Wait
from agent.plan import waits as planned
from agent.work.recipes.recipe import NodeSize
from agent.work.torchrun import Seat

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from agent.decisions.head.state import HeadAction, HeadState

_AFTER_A_FAILURE = 5.0
"""Where a node has failed the head's own word, which knows most, is soon to come."""
_REMEDY = (
    "preflight.log in each node's run folder has the output (NCCL_DEBUG=INFO makes it say more); "
    "unset AGENT_PREFLIGHT to start the job all the same"
)


def begin(state: HeadState, now: float) -> tuple[HeadState, tuple[HeadAction, ...]]:
    """Have all nodes begin, where that was asked for and was not done yet."""
    goal, fleet = state.goal, state.fleet
    if not goal.preflight or state.preflight is not None:
        return state, ()
    own = goal.size if goal.by_torchrun else state.sizes.get(state.ray_head or "", goal.size)
    members = [(HERE, goal.node, own.gpus)]
    there = [worker for worker in fleet.workers.values() if fleet.counts(worker)]
    for worker in sorted(there, key=lambda one: (one.number is None, one.number or 0)):
        by_ray = state.sizes.get(worker.ip, NodeSize(worker.gpus))
        gpus = worker.gpus if goal.by_torchrun else by_ray.gpus
        members.append((worker.key, worker.name, gpus))
    sizes = tuple(NodeSize(gpus) for _, _, gpus in members)
    shares = tuple((key, Share(name or "the head", gpus)) for key, name, gpus in members)
    until = now + planned.PREFLIGHT_LIMIT + planned.PREFLIGHT_SPARE
    state = replace(state, preflight=Preflight(until, shares))
    orders = tuple(
        Probe(key, ALL_REDUCE, seat=Seat(rank, sizes)) for rank, (key, _) in enumerate(shares)
    )
    nodes = f"{len(shares)} node(s)"
    return state, (Said(f"{NAME}: an all-reduce over {nodes} before the job"), *orders)


def heard(state: HeadState, node: str, answers: Iterable[Answer], now: float) -> HeadState:
    """Take in what a node says of its share."""
    known = state.preflight
    if known is None or known.is_over:
        return state
    for one in answers:
        if one.probe == ALL_REDUCE and any(key == node for key, _ in known.shares):
            until = min(known.until, now + _AFTER_A_FAILURE) if one.evidence else known.until
            answered = {**known.answers, node: one}
            known = replace(known, answers=answered, until=until)
    return replace(state, preflight=known)


def waits(state: HeadState) -> Iterator[Wait]:
    """Wait for the head's word of it."""
    known = state.preflight
    if known is not None and not known.is_over:
        what = f"an all-reduce over all nodes ({NAME})"
        yield Wait(planned.PREFLIGHT, what, known.until)


def weighed(
    state: HeadState, now: float
) -> tuple[HeadState, tuple[HeadAction, ...], Outcome | None]:
    """Say how it went once that is known; return the end of a run that could not do it."""
    known = state.preflight
    if known is None or known.is_over:
        return state, (), None
    own, lost = known.answers.get(HERE), _lost(state, known)
    if own is None and lost and not known.lost:  # it can come to nothing without them
        until = min(known.until, now + state.goal.limits[planned.NODE])
        known = replace(known, lost=lost, until=until)
    if own is None and now < known.until:
        return replace(state, preflight=known), (), None
    state = replace(state, preflight=replace(known, is_over=True))
    found = judged("" if own is None else own.words, [share for _, share in known.shares])
    if found.failure:
        return state, (), _end(known, found.failure, lost)
    warning = () if found.warning is None else (found.warning,)
    probes = replace(state.probes, findings=(*state.probes.findings, *warning))
    said = (Said(found.said), *(Said(one.sentence(), "warning") for one in warning))
    return replace(state, probes=probes), said, None


def _end(known: Preflight, failure: str, lost: tuple[str, ...]) -> Outcome:
    """Return the end: a loss where a node went meanwhile, else what is to be mended first."""
    if lost:
        reason = f"{NAME}: the all-reduce came to nothing: {listed(lost)} went away meanwhile"
        return Outcome(Kind.LOST, 75, reason, culprit="node")
    own, names = known.answers.get(HERE), {key: share.node for key, share in known.shares}
    told = [f"{names[key]}: {one.evidence}" for key, one in known.answers.items() if one.evidence]
    if told and (own is None or not own.words):  # else the head's own word knows more
        failure = listed(told)
    reason = f"{NAME}: the all-reduce failed: {failure}"
    return Outcome(Kind.REFUSED, 78, reason, culprit=NAME, remedy=_REMEDY)


def _lost(state: HeadState, known: Preflight) -> tuple[str, ...]:
    """Name those who take part and do not count any more."""
    workers, counts = state.fleet.workers, state.fleet.counts
    return tuple(
        share.node
        for key, share in known.shares
        if key != HERE and (key not in workers or not counts(workers[key]))
    )
