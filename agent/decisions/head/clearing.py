"""An attempt that is over must be gone from every node before the next is submitted.

An agent says of which attempt something may still run on its node. One that is out of reach ends
all itself before AGENT_NODE_GRACE has passed, and so do nodes without an agent count as cleared. A
later life of a node is proof that the former is over.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from agent.base.words import listed
from agent.decisions.shared import Wait
from agent.plan import waits as planned

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.decisions.head.state import HeadState
    from agent.decisions.head.workers import Worker


_FORMER_HEAD = "the former head"
"""The name for its node, where only workers remember the run."""


def begun(state: HeadState, now: float) -> HeadState:
    """Note who may still run something of an attempt that is over now."""
    fleet = state.fleet
    left = {key: now for key, worker in fleet.workers.items() if worker.runs}
    known = {worker.name for worker in fleet.workers.values()}
    if state.goal.owns_ray:  # on a Ray of others GCS's word of the job holds for their nodes
        left |= {ip: now for ip in fleet.alive if ip not in fleet.by_ip}
        left |= {name: now for name in state.attempt.nodes if name not in known}
    lost_at = now if state.lost_at is None else state.lost_at
    left |= {name: lost_at for name in state.attempt.gone if name not in known}
    return replace(state, leftovers=left, clearing="it is being ended")


def taken_up(state: HeadState, attempt: int, now: float) -> HeadState:
    """Count the node of a head of which this one has no record: its last attempt may still run."""
    if not attempt or state.goal.ray_is_given:
        return state
    return replace(state, leftovers={**state.leftovers, _FORMER_HEAD: now})


def heard(state: HeadState, worker: Worker) -> HeadState:
    """Take in what a worker says of what runs there."""
    left, is_early = state.leftovers, state.attempt.submitted is None
    unclear = 0 < worker.runs < state.attempt.number
    if not is_early or worker.gone or (not left and not unclear):
        return state
    others = {name: since for name, since in left.items() if name not in {worker.key, worker.name}}
    return replace(state, leftovers={**others, worker.key: 0.0} if unclear else others)


def passed(state: HeadState, now: float) -> HeadState:
    """Count those as cleared that were out of reach for so long that they have ended all."""
    if not state.leftovers:
        return state
    grace = state.goal.limits[planned.NODE]
    left = {}
    for name, since in state.leftovers.items():
        away = _away_since(state, name, since)
        if away is None or away + grace > now:  # as the wait's own deadline is reckoned
            left[name] = since
    return state if len(left) == len(state.leftovers) else replace(state, leftovers=left)


def waits(state: HeadState) -> Iterator[Wait]:
    """Wait for the nodes that are in reach to have ended it, and for the others' time."""
    before = f"the end of attempt {state.attempt.number - 1}"
    here, away = [], {}
    for name, since in state.leftovers.items():
        at = _away_since(state, name, since)
        if at is None:
            here.append(_name(state, name))
        else:
            away[_name(state, name)] = at
    grace = state.goal.limits[planned.NODE]
    if here or state.clearing is not None:
        until = state.attempt.began + grace + planned.CLEAR_LIMIT
        own = [] if state.clearing is None else ["this node"]
        evidence = state.clearing or "its agent answers, and what it ran is not gone yet"
        yield Wait(planned.CLEAR, f"{before} on {listed([*own, *sorted(here)])}", until, evidence)
    if away:
        what = f"{before} on {listed(sorted(away))}, out of reach"
        yield Wait(planned.AWAY, what, max(away.values()) + grace, "it ends all itself by then")


def _away_since(state: HeadState, name: str, since: float) -> float | None:
    worker = state.fleet.workers.get(name)
    return since if worker is None else worker.away_since


def _name(state: HeadState, name: str) -> str:
    worker = state.fleet.workers.get(name)
    return name if worker is None else worker.place
