"""Probes of the nodes: who is to try what, what came of it, and what a person is told.

The reward server is tried from every node as soon as both are there, beside all other waiting; the
submission waits for the answers, though not for long. How fast the ways between nodes are is tried
as they join, and whether they reach each other's Ray once all have: nothing waits for either.
Nothing of it ends a run: which node asks for rewards, and who talks to whom, is the framework's
affair, and a doubt is worth a warning.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from agent.base.words import listed
from agent.checks.finding import Finding, Level
from agent.decisions.head import preflight, samples
from agent.decisions.head import state as h
from agent.decisions.head.actions import Probe
from agent.decisions.items import HERE, Step
from agent.decisions.probing import REACH, SCORE, Answer
from agent.decisions.shared import Said, Wait
from agent.plan import waits as planned
from agent.work.services import REWARD

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from agent.decisions.head.state import HeadAction, HeadEvent, HeadState
    from agent.decisions.head.workers import Worker

SLOW = 0.02
"""Seconds to a node and back that no data center's own network takes."""
_MOST_TOLD = 8
_MOST_KEPT = 64
_MOST_NAMED = 8
_OPEN_PORTS = "Open all TCP ports between the nodes; `pod-agent plan` lists those that are used"
_ONE_PLACE = "Take nodes of one data center"
_TOGETHER = 3.0
"""Pods that start together join within so many seconds: their cores are Ray's until then."""
_REACHABLE = "Let all nodes reach it, or set AGENT_REWARD to a URL that they reach"


def after(
    state: HeadState, event: HeadEvent, now: float, *, is_count_new: bool
) -> tuple[HeadState, tuple[HeadAction, ...]]:
    """Take in what was tried, and have more tried where that can be now.

    `is_count_new` where the workers that count may be others than before.
    """
    said: tuple[HeadAction, ...] = ()
    reported = event.worker if isinstance(event, h.WorkerReported) else None
    if reported is not None and reported.answers:
        state, said = _heard(state, reported.key, reported.answers, now)
    if isinstance(event, h.Answered):
        state, said = _heard(state, HERE, (event.answer,), now)
    state, measured = samples.told(state, now, partial(_name, state), partial(_name_at, state))
    state, warned = _found(state, measured)
    state, tried = _order(state, reported, now)
    state, sampled = _early(state, now, is_count_new=is_count_new)
    return state, (*said, *warned, *tried, *sampled)


def _early(
    state: HeadState, now: float, *, is_count_new: bool
) -> tuple[HeadState, tuple[HeadAction, ...]]:
    """Have those that joined measure the ways between them while others are awaited."""
    at = state.probes.early_at
    if at is None and not is_count_new:
        return state, ()
    is_early = 0 < len(state.fleet.alive) < state.required
    if state.phase is not h.Phase.BOOTING or not is_early:
        return replace(state, probes=replace(state.probes, early_at=None)), ()
    if at is None or now < at:
        at = now + _TOGETHER if at is None else at
        return replace(state, probes=replace(state.probes, early_at=at)), ()
    state = replace(state, probes=replace(state.probes, early_at=None))
    return samples.begin(state, now, all_joined=False)


# --- the reward server ---------------------------------------------------------------------------


def _order(
    state: HeadState, reported: Worker | None, now: float
) -> tuple[HeadState, tuple[HeadAction, ...]]:
    """Have a node ask for a score once it can; `reported` is the worker that said something.

    The first look at a reward server that answers asks all nodes; each later one that reports is
    asked by itself.
    """
    home = state.services.homes.get(REWARD, HERE)
    item = state.services.get((home, REWARD))
    if item is None or item.step is not Step.READY:
        return state, ()
    is_first = not state.probes.asked
    workers: Iterable[Worker] = () if reported is None else (reported,)
    if is_first:
        workers = state.fleet.workers.values()
    new = [worker.key for worker in workers if _is_asked(state, worker, home)]
    if is_first and new and home != HERE:  # where it lives here, its readiness was this probe
        new.insert(0, HERE)
    if not new:
        return state, ()
    probes = state.probes
    until = dict.fromkeys(new, now + planned.PROBE_LIMIT)
    probes = replace(probes, asked=probes.asked | {*new}, open={**probes.open, **until})
    worker = state.fleet.workers.get(home)
    at = "" if worker is None else worker.ip
    return replace(state, probes=probes), tuple(Probe(key, SCORE, at) for key in new)


def _is_asked(state: HeadState, worker: Worker, home: str) -> bool:
    there = not (worker.gone or worker.refused or worker.alone)
    return there and worker.key != home and worker.key not in state.probes.asked


def score_waits(state: HeadState) -> Iterator[Wait]:
    """Wait for the scores that nodes were asked for."""
    left = [key for key in state.probes.open if _is_there(state, key)]
    if left:
        until = max(state.probes.open[key] for key in left)
        what = "every node to get a score from the reward server"
        yield Wait(planned.PROBE, what, until, lambda: f"no word from {_names(state, left)}")


