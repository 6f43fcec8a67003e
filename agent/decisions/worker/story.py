"""The worker's decisions: a pure function from state, event and time to state and actions."""

from __future__ import annotations

from dataclasses import replace

from agent.base.outcome import Kind, Outcome, stopped
from agent.decisions.items import Item, ServiceGone, ServiceReady, ServiceWaits, Step, StepOver
from agent.decisions.shared import OrderKind, Said, StopAsked, Unfit, Wait, listed
from agent.decisions.worker.state import (
    Goal,
    HeadSilent,
    HeadSpoke,
    Leave,
    Ordered,
    Phase,
    RayExited,
    RaySilent,
    RayStep,
    RayUp,
    RunStep,
    SendLog,
    StartRay,
    StartService,
    StopRay,
    WorkerAction,
    WorkerEvent,
    WorkerState,
)
from agent.plan import waits as planned

RETRY_PAUSE = 0.5
Decision = tuple[WorkerState, tuple[WorkerAction, ...]]


def first_state(goal: Goal) -> WorkerState:
    """Return the worker's first state."""
    return WorkerState(goal, steps={step.name: Item() for step in goal.steps})


def decide(state: WorkerState, event: WorkerEvent, now: float) -> Decision:
    """Take in one event; return the new state and what to do about it."""
    if state.phase is Phase.LEAVING:
        return state, ()
    if isinstance(event, StopAsked):
        return _leave(state, stopped(event.signum, expected=state.goal.stays))
    if isinstance(event, Unfit):
        return _leave(state, event.outcome, head_must_hear=True)
    if isinstance(event, Ordered):
        return _obey(state, event, now)
    state = _note(state, event, now)
    return _end_at_any_time(state, event, now) or _BY_PHASE[state.phase](state, event, now)


def deadline(state: WorkerState) -> float | None:
    """Return when the state must be looked at again though nothing happens."""
    times = [wait.deadline for wait in waits(state)]
    if state.phase is Phase.JOINING and state.retry_at is not None and state.ray_ready:
        times.append(state.retry_at)
    return min(times, default=None)


def waits(state: WorkerState) -> tuple[Wait, ...]:
    """Return everything that the worker waits for in its phase, with deadline and evidence."""
    goal, found = state.goal, []
    if state.phase is Phase.LEAVING:
        return ()
    pending = {n: item for n, item in state.steps.items() if item.step is Step.PENDING}
    if pending:
        until = min(item.deadline or _within(state, name) for name, item in pending.items())
        found.append(Wait(planned.PREPARE, listed(pending), until))
    if state.phase is Phase.FINDING and not state.ray_ready:
        heard = state.heard + goal.limits[planned.NODE] if state.heard else 0.0
        until = max(goal.limits[planned.HEAD], heard)
        found.append(Wait(planned.HEAD, f"the head {goal.head}", until, state.evidence))
    if state.phase is Phase.JOINING:
        why = state.ray_evidence or state.raylet
        found.append(Wait(planned.JOIN, "Ray on this node to join", _join_deadline(state), why))
    if state.phase is Phase.FOLLOWING:
        until = state.heard + goal.limits[planned.NODE]
        word = f"word from the head {goal.head}"
        found.append(Wait(planned.NODE, word, until, state.evidence, is_following=True))
    return tuple(found)


def _within(state: WorkerState, name: str) -> float:
    """Return the limit of a prepare step."""
    return next(step.within for step in state.goal.steps if step.name == name)


def _join_deadline(state: WorkerState) -> float:
    limits = state.goal.limits
    return max(limits[planned.HEAD], state.since + limits[planned.JOIN])


def _obey(state: WorkerState, event: Ordered, now: float) -> Decision:
    """Carry out an order, once, if it names what this worker's own plan has."""
    order, last = event.order, state.obeyed
    if last is not None and last.by == order.by and order.number <= last.number:
        return state, ()
    state = replace(state, obeyed=order)
    services = {spec.name for spec in state.goal.services}
    if order.kind is OrderKind.STOP:
        why = f"the head {state.goal.head} had this node stop"
        code = 0 if state.goal.stays else 143  # a cluster without a job ends by being stopped
        return _leave(state, Outcome(Kind.STOPPED, code, why, culprit="head"))
    if order.kind is OrderKind.SEND_LOG:  # which logs there are is known where they are read
        return state, (SendLog(order.name),)
    if order.kind is OrderKind.START_SERVICE and order.name in services:
        item = Item(generation=order.generation)
        state = replace(state, services={**state.services, order.name: item})
        return state, (StartService(order.name, order.generation),)
    if order.kind is OrderKind.RUN_STEP and order.name in state.steps:
        return _run_again(state, order.name, now)
    refused = f"an order of the head's is refused: this node's plan has no {order.name!r} to run"
    return state, (Said(refused, "warning"),)


def _run_again(state: WorkerState, name: str, now: float) -> Decision:
    if state.steps[name].step is Step.PENDING:
        return state, ()  # it runs
    item = Item(deadline=now + _within(state, name))
    return replace(state, steps={**state.steps, name: item}), (RunStep(name),)


def _note(  # noqa: C901, PLR0911 - one case, one return
    state: WorkerState, event: WorkerEvent, now: float
) -> WorkerState:
    match event:
        case HeadSpoke() if event.held:
            waits_too = "it holds the verdict of an earlier run, and is to be started again"
            return replace(state, evidence=waits_too, ray_ready=False)
        case HeadSpoke() if event.epoch is None and state.epoch is not None:
            gone = "its agent is gone, though Ray's GCS still answers"
            return replace(state, evidence=gone)
        case HeadSpoke():
            said = event.phase or ("Ray's GCS answers" if event.ray_ready else "no word")
            return replace(
                state,
                heard=now,
                evidence=f"the head last said: {said}",
                head_phase=event.phase,
                head_ip=event.ip,
                ray_ready=event.ray_ready,
                bare=event.epoch is None,
            )
        case HeadSilent(evidence):
            following = state.phase is Phase.FOLLOWING
            return replace(state, evidence=evidence, ray_ready=state.ray_ready and following)
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


