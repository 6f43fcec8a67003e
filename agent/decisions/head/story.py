"""The head's decisions: a pure function from state, event and time to state and actions."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from agent.base.outcome import Kind, Outcome, stopped
from agent.decisions.attempts import Attempt, id_of, is_loss
from agent.decisions.head import agreement, parts, probes, retry, services, turns
from agent.decisions.head import state as h
from agent.decisions.head.notes import note
from agent.decisions.head.remarks import departed, remarks
from agent.decisions.head.state import HeadAction, HeadEvent, HeadState, Phase
from agent.decisions.head.waits import stop_deadline, waits, with_service
from agent.decisions.head.workers import Fleet
from agent.decisions.items import HERE, Item, Step
from agent.decisions.shared import Said, StopAsked, Tick, Unfit, Wait
from agent.decisions.verdict import verdict_of
from agent.plan import waits as planned

if TYPE_CHECKING:
    from agent.decisions.verdict import JobReport

Decision = tuple[HeadState, tuple[HeadAction, ...]]


def first_state(goal: h.Goal) -> HeadState:
    """Return the head's first state."""
    number = goal.first_attempt
    state = HeadState(
        goal=goal,
        attempt=Attempt(id_of(goal.run_id, number, goal.submission_id), number),
        ray=Item(Step.READY) if goal.by_torchrun else Item(),
        fleet=Fleet(by_report=goal.by_torchrun),
        steps={(HERE, step.name): Item() for step in goal.steps},
        turns=turns.first_turns(goal),
        required=goal.expected_workers,
    )
    for spec in goal.services:
        if spec.where.includes(goal.rank, is_head=True):
            state = with_service(state, (HERE, spec.name), Item())
    return state


def decide(state: HeadState, event: HeadEvent, now: float) -> Decision:
    """Take in one event; return the new state and what to do about it."""
    if state.phase is Phase.LEAVING:
        return note(state, event, now), ()
    if isinstance(event, StopAsked):
        return _on_stop(state, event, now)
    noted = note(state, event, now)
    noted = replace(noted, fleet=noted.fleet.looked(now))
    said = remarks(state, noted, event)
    noted = retry.noticed(noted, departed(state, noted, event), now)
    noted, ordered = services.order(noted, event, now)
    noted, in_turn = turns.order(noted, event, now)
    noted, tried = probes.after(noted, event, now)
    decision = _BY_PHASE[noted.phase](noted, event, now)
    return decision[0], (*said, *ordered, *in_turn, *tried, *decision[1])


def deadline(state: HeadState) -> float | None:
    """Return when the state must be looked at again though nothing happens."""
    if state.phase is Phase.LEAVING:
        return None
    times = [wait.deadline for wait in waits(state)]
    if state.phase is Phase.BOOTING and not times:
        times.append(state.since)  # nothing is waited for, not even for a Ray
    if state.phase in {Phase.BOOTING, Phase.RUNNING}:
        dead = state.services.dead.values()
        times += [item.again_at for item in dead if item.again_at is not None]
        alone = services.alone_deadline(state)
        times += [] if alone is None else [alone]
    if state.fleet.look_at is not None:
        times.append(state.fleet.look_at)
    if state.phase is Phase.STOPPING and (told := parts.next_look(state)) is not None:
        times.append(told)
    if state.short_since is not None and state.phase is Phase.RUNNING and state.goal.wants_job:
        times.append(state.short_since + state.goal.limits[planned.NODE])
    return min(times, default=None)


# --- booting -----------------------------------------------------------------------------------


def _booting(state: HeadState, event: HeadEvent, now: float) -> Decision:
    if isinstance(event, Unfit):
        return _leave(state, event.outcome, now)
    known = _of_earlier_attempts(state, event, now)
    if known is not None:
        return known
    if state.ray.step is Step.LOST:
        return _ray_did_not_start(state, now)
    failed = next(((k, i) for k, i in state.steps.items() if i.step is Step.LOST), None)
    if failed is not None:
        (_, name), item = failed
        return _end(state, now, 69, f"{name} failed: {item.evidence}", name)
    state, said, broken = services.watch(state, now)
    broken = broken or services.lost_alone(state, now)
    if broken is not None:
        return _leave(state, broken, now)
    after, actions = _awaiting(state, now)
    return after, (*said, *actions)


def _of_earlier_attempts(state: HeadState, event: HeadEvent, now: float) -> Decision | None:
    """Heed what is heard of them: from a worker that remembers, and of what they saved."""
    if isinstance(event, h.CheckpointSeen):
        vain = retry.no_progress(state)
        return None if vain is None else _leave(state, vain, now)
    if not isinstance(event, h.RunRemembered) or not retry.is_news(state, event):
        return None
    state, taken_up, over = retry.take_up(state, event)
    after, actions = _booting(state, Tick(), now) if over is None else _leave(state, over, now)
    return after, (*taken_up, *actions)


