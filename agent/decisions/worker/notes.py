"""What a worker takes in of each event, whatever its phase."""

from __future__ import annotations

from dataclasses import replace

from agent.decisions.items import ServiceGone, ServiceReady, ServiceWaits, Step, StepOver
from agent.decisions.worker.state import (
    HeadSilent,
    HeadSpoke,
    PartOver,
    Phase,
    RayExited,
    RaySilent,
    RayStep,
    RayUp,
    WorkerEvent,
    WorkerState,
)


def note(  # noqa: C901, PLR0911, PLR0912 - one case, one return
    state: WorkerState, event: WorkerEvent, now: float
) -> WorkerState:
    """Return the state with what an event says, whatever follows from it."""
    match event:
        case HeadSpoke() if event.held:
            waits_too = "it holds the verdict of an earlier run, and is to be started again"
            return replace(state, evidence=waits_too, ray_ready=False, has_agent=True)
        case HeadSpoke() if event.epoch is None and state.has_agent:
            gone = "its agent is gone, though Ray's GCS still answers"
            return replace(state, evidence=gone, reached=now, unreached=None, fenced=False)
        case HeadSpoke() if event.epoch is None and state.goal.by_torchrun:
            bare = "no agent answers there, only a port that is open"
            return replace(state, evidence=event.refusal or bare)
        case HeadSpoke():
            said = event.phase or ("Ray's GCS answers" if event.ray_ready else "no word")
            is_new = state.phase is Phase.JOINING and event.ray_ready and not state.ray_ready
            return replace(
                state,
                since=now if is_new else state.since,  # from here on the join takes its time
                is_silent=False,
                reached=now,
                unreached=None,
                fenced=False,
                head_attempt=event.attempt,
                run_id=event.run_id if state.phase is Phase.FINDING else state.run_id,
                heard=now,
                evidence=f"the head last said: {said}",
                head_phase=event.phase,
                head_ip=event.ip,
                ray_ready=event.ray_ready,
                bare=event.epoch is None,
                has_agent=event.epoch is not None,
                given_rank=state.given_rank if event.rank is None else event.rank,
            )
        case HeadSilent(evidence):
            following = state.phase is Phase.FOLLOWING
            ready = state.ray_ready and following
            since = now if state.unreached is None else state.unreached
            state = replace(state, evidence=evidence, ray_ready=ready, is_silent=True)
            return replace(state, unreached=since)
        case RaySilent(evidence):
            return replace(state, raylet=evidence)
        case RayUp() if state.ray is RayStep.STARTING:  # one that is being stopped is up no more
            return replace(state, ray=RayStep.UP, ray_evidence="", raylet="")
        case RayExited(evidence):
            return replace(state, ray=RayStep.DOWN, ray_evidence=evidence)
        case StepOver(name, failure) if name in state.steps:
            item = state.steps[name]
            item = item.lost(failure) if failure else item.ready()
            return replace(state, steps={**state.steps, name: item})
        case PartOver() if event.attempt == state.attempt:
            lost = event.end.by_order and event.attempt == state.fenced_attempt
            end = replace(event.end, lost=True) if lost else event.end
            return replace(state, part=replace(event, end=end))
        case ServiceReady(name, _, generation):
            return _with_service(state, name, generation, Step.READY, "")
        case ServiceWaits(name, evidence, _, generation):
            return _with_service(state, name, generation, Step.PENDING, evidence)
        case ServiceGone(name, evidence, _, generation):
            return _with_service(state, name, generation, Step.LOST, evidence)
        case _:
            return state


def _with_service(
    state: WorkerState, name: str, generation: int | None, step: Step, evidence: str
) -> WorkerState:
    """Note how a service stands; the head decides what follows."""
    item = state.services.get(name)
    if item is None or generation not in (None, item.generation):
        return state
    new = replace(item, step=step, evidence=evidence)
    return replace(state, services={**state.services, name: new})
