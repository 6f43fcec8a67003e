"""The worker's `decide`: (state, event, time) to (state, actions), by phase."""

from __future__ import annotations

from signal import SIGTERM
from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.base import ends, times
from agent.base.text import listed
from agent.decisions import shared as v
from agent.decisions.worker import worker_state as w
from agent.decisions.worker.worker_state import HeadSpoke, RayStep, WorkerPhase, WorkerState
from agent.job.services import ordered_steps
from agent.job.torchrun_command import ShareOver
from agent.plan import waits as planned

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agent.base.ends import Outcome
    from agent.decisions.worker.worker_state import WorkerAction, WorkerEvent

Decision = tuple[WorkerState, tuple["WorkerAction", ...]]


def first_state(goal: w.WorkerGoal, *, has_agent: bool = False) -> WorkerState:
    """Return the state in which the worker starts.

    `has_agent` if a head's agent had answered the killed agent that this one replaces.
    """
    awaiting = frozenset(step.name for step in ordered_steps(goal.steps))
    steps = {step.name: v.Item(deadline=step.within) for step in goal.steps}
    state = WorkerState(goal, steps=steps, awaiting_order=awaiting, has_agent=has_agent)
    return replace(state, blocked=frozenset(_unmet_dependencies(state, steps.keys() - awaiting)))


def decide(state: WorkerState, event: WorkerEvent, now: float) -> Decision:
    """Apply one event; return the new state and the actions to carry out."""
    if state.phase is WorkerPhase.LEAVING:
        return state, ()
    if isinstance(event, v.StopAsked):
        return _on_stop(state, event, now)
    if isinstance(event, v.Refused):
        return _leave(state, event.outcome, must_report=True)
    if isinstance(event, w.Ordered):
        return _carry_out(state, event.order, now)
    before = state
    state = _apply_event(state, event, now)
    # a verdict or a failed step ends the worker in any phase; else the phase decides
    decision = _end_in_any_phase(state, event, now) or _BY_PHASE[state.phase](state, event, now)
    state, actions = decision
    was_silent = before.phase is WorkerPhase.FOLLOWING and before.silent_for >= times.SILENCE_LOGGED
    if was_silent and not state.silent_for:
        actions = (v.LogLine(f"the head {state.goal.head} answers again"), *actions)
    # the head has begun a later attempt: the share of the former one must not run beside it
    own = state.share_attempt or 0
    theirs = state.head_attempt
    is_outdated = before.head_attempt < theirs and own < theirs and state.share_runs
    if is_outdated and w.StopShare() not in actions:
        actions = (*actions, w.StopShare())
    # the fence is last, so that it also stops what was started before it
    for step in (_start_unblocked, _apply_fence):
        if state.phase is not WorkerPhase.LEAVING:
            state, more = step(state, now)
            actions += more
    return state, actions


def deadline(state: WorkerState) -> float | None:
    """Return when `decide` must run again even if no event arrives; None for never."""
    if state.phase is WorkerPhase.LEAVING:
        return None
    deadlines = [wait.deadline for wait in pending_waits(state)]
    again = state.phase is WorkerPhase.JOINING and state.ray_ready
    others = (_fence_deadline(state), state.retry_at if again else None)
    return min((*deadlines, *(at for at in others if at is not None)), default=None)


