"""The worker's `decide`: (state, event, time) to (state, actions).

A worker finds the head, joins its Ray, follows it, and leaves:

- FINDING: the head replies, and this node's prepare steps run. Once the head wants this node's Ray,
  JOINING begins; a node that joins no Ray follows the head at once.
- JOINING: until that Ray is up. The head wants it again if it ends.
- FOLLOWING: the head replies, and says what it wants to run here. If Ray is lost here, or the head
  has started its own anew, JOINING begins again.
- LEAVING: the outcome stands. It is the head's verdict, a stop, a failure of this node, or a head
  that was silent for AGENT_HEAD_GRACE.

A stop and a refusal are complete by themselves. Any other event passes the steps of
`_decide_event`, in their order there: what the event changes, whether the run ends here, what the
phase decides, and the fence. What runs on this node follows from the state (`wanted_here`): Publish
has it carried out.
"""

from __future__ import annotations

from signal import SIGTERM
from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.base import ends, times
from agent.base.text import listed
from agent.decisions import shared as v
from agent.decisions.worker import worker_state as w
from agent.decisions.worker.worker_state import (
    HeadSpoke,
    WorkerPhase,
    WorkerState,
    enter_joining,
)
from agent.plan import waits as wait_keys

if TYPE_CHECKING:
    from agent.base.ends import Outcome
    from agent.decisions.worker.worker_state import WorkerAction, WorkerEvent

_SILENCE_LOGGED = 2.0  # Silence is logged after this: on a bad link single calls fail.


Decision = tuple[WorkerState, tuple["WorkerAction", ...]]


def first_state(goal: w.WorkerGoal, *, has_agent: bool = False) -> WorkerState:
    """Return the state in which the worker starts.

    `has_agent` if a head's agent had answered the killed agent that this one replaces.
    """
    state = WorkerState(goal, has_agent=has_agent)
    return _time_steps({}, state, 0.0)


def decide(state: WorkerState, event: WorkerEvent, now: float) -> Decision:
    """Apply one event; return the new state and the actions to carry out."""
    after, actions = _decide_event(state, event, now)
    is_over = after.phase is WorkerPhase.LEAVING
    if not is_over and w.wanted_here(after) != w.wanted_here(state):
        actions = (*actions, v.Publish((v.HERE,)))
    return after, actions


def _decide_event(state: WorkerState, event: WorkerEvent, now: float) -> Decision:
    # Events that decide alone.
    if state.phase is WorkerPhase.LEAVING:
        return state, ()
    if isinstance(event, v.StopAsked):
        return _on_stop(state, event, now)
    if isinstance(event, v.Refused):
        return _leave(state, event.outcome, must_report=True)

    # What does the event itself change, and which steps begin by it?
    before = state
    state = _apply_event(state, event, now)
    state = _time_steps(w.steps_wanted(before), state, now)

    # Does the run end here, in whatever phase? Otherwise the phase decides.
    decision = _end_in_any_phase(state, event, now)
    if decision is None:
        decision = _BY_PHASE[state.phase](state, event, now)
    state, actions = decision

    # Does the head answer again after a silence that was logged?
    was_silent = before.phase is WorkerPhase.FOLLOWING and before.silent_for >= _SILENCE_LOGGED
    if was_silent and not state.silent_for:
        actions = (v.LogLine(f"the head {state.goal.head} answers again"), *actions)

    if state.phase is WorkerPhase.LEAVING:
        return state, actions

    # Has Ray ended, or does it start? The fence is last, so that it ends what begins here.
    ray_lines = _ray_lines(before, state)
    state, fence_lines = _apply_fence(state, now)
    return state, (*actions, *ray_lines, *fence_lines)


def deadline(state: WorkerState) -> float | None:
    """Return when `decide` must run again even if no event arrives; None for never."""
    if state.phase is WorkerPhase.LEAVING:
        return None
    deadlines = [wait.deadline for wait in pending_waits(state)]

    fence_at = _fence_deadline(state)
    if fence_at is not None:
        deadlines.append(fence_at)

    return min(deadlines, default=None)


