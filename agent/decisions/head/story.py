"""The head's decisions: a pure function from state, event and time to state and actions."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from agent.base.outcome import Kind, Outcome, stopped
from agent.decisions.attempts import Attempt, id_of, may_retry
from agent.decisions.head import services
from agent.decisions.head import state as h
from agent.decisions.head.notes import note
from agent.decisions.head.state import HeadAction, HeadEvent, HeadState, Phase
from agent.decisions.head.waits import service_title, waits
from agent.decisions.items import HERE, Item, Step
from agent.decisions.shared import Said, StopAsked, Tick, Unfit, Wait, listed
from agent.decisions.verdict import verdict_of
from agent.plan import waits as planned

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from agent.decisions.head.state import Key

Decision = tuple[HeadState, tuple[HeadAction, ...]]


def first_state(goal: h.Goal) -> HeadState:
    """Return the head's first state."""
    number = goal.first_attempt
    return HeadState(
        goal=goal,
        attempt=Attempt(id_of(goal.run_id, number, goal.submission_id), number),
        services={
            (HERE, spec.name): Item()
            for spec in goal.services
            if spec.where.includes(0, is_head=True)
        },
        steps={(HERE, step.name): Item() for step in goal.steps},
        required=goal.expected_workers,
    )


def decide(state: HeadState, event: HeadEvent, now: float) -> Decision:
    """Take in one event; return the new state and what to do about it."""
    if state.phase is Phase.LEAVING:
        return note(state, event, now), ()
    if isinstance(event, StopAsked):
        return _on_stop(state, event, now)
    noted = note(state, event, now)
    said = _remarks(state, noted, event)
    noted, ordered = services.order(noted, event, now)
    decision = _BY_PHASE[noted.phase](noted, event, now)
    return decision[0], (*said, *ordered, *decision[1])


def deadline(state: HeadState) -> float | None:
    """Return when the state must be looked at again though nothing happens."""
    if state.phase is Phase.LEAVING:
        return None
    times = [wait.deadline for wait in waits(state)]
    if state.phase in {Phase.BOOTING, Phase.RUNNING}:
        times += [item.again_at for item in state.services.values() if item.again_at is not None]
    if state.short_since is not None and state.phase is Phase.RUNNING and state.goal.wants_job:
        times.append(state.short_since + state.goal.limits[planned.NODE])
    return min(times, default=None)


def _remarks(before: HeadState, after: HeadState, event: HeadEvent) -> list[HeadAction]:
    """Say what a person would want to know of an event, whatever follows from it."""
    found: list[HeadAction] = []
    if isinstance(event, h.StepOver) and before.steps != after.steps:
        items = after.steps.values()
        if all(item.step is Step.READY for item in items):
            found.append(Said(f"{listed(name for _, name in after.steps)}: done"))
    if after.services is not before.services:
        found += [
            Said(f"{service_title(after, key)} answers")
            for key, item in after.services.items()
            if item.step is Step.READY and _step_of(before.services, key) is not Step.READY
        ]
    was, are = before.fleet.alive, after.fleet.alive
    if was is not are:
        changed = _perhaps_changed(before, after, event)
        found += [Said(f"{are[ip]} joined Ray") for ip in changed if ip in are and ip not in was]
        left = [was[ip] for ip in changed if ip in was and ip not in are]
        found += [Said(f"{name} left Ray", "warning") for name in left]
    return found


def _perhaps_changed(before: HeadState, after: HeadState, event: HeadEvent) -> Iterable[str]:
    """Return the addresses at which a worker may have come to count, or no longer do."""
    if isinstance(event, h.WorkerReported):  # at thousands of workers there is no time for all
        earlier = before.fleet.workers.get(event.worker.key)
        return {event.worker.ip, earlier.ip if earlier else event.worker.ip}
    return {**before.fleet.alive, **after.fleet.alive}


def _step_of(items: Mapping[Key, Item], key: Key) -> Step | None:
    return items[key].step if key in items else None


# --- booting -----------------------------------------------------------------------------------


def _booting(state: HeadState, event: HeadEvent, now: float) -> Decision:
    if isinstance(event, Unfit):
        return _leave(state, event.outcome, now)
    if state.ray.step is Step.LOST:
        return _ray_did_not_start(state, now)
    failed = next(((k, i) for k, i in state.steps.items() if i.step is Step.LOST), None)
    if failed is not None:
        (_, name), item = failed
        return _end(state, now, 69, f"{name} failed: {item.evidence}", name)
    state, said, broken = services.watch(state, now)
    if broken is not None:
        return _leave(state, broken, now)
    after, actions = _awaiting(state, now)
    return after, (*said, *actions)


def _awaiting(state: HeadState, now: float) -> Decision:
    """Go on when nothing is waited for any more; end where something never came in time."""
    pending = waits(state)
    late = next((wait for wait in pending if wait.over(now)), None)
    if late is not None:
        partial = _proceed_partially(state, pending, late, now)
        why = f"{late.what} never came in time: {late.evidence or 'no word'}"
        return partial or _end(state, now, 69, why, late.what)
    if pending:
        return state, ()
    return _boot_done(state, now)


