"""What the head takes in of each event, whatever its phase."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from agent.decisions.head import state as h
from agent.decisions.items import Item, Step

if TYPE_CHECKING:
    from agent.decisions.head.state import HeadEvent, HeadState, Key, Worker


def note(state: HeadState, event: HeadEvent, now: float) -> HeadState:  # noqa: C901, PLR0911, PLR0912 - one case, one return
    """Return the state with what an event says, whatever follows from it."""
    match event:
        case h.RayNodes(nodes):  # the head's own node in the list is what "Ray is up" means
            head = next((node.ip for node in nodes if node.is_head and node.alive), None)
            ray = state.ray if head is None else state.ray.ready()
            gpus = {node.ip: int(node.gpus) for node in nodes if node.alive}
            fleet = state.fleet.with_nodes(nodes)
            return replace(state, ray=ray, ray_head=head, gpus=gpus, fleet=fleet)
        case h.GcsOpen():
            said = "GCS answered, the head's node is not in it yet"
            waited_for = state.ray.step is Step.PENDING
            ray = replace(state.ray, evidence=said) if waited_for else state.ray
            return replace(state, gcs_answers=True, ray=ray)
        case h.RaySilent(evidence):
            return replace(state, ray=replace(state.ray, evidence=evidence))
        case h.RayGone(evidence):
            return replace(state, ray=state.ray.lost(evidence), last_ray=evidence)
        case h.WorkerIntroduced(key, _, facts):
            return replace(state, fleet=state.fleet.with_facts(key, facts))
        case h.WorkerReported(worker):
            return _note_worker(state, worker)
        case h.WorkerReplaced(key):
            return _forget_worker(state, key)
        case h.StepOver(name, failure, node):
            item = state.steps.get((node, name))
            if item is None:
                return state
            item = item.lost(failure) if failure else item.ready()
            return replace(state, steps={**state.steps, (node, name): item})
        case h.ServiceReady(name, node, generation):
            return _note_service(state, (node, name), generation, Step.READY, "")
        case h.ServiceWaits(name, evidence, node, generation):
            return _note_service(state, (node, name), generation, Step.PENDING, evidence)
        case h.ServiceGone(name, evidence, node, generation):
            return _note_service(state, (node, name), generation, Step.LOST, evidence)
        case h.JobHeard(job, report) if job == state.attempt.id:
            return replace(state, attempt=state.attempt.heard_at(now, report))
        case h.Submitted(job) if job == state.attempt.id:
            return replace(state, attempt=state.attempt.heard_at(now, None))
        case h.SubmitWaits(job, evidence) if job == state.attempt.id:
            return replace(state, ray=replace(state.ray, evidence=evidence))
        case _:
            return state


def _note_worker(state: HeadState, worker: Worker) -> HeadState:
    """Take in a report, and the word of what that worker runs by order."""
    state = replace(state, fleet=state.fleet.with_report(worker))
    for word in worker.items:
        key = (worker.key, word.name)
        if key in state.services:
            state = _note_service(state, key, word.generation, word.step, word.evidence)
    return state


def _forget_worker(state: HeadState, key: str) -> HeadState:
    """Take away an agent that is no more, and what ran there."""
    services = {at: item for at, item in state.services.items() if at[0] != key}
    return replace(state, fleet=state.fleet.without(key), services=services)


def _note_service(
    state: HeadState, key: Key, generation: int | None, step: Step, evidence: str
) -> HeadState:
    item = state.services.get(key)
    if item is None or generation not in (None, item.generation):
        return state  # word of an earlier start
    new = _changed(item, step, evidence)
    return state if new == item else replace(state, services={**state.services, key: new})


def _changed(item: Item, step: Step, evidence: str) -> Item:
    if step is Step.READY:
        return item.ready()
    return item.lost(evidence) if step is Step.LOST else replace(item, evidence=evidence)
