"""Whether the nodes that joined agree, with each other and with Ray.

They are compared in the moment in which the last is there, whatever else is waited for still, and
before each submission.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from agent.base.outcome import Kind, Outcome
from agent.checks.agreement import agreement
from agent.checks.finding import Level
from agent.checks.ray_gpus import Counted, counted_by_ray
from agent.decisions.head import probes
from agent.decisions.shared import Said

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.decisions.head.state import HeadAction, HeadState


def weighed(
    state: HeadState, now: float
) -> tuple[HeadState, tuple[HeadAction, ...], Outcome | None]:
    """Compare all nodes that count; return what is to be done, and a refusal where it must be.

    Each node's GPUs are compared with Ray's count of them there.

    Where they agree, as far as they must, they try each other's Ray, and nothing waits for that.

    Only nodes whose agents told of their machine are compared: of one joined by hand nothing is
    known. What was said before an earlier attempt is not said again.
    """
    goal, fleet = state.goal, state.fleet
    state = replace(state, compared=fleet.alive)
    if goal.facts is None:
        return *probes.all_joined(state, now), None
    keys = ((fleet.by_ip.get(ip, ""), name) for ip, name in fleet.alive.items())
    workers = [(name, fleet.facts[key]) for key, name in keys if key in fleet.facts]
    nodes = [(goal.node, goal.facts), *workers]
    differing = agreement(nodes, brings_libraries=goal.brings_libraries)
    found = (*differing, *counted_by_ray([*_gpus(state)]))
    new = [one for one in found if one not in state.differences]
    said = tuple(Said(one.sentence(), "warning") for one in new if one.level is Level.WARN)
    failed = [one for one in found if one.level is Level.FAIL]
    state = replace(state, differences=found)
    if not failed:
        state, tried = probes.all_joined(state, now)
        return state, (*said, *tried), None
    told = "; ".join(f"{one.check}: {one.what}" for one in failed)
    remedies = ". ".join(dict.fromkeys(one.remedy for one in failed))
    reason = f"the nodes do not agree: {told}" if {*failed} & {*differing} else told
    culprit = "agreement" if reason != told else failed[0].check
    return state, said, Outcome(Kind.REFUSED, 78, reason, culprit=culprit, remedy=remedies)


def _gpus(state: HeadState) -> Iterator[Counted]:
    """Yield each node's GPUs as its own agent and as Ray count them, where Ray is ours."""
    goal, fleet = state.goal, state.fleet
    if goal.ray_is_given or goal.by_torchrun or state.ray_head is None:
        return
    own = state.sizes.get(state.ray_head)
    if own is not None:
        yield Counted(goal.node, goal.size.gpus, own.gpus)
    for ip, name in fleet.alive.items():
        worker, size = fleet.workers.get(fleet.by_ip.get(ip, "")), state.sizes.get(ip)
        if worker is not None and size is not None:
            yield Counted(name, worker.gpus, size.gpus)