def _ray_did_not_start(state: HeadState, now: float) -> Decision:
    """Start Ray again: on a busy node its own limit of 30 s is passed now and then."""
    ray, most = state.ray, state.goal.ray_restarts
    if ray.restarts >= most or now >= state.until(planned.HEAD):
        return _end(state, now, 69, f"Ray did not start: {ray.evidence}", "ray")
    again = Item(restarts=ray.restarts + 1)
    said = Said(f"Ray did not start ({ray.evidence}): try {again.restarts} of {most}", "warning")
    return _without_ray(state, again), (said, h.RestartRay())


def _without_ray(state: HeadState, ray: Item) -> HeadState:
    """Forget what was known of a Ray that is gone."""
    fleet = state.fleet.with_nodes(())
    return replace(state, ray=ray, gcs_answers=False, ray_head=None, gpus={}, fleet=fleet)


def _boot_done(state: HeadState, now: float) -> Decision:
    nodes = f"{len(state.fleet.alive) + 1} node(s)"
    if not state.goal.wants_job:
        ready = Said(f"the cluster of {nodes} is up and stays until it is stopped (AGENT_JOB=none)")
        return state.to(Phase.RUNNING, now), (ready,)
    attempt = replace(state.attempt, submitted=now, heard=now)
    state = replace(state, attempt=attempt).to(Phase.SUBMITTING, now)
    return state, (Said(f"{nodes} ready: submitting the job"), h.Submit(attempt.id))


def _proceed_partially(
    state: HeadState, pending: tuple[Wait, ...], late: Wait, now: float
) -> Decision | None:
    """Go on with fewer workers, where that was asked for and only workers are missing."""
    here, least = len(state.fleet.alive), state.goal.least_workers
    if late.key != planned.WORKERS or least >= state.required or here < least:
        return None
    missing = state.fleet.describe_missing(state.required, now)
    state = replace(state, required=here)
    said = Said(f"going on with {here} worker(s), as AGENT_PARTIAL=proceed; {missing}", "warning")
    if len(pending) > 1:
        return state, (said,)
    after, actions = _boot_done(state, now)
    return after, (said, *actions)


# --- submitting and running --------------------------------------------------------------------


def _submitting(state: HeadState, event: HeadEvent, now: float) -> Decision:
    if state.ray.step is Step.LOST:
        return _attempt_over(state, _lost(f"Ray was lost: {state.ray.evidence}"), now)
    if isinstance(event, h.Submitted) and event.id == state.attempt.id:
        return state.to(Phase.RUNNING, now), (Said("the job is submitted"),)
    if isinstance(event, h.SubmitWaits) and event.id == state.attempt.id and event.final:
        why = f"Ray refused the job: {event.evidence}"
        return _end(state, now, 78, why, "AGENT_RUNTIME_ENV")
    if now >= state.since + state.goal.limits[planned.SUBMIT]:
        why = state.ray.evidence or "no answer from Ray's dashboard"
        reason = f"the job could not be submitted: {why}"
        return _give_the_job_up(state, Outcome(Kind.UNAVAILABLE, 69, reason, culprit="ray"), now)
    return state, ()


def _running(state: HeadState, event: HeadEvent, now: float) -> Decision:
    if isinstance(event, h.JobHeard) and event.id == state.attempt.id and event.report.ended:
        return _attempt_over(state, verdict_of(event.report, state.loss), now)
    if state.ray.step is Step.LOST:
        return _attempt_over(state, _lost(f"Ray was lost on the head: {state.ray.evidence}"), now)
    if state.goal.wants_job and now >= state.attempt.heard + state.goal.limits[planned.JOB]:
        silent = round(now - state.attempt.heard)
        return _give_the_job_up(state, _lost(f"Ray said nothing of the job for {silent} s"), now)
    state, said = _watch_nodes(state, now)
    grace = state.goal.limits[planned.NODE]
    short = state.short_since if state.goal.wants_job else None
    if short is not None and now >= short + grace:
        lost = Outcome(Kind.LOST, 75, f"{state.loss}, longer than AGENT_NODE_GRACE", culprit="node")
        return _stop_job(state, lost, now, said)
    state, more, broken = services.watch(state, now)
    if broken is not None:
        return _stop_job(state, broken, now, (*said, *more))
    return state, (*said, *more)


def _watch_nodes(state: HeadState, now: float) -> tuple[HeadState, tuple[HeadAction, ...]]:
    short = len(state.fleet.alive) < state.required
    if short and state.short_since is None:
        loss = f"lost a needed node ({state.fleet.describe_missing(state.required, now)})"
        grace = round(state.goal.limits[planned.NODE])
        follows = f"the job is stopped unless it is back within {grace} s"
        stays = "the cluster stays, and takes it back when it comes"
        said = Said(f"{loss}: {follows if state.goal.wants_job else stays}", "warning")
        return replace(state, short_since=now, loss=loss), (said,)
    if not short and state.short_since is not None:
        return replace(state, short_since=None), (Said("all needed nodes are back"),)
    return state, ()