def pending_waits(state: WorkerState) -> tuple[v.Wait, ...]:
    """Return all waits of the current phase, with deadline and evidence."""
    goal = state.goal
    found = []
    if state.phase is WorkerPhase.LEAVING:
        return ()
    if state.taken_at is not None:
        found.append(v.Wait(planned.SAVE, "the head to let the job save", state.taken_at))
    if state.awaiting_order:
        what = f"the head to have {listed(sorted(state.awaiting_order))} run here"
        ordered = [one for one in goal.steps if one.name in state.awaiting_order and one.after]
        after = [f"{step.name} waits for {listed(step.after)}" for step in ordered]
        evidence = "; ".join([*after, state.evidence])
        found.append(v.Wait("turn", what, _turn_deadline(state), evidence))
    running = state.running_steps
    if running:
        until = min(state.steps[name].deadline for name in running)
        found.append(v.Wait(planned.PREPARE, listed(running), until))
    for name, missing in _unmet_dependencies(state, state.blocked).items():
        evidence = f"not started, waits for {listed(missing)}"
        found.append(v.Wait(name, name, _turn_deadline(state), evidence))
    if state.phase is WorkerPhase.FINDING and (not state.ray_ready or state.service_only):
        until = max(goal.limits[planned.HEAD], _reply_deadline(state) if state.last_reply_at else 0)
        found.append(v.Wait(planned.HEAD, f"the head {goal.head}", until, state.evidence))
    if state.phase is WorkerPhase.JOINING:
        found.append(_join_wait(state))
    if state.phase is WorkerPhase.FOLLOWING:
        what = f"a reply from the head {goal.head}"
        until = _reply_deadline(state)
        answers = state.silent_for < times.SILENCE_LOGGED
        found.append(v.Wait(planned.SILENT_HEAD, what, until, state.evidence, answers))
    return tuple(found)


def _turn_deadline(state: WorkerState) -> float:
    """Return when every blocked or ordered step must have started."""
    longest = max(step.within for step in state.goal.steps)
    limits = state.goal.limits
    return max(longest, limits.get(planned.PREPARE, longest)) + limits.get(planned.BEFORE, 0.0)


def _reply_deadline(state: WorkerState) -> float:
    """Return when the head must have answered again (AGENT_HEAD_GRACE)."""
    return state.last_reply_at + state.goal.limits[planned.SILENT_HEAD]


def _join_wait(state: WorkerState) -> v.Wait:
    """Return the wait of a join: for this node's Ray, or first for the head to answer again."""
    limits = state.goal.limits
    head = f"the head {state.goal.head}"
    if state.has_joined_before and state.head_is_silent:
        until = _reply_deadline(state)
        return v.Wait(planned.SILENT_HEAD, f"{head} to come back", until, state.evidence)
    if state.has_joined_before and not state.ray_ready:
        until = state.phase_since + limits[planned.HEAD]
        return v.Wait(planned.HEAD, f"Ray at {head}", until, state.evidence)
    until = max(limits[planned.HEAD], state.phase_since + limits[planned.JOIN])
    why = state.ray_evidence or state.raylet_evidence
    return v.Wait(planned.JOIN, "Ray on this node to join", until, why)


def _unmet_dependencies(state: WorkerState, names: Iterable[str]) -> dict[str, list[str]]:
    """Return the steps that depend on others of this node that are not done, with these."""
    done = {name for name, item in state.steps.items() if item.step is v.Step.READY}
    undone = (state.steps.keys() - done) | state.blocked
    steps = (step for step in state.goal.steps if step.name in names)
    unmet = {step.name: [name for name in step.after if name in undone] for step in steps}
    return {name: missing for name, missing in unmet.items() if missing}


def _start_unblocked(state: WorkerState, now: float) -> Decision:
    """Start blocked steps whose dependencies are done; their time starts now."""
    if state.fenced:
        return state, ()
    return _run_steps(state, state.blocked - _unmet_dependencies(state, state.blocked).keys(), now)


def _run_steps(
    state: WorkerState, names: Iterable[str], now: float
) -> tuple[WorkerState, tuple[w.RunOwnStep, ...]]:
    """Run prepare steps from the beginning; each gets its full time from now on."""
    chosen = [step for step in state.goal.steps if step.name in names]
    items = {step.name: v.Item(deadline=now + step.within) for step in chosen}
    state = replace(
        state,
        steps={**state.steps, **items},
        awaiting_order=state.awaiting_order - items.keys(),
        blocked=state.blocked - items.keys(),
    )
    return state, tuple(map(w.RunOwnStep, items))


