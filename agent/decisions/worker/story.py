"""The worker's decisions: a pure function from state, event and time to state and actions."""

from __future__ import annotations

from dataclasses import replace

from agent.base.addresses import is_ip
from agent.base.outcome import Kind, Outcome, stopped
from agent.base.words import listed
from agent.decisions.items import Item, ItemWord, Step
from agent.decisions.probing import ALL_REDUCE, PROBES
from agent.decisions.shared import Order, OrderKind, Said, StopAsked, Unfit, Wait
from agent.decisions.worker import after, fence
from agent.decisions.worker.notes import note
from agent.decisions.worker.remarks import of_silence
from agent.decisions.worker.state import (
    Goal,
    HeadSpoke,
    KeptRay,
    Leave,
    Ordered,
    Phase,
    Probe,
    RayStep,
    RunStep,
    SendLog,
    StartPart,
    StartRay,
    StartService,
    StopPart,
    StopRay,
    WorkerAction,
    WorkerEvent,
    WorkerState,
)
from agent.plan import waits as planned
from agent.work.prepare import by_order

RETRY_PAUSE = 0.5
_HELD = 15.0
"""A reply is held no longer: so long before a killed agent's end its head may have spoken last."""
Decision = tuple[WorkerState, tuple[WorkerAction, ...]]


def first_state(goal: Goal, kept: KeptRay | None = None, *, has_agent: bool = False) -> WorkerState:
    """Return the worker's first state; where a killed agent left its Ray behind, the one of that.

    Its node has never left: the head must not take it for lost, nor for cleared.
    `has_agent` where a head's agent answered the killed one.
    """
    if kept is None:
        awaiting = frozenset(step.name for step in by_order(goal.steps))
        steps = {step.name: Item() for step in goal.steps}
        state = WorkerState(goal, steps=steps, awaiting=awaiting, has_agent=has_agent)
        return after.held_back(state, frozenset(steps) - awaiting)
    return WorkerState(
        goal,
        phase=Phase.FOLLOWING,
        evidence="not asked yet by the agent that goes on",
        head_ip=kept.head_ip,
        epoch=kept.epoch,
        has_agent=True,
        steps={step.name: Item().ready() for step in goal.steps},  # they are over before a join
        ray=RayStep.UP,
        run_id=kept.run_id,
        ray_attempt=kept.attempt,
        reached=-_HELD if kept.unreached is None else kept.unreached,
        unreached=kept.unreached,
        has_followed=True,
    )


def words(state: WorkerState) -> tuple[ItemWord, ...]:
    """Return what the head is told of what it had this worker run, or that others depend on."""
    goal = state.goal
    needed = {name for step in goal.steps for name in step.after}
    needed |= {name for spec in goal.services for name in spec.after}
    needed |= {step.name for step in by_order(goal.steps)}
    steps = {name: item for name, item in state.steps.items() if name in needed}
    items = {**state.services, **steps}
    return tuple(
        ItemWord(name, item.step, item.evidence, item.generation) for name, item in items.items()
    )


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
    before = state
    state, said = of_silence(note(state, event, now), event, now)
    told = _end_at_any_time(state, event, now) or _BY_PHASE[state.phase](state, event, now)
    told = fence.resumed(fence.outdated(before, told), now)
    then, actions = fence.heeded(after.started(told, now), now)
    return then, (*said, *actions)


def deadline(state: WorkerState) -> float | None:
    """Return when the state must be looked at again though nothing happens."""
    if state.phase is Phase.LEAVING:
        return None
    times = [wait.deadline for wait in waits(state)]
    until = fence.deadline(state)
    times += [] if until is None else [until]
    if state.phase is Phase.JOINING and state.retry_at is not None and state.ray_ready:
        times.append(state.retry_at)
    return min(times, default=None)