# --- stopping, trying again, leaving ------------------------------------------------------------


def _on_stop(state: HeadState, event: StopAsked, now: float) -> Decision:
    outcome = stopped(event.signum, expected=not state.goal.wants_job)
    if state.phase is Phase.STOPPING:
        return replace(state, verdict=_without_retry(state, outcome)), ()
    submitted = state.goal.wants_job and state.phase in {Phase.RUNNING, Phase.SUBMITTING}
    if submitted:
        return _stop_job(state, outcome, now, (Said(f"{outcome.reason}: stopping the job"),))
    return _leave(state, outcome, now)


def _without_retry(state: HeadState, asked: Outcome) -> Outcome:
    """Return what a run ends with that is asked to stop while its job stops already.

    Its own verdict stands, unless that was a loss after which another attempt would have followed.
    """
    verdict = state.verdict
    if verdict is None or may_retry(state.attempt, verdict, state.goal.retries):
        return asked
    return verdict


def _give_the_job_up(state: HeadState, outcome: Outcome, now: float) -> Decision:
    """End an attempt of which Ray says nothing; a Ray that outlives us must not go on with it."""
    if state.goal.ray_is_given:
        return _stop_job(state, outcome, now, (Said(f"{outcome.reason}: stopping it"),))
    return _leave(state, outcome, now)


def _stop_job(
    state: HeadState, verdict: Outcome, now: float, said: tuple[HeadAction, ...]
) -> Decision:
    if not state.goal.wants_job:
        after, actions = _leave(state, verdict, now)
        return after, (*said, *actions)
    state = replace(state, verdict=replace(verdict, phase=state.phase.value))
    return state.to(Phase.STOPPING, now), (*said, h.StopJob(state.attempt.id))


def _stopping(state: HeadState, event: HeadEvent, now: float) -> Decision:
    assert state.verdict is not None  # noqa: S101 - entered only with a verdict
    own = state.attempt.id
    ended = isinstance(event, h.JobHeard) and event.id == own and event.report.ended
    refusal = event if isinstance(event, h.SubmitWaits) and event.id == own else None
    never_ran = refusal is not None and (refusal.cancelled or refusal.final)
    dies_with_ray = refusal is not None and not state.goal.ray_is_given
    over = now >= state.since + state.goal.job_stop_grace
    if ended or never_ran or dies_with_ray or over or state.ray.step is Step.LOST:
        late = (Said("the job did not stop in time", "warning"),) if over and not ended else ()
        gone = ended or never_ran  # nothing follows an attempt that may still be alive
        after, actions = (_attempt_over if gone else _leave)(state, state.verdict, now)
        return after, (*late, *actions)
    return state, ()


def _attempt_over(state: HeadState, end: Outcome, now: float) -> Decision:
    """Leave with the end of an attempt, or try again where that may help."""
    if not may_retry(state.attempt, end, state.goal.retries):
        return _leave(state, end, now)
    ended = state.attempt.over(now, end)
    number = ended.number + 1
    attempt = Attempt(id_of(state.goal.run_id, number), number, began=now)
    most = state.goal.retries + 1
    said = Said(f"attempt {number} of {most}: {end.reason}", "warning")
    lost = state.ray.step is Step.LOST
    state = replace(
        _without_ray(state, Item()) if lost else state,
        attempt=attempt,
        earlier=(*state.earlier, ended),
        required=state.goal.expected_workers,
        short_since=None,
        loss="",
        verdict=None,
    )
    again: tuple[HeadAction, ...] = (h.RestartRay(),) if lost else ()
    after, actions = _booting(state.to(Phase.BOOTING, now), Tick(), now)
    return after, (said, h.Retry(ended, attempt), *again, *actions)


def _lost(reason: str) -> Outcome:
    return Outcome(Kind.LOST, 75, reason, culprit="ray")


def _end(state: HeadState, now: float, code: int, reason: str, culprit: str) -> Decision:
    kind = {69: Kind.UNAVAILABLE, 75: Kind.LOST, 78: Kind.REFUSED}[code]
    return _leave(state, Outcome(kind, code, reason, culprit=culprit), now)


def _leave(state: HeadState, outcome: Outcome, now: float) -> Decision:
    outcome = outcome if outcome.phase else replace(outcome, phase=state.phase.value)
    attempt = state.attempt
    attempt = attempt if attempt.submitted is None else attempt.over(now, outcome)
    state = replace(state, verdict=outcome, attempt=attempt)
    return state.to(Phase.LEAVING, now), (h.Leave(outcome),)


_BY_PHASE = {
    Phase.BOOTING: _booting,
    Phase.SUBMITTING: _submitting,
    Phase.RUNNING: _running,
    Phase.STOPPING: _stopping,
}
