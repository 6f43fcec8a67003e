"""What the head takes in of each event, whatever its phase."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from agent.decisions import uploading
from agent.decisions.head import clearing, hangs, parts
from agent.decisions.head import state as h
from agent.decisions.head.state import Phase
from agent.decisions.head.waits import with_service
from agent.decisions.items import HERE, Item, Outage, Step
from agent.plan import waits as planned

if TYPE_CHECKING:
    from agent.decisions.head.state import HeadEvent, HeadState, Key, Worker

_MOST_OUTAGES = 200


def note(state: HeadState, event: HeadEvent, now: float) -> HeadState:  # noqa: C901, PLR0911, PLR0912 - one case, one return
    """Return the state with what an event says, whatever follows from it."""
    match event:
        case h.RayNodes(nodes):  # the head's own node in the list is what "Ray is up" means
            head = next((node.ip for node in nodes if node.is_head and node.alive), None)
            ray = state.ray if head is None else state.ray.ready()
            sizes = {node.ip: node.size for node in nodes if node.alive}
            fleet = state.fleet.with_nodes(nodes)
            return replace(state, ray=ray, ray_head=head, sizes=sizes, fleet=fleet)
        case h.GcsOpen():
            said = "GCS answered, the head's node is not in it yet"
            waited_for = state.ray.step is Step.PENDING
            ray = replace(state.ray, evidence=said) if waited_for else state.ray
            return replace(state, gcs_answers=True, ray=ray)
        case h.RaySilent(evidence):
            return replace(state, ray=replace(state.ray, evidence=evidence))
        case h.RayGone(evidence, memory):
            ray = state.ray.lost(evidence)
            return replace(state, ray=ray, last_ray=evidence, memory=memory)
        case h.RayHangs():
            return hangs.noted(state, event, now)
        case h.WorkerIntroduced(key, _, facts, findings):
            return replace(state, fleet=state.fleet.with_facts(key, facts, findings))
        case h.Cleared(over, left) if over == state.attempt.number - 1:
            return replace(state, clearing=f"{left} cannot be ended" if left else None)
        case h.CheckpointSeen(_, step, path):
            return replace(state, checkpoint=step, resumes_from=path)
        case h.WorkerReported(worker):
            return parts.reported(_note_worker(state, worker, now), worker, now)
        case h.OwnPartOver(over):
            return parts.ended(state, HERE, over.attempt, over.end, now)
        case h.WorkerSilent(key, evidence, ray_answers):
            fleet = state.fleet.fell_silent(key, evidence, now, is_lost=not ray_answers)
            return replace(state, fleet=fleet)
        case h.WorkerReplaced(key):
            return _forget_worker(state, key)
        case h.StepOver(name, failure, node):
            item = state.steps.get((node, name))
            if item is None:
                return state
            item = item.lost(failure) if failure else item.ready()
            return replace(state, steps={**state.steps, (node, name): item})
        case h.ServiceReady(name, node, generation):
            return _note_service(state, (node, name), generation, (Step.READY, ""), now)
        case h.ServiceWaits(name, evidence, node, generation):
            return _note_service(state, (node, name), generation, (Step.PENDING, evidence), now)
        case h.ServiceGone(name, evidence, node, generation):
            return _note_service(state, (node, name), generation, (Step.LOST, evidence), now)
        case h.JobHeard(job, report) if job == state.attempt.id:
            return replace(state, attempt=state.attempt.heard_at(now, report))
        case h.DriverSignaled(job) if job == state.attempt.id:
            return replace(state, attempt=replace(state.attempt, signaled=True))
        case h.Submitted(job) if job == state.attempt.id:
            return replace(state, attempt=state.attempt.heard_at(now, None))
        case h.NodesAsked(job, silent) if job == state.attempt.id and silent:
            why = "; ".join(f"{name}: {evidence}" for name, evidence in silent.items())
            if state.goal.ray_is_given:  # a network policy may keep them out of reach
                return replace(state, attempt=replace(state.attempt, doubt=why))
            attempt = replace(state.attempt, gone=(*state.attempt.gone, *silent))
            return replace(state, attempt=attempt, loss=f"lost {why}", lost_at=now)
        case h.SubmitWaits(job, evidence) if job == state.attempt.id:
            ray, upload = replace(state.ray, evidence=evidence), uploading.ended(state.upload)
            return replace(state, ray=ray, upload=upload)
        case h.Uploading(job) if job == state.attempt.id:
            return replace(state, upload=uploading.heard(state.upload, event, now))
        case _:
            return state


def is_needed(state: HeadState, key: str, now: float) -> bool:
    """Say whether the run may need what is known of an agent, even if that has departed."""
    worker = state.fleet.workers.get(key)
    if worker is None:
        return False
    is_away = worker.gone or worker.refused or now >= worker.heard + state.goal.limits[planned.NODE]
    if not is_away or state.fleet.counts(worker):
        return True
    return key in state.leftovers or key in state.parts.of or key in state.services.homes.values()


def _note_worker(state: HeadState, worker: Worker, now: float) -> HeadState:
    """Take in a report, and the word of what that worker runs by order."""
    before = state.fleet.workers.get(worker.key)
    state = replace(state, fleet=state.fleet.with_report(worker))
    state = clearing.heard(state, worker)
    for word in worker.items:
        key = (worker.key, word.name)
        item = state.services.get(key)
        if item is not None:
            if word.generation > item.generation:  # started by the order of an earlier head
                state = with_service(state, key, replace(item, generation=word.generation))
            state = _note_service(state, key, word.generation, (word.step, word.evidence), now)
    stays = worker.alone and state.phase is Phase.RUNNING  # whose grace is counted then
    if worker.gone and not stays and not (before and before.gone):
        return _without_services(state, worker.key)
    return state


def _forget_worker(state: HeadState, key: str) -> HeadState:
    """Take away an agent that is no more, and what ran there."""
    worker = state.fleet.workers.get(key)
    left = {name: since for name, since in state.leftovers.items() if name != key}
    state = replace(state, leftovers=left) if len(left) < len(state.leftovers) else state
    fleet = state.fleet.without(key)
    is_elsewhere = worker is None or worker.ip in fleet.by_ip or worker.ip in fleet.ids
    probes = state.probes.without(key, "" if worker is None or is_elsewhere else worker.ip)
    given_up = frozenset(one for one in state.given_up if one[0] != key)
    state = replace(state, fleet=fleet, probes=probes, given_up=given_up)
    return _without_services(state, key)


def _without_services(state: HeadState, key: str) -> HeadState:
    """Forget what ran on a worker that is gone: it is waited for no more."""
    services = state.services
    for spec in state.goal.services:
        services = services.without((key, spec.name))
    return replace(state, services=services)


def _note_service(
    state: HeadState, key: Key, generation: int | None, word: tuple[Step, str], now: float
) -> HeadState:
    item = state.services.get(key)
    if item is None or generation not in (None, item.generation):
        return state  # word of an earlier start
    new = _changed(item, *word)
    if new == item:
        return state
    return with_service(_with_outage(state, key, item, new, now), key, new)


def _with_outage(state: HeadState, key: Key, old: Item, new: Item, now: float) -> HeadState:
    """Note since when a service that was ready does not answer, and until when."""
    worker = state.fleet.workers.get(key[0])
    outage = Outage(key[1], key[0] if worker is None else worker.name, now)
    if old.step is Step.READY and new.step is not Step.READY:
        return replace(state, outages=(*state.outages, outage)[-_MOST_OUTAGES:])
    if new.step is not Step.READY or not old.answered:
        return state
    ended = tuple(replace(one, until=now) if _is_of(one, outage) else one for one in state.outages)
    return replace(state, outages=ended)


def _is_of(one: Outage, other: Outage) -> bool:
    return one.until is None and (one.service, one.node) == (other.service, other.node)


def _changed(item: Item, step: Step, evidence: str) -> Item:
    if step is Step.READY:
        return item.ready()
    return item.lost(evidence) if step is Step.LOST else replace(item, evidence=evidence)