def waits(state: WorkerState) -> tuple[Wait, ...]:
    """Return everything that the worker waits for in its phase, with deadline and evidence."""
    goal, found = state.goal, []
    if state.phase is Phase.LEAVING:
        return ()
    if state.awaiting:
        until = _turn_until(state)
        what = f"the head to have {listed(sorted(state.awaiting))} run here"
        found.append(Wait("turn", what, until, after.needed(state) or state.evidence))
    running = state.under_way
    if running:
        until = min(state.steps[name].deadline or _within(state, name) for name in running)
        found.append(Wait(planned.PREPARE, listed(running), until))
    if state.waiting:
        found += after.waits(state, _turn_until(state))
    if state.phase is Phase.FINDING and (not state.ray_ready or state.alone):
        heard = state.heard + goal.limits[planned.SILENT_HEAD] if state.heard else 0.0
        until = max(goal.limits[planned.HEAD], heard)
        found.append(Wait(planned.HEAD, f"the head {goal.head}", until, state.evidence))
    if state.phase is Phase.JOINING:
        found.append(_join_wait(state))
    if state.phase is Phase.FOLLOWING:
        until = state.heard + goal.limits[planned.SILENT_HEAD]
        word = f"word from the head {goal.head}"
        found.append(Wait(planned.SILENT_HEAD, word, until, state.evidence, is_following=True))
    return tuple(found)


def _within(state: WorkerState, name: str) -> float:
    """Return the limit of a prepare step."""
    return next(step.within for step in state.goal.steps if step.name == name)


def _turn_until(state: WorkerState) -> float:
    """Return by when all that waits here must have started."""
    longest = max(step.within for step in state.goal.steps)
    limits = state.goal.limits
    return max(longest, limits.get(planned.PREPARE, longest)) + limits.get(planned.BEFORE, 0.0)


def _join_wait(state: WorkerState) -> Wait:
    """Return what a join waits for: this node's Ray, or a head that has to come back first."""
    limits, head = state.goal.limits, f"the head {state.goal.head}"
    if state.has_followed and state.is_silent:
        until = state.heard + limits[planned.SILENT_HEAD]
        return Wait(planned.SILENT_HEAD, f"{head} to come back", until, state.evidence)
    if state.has_followed and not state.ray_ready:
        until = state.since + limits[planned.HEAD]
        return Wait(planned.HEAD, f"Ray at {head}", until, state.evidence)
    until = max(limits[planned.HEAD], state.since + limits[planned.JOIN])
    why = state.ray_evidence or state.raylet
    return Wait(planned.JOIN, "Ray on this node to join", until, why)


def _obey(  # noqa: PLR0911 - one order, one return
    state: WorkerState, event: Ordered, now: float
) -> Decision:
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
    if order.kind is OrderKind.PROBE and order.name in PROBES and (not order.at or is_ip(order.at)):
        return state, (Probe(order.name, order.at),)
    if order.kind is OrderKind.PROBE and order.name == ALL_REDUCE and order.seat is not None:
        return state, (Probe(order.name, "", order.seat),)
    if order.kind is OrderKind.START_SERVICE and order.name in services:
        return _start_service(state, order, last)
    if order.kind is OrderKind.RUN_STEP and order.name in state.steps:
        return _run_again(state, order.name, now)
    if order.kind is OrderKind.RUN_PART and state.goal.by_torchrun and order.seat is not None:
        state = replace(state, attempt=order.generation, part=None)
        return state, (StartPart(order.generation, order.seat),)
    if order.kind is OrderKind.STOP_PART and state.goal.by_torchrun:
        return state, (StopPart(),)
    refused = f"an order of the head's is refused: this node's plan has no {order.name!r} to run"
    return state, (Said(refused, "warning"),)


def _start_service(state: WorkerState, order: Order, last: Order | None) -> Decision:
    """Start a service, unless it lives and another head that knows nothing of that orders it."""
    known = state.services.get(order.name)
    is_other_head = last is not None and last.by != order.by
    if is_other_head and known is not None and known.step is not Step.LOST:
        return state, ()
    item = Item(generation=order.generation)
    state = replace(state, services={**state.services, order.name: item})
    return state, (StartService(order.name, order.generation),)


def _run_again(state: WorkerState, name: str, now: float) -> Decision:
    if name in state.under_way or name in state.halted:
        return state, ()  # it runs, or will once the fence is over
    item = Item(deadline=now + _within(state, name))
    steps, awaiting = {**state.steps, name: item}, state.awaiting - {name}
    waiting = state.waiting - {name}
    return replace(state, steps=steps, awaiting=awaiting, waiting=waiting), (RunStep(name),)