def pending_waits(state: WorkerState) -> tuple[v.Wait, ...]:
    """Return all waits of the current phase, with deadline and evidence."""
    if state.phase is WorkerPhase.LEAVING:
        return ()
    waits = []
    if state.taken_at is not None:
        waits.append(v.Wait(wait_keys.SAVE, "the head to let the job save", state.taken_at))
    waits += _step_waits(state)

    # The head and its Ray, by phase.
    goal = state.goal
    is_wanted = state.preparing or v.RAY in w.wanted_here(state)
    is_found = state.ray_ready and is_wanted and not state.service_only
    if state.phase is WorkerPhase.FINDING and not is_found:
        until = goal.limits[wait_keys.HEAD]
        if state.last_reply_at:
            until = max(until, _reply_deadline(state))
        what = f"the head {goal.head}"
        remedy = "Does it run, and does this node reach it? AGENT_WAIT_HEAD waits longer"
        waits.append(v.Wait(wait_keys.HEAD, what, until, state.evidence, remedy=remedy))
    if state.phase is WorkerPhase.JOINING:
        waits.append(_join_wait(state))
    if state.phase is WorkerPhase.FOLLOWING:
        what = f"a reply from the head {goal.head}"
        until = _reply_deadline(state)
        answers = state.silent_for < _SILENCE_LOGGED
        waits.append(
            v.Wait(wait_keys.SILENT_HEAD, what, until, state.evidence, is_following=answers)
        )
    return tuple(waits)


def _step_waits(state: WorkerState) -> list[v.Wait]:
    """Return the waits of prepare steps: for their turn, for their end, for other steps."""
    waits = []
    awaited = () if state.fenced else state.awaited_turns
    if awaited:
        what = f"the head to have {listed(sorted(awaited))} run here"
        steps = [step for step in state.goal.steps if step.name in awaited]
        after = [f"{step.name} waits for {listed(step.after)}" for step in steps if step.after]
        evidence = "; ".join([*after, state.evidence])
        waits.append(v.Wait("turn", what, _turn_deadline(state), evidence))

    running = state.running_steps
    if running:
        until = min(state.steps_due[name] for name in running)
        waits.append(v.Wait(wait_keys.PREPARE, listed(running), until))

    for step in state.goal.steps:
        missing = state.unmet_dependencies(step)
        if missing and state.item(step.name) is None and step.name not in awaited:
            evidence = f"not started, waits for {listed(missing)}"
            waits.append(v.Wait(step.name, step.name, _turn_deadline(state), evidence))
    return waits


def _turn_deadline(state: WorkerState) -> float:
    """Return when every step must have begun."""
    longest = max(step.within for step in state.goal.steps)
    limits = state.goal.limits
    preparing = max(longest, limits.get(wait_keys.PREPARE, longest))
    return state.turns_since + preparing + limits.get(wait_keys.BEFORE, 0.0)


def _reply_deadline(state: WorkerState) -> float:
    """Return when the head must have answered again (AGENT_HEAD_GRACE)."""
    return state.last_reply_at + state.goal.limits[wait_keys.SILENT_HEAD]


def _join_wait(state: WorkerState) -> v.Wait:
    """Return the wait of a join: for this node's Ray, or first for the head to answer again."""
    limits = state.goal.limits
    head = f"the head {state.goal.head}"

    # A node that was part of the cluster waits for the head, then for its Ray.
    if state.has_joined_before and state.head_is_silent:
        until = _reply_deadline(state)
        return v.Wait(wait_keys.SILENT_HEAD, f"{head} to come back", until, state.evidence)
    if state.has_joined_before and not state.ray_ready:
        until = state.phase_since + limits[wait_keys.HEAD]
        return v.Wait(wait_keys.HEAD, f"Ray at {head}", until, state.evidence)

    until = max(limits[wait_keys.HEAD], state.phase_since + limits[wait_keys.JOIN])
    what = "Ray on this node to join"
    last = state.ray_end
    if last is None and state.ray is not None and state.ray.step is v.Step.PENDING:
        last = state.ray
    if last is None:
        return v.Wait(wait_keys.JOIN, what, until)
    return v.Wait(wait_keys.JOIN, what, until, last.evidence, output=last.output)