def _awaiting(state: HeadState, now: float) -> Decision:
    """Go on when nothing is waited for any more; end where something never came in time."""
    pending = tuple(w for w in waits(state) if w.key not in planned.NEVER_LATE or not w.over(now))
    late = next((wait for wait in pending if wait.over(now)), None)
    if late is not None:
        partial = _proceed_partially(state, pending, late, now)
        why = f"{late.what} never came in time: {late.evidence or 'no word'}"
        return partial or _end(state, now, retry.code_of(state, late), why, late.what)
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
    return replace(state, ray=ray, gcs_answers=False, ray_head=None, sizes={}, fleet=fleet)


def _boot_done(state: HeadState, now: float) -> Decision:
    state, done, refusal = agreement.weighed(state)
    after, actions = _go_on(state, now) if refusal is None else _leave(state, refusal, now)
    return after, (*done, *actions)


def _go_on(state: HeadState, now: float) -> Decision:
    nodes = f"{len(state.fleet.alive) + 1} node(s)"
    if not state.goal.wants_job:
        ready = Said(f"the cluster of {nodes} is up and stays until it is stopped (AGENT_JOB=none)")
        return state.to(Phase.RUNNING, now), (ready,)
    attempt = replace(state.attempt, submitted=now, heard=now, checkpoint=state.checkpoint)
    state = replace(state, attempt=attempt).to(Phase.SUBMITTING, now)
    doing = "starting the job by torchrun" if state.goal.by_torchrun else "submitting the job"
    ready = Said(f"{nodes} ready: {doing}")
    again = (Said(retry.sentence(state)),) if attempt.number > 1 else ()
    state = parts.begin(state) if state.goal.by_torchrun else state
    return state, (*again, ready, h.Submit(attempt.id))


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
    if isinstance(event, Unfit):  # a recipe that does not fit what joined
        return _leave(state, event.outcome, now)
    if isinstance(event, h.Submitted) and event.id == state.attempt.id:
        return _submitted(state.to(Phase.RUNNING, now), event, now)
    if isinstance(event, h.SubmitWaits) and event.id == state.attempt.id and event.final:
        why = f"Ray refused the job: {event.evidence}"
        return _end(state, now, 78, why, "AGENT_RUNTIME_ENV")
    if now >= state.since + state.goal.limits[planned.SUBMIT]:
        why = state.ray.evidence or "no answer from Ray's dashboard"
        reason = f"the job could not be submitted: {why}"
        return _give_the_job_up(state, Outcome(Kind.UNAVAILABLE, 69, reason, culprit="ray"), now)
    return state, ()


def _submitted(state: HeadState, event: HeadEvent, now: float) -> Decision:
    if not state.goal.by_torchrun:
        return state, (Said("the job is submitted"),)
    after, actions = _running(state, event, now)  # a worker's share may have ended already
    return after, (Said("the job is started"), *actions)


def _running(state: HeadState, event: HeadEvent, now: float) -> Decision:
    over = _over_by_itself(state, event, now)
    if over is not None:
        return over
    state, said = _watch_nodes(state, now)
    grace = state.goal.limits[planned.NODE]
    short = state.short_since if state.goal.wants_job else None
    if short is not None and now >= short + grace:
        gone = parts.missing(state)
        loss = f"lost a needed node: {gone}" if gone else state.loss
        lost = Outcome(Kind.LOST, 75, f"{loss}, longer than AGENT_NODE_GRACE", culprit="node")
        return _stop_job(state, lost, now, said)
    state, more, broken = services.watch(state, now)
    broken = broken or services.lost_alone(state, now)
    if broken is not None:
        return _stop_job(state, broken, now, (*said, *more))
    return state, (*said, *more)


def _job_over(state: HeadState, report: JobReport, now: float) -> Decision:
    if retry.must_ask(state, report, now):
        return state.to(Phase.JUDGING, now), (h.AskNodes(state.attempt.id),)
    return _attempt_over(state, retry.judged(state, report, now), now)


def _judging(state: HeadState, event: HeadEvent, now: float) -> Decision:
    """Hold a job's failure back until all nodes were asked whether they are there, or too long."""
    report = state.attempt.report
    assert report is not None  # noqa: S101 - entered only with a job's end
    asked = isinstance(event, h.NodesAsked) and event.id == state.attempt.id
    if asked or retry.recent_loss(state, now) or now >= state.since + planned.ASK_LIMIT:
        return _attempt_over(state, retry.judged(state, report, now), now)
    return state, ()


def _over_by_itself(state: HeadState, event: HeadEvent, now: float) -> Decision | None:
    """End a running attempt that has ended, or of which nothing is heard any more."""
    if isinstance(event, h.JobHeard) and event.id == state.attempt.id and event.report.ended:
        return _job_over(state, event.report, now)
    if state.goal.by_torchrun:
        return None if parts.report(state) is None else _part_over(state, now)
    if state.ray.step is Step.LOST and not state.goal.wants_job:
        return _serve_again(state, now)
    if state.ray.step is Step.LOST:
        return _attempt_over(state, _lost(f"Ray was lost on the head: {state.ray.evidence}"), now)
    if state.goal.wants_job and now >= state.attempt.heard + state.goal.limits[planned.JOB]:
        silent = round(now - state.attempt.heard)
        return _give_the_job_up(state, _lost(f"Ray said nothing of the job for {silent} s"), now)
    return None


