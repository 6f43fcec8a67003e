"""Samples of how fast the ways between nodes are: who takes which, and what all of them tell.

Nodes draw some MB from a fellow's agent: each worker from its neighbour in a ring, and the head and
the first few workers from each other. They do so as they join, while others are still awaited: so
much of it as is certain whoever else may come, and the rest when all are there. Nothing waits for
them: what is slow is told in one sentence when all have answered, or when the time for it is over,
and told again at the end where there is more of it by then.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from agent.base.words import listed
from agent.checks.finding import Finding, Level
from agent.checks.links import CHECK, Link, slow_links
from agent.decisions.head.actions import Probe
from agent.decisions.items import HERE
from agent.decisions.probing import SAMPLE, Answer
from agent.plan import waits as planned

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from agent.decisions.head.state import HeadAction, HeadState
    from agent.decisions.head.workers import Fleet, Worker

_MOST_NAMED = 4
WITH_THE_HEAD = 16
"""So many workers measure the way to the head: they take turns, and a thousand would be late."""


def in_ring(fleet: Fleet) -> list[tuple[str, Worker | None]]:
    """Return the workers that count by address, in the order of ranks; then those without one."""
    there = [(ip, fleet.workers.get(fleet.by_ip.get(ip, ""))) for ip in fleet.alive]
    return sorted(there, key=lambda one: math.inf if (n := _rank(one[1])) is None else n)


def begin(
    state: HeadState, now: float, *, all_joined: bool
) -> tuple[HeadState, tuple[HeadAction, ...]]:
    """Have the nodes that joined take samples of each other, each way once a run."""
    probes = state.probes
    new = [way for way in _ways(state, all_joined=all_joined) if way not in probes.samples]
    if not new and not (all_joined and probes.awaited):
        return state, ()
    until = probes.sampled_by
    if until is None or (new and all_joined):  # what is slow is told while others are awaited
        until = now + planned.SAMPLE_LIMIT
    probes = replace(
        probes,
        samples={**probes.samples, **dict.fromkeys(new)},
        awaited=(*probes.awaited, *new),
        sampled_by=until,
        are_the_last=all_joined,
    )
    return replace(state, probes=probes), tuple(Probe(node, SAMPLE, at) for node, at in new)


def _ways(state: HeadState, *, all_joined: bool) -> Iterator[tuple[str, str]]:
    """Yield who is to measure the way from which address, as far as that is certain by now.

    While workers are awaited, only ranks that follow each other are sure to be neighbours.
    """
    agents = [(ip, worker) for ip, worker in in_ring(state.fleet) if worker is not None]
    near = [one for one in agents if (HERE, one[0]) in state.probes.samples]
    others = [one for one in agents if (HERE, one[0]) not in state.probes.samples]
    near += others[: max(0, WITH_THE_HEAD - len(near))]
    yield from ((HERE, ip) for ip, _ in near)
    yield from ((worker.key, "") for _, worker in near)
    for (own, worker), (ip, neighbour) in zip(agents, [*agents[1:], *agents[:1]], strict=True):
        rank, following = _rank(worker), _rank(neighbour)
        are_certain = rank is not None and following == rank + 1
        if ip != own and (all_joined or are_certain):
            yield worker.key, ip


def _rank(worker: Worker | None) -> int | None:
    return None if worker is None else worker.number


def heard(state: HeadState, node: str, answers: Sequence[Answer]) -> HeadState:
    """Take in what was measured."""
    known = state.probes.samples
    new = {
        (node, one.at): one
        for one in answers
        if one.probe == SAMPLE and known.get((node, one.at), one) is None
    }
    if not new:
        return state
    awaited = tuple(pair for pair in state.probes.awaited if pair not in new)
    probes = replace(state.probes, samples={**known, **new}, awaited=awaited)
    return replace(state, probes=probes)


def told(
    state: HeadState, now: float, name: Callable[[str], str], name_at: Callable[[str], str]
) -> tuple[HeadState, tuple[Finding, ...]]:
    """Return what the samples say once all are there, or the time for them is over.

    While workers are awaited only the first slow ways are told, not each one as it shows.
    """
    probes = state.probes
    if probes.sampled_by is None:
        return state, ()
    if now < probes.sampled_by and any(_is_there(state, node) for node, _ in probes.awaited):
        return state, ()
    if not probes.are_the_last and probes.slow is not None:
        return replace(state, probes=replace(probes, sampled_by=None)), ()
    open_ones = [pair for pair in probes.awaited if _is_there(state, pair[0])]
    ways = {pair: (name(pair[0]), name_at(pair[1])) for pair in probes.samples}
    links = [
        Link(*ways[pair], one.size * 8 / one.seconds)
        for pair, one in probes.samples.items()
        if one is not None and not one.evidence and one.seconds > 0 and one.size > 0
    ]
    goal = state.goal
    weights = 0 if goal.facts is None else goal.facts.model_bytes
    slow = slow_links(links, weights, goal.platform)
    late, awaited = None, probes.awaited
    if probes.are_the_last:
        late, awaited = _late([ways[pair] for pair in open_ones]), ()
    findings = probes.findings
    if slow is not None and slow != probes.slow:  # it has all that was told before
        findings = tuple(one for one in findings if one != probes.slow)
    probes = replace(probes, sampled_by=None, awaited=awaited, slow=slow, findings=findings)
    return replace(state, probes=probes), tuple(one for one in (slow, late) if one is not None)


def _late(ways: list[tuple[str, str]]) -> Finding | None:
    """Say of which ways nothing was heard in time."""
    if not ways:
        return None
    more = len(ways) - _MOST_NAMED
    named = [f"{one} and {other}" for one, other in ways[:_MOST_NAMED]]
    between = listed(named if more <= 0 else [*named, f"{more} more"])
    limit = f"{planned.SAMPLE_LIMIT:g} s"
    what = f"no word within {limit} of how fast the way is between {between}"
    return Finding(CHECK, Level.WARN, what, "Look whether these nodes are busy, or their network")


def _is_there(state: HeadState, key: str) -> bool:
    worker = state.fleet.workers.get(key)
    return key == HERE or (worker is not None and not worker.gone and not worker.silent)
