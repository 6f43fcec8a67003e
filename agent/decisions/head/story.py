"""The head's decisions: a pure function from state, event and time to state and actions."""

from __future__ import annotations

from dataclasses import replace

from agent.base.outcome import Kind, Outcome, stopped
from agent.decisions.head import state as h
from agent.decisions.head.notes import note
from agent.decisions.head.state import HeadAction, HeadEvent, HeadState, Phase
from agent.decisions.head.waits import WORKERS, waits
from agent.decisions.head.workers import alive_workers, describe_missing
from agent.decisions.items import Item, Step
from agent.decisions.shared import Said, StopAsked, Unfit, Wait, listed
from agent.decisions.verdict import verdict_of

__all__ = ["deadline", "decide", "start", "waits"]

Decision = tuple[HeadState, tuple[HeadAction, ...]]


def start(goal: h.Goal) -> HeadState:
    """Return the head's first state."""
    return HeadState(
        goal=goal,
        prepare=Item(Step.PENDING if goal.steps else Step.READY),
        services={name: Item() for name in goal.services},
        required=goal.expected_workers,
    )


def decide(state: HeadState, event: HeadEvent, now: float) -> Decision:
    """Take in one event; return the new state and what to do about it."""
    if state.phase is Phase.LEAVING:
        return note(state, event), ()
    if isinstance(event, StopAsked):
        return _on_stop(state, event, now)
    noted = note(state, event)
    said = _remarks(state, noted, event)
    decision = _BY_PHASE[state.phase](noted, event, now)
    return decision[0], (*said, *decision[1])


def deadline(state: HeadState) -> float | None:
    """Return when the state must be looked at again though nothing happens."""
    if state.phase is Phase.LEAVING:
        return None
    times = [wait.deadline for wait in waits(state)]
    if state.short_since is not None and state.phase is Phase.RUNNING:
        times.append(state.short_since + state.goal.node_grace)
    return min(times, default=None)


def _remarks(before: HeadState, after: HeadState, event: HeadEvent) -> list[Said]:
    if isinstance(event, h.ServiceReady) and before.services[event.name].step is not Step.READY:
        return [Said(f"{event.name} answers")]
    if isinstance(event, h.Prepared) and not event.failed:
        return [Said(f"{listed(after.goal.steps)}: done")]
    was, are = alive_workers(before), alive_workers(after)
    return [
        *(Said(f"{name} joined Ray") for ip, name in are.items() if ip not in was),
        *(Said(f"{name} left Ray", "warning") for ip, name in was.items() if ip not in are),
    ]


# --- booting -----------------------------------------------------------------------------------


def _booting(  # noqa: PLR0911 - an ordered list of reasons, the first that applies wins
    state: HeadState, event: HeadEvent, now: float
) -> Decision:
    if isinstance(event, Unfit):
        return _leave(state, event.outcome, now)
    if state.ray.step is Step.LOST:
        return _ray_did_not_start(state, now)
    if isinstance(event, h.Prepared) and event.failed:
        return _end(state, now, 69, f"{event.failed} failed: {event.evidence}", event.failed)
    for name, item in state.services.items():
        if item.step is Step.LOST and not item.answered:
            return _end(state, now, 69, f"{name} ended before it was ready: {item.evidence}", name)
    state, said, broken = _watch_services(state, now)
    if broken is not None:
        return _leave(state, broken, now)
    if said:
        return state, said
    pending = waits(state)
    late = next((wait for wait in pending if wait.over(now)), None)
    if late is not None:
        partial = _proceed_partially(state, pending, late, now)
        return partial or _end(
            state,
            now,
            69,
            f"{late.what} never came in time: {late.evidence or 'no word'}",
            late.what,
        )
    if pending:
        return state, ()
    return _boot_done(state, now)


def _ray_did_not_start(state: HeadState, now: float) -> Decision:
    """Start Ray again: on a busy node its own limit of 30 s is passed now and then."""
    ray, most = state.ray, state.goal.ray_restarts
    if ray.restarts >= most or now >= state.goal.head_deadline:
        return _end(state, now, 69, f"Ray did not start: {ray.evidence}", "ray")
    again = Item(Step.PENDING, restarts=ray.restarts + 1)
    said = Said(f"Ray did not start ({ray.evidence}): try {again.restarts} of {most}", "warning")
    state = replace(state, ray=again, gcs_answers=False, ray_nodes=())
    return state, (said, h.RestartRay())


def _boot_done(state: HeadState, now: float) -> Decision:
    nodes = f"{len(alive_workers(state)) + 1} node(s)"
    if not state.goal.wants_job:
        ready = Said(f"the cluster of {nodes} is up and stays until it is stopped (AGENT_JOB=none)")
        return state.to(Phase.RUNNING, now), (ready,)
    return state.to(Phase.SUBMITTING, now), (Said(f"{nodes} ready: submitting the job"), h.Submit())


def _proceed_partially(
    state: HeadState, pending: tuple[Wait, ...], late: Wait, now: float
) -> Decision | None:
    """Go on with fewer workers, where that was asked for and only workers are missing."""
    here, goal = len(alive_workers(state)), state.goal
    if late.what != WORKERS or goal.least_workers >= state.required or here < goal.least_workers:
        return None
    missing = describe_missing(state, now)
    state = replace(state, required=here, goal=replace(goal, expected_workers=here))
    said = Said(f"going on with {here} worker(s), as AGENT_PARTIAL=proceed; {missing}", "warning")
    if len(pending) > 1:
        return state, (said,)
    after, actions = _boot_done(state, now)
    return after, (said, *actions)


# --- submitting and running --------------------------------------------------------------------