def _time_steps(before: v.Wants, state: WorkerState, now: float) -> WorkerState:
    """Give each prepare step that begins its full time from now on."""
    wants = w.steps_wanted(state)
    due = {
        step.name: now + step.within
        for step in state.goal.steps
        if step.name in wants and before.get(step.name) != wants[step.name]
    }
    return replace(state, steps_due={**state.steps_due, **due}) if due else state


def _apply_event(state: WorkerState, event: WorkerEvent, now: float) -> WorkerState:
    """Return the state after an event, without what follows from it."""
    match event:
        # The head
        case HeadSpoke():
            return _apply_answer(state, event, now)
        case w.HeadSilent(evidence):
            return _apply_silence(state, evidence, now)
        case v.Woke(seconds):
            # The head's time to give this node up has gone on meanwhile; it may answer first.
            state = replace(state, last_reached_at=state.last_reached_at - seconds)
            return state if state.unreached_since is None else replace(state, unreached_since=now)

        # What the executor of this node runs
        case v.ItemsReported(items):  # the head decides what follows for a service
            return _apply_items(state, items)
        case _:
            return state


def _apply_answer(state: WorkerState, event: HeadSpoke, now: float) -> WorkerState:
    """Return the state after an answer of the head, or of its GCS alone."""
    if event.held:
        waits_too = "it holds the verdict of an earlier run, and is to be started again"
        return replace(state, evidence=waits_too, ray_ready=False, has_agent=True)

    # Does GCS alone answer? That counts as a reply only once the head is taken for plain Ray.
    if event.epoch is None:
        if state.has_agent:
            gone = "its agent is gone, though Ray's GCS still answers"
            return replace(_reached(state, now), evidence=gone, silent_for=0.0)
        if state.goal.by_shares:
            bare = "no agent answers there, only a port that is open"
            return replace(state, evidence=event.refusal or bare)
        if event.ray_ready and not _is_plain(state, now):
            wait = f"it is joined as plain Ray if none answers within {round(times.PLAIN_RAY)} s"
            bare = f"Ray's GCS answers and no agent, {wait}"
            since = now if state.bare_since is None else state.bare_since
            return replace(_reached(state, now), evidence=bare, bare_since=since)

    # Has Ray become ready while this node joins? The time to join starts here.
    phase_since = state.phase_since
    if state.phase is WorkerPhase.JOINING and event.ray_ready and not state.ray_ready:
        phase_since = now

    # Of which run is this node? It may join Ray on the reply of a head that does not know it yet.
    run_id = state.run_id
    if state.phase is WorkerPhase.FINDING or not run_id:
        run_id = event.run_id

    # What does it want here? None is nothing new, or nothing that is decided.
    wanted = state.wanted
    if event.wanted is not None and event.wanted.is_later_than(wanted):
        wants = state.head_wants if event.wanted.wants is None else event.wanted.wants
        wanted = replace(event.wanted, wants=wants, questions=())
        state = replace(
            state,
            addresses=wanted.addresses or state.addresses,
            members=wanted.members or state.members,
        )

    last = event.phase
    if not last:
        last = "Ray's GCS answers" if event.ray_ready else "nothing"
    return replace(
        _reached(state, now),
        phase_since=phase_since,
        head_is_silent=False,
        silent_for=0.0,
        run_id=run_id,
        last_reply_at=now,
        evidence=f"the head last reported: {last}",
        head_phase=event.phase,
        head_ip=event.ip,
        ray_ready=event.ray_ready,
        is_plain_head=event.epoch is None,
        has_agent=event.epoch is not None,
        bare_since=state.bare_since if event.epoch is None else None,
        given_rank=state.given_rank if event.rank is None else event.rank,
        wanted=wanted,
    )


def _apply_items(state: WorkerState, items: tuple[v.ItemReport, ...]) -> WorkerState:
    """Return the state after a report of what runs here."""
    state = replace(state, items=items)

    # Is this node's Ray up, or has it ended by itself?
    ray = state.ray
    if ray is not None and ray.step is v.Step.READY:
        return replace(state, ray_end=None)
    if ray is not None and ray.step is v.Step.LOST and not ray.was_stopped:
        return replace(state, ray_end=ray)
    return state