def _end_by_word(state: WorkerState, event: HeadSpoke) -> Decision | None:
    """End where the head says so."""
    if event.verdict is not None:
        return _leave(state, event.verdict)
    if event.run_id and _is_of_another_run(state, event):
        why = f"the head {state.goal.head} began another run: {event.run_id}, not {state.run_id}"
        return _end(state, 75, why, "head")
    if event.refusal:
        return _end(state, 78, f"refused by the head: {event.refusal}", "this node")
    return None


def _end_at_any_time(state: WorkerState, event: WorkerEvent, now: float) -> Decision | None:
    told = _end_by_word(state, event) if isinstance(event, HeadSpoke) else None
    if told is not None:
        return told
    for name, item in state.steps.items():
        if item.step is Step.LOST:
            end = Outcome(Kind.UNAVAILABLE, 69, f"{name} failed: {item.evidence}", culprit=name)
            return _leave(state, end, head_must_hear=True)
        if name in state.awaiting:
            if now < _turn_until(state):
                continue
            reason = f"{name} never came in time: {state.evidence}"
            return _end(state, 69, reason, name)
        if name in state.under_way and now >= (item.deadline or _within(state, name)):
            reason = f"{name} never came in time: it still runs"
            end = Outcome(Kind.UNAVAILABLE, 69, reason, culprit=name)
            return _leave(state, end, head_must_hear=True)
    return None


def _is_of_another_run(state: WorkerState, event: HeadSpoke) -> bool:
    belongs = state.phase is not Phase.FINDING and bool(state.run_id)
    return belongs and not event.held and event.run_id != state.run_id


def _finding(state: WorkerState, event: WorkerEvent, now: float) -> Decision:
    if isinstance(event, HeadSpoke) and event.epoch is not None and not event.held:
        state = replace(state, epoch=event.epoch)
    if state.bare and state.ray_ready and state.awaiting:
        return _prepare_unasked(state, now)
    if state.alone and state.epoch is not None and not state.preparing:
        state = replace(state, phase=Phase.FOLLOWING, since=now, heard=max(state.heard, now))
        return state, (Said("this node joins no Ray: it is there for a service only"),)
    late = next((wait for wait in waits(state) if wait.over(now)), None)
    if late is not None:
        return _end(state, 69, f"{late.what} never came in time: {late.evidence}", late.what)
    if state.ray_ready and not state.preparing and not state.alone:
        return _follow(state, now) if state.goal.by_torchrun else _join(state, now)
    return state, ()


def _prepare_unasked(state: WorkerState, now: float) -> Decision:
    """Run everything where the head has no agent that could say when.

    What runs on other nodes is not waited for: nothing tells how it stands.
    """
    state = after.held_back(state, state.awaiting)
    actions: tuple[WorkerAction, ...] = ()
    for step in state.goal.steps:
        if step.name in state.awaiting - state.waiting:
            state, more = _run_again(state, step.name, now)
            actions += more
    return replace(state, awaiting=frozenset()), actions


def _follow(state: WorkerState, now: float) -> Decision:
    """Follow a head that has no Ray to join: it orders this node's share when all are there."""
    state = replace(state, phase=Phase.FOLLOWING, since=now, heard=max(state.heard, now))
    return state, (Said(f"ready: following the head {state.goal.head} ({state.head_ip})"),)


def _join(state: WorkerState, now: float) -> Decision:
    head_ip = state.head_ip
    assert head_ip is not None  # noqa: S101 - Ray is ready only after the head spoke
    if state.phase is not Phase.JOINING:
        state = replace(state, phase=Phase.JOINING, since=now, tries=0)
    tries = state.tries + 1
    state = replace(state, ray=RayStep.STARTING, raylet="", retry_at=None, tries=tries)
    state = replace(state, ray_attempt=state.head_attempt)
    kind = "a plain Ray head" if state.bare else "the head"
    again = f" (try {state.tries})" if state.tries > 1 else ""
    said = Said(f"joining Ray at {kind} {state.goal.head} ({head_ip}){again}")
    return state, (said, StartRay(head_ip))