def _submitting(state: HeadState, event: HeadEvent, now: float) -> Decision:
    if state.ray.step is Step.LOST:
        return _end(state, now, 75, f"Ray was lost: {state.ray.evidence}", "ray")
    if isinstance(event, h.Submitted):
        return replace(state.to(Phase.RUNNING, now), job_heard=now), (Said("the job is submitted"),)
    if isinstance(event, h.SubmitWaits):
        if event.final:
            return _end(
                state, now, 78, f"Ray refused the job: {event.evidence}", "AGENT_RUNTIME_ENV"
            )
        state = replace(state, ray=replace(state.ray, evidence=event.evidence))
    if now >= state.since + state.goal.submit_limit:
        why = state.ray.evidence or "no answer from Ray's dashboard"
        return _end(state, now, 69, f"the job could not be submitted: {why}", "ray")
    return state, ()


def _running(state: HeadState, event: HeadEvent, now: float) -> Decision:
    if isinstance(event, h.JobHeard):
        state = replace(state, job_heard=now)
        if event.report.ended:
            return _leave(state, verdict_of(event.report, state.loss), now)
    if state.ray.step is Step.LOST:
        return _end(state, now, 75, f"Ray was lost on the head: {state.ray.evidence}", "ray")
    if state.goal.wants_job and now >= state.job_heard + state.goal.silence_limit:
        silent = round(now - state.job_heard)
        return _end(state, now, 75, f"Ray said nothing of the job for {silent} s", "ray")
    state, said = _watch_nodes(state, now)
    if state.short_since is not None and now >= state.short_since + state.goal.node_grace:
        lost = Outcome(Kind.LOST, 75, f"{state.loss}, longer than AGENT_NODE_GRACE", culprit="node")
        return _stop_job(state, lost, now, said)
    state, more, broken = _watch_services(state, now)
    if broken is not None:
        return _stop_job(state, broken, now, (*said, *more))
    return state, (*said, *more)


def _watch_nodes(state: HeadState, now: float) -> tuple[HeadState, tuple[HeadAction, ...]]:
    short = len(alive_workers(state)) < state.required
    if short and state.short_since is None:
        loss = f"lost a needed node ({describe_missing(state, now)})"
        grace = round(state.goal.node_grace)
        said = Said(f"{loss}: the job is stopped unless it is back within {grace} s", "warning")
        return replace(state, short_since=now, loss=loss), (said,)
    if not short and state.short_since is not None:
        return replace(state, short_since=None), (Said("all needed nodes are back"),)
    return state, ()


def _watch_services(
    state: HeadState, now: float
) -> tuple[HeadState, tuple[HeadAction, ...], Outcome | None]:
    for name, item in state.services.items():
        late = item.step is Step.PENDING and item.deadline is not None and now >= item.deadline
        if item.step is Step.LOST and item.restarts < state.goal.service_restarts:
            again = replace(
                item,
                step=Step.PENDING,
                restarts=item.restarts + 1,
                deadline=now + state.goal.service_limit,
            )
            state = replace(state, services={**state.services, name: again})
            count = f"{again.restarts} of {state.goal.service_restarts}"
            said = Said(f"{name} died ({item.evidence}): restart {count}", "warning")
            return state, (said, h.RestartService(name)), None
        if item.step is Step.LOST or late:
            reason = f"{name} is lost for good: {item.evidence or 'it answers no more'}"
            return state, (), Outcome(Kind.UNAVAILABLE, 69, reason, culprit=name)
    return state, (), None


# --- stopping and leaving ----------------------------------------------------------------------


def _on_stop(state: HeadState, event: StopAsked, now: float) -> Decision:
    serving = not state.goal.wants_job and state.phase is Phase.RUNNING
    outcome = stopped(event.signum, expected=serving or not state.goal.wants_job)
    if state.phase is Phase.STOPPING:
        return replace(state, verdict=state.verdict or outcome), ()
    submitted = state.goal.wants_job and state.phase in {Phase.RUNNING, Phase.SUBMITTING}
    if submitted:
        return _stop_job(state, outcome, now, (Said(f"{outcome.reason}: stopping the job"),))
    return _leave(state, outcome, now)


def _stop_job(
    state: HeadState, verdict: Outcome, now: float, said: tuple[HeadAction, ...]
) -> Decision:
    if not state.goal.wants_job:
        after, actions = _leave(state, verdict, now)
        return after, (*said, *actions)
    state = replace(state, verdict=replace(verdict, phase=state.phase.value))
    return state.to(Phase.STOPPING, now), (*said, h.StopJob())


def _stopping(state: HeadState, event: HeadEvent, now: float) -> Decision:
    assert state.verdict is not None  # noqa: S101 - entered only with a verdict
    ended = isinstance(event, h.JobHeard) and event.report.ended
    refused = isinstance(event, h.SubmitWaits)
    over = now >= state.since + state.goal.job_stop_grace
    if ended or refused or over or state.ray.step is Step.LOST:
        late = (Said("the job did not stop in time", "warning"),) if over and not ended else ()
        after, actions = _leave(state, state.verdict, now)
        return after, (*late, *actions)
    return state, ()


def _end(state: HeadState, now: float, code: int, reason: str, culprit: str) -> Decision:
    kind = {69: Kind.UNAVAILABLE, 75: Kind.LOST, 78: Kind.REFUSED}[code]
    return _leave(state, Outcome(kind, code, reason, culprit=culprit), now)


def _leave(state: HeadState, outcome: Outcome, now: float) -> Decision:
    outcome = outcome if outcome.phase else replace(outcome, phase=state.phase.value)
    state = replace(state, verdict=outcome)
    return state.to(Phase.LEAVING, now), (h.Leave(outcome),)


_BY_PHASE = {
    Phase.BOOTING: _booting,
    Phase.SUBMITTING: _submitting,
    Phase.RUNNING: _running,
    Phase.STOPPING: _stopping,
}