def _reached(state: WorkerState, now: float) -> WorkerState:
    """Return the state after the head's agent or its GCS was reached, which ends the fence."""
    if state.fenced:
        state = replace(state, fenced=False, turns_since=now)
    return replace(state, last_reached_at=now, unreached_since=None)


def _apply_silence(state: WorkerState, evidence: str, now: float) -> WorkerState:
    """Return the state after the head was not reached."""
    since = now if state.unreached_since is None else state.unreached_since
    return replace(
        state,
        evidence=evidence,
        ray_ready=state.ray_ready and state.phase is WorkerPhase.FOLLOWING,
        head_is_silent=True,
        bare_since=state.bare_since if state.is_plain_head else None,
        unreached_since=since,
        silent_for=now - since,
    )


def _is_plain(state: WorkerState, now: float) -> bool:
    """Return whether the head counts as plain Ray: for long enough its GCS alone has answered.

    The agent of a head may just be replaced, with a Ray that goes on.
    """
    return state.bare_since is not None and now >= state.bare_since + times.PLAIN_RAY


def _on_stop(state: WorkerState, event: v.StopAsked, now: float) -> Decision:
    """Leave; on a first SIGTERM under a job that saves on a signal, ask the head for its time."""
    limit = state.goal.limits.get(wait_keys.SAVE)
    is_first = event.signum == SIGTERM and state.taken_at is None
    if limit is None or not is_first or not state.joined:
        return _leave_by_signal(state, event.signum)
    if state.head_is_silent or state.is_plain_head:  # nobody can let the job save
        return _leave_by_signal(state, event.signum)

    what = "asked to stop by SIGTERM: this node leaves when the head has let the job save"
    log = v.LogLine(f"{what}, within {round(limit)} s", "warning")
    return replace(state, taken_at=now + limit), (log,)


def _leave_by_signal(state: WorkerState, signum: int = SIGTERM) -> Decision:
    return _leave(state, ends.stopped(signum, expected=state.goal.without_job))


def _end_in_any_phase(state: WorkerState, event: WorkerEvent, now: float) -> Decision | None:
    """Leave by the head's reply, by the platform's notice, or by a step; None to go on."""
    if isinstance(event, HeadSpoke):
        by_reply = _end_by_reply(state, event)
        if by_reply is not None:
            return by_reply

    may_leave = state.wanted is not None and state.wanted.may_leave
    if state.taken_at is not None and (may_leave or now >= state.taken_at):
        return _leave_by_signal(state)

    return _end_by_step(state, now)


def _end_by_step(state: WorkerState, now: float) -> Decision | None:
    """Leave by a prepare step that failed, or did not begin or end in time; None to go on."""
    awaited = state.awaited_turns
    running = state.running_steps
    for step in state.goal.steps:
        name = step.name
        item = state.item(name)
        if item is not None and item.step is v.Step.LOST and not item.was_stopped:
            end = ends.STEP_FAILED.outcome(name=name, evidence=item.in_full)
            return _leave(state, end, must_report=True)
        if name in awaited and not state.fenced and now >= _turn_deadline(state):
            end = ends.NOT_IN_TIME.outcome(what=name, evidence=state.evidence, remedy="")
            return _leave(state, end)
        if name in running and now >= state.steps_due[name]:
            end = ends.NOT_IN_TIME.outcome(what=name, evidence="it still runs", remedy="")
            return _leave(state, end, must_report=True)
    return None


def _end_by_reply(state: WorkerState, event: HeadSpoke) -> Decision | None:
    """Leave by a verdict, a head of another run, or a refusal; None to go on."""
    if event.verdict is not None:
        return _leave(state, event.verdict)

    belongs = state.phase is not WorkerPhase.FINDING and state.run_id and not event.held
    if belongs and event.run_id not in ("", state.run_id):
        end = ends.OTHER_RUN.outcome(head=state.goal.head, theirs=event.run_id, ours=state.run_id)
        return _leave(state, end)

    if event.refusal:
        return _leave(state, ends.REFUSED_BY_HEAD.outcome(refusal=event.refusal))

    # Has the head given it a rank whose services need more GPUs than are here?
    key, asked = state.goal.gpu_split.fault(state.rank)
    if key and state.goal.rank is None:
        end = ends.TOO_FEW_GPUS.outcome(key=key, asked=asked, rank=state.rank)
        return _leave(state, end, must_report=True)
    return None