def _apply_event(  # noqa: C901, PLR0911, PLR0912 - one case, one return
    state: WorkerState, event: WorkerEvent, now: float
) -> WorkerState:
    """Return the state after an event, without what follows from it."""
    match event:
        case HeadSpoke() if event.held:
            waits_too = "it holds the verdict of an earlier run, and is to be started again"
            return replace(state, evidence=waits_too, ray_ready=False, has_agent=True)
        case HeadSpoke() if event.epoch is None and state.has_agent:
            gone = "its agent is gone, though Ray's GCS still answers"
            state = replace(state, last_reached_at=now, unreached_since=None, fenced=False)
            return replace(state, evidence=gone, silent_for=0.0)
        case HeadSpoke() if event.epoch is None and state.goal.by_torchrun:
            bare = "no agent answers there, only a port that is open"
            return replace(state, evidence=event.refusal or bare)
        case HeadSpoke() if event.epoch is None and event.ray_ready and not _is_plain(state, now):
            since = now if state.bare_since is None else state.bare_since
            wait = f"it is joined as plain Ray if none answers within {round(times.PLAIN_RAY)} s"
            bare = f"Ray's GCS answers and no agent, {wait}"
            state = replace(state, last_reached_at=now, unreached_since=None, fenced=False)
            return replace(state, evidence=bare, bare_since=since)
        case HeadSpoke():
            last = event.phase or ("Ray's GCS answers" if event.ray_ready else "nothing")
            is_new = state.phase is WorkerPhase.JOINING and event.ray_ready and not state.ray_ready
            return replace(
                state,
                phase_since=now if is_new else state.phase_since,  # the join's time starts here
                head_is_silent=False,
                silent_for=0.0,
                last_reached_at=now,
                unreached_since=None,
                fenced=False,
                head_attempt=event.attempt,
                run_id=event.run_id if state.phase is WorkerPhase.FINDING else state.run_id,
                last_reply_at=now,
                evidence=f"the head last reported: {last}",
                head_phase=event.phase,
                head_ip=event.ip,
                ray_ready=event.ray_ready,
                is_plain_head=event.epoch is None,
                has_agent=event.epoch is not None,
                bare_since=state.bare_since if event.epoch is None else None,
                given_rank=state.given_rank if event.rank is None else event.rank,
            )
        case w.HeadSilent(evidence):
            ready = state.ray_ready and state.phase is WorkerPhase.FOLLOWING
            since = now if state.unreached_since is None else state.unreached_since
            state = replace(state, evidence=evidence, ray_ready=ready, head_is_silent=True)
            state = state if state.is_plain_head else replace(state, bare_since=None)
            return replace(state, unreached_since=since, silent_for=now - since)
        case v.Woke(seconds):  # the head's time to give this node up has gone on
            reached = state.last_reached_at - seconds
            state = replace(state, last_reached_at=reached)
            if state.unreached_since is None:
                return state
            return replace(state, unreached_since=now)  # the head may answer first
        case w.WorkerRaySilent(evidence):
            return replace(state, raylet_evidence=evidence)
        case w.RayUp() if state.ray is RayStep.STARTING:  # not one that is being stopped
            return replace(state, ray=RayStep.UP, ray_evidence="", raylet_evidence="")
        case w.RayExited(evidence):
            return replace(state, ray=RayStep.DOWN, ray_evidence=evidence)
        case v.StepOver(name, failure) if name in state.steps:
            item = state.steps[name]
            item = item.lost(failure) if failure else item.ready()
            return replace(state, steps={**state.steps, name: item})
        case ShareOver() if event.attempt == state.share_attempt:
            lost = event.end.by_order and event.attempt == state.fenced_attempt
            end = replace(event.end, lost=True) if lost else event.end
            return replace(state, share_over=replace(event, end=end))
        case v.ServiceReady() | v.ServiceWaits() | v.ServiceGone():  # the head decides what follows
            known = state.services.get(event.name)
            if known is None or event.generation not in (None, known.generation):
                return state
            known = replace(known, step=event.step, evidence=event.evidence)
            return replace(state, services={**state.services, event.name: known})
        case _:
            return state


def _is_plain(state: WorkerState, now: float) -> bool:
    """Return whether the head counts as plain Ray: for long enough its GCS alone has answered.

    The agent of a head may just be replaced, with a Ray that goes on.
    """
    return state.bare_since is not None and now >= state.bare_since + times.PLAIN_RAY


