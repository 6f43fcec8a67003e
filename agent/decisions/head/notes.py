"""What the head takes in of each event, whatever its phase."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from agent.decisions.head import state as h
from agent.decisions.items import Item, Step

if TYPE_CHECKING:
    from agent.decisions.head.state import HeadEvent, HeadState


def note(state: HeadState, event: HeadEvent) -> HeadState:  # noqa: C901, PLR0911 - one case, one return
    """Return the state with what an event says, whatever follows from it."""
    match event:
        case h.RayNodes(nodes):  # the head's own node in the list is what "Ray is up" means
            up = any(node.is_head and node.alive for node in nodes)
            ray = replace(state.ray, step=Step.READY, evidence="") if up else state.ray
            return replace(state, ray_nodes=nodes, ray=ray)
        case h.GcsOpen():
            said = "GCS answered, the head's node is not in it yet"
            waited_for = state.ray.step is Step.PENDING
            ray = replace(state.ray, evidence=said) if waited_for else state.ray
            return replace(state, gcs_answers=True, ray=ray)
        case h.RaySilent(evidence):
            return replace(state, ray=replace(state.ray, evidence=evidence))
        case h.RayGone(evidence):
            lost = replace(state.ray, step=Step.LOST, evidence=evidence)
            return replace(state, ray=lost, last_ray=evidence)
        case h.WorkerReported(worker):
            return replace(state, workers={**state.workers, worker.key: worker})
        case h.Prepared(failed, evidence):
            return replace(state, prepare=Item(Step.LOST if failed else Step.READY, evidence))
        case h.ServiceReady(name):
            ready = Item(Step.READY, restarts=state.services[name].restarts, answered=True)
            return _with(state, name, ready)
        case h.ServiceWaits(name, evidence):
            return _with(state, name, replace(state.services[name], evidence=evidence))
        case h.ServiceGone(name, evidence):
            lost = replace(state.services[name], step=Step.LOST, evidence=evidence)
            return _with(state, name, lost)
        case h.JobHeard(report):
            return replace(state, job=report)
        case _:
            return state


def _with(state: HeadState, name: str, item: Item) -> HeadState:
    return replace(state, services={**state.services, name: item})