def _finding(state: WorkerState, event: WorkerEvent, now: float) -> Decision:
    """Find the head and finish the prepare steps; then join Ray, or follow without it."""
    if isinstance(event, HeadSpoke) and event.epoch is not None and not event.held:
        state = replace(state, epoch=event.epoch)

    if state.service_only and state.epoch is not None and not state.preparing:
        return _follow_without_ray(state, now)

    # Is a wait over?
    late = next((wait for wait in pending_waits(state) if wait.is_over(now)), None)
    if late is not None:
        end = ends.NOT_IN_TIME.outcome(what=late.what, evidence=late.evidence, remedy=late.remedy)
        return _leave(state, end)

    # Are head and steps ready? Without Ray the head wants this node's share once all have reported.
    if not state.ray_ready or state.preparing or state.service_only:
        return state, ()
    if state.goal.by_shares:
        log = v.LogLine(f"ready: following the head {state.goal.head} ({state.head_ip})", "done")
        return _follow(state, now), (log,)
    return (enter_joining(state, now) if v.RAY in w.wanted_here(state) else state), ()


def _follow_without_ray(state: WorkerState, now: float) -> Decision:
    log = v.LogLine("this node joins no Ray: it is there for a service only, or a spare")
    return _follow(state, now), (log,)


def _follow(state: WorkerState, now: float) -> WorkerState:
    """Follow the head, whose grace counts from now at the earliest."""
    state = replace(state, phase=WorkerPhase.FOLLOWING, phase_since=now)
    return replace(state, last_reply_at=max(state.last_reply_at, now))


def _ray_lines(before: WorkerState, state: WorkerState) -> list[v.LogLine]:
    """Return log lines for the end and the start of this node's Ray."""
    lines = []

    # Has it ended by itself? It is then wanted again.
    ray = state.ray
    former = before.ray
    was_lost = former is not None and former.step is v.Step.LOST
    if ray is not None and ray.step is v.Step.LOST and not ray.was_stopped and not was_lost:
        was_up = before.phase is WorkerPhase.FOLLOWING
        what = "Ray was lost here" if was_up else "`ray start` ended"
        then = "joining again" if was_up else "trying again"
        lines.append(v.LogLine(f"{what} ({ray.in_full}): {then}", "warning"))

    # Is it to start?
    want = w.wanted_here(state).get(v.RAY)
    is_next = want is not None and (ray is None or want.generation > ray.generation)
    if is_next and want != w.wanted_here(before).get(v.RAY):
        kind = "a plain Ray head" if state.is_plain_head else "the head"
        lines.append(v.LogLine(f"joining Ray at {kind} {state.goal.head} ({state.head_ip})"))
    return lines


def _joining(state: WorkerState, event: WorkerEvent, now: float) -> Decision:
    """Wait until the Ray that is wanted here is up."""
    if state.service_only:  # it has become a spare
        return _follow_without_ray(state, now)

    wait = _join_wait(state)
    if state.ray_is_up:
        state = replace(_follow(state, now), has_joined_before=True)
        return state, (v.LogLine("Ray is up on this node: following the head", "done"),)

    rejoined = _rejoin(state, event, now)
    if rejoined is not None:
        return rejoined

    # Is the wait over: for this node's Ray, or for the head?
    if wait.is_over(now) and wait.key == wait_keys.JOIN:
        why = wait.in_full or "no output of `ray start`"
        return _leave(state, ends.RAY_NOT_JOINED.outcome(evidence=why))
    if wait.is_over(now):
        return _leave(state, ends.HEAD_NOT_BACK.outcome(what=wait.what, evidence=wait.evidence))

    return state, ()