def given_up(state: HeadState) -> tuple[HeadState, tuple[HeadAction, ...]]:
    """Wait for no score any longer; say who told none."""
    left = [key for key in state.probes.open if _is_there(state, key)]
    if not left:
        return state, ()
    state = replace(state, probes=replace(state.probes, open={}))
    limit = f"{planned.PROBE_LIMIT:g} s"
    what = f"{_names(state, left)} did not tell within {limit} whether they reach it"
    return _found(state, (Finding(REWARD, Level.WARN, what, _REACHABLE),))


def _is_there(state: HeadState, key: str) -> bool:
    worker = state.fleet.workers.get(key)
    return key == HERE or (worker is not None and not worker.gone)


# --- each other's Ray, and the ways between ------------------------------------------------------


def all_joined(state: HeadState, now: float) -> tuple[HeadState, tuple[HeadAction, ...]]:
    """Have the nodes that joined try each other, as far as they have not yet."""
    state, tried = _ring(state)
    state, sampled = samples.begin(state, now, all_joined=True)
    return state, (*tried, *sampled)


def _ring(state: HeadState) -> tuple[HeadState, tuple[HeadAction, ...]]:
    """Have the head and each worker try each other, and each worker its neighbour in a ring."""
    head, goal = state.ray_head, state.goal
    if head is None or goal.ray_is_given or goal.by_torchrun:  # no Ray whose ports are known
        return state, ()
    ring = samples.in_ring(state.fleet)
    pairs = [(HERE, ip) for ip, _ in ring]
    for (ip, worker), (neighbour, _) in zip(ring, [*ring[1:], *ring[:1]], strict=True):
        if worker is not None:  # one joined by hand has no agent that could try
            pairs += [(worker.key, other) for other in (head, neighbour) if other != ip]
    new = [pair for pair in pairs if pair not in state.probes.reached]
    reached = state.probes.reached | {*new}
    state = replace(state, probes=replace(state.probes, reached=reached))
    return state, tuple(Probe(node, REACH, at) for node, at in new)


# --- what came of it -----------------------------------------------------------------------------


def _heard(
    state: HeadState, node: str, answers: tuple[Answer, ...], now: float
) -> tuple[HeadState, tuple[HeadAction, ...]]:
    """Take in what a node tried; say what a person should know of it."""
    state = samples.heard(state, node, answers)
    state = preflight.heard(state, node, answers, now)
    probes = state.probes
    if node in probes.open and any(answer.probe == SCORE for answer in answers):
        left = {key: until for key, until in probes.open.items() if key != node}
        state = replace(state, probes=replace(probes, open=left))
    found = (_finding(state, node, answer) for answer in answers)
    return _found(state, tuple(one for one in found if one is not None))


def _finding(state: HeadState, node: str, answer: Answer) -> Finding | None:
    who = _name(state, node)
    if answer.probe == SCORE and answer.evidence:
        what = f"{who} gets no score from it: {answer.evidence}"
        return Finding(REWARD, Level.WARN, what, _REACHABLE)
    if answer.probe != REACH:
        return None
    other = _name_at(state, answer.at)
    if answer.evidence:
        what = f"{who} does not reach the Ray of {other}: {answer.evidence}"
        return Finding("network", Level.WARN, what, _OPEN_PORTS)
    if answer.seconds > SLOW:
        ms = round(answer.seconds * 1000)
        what = f"{ms} ms from {who} to {other} and back: every exchange between them pays that"
        return Finding("network", Level.WARN, what, _ONE_PLACE)
    return None


def _found(
    state: HeadState, findings: tuple[Finding, ...]
) -> tuple[HeadState, tuple[HeadAction, ...]]:
    """Keep findings; say the first ones, and once that there are more."""
    known = state.probes.findings
    new = tuple(one for one in findings if one not in known)[: max(0, _MOST_KEPT - len(known))]
    if not new:
        return state, ()
    room = max(0, _MOST_TOLD - len(known))
    said = [Said(one.sentence(), "warning") for one in new[:room]]
    if len(known) <= _MOST_TOLD < len(known) + len(new):
        said.append(Said("more of the kind: `pod-agent doctor --all` here", "warning"))
    probes = replace(state.probes, findings=(*known, *new))
    return replace(state, probes=probes), tuple(said)


def _names(state: HeadState, keys: list[str]) -> str:
    more = len(keys) - _MOST_NAMED
    names = [_name(state, key) for key in keys[:_MOST_NAMED]]
    return listed(names if more <= 0 else [*names, f"{more} more"])


def _name(state: HeadState, node: str) -> str:
    worker = state.fleet.workers.get(node)
    return (state.goal.node or "the head") if worker is None else worker.place


def _name_at(state: HeadState, ip: str) -> str:
    if not ip:
        return _name(state, HERE)
    key = state.fleet.by_ip.get(ip)
    if key is not None:
        return _name(state, key)
    return _name(state, HERE) if ip == state.ray_head else ip