def _on_stop(state: WorkerState, event: v.StopAsked, now: float) -> Decision:
    """Leave; on a first SIGTERM under a job that saves on a signal, ask the head for its time."""
    limit = state.goal.limits.get(planned.SAVE)
    asks = event.signum == SIGTERM and state.taken_at is None and state.joined
    if limit is None or not asks or state.head_is_silent or state.is_plain_head:
        return _leave_by_signal(state, event.signum)
    what = "asked to stop by SIGTERM: this node leaves when the head has let the job save"
    log = v.LogLine(f"{what}, within {round(limit)} s", "warning")
    return replace(state, taken_at=now + limit), (log,)


def _leave_by_signal(state: WorkerState, signum: int = SIGTERM) -> Decision:
    return _leave(state, ends.stopped(signum, expected=state.goal.without_job))


def _carry_out(  # noqa: PLR0911 - one order, one return
    state: WorkerState, order: v.Order, now: float
) -> Decision:
    """Carry out an order once, if it names an entry of this worker's own plan."""
    last = state.last_order
    kind = order.kind
    name = order.name
    if last is not None and last.by == order.by and order.number <= last.number:
        return state, ()
    state = replace(state, last_order=order)
    if kind is v.OrderKind.STOP:
        # a stop is the expected end of a cluster without a job
        code = 0 if state.goal.without_job else 143
        return _leave(state, ends.STOPPED_BY_HEAD.outcome(code=code, head=state.goal.head))
    if kind is v.OrderKind.LEAVE and state.taken_at is not None:
        return _leave_by_signal(state)
    if kind is v.OrderKind.SEND_LOG:  # the reader checks the log's name
        return state, (w.SendLog(name),)
    if kind is v.OrderKind.PROBE and name in v.PROBES:
        return state, (w.RunProbe(name, order.at),)
    if kind is v.OrderKind.PROBE and name == v.ALL_REDUCE and order.share is not None:
        return state, (w.RunProbe(name, "", order.share),)
    if kind is v.OrderKind.START_SERVICE and any(one.name == name for one in state.goal.services):
        known = state.services.get(name)
        is_other_head = last is not None and last.by != order.by
        if is_other_head and known is not None and known.step is not v.Step.LOST:
            return state, ()  # it runs, and a restarted head orders it again
        services = {**state.services, name: v.Item(generation=order.generation)}
        return replace(state, services=services), (w.StartOwnService(name, order.generation),)
    if kind is v.OrderKind.RUN_STEP and name in state.steps:
        is_known = name in state.running_steps or name in state.blocked
        return (state, ()) if is_known else _run_steps(state, {name}, now)
    if kind is v.OrderKind.RUN_SHARE and state.goal.by_torchrun and order.share is not None:
        state = replace(state, share_attempt=order.generation, share_over=None)
        return state, (w.StartShare(order.generation, order.share),)
    if kind is v.OrderKind.STOP_SHARE and state.goal.by_torchrun:
        return state, (w.StopShare(),)
    refused = f"an order of the head's is refused: this node's plan has no {name!r} to run"
    return state, (v.LogLine(refused, "warning"),)


def _end_in_any_phase(state: WorkerState, event: WorkerEvent, now: float) -> Decision | None:
    """Leave by the head's reply (verdict, another run, refusal), or by a step that failed."""
    if isinstance(event, HeadSpoke):
        if event.verdict is not None:
            return _leave(state, event.verdict)
        belongs = state.phase is not WorkerPhase.FINDING and state.run_id and not event.held
        if belongs and event.run_id not in ("", state.run_id):
            head = state.goal.head
            theirs = event.run_id
            ours = state.run_id
            return _leave(state, ends.OTHER_RUN.outcome(head=head, theirs=theirs, ours=ours))
        if event.refusal:
            return _leave(state, ends.REFUSED_BY_HEAD.outcome(refusal=event.refusal))
    if state.taken_at is not None and now >= state.taken_at:
        return _leave_by_signal(state)
    for name, item in state.steps.items():
        if item.step is v.Step.LOST:
            end = ends.STEP_FAILED.outcome(name=name, evidence=item.evidence)
            return _leave(state, end, must_report=True)
        if name in state.awaiting_order and now >= _turn_deadline(state):
            return _leave(state, ends.NOT_IN_TIME.outcome(what=name, evidence=state.evidence))
        if name in state.running_steps and now >= item.deadline:
            end = ends.NOT_IN_TIME.outcome(what=name, evidence="it still runs")
            return _leave(state, end, must_report=True)
    return None