def _end_at_any_time(state: WorkerState, event: WorkerEvent, now: float) -> Decision | None:
    if isinstance(event, HeadSpoke) and event.verdict is not None:
        return _leave(state, event.verdict)
    if isinstance(event, HeadSpoke) and event.refusal:
        return _end(state, 78, f"refused by the head: {event.refusal}", "this node")
    for name, item in state.steps.items():
        if item.step is Step.LOST:
            end = Outcome(Kind.UNAVAILABLE, 69, f"{name} failed: {item.evidence}", culprit=name)
            return _leave(state, end, head_must_hear=True)
        if item.step is Step.PENDING and now >= (item.deadline or _within(state, name)):
            reason = f"{name} never came in time: it still runs"
            end = Outcome(Kind.UNAVAILABLE, 69, reason, culprit=name)
            return _leave(state, end, head_must_hear=True)
    return None


def _finding(state: WorkerState, event: WorkerEvent, now: float) -> Decision:
    if isinstance(event, HeadSpoke) and not event.held:
        state = replace(state, epoch=event.epoch)
    late = next((wait for wait in waits(state) if wait.over(now)), None)
    if late is not None:
        return _end(state, 69, f"{late.what} never came in time: {late.evidence}", late.what)
    if state.ray_ready and not state.preparing:
        return _join(state, now)
    return state, ()


def _join(state: WorkerState, now: float) -> Decision:
    head_ip = state.head_ip
    assert head_ip is not None  # noqa: S101 - Ray is ready only after the head spoke
    if state.phase is not Phase.JOINING:
        state = replace(state, phase=Phase.JOINING, since=now, tries=0)
    tries = state.tries + 1
    state = replace(state, ray=RayStep.STARTING, raylet="", retry_at=None, tries=tries)
    kind = "a plain Ray head" if state.bare else "the head"
    again = f" (try {state.tries})" if state.tries > 1 else ""
    said = Said(f"joining Ray at {kind} {state.goal.head} ({head_ip}){again}")
    return state, (said, StartRay(head_ip))


def _joining(state: WorkerState, event: WorkerEvent, now: float) -> Decision:
    if state.ray is RayStep.UP:
        heard = max(state.heard, now)
        state = replace(state, phase=Phase.FOLLOWING, since=now, heard=heard, retry_at=None)
        return state, (Said("Ray is up on this node: following the head"),)
    if _is_new_epoch(state, event):
        return _rejoin(state, event, now)
    if now >= _join_deadline(state):
        why = state.ray_evidence or state.raylet or "no word from `ray start`"
        return _end(state, 69, f"Ray on this node could not join: {why}", "ray")
    if state.ray is RayStep.DOWN and state.retry_at is None:
        said = Said(f"`ray start` ended ({state.ray_evidence}): trying again", "warning")
        return replace(state, retry_at=now + RETRY_PAUSE), (said,)
    if state.retry_at is not None and now >= state.retry_at and state.ray_ready:
        return _join(state, now)
    return state, ()


def _following(state: WorkerState, event: WorkerEvent, now: float) -> Decision:
    if _is_new_epoch(state, event):
        return _rejoin(state, event, now)
    if now >= state.heard + state.goal.limits[planned.NODE]:
        silent = round(now - state.heard)
        why = f"the head {state.goal.head} has been silent for {silent} s ({state.evidence})"
        return _end(state, 75, why, "head")
    if state.ray is RayStep.DOWN:
        if state.bare:
            return _end(state, 75, f"Ray was lost: {state.ray_evidence}", "ray")
        said = Said(f"Ray was lost here ({state.ray_evidence}): joining again", "warning")
        state = replace(state, phase=Phase.JOINING, since=now, tries=0, retry_at=now + RETRY_PAUSE)
        return state, (said,)
    return state, ()


def _is_new_epoch(state: WorkerState, event: WorkerEvent) -> bool:
    return (
        isinstance(event, HeadSpoke) and not event.held and event.epoch not in (None, state.epoch)
    )


def _rejoin(state: WorkerState, event: WorkerEvent, now: float) -> Decision:
    """Follow a head that was started anew: its old Ray is gone, and ours with it."""
    assert isinstance(event, HeadSpoke)  # noqa: S101 - only an answer carries an epoch
    said = Said("the head was started anew: leaving its old Ray and joining the new", "warning")
    state = replace(state, epoch=event.epoch, phase=Phase.JOINING, since=now, tries=0)
    if state.ray is RayStep.DOWN:
        return replace(state, retry_at=now), (said,)
    return replace(state, ray=RayStep.STOPPING), (said, StopRay())


def _end(state: WorkerState, code: int, reason: str, culprit: str) -> Decision:
    kind = {69: Kind.UNAVAILABLE, 75: Kind.LOST, 78: Kind.REFUSED}[code]
    return _leave(state, Outcome(kind, code, reason, culprit=culprit))


def _leave(state: WorkerState, outcome: Outcome, *, head_must_hear: bool = False) -> Decision:
    outcome = outcome if outcome.phase else replace(outcome, phase=state.phase.value)
    leave = Leave(outcome, head_must_hear)
    return replace(state, phase=Phase.LEAVING, verdict=outcome), (leave,)


_BY_PHASE = {Phase.FINDING: _finding, Phase.JOINING: _joining, Phase.FOLLOWING: _following}