def _joining(state: WorkerState, event: WorkerEvent, now: float) -> Decision:
    if state.ray is RayStep.UP:
        heard = max(state.heard, now)
        state = replace(state, phase=Phase.FOLLOWING, since=now, heard=heard, retry_at=None)
        state = replace(state, has_followed=True)
        return state, (Said("Ray is up on this node: following the head"),)
    if _is_new_epoch(state, event):
        return _rejoin(state, event, now)
    if _join_wait(state).over(now):
        return _could_not_join(state, _join_wait(state))
    if state.ray is RayStep.DOWN and state.retry_at is None:
        return _to_be_tried_again(state, now)
    if state.retry_at is not None and now >= state.retry_at and state.ray_ready:
        return _join(state, now)
    return state, ()


def _to_be_tried_again(state: WorkerState, now: float) -> Decision:
    if state.fenced:  # it was we who ended it
        return replace(state, retry_at=now), ()
    said = Said(f"`ray start` ended ({state.ray_evidence}): trying again", "warning")
    return replace(state, retry_at=now + RETRY_PAUSE), (said,)


def _could_not_join(state: WorkerState, late: Wait) -> Decision:
    if late.key == planned.JOIN:
        why = late.evidence or "no word from `ray start`"
        return _end(state, 69, f"Ray on this node could not join: {why}", "ray")
    return _end(state, 75, f"waited for {late.what} in vain: {late.evidence}", "head")


def _following(state: WorkerState, event: WorkerEvent, now: float) -> Decision:
    if _is_new_epoch(state, event):
        return _rejoin(state, event, now)
    if state.alone and state.ray is RayStep.DOWN and now < state.heard + _grace(state):
        return state, ()
    if now >= state.heard + _grace(state):
        silent = round(now - state.heard)
        why = f"the head {state.goal.head} has been silent for {silent} s ({state.evidence})"
        return _end(state, 75, why, "head")
    if state.ray is RayStep.DOWN and not state.goal.by_torchrun:
        if state.bare:
            return _end(state, 75, f"Ray was lost: {state.ray_evidence}", "ray")
        said = Said(f"Ray was lost here ({state.ray_evidence}): joining again", "warning")
        state = replace(state, phase=Phase.JOINING, since=now, tries=0, retry_at=now + RETRY_PAUSE)
        return replace(state, ray_ready=state.ray_ready and not state.is_silent), (said,)
    return state, ()


def _grace(state: WorkerState) -> float:
    return state.goal.limits[planned.SILENT_HEAD]


def _is_new_epoch(state: WorkerState, event: WorkerEvent) -> bool:
    return (
        isinstance(event, HeadSpoke) and not event.held and event.epoch not in (None, state.epoch)
    )


def _rejoin(state: WorkerState, event: WorkerEvent, now: float) -> Decision:
    """Follow a head that was started anew: its old Ray is gone, and ours with it."""
    assert isinstance(event, HeadSpoke)  # noqa: S101 - only an answer carries an epoch
    if state.alone:
        said = Said("the head was started anew: following it", "warning")
        return replace(state, epoch=event.epoch), (said,)
    if state.goal.by_torchrun:
        said = Said("the head was started anew: following it", "warning")
        return replace(state, epoch=event.epoch), (said, StopPart())
    said = Said("the head's Ray was started anew: leaving the old and joining the new", "warning")
    state = replace(state, epoch=event.epoch, phase=Phase.JOINING, since=now, tries=0)
    if state.ray is RayStep.DOWN:
        return replace(state, retry_at=now), (said,)
    stops = () if state.ray is RayStep.STOPPING else (StopRay(),)
    return replace(state, ray=RayStep.STOPPING), (said, *stops)


def _end(state: WorkerState, code: int, reason: str, culprit: str) -> Decision:
    kind = {69: Kind.UNAVAILABLE, 75: Kind.LOST, 78: Kind.REFUSED}[code]
    return _leave(state, Outcome(kind, code, reason, culprit=culprit))


def _leave(state: WorkerState, outcome: Outcome, *, head_must_hear: bool = False) -> Decision:
    outcome = outcome if outcome.phase else replace(outcome, phase=state.phase.value)
    leave = Leave(outcome, head_must_hear)
    return replace(state, phase=Phase.LEAVING, verdict=outcome), (leave,)


_BY_PHASE = {Phase.FINDING: _finding, Phase.JOINING: _joining, Phase.FOLLOWING: _following}