def _finding(state: WorkerState, event: WorkerEvent, now: float) -> Decision:
    if isinstance(event, HeadSpoke) and event.epoch is not None and not event.held:
        state = replace(state, epoch=event.epoch)
    if state.is_plain_head and state.ray_ready and state.awaiting_order:
        # the head has no agent that could order or report steps: nothing on other nodes is awaited
        blocked = state.blocked | state.awaiting_order
        return replace(state, blocked=blocked, awaiting_order=frozenset()), ()
    if state.service_only and state.epoch is not None and not state.preparing:
        log = v.LogLine("this node joins no Ray: it is there for a service only")
        return _follow(state, now), (log,)
    late = next((wait for wait in pending_waits(state) if wait.is_over(now)), None)
    if late is not None:
        return _leave(state, ends.NOT_IN_TIME.outcome(what=late.what, evidence=late.evidence))
    if not state.ray_ready or state.preparing or state.service_only:
        return state, ()
    if state.goal.by_torchrun:  # the head orders this node's share once all have reported
        log = v.LogLine(f"ready: following the head {state.goal.head} ({state.head_ip})")
        return _follow(state, now), (log,)
    return _start_join(_enter_joining(state, now))


def _follow(state: WorkerState, now: float) -> WorkerState:
    """Follow the head, whose grace counts from now at the earliest."""
    state = replace(state, phase=WorkerPhase.FOLLOWING, phase_since=now, retry_at=None)
    return replace(state, last_reply_at=max(state.last_reply_at, now))


def _enter_joining(state: WorkerState, now: float) -> WorkerState:
    return replace(state, phase=WorkerPhase.JOINING, phase_since=now, retry_at=None)


def _start_join(state: WorkerState) -> Decision:
    head_ip = state.head_ip
    assert head_ip is not None  # noqa: S101 - Ray is ready only after a reply
    state = replace(state, ray=RayStep.STARTING, raylet_evidence="", retry_at=None)
    state = replace(state, ray_attempt=state.head_attempt)
    kind = "a plain Ray head" if state.is_plain_head else "the head"
    log = v.LogLine(f"joining Ray at {kind} {state.goal.head} ({head_ip})")
    return state, (log, w.StartRay(head_ip))


def _joining(state: WorkerState, event: WorkerEvent, now: float) -> Decision:
    wait = _join_wait(state)
    if state.ray is RayStep.UP:
        state = replace(_follow(state, now), has_joined_before=True)
        return state, (v.LogLine("Ray is up on this node: following the head"),)
    rejoined = _rejoin(state, event, now)
    if rejoined is not None:
        return rejoined
    if wait.is_over(now) and wait.key == planned.JOIN:
        why = wait.evidence or "no output of `ray start`"
        return _leave(state, ends.RAY_NOT_JOINED.outcome(evidence=why))
    if wait.is_over(now):
        return _leave(state, ends.HEAD_NOT_BACK.outcome(what=wait.what, evidence=wait.evidence))
    if state.ray is RayStep.DOWN and state.retry_at is None:
        if state.fenced:  # the fence stopped it
            return replace(state, retry_at=now), ()
        log = v.LogLine(f"`ray start` ended ({state.ray_evidence}): trying again", "warning")
        return replace(state, retry_at=now + times.JOIN_RETRY_PAUSE), (log,)
    if state.retry_at is not None and now >= state.retry_at and state.ray_ready:
        return _start_join(state)
    return state, ()


