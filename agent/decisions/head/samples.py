"""Samples of how fast the ways between nodes are: who takes which, and what all of them tell.

Nodes draw some MB from a fellow's agent: each worker from its neighbour in a ring, and the head and
the first few workers from each other. Nothing waits for them: what is slow is told in one sentence
when all have answered, or when the time for it is over.
"""

from __future__ import annotations

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
    from collections.abc import Callable, Sequence

    from agent.decisions.head.state import HeadAction, HeadState

_MOST_NAMED = 4
WITH_THE_HEAD = 16
"""So many workers measure the way to the head: they take turns, and a thousand would be late."""


def begin(state: HeadState, now: float) -> tuple[HeadState, tuple[HeadAction, ...]]:
    """Have the nodes that joined take samples of each other, each way once a run."""
    fleet, known = state.fleet, state.probes.samples
    agents = [(ip, key) for ip in fleet.alive if (key := fleet.by_ip.get(ip)) is not None]
    near = agents[:WITH_THE_HEAD]
    pairs = [(HERE, ip) for ip, _ in near] + [(key, "") for _, key in near]
    others = [*agents[1:], *agents[:1]]
    pairs += [(key, ip) for (own, key), (ip, _) in zip(agents, others, strict=True) if ip != own]
    new = [pair for pair in pairs if pair not in known]
    if not new:
        return state, ()
    samples = {**known, **dict.fromkeys(new)}
    probes = replace(
        state.probes,
        samples=samples,
        awaited=(*state.probes.awaited, *new),
        sampled_by=now + planned.SAMPLE_LIMIT,
    )
    return replace(state, probes=probes), tuple(Probe(node, SAMPLE, at) for node, at in new)


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
    """Return what the samples say once all are there, or the time for them is over."""
    probes = state.probes
    if probes.sampled_by is None:
        return state, ()
    if now < probes.sampled_by and any(_is_there(state, node) for node, _ in probes.awaited):
        return state, ()
    open_ones = [pair for pair in probes.awaited if _is_there(state, pair[0])]
    ways = {pair: (name(pair[0]), name_at(pair[1])) for pair in probes.samples}
    links = [
        Link(*ways[pair], one.size * 8 / one.seconds)
        for pair, one in probes.samples.items()
        if one is not None and not one.evidence and one.seconds > 0
    ]
    goal = state.goal
    weights = 0 if goal.facts is None else goal.facts.model_bytes
    slow = slow_links(links, weights, goal.platform)
    late = _late([ways[pair] for pair in open_ones])
    state = replace(state, probes=replace(probes, sampled_by=None))
    return state, tuple(one for one in (slow, late) if one is not None)


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
