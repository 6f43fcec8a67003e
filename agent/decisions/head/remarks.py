"""What a person would want to know of an event, whatever follows from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.base.words import listed
from agent.decisions import uploading
from agent.decisions.head import hangs, liveness
from agent.decisions.head import state as h
from agent.decisions.head.state import Phase
from agent.decisions.head.waits import service_title
from agent.decisions.items import Step
from agent.decisions.shared import Said

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agent.decisions.head.state import HeadAction, HeadEvent, HeadState, Key
    from agent.decisions.head.workers import Fleet


def remarks(before: HeadState, after: HeadState, event: HeadEvent) -> list[HeadAction]:
    """Say what a person would want to know of an event, whatever follows from it."""
    found: list[HeadAction] = [*hangs.remarks(before, after, event)]
    if isinstance(event, h.StepOver) and before.steps != after.steps:
        items = after.steps.values()
        if all(item.step is Step.READY for item in items):
            found.append(Said(f"{listed(name for _, name in after.steps)}: done"))
    if after.services is not before.services:
        found += [
            Said(f"{service_title(after, key)} answers")
            for key in _perhaps_ready(event)
            if _is_ready(after.services, key) and not _is_ready(before.services, key)
        ]
    if isinstance(event, h.WorkerSilent) and before.fleet is not after.fleet:
        worker = after.fleet.workers[event.key]
        known = liveness.of(before.fleet, before.fleet.workers[event.key])
        if liveness.of(after.fleet, worker) != known:
            found.append(Said(_of_silence(after.fleet, worker), "warning"))
    if isinstance(event, h.Uploading) and after.upload is not before.upload:
        found += uploading.said(before.upload, event)
    was, are = before.fleet.alive, after.fleet.alive
    if was is not are:
        changed = _perhaps_changed(before, after, event)
        ray = "" if after.goal.by_torchrun else " Ray"
        joined = [ip for ip in changed if ip in are and ip not in was]
        found += [Said(f"{are[ip]} joined{ray}") for ip in joined]
        found += [Said(_of_spare(are[ip])) for ip in joined if _is_spare(after, ip)]
        left = [ip for ip in changed if ip in was and ip not in are]
        found += [Said(f"{was[ip]} left{ray}{_doubt(after, ip)}", "warning") for ip in left]
    return found


def _is_spare(state: HeadState, ip: str) -> bool:
    """Say whether who joined there is none of those that the running attempt has, nor one back."""
    attempt, alive = state.attempt, state.fleet.alive
    if state.phase not in {Phase.SUBMITTING, Phase.RUNNING} or not state.goal.wants_job:
        return False
    if not attempt.places:
        return len(alive) > state.required
    return ip not in attempt.places and alive[ip] not in attempt.missed.values()


def _of_spare(name: str) -> str:
    return f"{name} is one more than the running attempt needs: unused until another begins"


def _doubt(state: HeadState, ip: str) -> str:
    """Say where GCS misses a node whose agent speaks as if all were well."""
    worker = state.fleet.workers.get(state.fleet.by_ip.get(ip, ""))
    if worker is None or not worker.joined:
        return ""
    life = liveness.of(state.fleet, worker)
    return f", though {life.doubt}" if life.agent and life.doubt else ""


def _of_silence(fleet: Fleet, worker: h.Worker) -> str:
    """Say what is known of a node whose agent is not heard of any more."""
    life = liveness.of(fleet, worker)
    return f"{worker.place} is silent, {life.evidence}; {life.doubt or 'nor does its Ray answer'}"


def departed(before: HeadState, after: HeadState, event: HeadEvent) -> dict[str, str]:
    """Return the nodes that counted and do no more, address to name."""
    was, are = before.fleet.alive, after.fleet.alive
    if was is are:
        return {}
    changed = _perhaps_changed(before, after, event)
    return {ip: was[ip] for ip in changed if ip in was and ip not in are}


def _perhaps_changed(before: HeadState, after: HeadState, event: HeadEvent) -> Iterable[str]:
    """Return the addresses at which a worker may have come to count, or no longer do."""
    if isinstance(event, h.WorkerReported):  # at thousands of workers there is no time for all
        earlier = before.fleet.workers.get(event.worker.key)
        return {event.worker.ip, earlier.ip if earlier else event.worker.ip}
    return {**before.fleet.alive, **after.fleet.alive}


def _perhaps_ready(event: HeadEvent) -> Iterable[Key]:
    """Return the services of which an event may tell that they are ready."""
    if isinstance(event, h.ServiceReady):
        return ((event.node, event.name),)
    if isinstance(event, h.WorkerReported):
        return [(event.worker.key, word.name) for word in event.worker.items]
    return ()


def _is_ready(services: h.Roster, key: Key) -> bool:
    item = services.get(key)
    return item is not None and item.step is Step.READY