def _following(state: WorkerState, event: WorkerEvent, now: float) -> Decision:
    rejoined = _rejoin(state, event, now)
    if rejoined is not None:
        return rejoined
    if now >= _reply_deadline(state):
        head = state.goal.head
        silent = round(now - state.last_reply_at)
        end = ends.HEAD_SILENT.outcome(head=head, seconds=silent, evidence=state.evidence)
        return _leave(state, end)
    if state.ray is not RayStep.DOWN or state.goal.by_torchrun or state.service_only:
        return state, ()
    if state.is_plain_head:
        return _leave(state, ends.RAY_LOST_ON_WORKER.outcome(evidence=state.ray_evidence))
    log = v.LogLine(f"Ray was lost here ({state.ray_evidence}): joining again", "warning")
    ready = state.ray_ready and not state.head_is_silent
    retry_at = now + times.JOIN_RETRY_PAUSE
    return replace(_enter_joining(state, now), ray_ready=ready, retry_at=retry_at), (log,)


def _rejoin(state: WorkerState, event: WorkerEvent, now: float) -> Decision | None:
    """Follow a restarted head: leave its old Ray and join the new one; None if it is not one."""
    if not isinstance(event, HeadSpoke) or event.held or event.epoch in (None, state.epoch):
        return None
    state = replace(state, epoch=event.epoch)
    if state.service_only or state.goal.by_torchrun:
        log = v.LogLine("the head was restarted: following it", "warning")
        return state, (log,) if state.service_only else (log, w.StopShare())
    log = v.LogLine("the head's Ray was restarted: leaving the old and joining the new", "warning")
    state = _enter_joining(state, now)
    if state.ray is RayStep.DOWN:
        return replace(state, retry_at=now), (log,)
    stops = () if state.ray is RayStep.STOPPING else (w.StopRay(),)
    return replace(state, ray=RayStep.STOPPING), (log, *stops)


def _fence_deadline(state: WorkerState) -> float | None:
    """Return when everything here must stop, unless the head or its GCS is reached before.

    A plain Ray head begins no further attempt.
    """
    since = state.unreached_since
    if since is None or state.is_plain_head or state.fenced or not _stops(state):
        return None
    limit = state.goal.limits[planned.FENCE]
    latest = state.last_reached_at + limit / times.FENCE_SHARE * times.FENCE_LATEST_SHARE
    return min(since + limit, max(latest, since + times.FENCE_LEAST))


def _apply_fence(state: WorkerState, now: float) -> Decision:
    """Stop everything here once the fence's deadline has passed.

    The head gives up a node that it does not reach for AGENT_NODE_GRACE. Processes of the old
    attempt would then run beside the next one. The worker itself keeps waiting for the head.
    """
    until = _fence_deadline(state)
    if until is None or now < until:
        return state, ()
    limit = round(state.goal.limits[planned.FENCE])
    out = f"neither the head {state.goal.head} nor its GCS was reached for {limit} s"
    why = "another attempt may begin without this node"
    what = f"{out} ({state.evidence}): stopping all that runs here, since {why}"
    log = v.LogLine(what, "warning")
    stops = _stops(state)
    if w.StopSteps() in stops:
        state = replace(state, blocked=state.blocked.union(state.running_steps))
    if w.StopRay() in stops:
        state = replace(_enter_joining(state, now), ray=RayStep.STOPPING, ray_ready=False)
    return replace(state, fenced=True, fenced_attempt=state.share_attempt), (log, *stops)


def _stops(state: WorkerState) -> tuple[WorkerAction, ...]:
    """Return the stops of all that runs here; of steps only those that a head may have ordered."""
    has_services = any(item.step is not v.Step.LOST for item in state.services.values())
    needed = {
        w.StopServices(): has_services,
        w.StopShare(): state.share_runs,
        w.StopSteps(): state.last_reply_at > 0 and bool(state.running_steps),
        w.StopRay(): state.ray in {RayStep.STARTING, RayStep.UP},
    }
    return tuple(stop for stop, is_needed in needed.items() if is_needed)


def _leave(state: WorkerState, outcome: Outcome, *, must_report: bool = False) -> Decision:
    outcome = outcome if outcome.phase else replace(outcome, phase=state.phase.value)
    leave = w.EndWorker(outcome, must_report)
    return replace(state, phase=WorkerPhase.LEAVING, verdict=outcome), (leave,)


_BY_PHASE = {
    WorkerPhase.FINDING: _finding,
    WorkerPhase.JOINING: _joining,
    WorkerPhase.FOLLOWING: _following,
}