def _following(state: WorkerState, event: WorkerEvent, now: float) -> Decision:
    """Stay with the head; leave if it is silent for too long, join again if Ray is lost here."""
    rejoined = _rejoin(state, event, now)
    if rejoined is not None:
        return rejoined

    if now >= _reply_deadline(state):
        end = ends.HEAD_SILENT.outcome(
            head=state.goal.head,
            seconds=round(now - state.last_reply_at),
            evidence=state.evidence,
        )
        return _leave(state, end)

    # Does this node have a Ray, and is it lost?
    if state.ray_is_up or state.goal.by_shares or state.service_only:
        return state, ()
    if state.is_plain_head:
        how = "" if state.ray_end is None else state.ray_end.in_full
        return _leave(state, ends.RAY_LOST_ON_WORKER.outcome(evidence=how))
    ready = state.ray_ready and not state.head_is_silent
    return replace(enter_joining(state, now), ray_ready=ready), ()


def _rejoin(state: WorkerState, event: WorkerEvent, now: float) -> Decision | None:
    """Follow a restarted head: leave its old Ray and join the new one; None if it is not one."""
    if not isinstance(event, HeadSpoke) or event.held or event.epoch in (None, state.epoch):
        return None
    state = replace(state, epoch=event.epoch)

    # Does this node join no Ray? Its share ran with the former head.
    if state.service_only or state.goal.by_shares:
        log = v.LogLine("the head was restarted: following it", "warning")
        return state, (log,)

    # The new Ray is joined once the old one has ended here.
    log = v.LogLine("the head's Ray was restarted: leaving the old and joining the new", "warning")
    return enter_joining(state, now), (log,)


def _fence_deadline(state: WorkerState) -> float | None:
    """Return when everything here must stop, unless the head or its GCS is reached before.

    A plain Ray head begins no further attempt.
    """
    since = state.unreached_since
    if since is None or state.is_plain_head or state.fenced or not _is_fence_needed(state):
        return None
    # The grace counts from the first silence. The head's own grace for this node counts from its
    # last contact: the fence must be done by then, but never acts on a moment's silence.
    limit = state.goal.limits[wait_keys.FENCE]
    latest = state.last_reached_at + limit / times.FENCE_SHARE * times.FENCE_LATEST_SHARE
    return min(since + limit, max(latest, since + times.FENCE_LEAST))


def _apply_fence(state: WorkerState, now: float) -> Decision:
    """Stop everything here once the fence's deadline has passed.

    The head gives up a node that it does not reach for AGENT_NODE_GRACE. Processes of the old
    attempt would then run beside the next one. The worker itself keeps waiting for the head.
    """
    fence_at = _fence_deadline(state)
    if fence_at is None or now < fence_at:
        return state, ()

    limit = round(state.goal.limits[wait_keys.FENCE])
    out = f"neither the head {state.goal.head} nor its GCS was reached for {limit} s"
    why = "another attempt may begin without this node"
    what = f"{out} ({state.evidence}): stopping all that runs here, since {why}"
    log = v.LogLine(what, "warning")

    # What is ended starts again once the head is reached: steps in their turn, Ray and services as
    # the head wants them then.
    before = state
    share = state.share
    attempt = share.generation if share is not None and share.is_running else 0
    state = replace(state, fenced=True, fenced_attempt=attempt)
    if not _has_ray(before):
        return state, (log,)
    return replace(enter_joining(state, now), ray_ready=False), (log,)


def _is_fence_needed(state: WorkerState) -> bool:
    """Return whether anything runs here that would run beside another attempt."""
    steps = {step.name for step in state.goal.steps}
    others = any(item.is_running for item in state.items if item.name not in steps)
    by_head = state.last_reply_at > 0 and bool(state.running_steps)
    return others or by_head or _has_ray(state)


def _has_ray(state: WorkerState) -> bool:
    """Return whether Ray runs here, or starts."""
    return v.RAY in w.wanted_here(state)


def _leave(state: WorkerState, outcome: Outcome, *, must_report: bool = False) -> Decision:
    if not outcome.phase:
        outcome = replace(outcome, phase=state.phase.value)
    leave = w.EndWorker(outcome, must_report)
    return replace(state, phase=WorkerPhase.LEAVING, verdict=outcome), (leave,)


_BY_PHASE = {
    WorkerPhase.FINDING: _finding,
    WorkerPhase.JOINING: _joining,
    WorkerPhase.FOLLOWING: _following,
}