def _serve_again(state: HeadState, now: float) -> Decision:
    """Start Ray again in place, where nobody's job was lost with it."""
    ray, most = state.ray, state.goal.ray_restarts
    lost = f"Ray was lost on the head: {ray.evidence}"
    if ray.counted(now) >= most:
        return _leave(state, _lost(lost), now)
    again = Item(restarts=ray.counted(now) + 1, restarted=now)
    said = Said(f"{lost}; starting it again: {again.restarts} of {most}", "warning")
    state = replace(_without_ray(state, again), attempt=replace(state.attempt, began=now))
    return state.to(Phase.BOOTING, now), (said, h.RestartRay())


def _part_over(state: HeadState, now: float) -> Decision:
    """End an attempt with its shares; where one failed, the others are stopped first."""
    end = parts.verdict(state)
    if parts.settled(state):
        return _attempt_over(state, end, now)
    said = Said(f"{end.reason}: stopping the job on the other nodes", "warning")
    return _stop_job(state, end, now, (said,))


def _watch_nodes(state: HeadState, now: float) -> tuple[HeadState, tuple[HeadAction, ...]]:
    gone = parts.missing(state)
    short = bool(gone) or len(state.fleet.alive) < state.required
    if short and state.short_since is None:
        known = state.fleet.describe_missing(state.required, now)
        loss = f"lost a needed node ({f'{gone}; {known}' if gone else known})"
        grace = round(state.goal.limits[planned.NODE])
        follows = f"the job is stopped unless it is back within {grace} s"
        stays = "the cluster stays, and takes it back when it comes"
        said = Said(f"{loss}: {follows if state.goal.wants_job else stays}", "warning")
        return replace(state, short_since=now, loss=loss, lost_at=now), (said,)
    if not short and state.short_since is not None:
        return replace(state, short_since=None), (Said("all needed nodes are back"),)
    return state, ()


# --- stopping, trying again, leaving ------------------------------------------------------------


def _on_stop(state: HeadState, event: StopAsked, now: float) -> Decision:
    outcome = stopped(event.signum, expected=not state.goal.wants_job)
    if state.phase is Phase.STOPPING:
        return replace(state, verdict=_without_retry(state, outcome)), ()
    if state.phase is Phase.JUDGING and state.attempt.report is not None:
        return _leave(state, verdict_of(state.attempt.report, state.loss), now)
    submitted = state.goal.wants_job and state.phase in {Phase.RUNNING, Phase.SUBMITTING}
    if submitted:
        return _stop_job(state, outcome, now, (Said(f"{outcome.reason}: stopping the job"),))
    return _leave(state, outcome, now)


def _without_retry(state: HeadState, asked: Outcome) -> Outcome:
    """Return what a run ends with that is asked to stop while its job stops already.

    Its own verdict stands, unless that was a loss after which another attempt would have followed.
    """
    verdict = state.verdict
    if verdict is None or (is_loss(verdict) and state.losses < state.goal.retries):
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
    verdict = state.verdict
    if state.goal.by_torchrun:
        state = parts.looked(state, now)
        ended = parts.settled(state)
        if verdict.is_jobs_verdict:  # shares that ended since may tell of an earlier failure
            verdict = parts.verdict(state)
    refusal = event if isinstance(event, h.SubmitWaits) and event.id == own else None
    never_ran = refusal is not None and (refusal.cancelled or refusal.final)
    dies_with_ray = refusal is not None and not state.goal.ray_is_given
    over = now >= stop_deadline(state)
    if ended or never_ran or dies_with_ray or over or state.ray.step is Step.LOST:
        late = (Said("the job did not stop in time", "warning"),) if over and not ended else ()
        gone = ended or never_ran  # nothing follows an attempt that may still be alive
        after, actions = (_attempt_over if gone else _leave)(state, verdict, now)
        return after, (*late, *actions)
    return state, ()


def _attempt_over(state: HeadState, end: Outcome, now: float) -> Decision:
    """Leave with the end of an attempt, or try again where that may help."""
    again = retry.another(state, end, now)
    if isinstance(again, Outcome):
        return _leave(state, again, now)
    begun, actions = again
    begun = replace(begun, parts={})
    if state.ray.step is Step.LOST:
        begun, actions = _without_ray(begun, Item()), (*actions, h.RestartRay())
    after, more = _booting(begun, Tick(), now)
    return after, (*actions, *more)


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
    Phase.JUDGING: _judging,
    Phase.STOPPING: _stopping,
}
