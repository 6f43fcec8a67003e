"""The head's `decide`: (state, event, time) to (state, actions), and the order of its steps."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.base.text import listed
from agent.decisions.attempts import Attempt, AttemptSnapshot, DriverSignaled, submission_id_of
from agent.decisions.head import probes, retry, services, shares, waits
from agent.decisions.head import state as h
from agent.decisions.head.fleet import Fleet, Worker, contradiction
from agent.decisions.head.phases import (
    answer_notices,
    booting,
    end_by_hours,
    hours_deadline,
    judging,
    on_later_head,
    on_stop,
    resuming,
    running,
    stopping,
    submitting,
)
from agent.decisions.head.state import HeadAction, HeadEvent, HeadPhase, HeadState, Turn
from agent.decisions.head.waits import pending_waits, service_title
from agent.decisions.values import (
    HERE,
    Item,
    LogLine,
    Outage,
    ServiceGone,
    ServiceReady,
    ServiceWaits,
    Step,
    StepOver,
    StopAsked,
)
from agent.plan import waits as planned

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.decisions.head.state import Decision, Key


_MAX_OUTAGES = 200


def first_state(goal: h.HeadGoal) -> HeadState:
    """Return the state in which the head starts."""
    number = goal.first_attempt
    state = HeadState(
        goal=goal,
        attempt=Attempt(submission_id_of(goal.run_id, number, goal.submission_id), number),
        ray=Item(Step.READY) if goal.by_torchrun else Item(),
        fleet=Fleet(by_report=goal.by_torchrun),
        steps={
            (HERE, step.name): (
                Item().ready() if step.name in goal.finished_steps else Item(deadline=step.within)
            )
            for step in goal.steps
        },
        step_queues=services.first_step_queues(goal),
        required=goal.expected_workers,
        leftovers=dict.fromkeys(goal.former_workers, 0.0),
    )
    for spec in goal.services:
        if spec.where.includes(goal.rank, is_head=True):
            state = state.with_service((HERE, spec.name), services.first_item(goal, spec, 0.0))
    own = [key for key, item in state.steps.items() if item.step is Step.PENDING]
    state = services.hold_back(state, [*own, *state.services], state.attempt.began)
    return state if goal.resumed_attempt is None else _resume(state, goal.resumed_attempt)


def _resume(state: HeadState, snapshot: AttemptSnapshot) -> HeadState:
    """Return a first state that resumes the attempt of a killed agent."""
    attempt = snapshot.attempt
    if not attempt.id:  # an older agent did not record it
        own = submission_id_of(state.goal.run_id, attempt.number, state.goal.submission_id)
        attempt = replace(attempt, id=own)
    return replace(
        state,
        phase=HeadPhase.RESUMING,
        attempt=replace(attempt, submitted=None),
        required=snapshot.required,
        fleet=replace(state.fleet, dead_node_ids=snapshot.dead_node_ids),
        last_loss=snapshot.last_loss,
        last_loss_at=snapshot.last_loss_at,
        below_required_since=snapshot.below_required_since,
        verdict=snapshot.end,
        leftovers={},
    )


def decide(state: HeadState, event: HeadEvent, now: float) -> Decision:
    """Apply one event; return the new state and the actions to carry out.

    A stop signal and a later head end the run in every phase; a head that is leaving only applies
    the event. All else is the steps of `PASS`.
    """
    after, actions = _decide_event(state, event, now)
    snapshot = h.snapshot_of(after)
    if snapshot is not None and h.snapshot_changed(state, snapshot):
        # first, so that an agent that is killed while it acts leaves a record of the decision
        actions = (h.SaveSnapshot(snapshot), *actions)
    return after, actions


def _decide_event(before: HeadState, event: HeadEvent, now: float) -> Decision:
    if before.phase is HeadPhase.LEAVING:  # the outcome stands
        return apply_event(before, event, now), ()
    if isinstance(event, StopAsked):
        return on_stop(before, event, now)
    if isinstance(event, h.LaterHead):  # two heads must not run one job
        return on_later_head(before, event, now)
    state, actions = before, list[HeadAction]()
    for step, _ in PASS:
        state, more = step(state, Turn(before, event, now))
        actions += more
        if state.phase is HeadPhase.LEAVING:  # nothing starts any more
            break
    return state, tuple(actions)


def _apply(state: HeadState, turn: Turn) -> Decision:
    return apply_event(state, turn.event, turn.now), ()


def _expire_silent_workers(state: HeadState, turn: Turn) -> Decision:
    return replace(state, fleet=state.fleet.expire_silent(turn.now)), ()


def _recount_absent_shares(state: HeadState, turn: Turn) -> Decision:
    return shares.recount_absent(turn.before, state), ()


def _log_changes(state: HeadState, turn: Turn) -> Decision:
    return state, tuple(messages(turn.before, state, turn.event))


def _record_losses(state: HeadState, turn: Turn) -> Decision:
    was, are = turn.before.fleet.alive, state.fleet.alive
    if was is are:
        return state, ()
    left = {ip: name for ip, name in was.items() if ip not in are}
    return retry.record_losses(state, left, turn.now), ()


def _continue_phase(state: HeadState, turn: Turn) -> Decision:
    return _BY_PHASE[state.phase](state, turn.event, turn.now)


_BY_PHASE = {
    HeadPhase.RESUMING: resuming,
    HeadPhase.BOOTING: booting,
    HeadPhase.SUBMITTING: submitting,
    HeadPhase.RUNNING: running,
    HeadPhase.JUDGING: judging,
    HeadPhase.STOPPING: stopping,
}

PASS: tuple[tuple[Callable[[HeadState, Turn], Decision], str], ...] = (
    (_apply, "first: all other steps read the state after the event"),
    (_expire_silent_workers, "after the event, which may be the report that a worker owes"),
    (_recount_absent_shares, "after silent workers: the share of an absent worker is absent"),
    (_log_changes, "before any step that changes more: it logs what the event alone changed"),
    (waits.expire_hang, "before the phase, which handles a lost Ray"),
    (_record_losses, "before the phase, which blames a recent loss for a job that fails"),
    (
        services.order_services,
        "before the phase, which waits for the services of a new worker",
    ),
    (
        services.order_steps,
        "anywhere after the event: no other step reads the queues",
    ),
    (probes.advance_probes, "before the phase, which submits once no probe is awaited"),
    (_continue_phase, "after all that it decides on"),
    (answer_notices, "after the phase, which may have ended the run by the job's own end"),
    (end_by_hours, "after the phase, for the same reason"),
    (services.start_unblocked, "after the phase, which may have made ready what others depend on"),
    (services.order_unblocked_steps, "after the phase, as services"),
)
"""The steps of a pass, in this order, each with the reason for its place."""


def deadline(state: HeadState) -> float | None:
    """Return when `decide` must run again even if no event arrives; None for never."""
    if state.phase is HeadPhase.LEAVING:
        return None
    times = [wait.deadline for wait in pending_waits(state)]
    if state.phase is HeadPhase.BOOTING and not times:
        times.append(state.phase_since)  # no wait at all: go on at once
    if state.phase in {HeadPhase.BOOTING, HeadPhase.RUNNING}:
        again = (state.services[key].restart_at for key in state.lost_services)
        times += [at for at in again if at is not None]
        alone = services.service_node_deadline(state)
        times += [] if alone is None else [alone]
    if state.probes.samples_due is not None:
        times.append(state.probes.samples_due)
    if math.isfinite(state.goal.boot_limit) and state.phase is HeadPhase.BOOTING:
        times.append(state.phase_since + state.goal.boot_limit)
    hours = hours_deadline(state)
    times += [] if hours is None else [hours]
    if state.fleet.silence_check_at is not None:
        times.append(state.fleet.silence_check_at)
    if state.phase is HeadPhase.STOPPING:
        silent_by = shares.silent_shares_deadline(state)
        times += [] if silent_by is None else [silent_by]
    if (
        state.below_required_since is not None
        and state.phase is HeadPhase.RUNNING
        and state.goal.has_job
    ):
        times.append(state.below_required_since + state.goal.limits[planned.NODE])
    return min(times, default=None)


def apply_event(state: HeadState, event: HeadEvent, now: float) -> HeadState:  # noqa: C901, PLR0911, PLR0912 - one case, one return
    """Return the state after an event, without what follows from it."""
    match event:
        case h.RayNodes(nodes):  # Ray is up once the head's own node is listed
            head = next((node.ip for node in nodes if node.is_head and node.alive), None)
            ray = state.ray if head is None else state.ray.ready()
            sizes = {node.ip: node.size for node in nodes if node.alive}
            fleet = state.fleet.with_ray_nodes(nodes)
            return replace(state, ray=ray, ray_head_ip=head, node_sizes=sizes, fleet=fleet)
        case h.GcsOpen():
            evidence = "GCS answered, the head's node is not in it yet"
            is_pending = state.ray.step is Step.PENDING
            ray = replace(state.ray, evidence=evidence) if is_pending else state.ray
            return replace(state, gcs_answers=True, ray=ray)
        case h.HeadRaySilent(evidence):
            return replace(state, ray=replace(state.ray, evidence=evidence))
        case h.RayGone(evidence, memory):
            ray = state.ray.lost(evidence)
            return replace(state, ray=ray, last_ray_exit=evidence, oom_evidence=memory)
        case h.RayHangs():
            return waits.apply_hang(state, event, now)
        case h.WorkerIntroduced(key, _, facts, findings):
            return replace(state, fleet=state.fleet.with_facts(key, facts, findings))
        case h.Cleared(over, left) if over == state.attempt.number - 1:
            return replace(state, own_leftovers=f"{left} cannot be ended" if left else None)
        case h.CheckpointSeen(_, step, path):
            return replace(state, newest_checkpoint=step, resumes_from=path)
        case h.WorkerReported(worker):
            return shares.apply_share_report(_apply_report(state, worker, now), worker, now)
        case h.OwnShareOver(over):
            return shares.apply_share_end(state, HERE, over.attempt, over.end, now)
        case h.WorkerSilent(key, evidence, ray_answers):
            fleet = state.fleet.mark_silent(key, evidence, now, is_lost=not ray_answers)
            return replace(state, fleet=fleet)
        case h.WorkerReplaced(key):
            return _forget_worker(state, key)
        case StepOver(name, failure, node):
            item = state.steps.get((node, name))
            if item is None:
                return state
            item = item.lost(failure) if failure else item.ready()
            return replace(state, steps={**state.steps, (node, name): item})
        case ServiceReady(name, node, generation):
            return _apply_service_state(state, (node, name), generation, (Step.READY, ""), now)
        case ServiceWaits(name, evidence, node, generation):
            return _apply_service_state(
                state, (node, name), generation, (Step.PENDING, evidence), now
            )
        case ServiceGone(name, evidence, node, generation):
            return _apply_service_state(state, (node, name), generation, (Step.LOST, evidence), now)
        case h.JobHeard(job, report) if job == state.attempt.id:
            return replace(state, attempt=state.attempt.with_status(now, report))
        case DriverSignaled(job) if job == state.attempt.id:
            return replace(state, attempt=replace(state.attempt, signaled=True))
        case h.Submitted(job) if job == state.attempt.id:
            return replace(state, attempt=state.attempt.with_status(now, None))
        case h.NodesAsked(job, silent) if job == state.attempt.id and silent:
            why = "; ".join(f"{name}: {evidence}" for name, evidence in silent.items())
            if state.goal.ray_is_given:  # a network policy may keep them out of reach
                return replace(state, attempt=replace(state.attempt, unreachable_nodes=why))
            attempt = replace(state.attempt, lost_nodes=(*state.attempt.lost_nodes, *silent))
            return replace(state, attempt=attempt, last_loss=f"lost {why}", last_loss_at=now)
        case h.SubmitWaits(job, evidence) if job == state.attempt.id:
            return replace(state, ray=replace(state.ray, evidence=evidence))
        case _:
            return state


def is_worker_needed(state: HeadState, key: str, now: float) -> bool:
    """Return whether the run may still need the state of an agent, even of one that left."""
    worker = state.fleet.workers.get(key)
    if worker is None:
        return False
    is_away = (
        worker.has_left
        or worker.refused
        or now >= worker.last_report_at + state.goal.limits[planned.NODE]
    )
    if not is_away or state.fleet.counts(worker):
        return True
    return (
        key in state.leftovers
        or key in state.shares.by_node
        or any(key == state.service_home(spec.name) for spec in state.goal.services)
    )


def _apply_report(state: HeadState, worker: Worker, now: float) -> HeadState:
    """Apply a worker's report: its own state and that of the services it runs."""
    before = state.fleet.workers.get(worker.key)
    state = replace(state, fleet=state.fleet.with_report(worker))
    state = retry.apply_cleared(state, worker)
    for report in worker.items:
        key = (worker.key, report.name)
        item = state.services.get(key)
        if item is not None:
            if report.generation > item.generation:  # an earlier head ordered this start
                state = state.with_service(key, replace(item, generation=report.generation))
            state = _apply_service_state(
                state, key, report.generation, (report.step, report.evidence), now
            )
    stays = worker.service_only and state.phase is HeadPhase.RUNNING  # then its grace counts
    if worker.has_left and not stays and not (before and before.has_left):
        return _forget_services(state, worker.key)
    return state


def _forget_worker(state: HeadState, key: str) -> HeadState:
    """Remove an agent that ended, with its services and probes."""
    worker = state.fleet.workers.get(key)
    left = {name: since for name, since in state.leftovers.items() if name != key}
    state = replace(state, leftovers=left) if len(left) < len(state.leftovers) else state
    fleet = state.fleet.without_agent(key)
    is_elsewhere = worker is None or worker.ip in fleet.agent_at or worker.ip in fleet.node_ids
    probes = state.probes.without_node(key, "" if worker is None or is_elsewhere else worker.ip)
    given_up = frozenset(one for one in state.abandoned_services if one[0] != key)
    state = replace(state, fleet=fleet, probes=probes, abandoned_services=given_up)
    return _forget_services(state, key)


def _forget_services(state: HeadState, key: str) -> HeadState:
    """Remove the services of a worker that left: no wait covers them any more."""
    names = (spec.name for spec in state.goal.services)
    return state.without_services(frozenset((key, name) for name in names))


def _apply_service_state(
    state: HeadState, key: Key, generation: int | None, change: tuple[Step, str], now: float
) -> HeadState:
    item = state.services.get(key)
    if item is None or generation not in (None, item.generation):
        return state  # a report about an earlier start
    new = _with_step(item, *change)
    if new == item:
        return state
    return _record_outage(state, key, item, new, now).with_service(key, new)


def _record_outage(state: HeadState, key: Key, old: Item, new: Item, now: float) -> HeadState:
    """Record the start or the end of an outage of a service that was ready."""
    worker = state.fleet.workers.get(key[0])
    outage = Outage(key[1], key[0] if worker is None else worker.name, now)
    if old.step is Step.READY and new.step is not Step.READY:
        return replace(state, outages=(*state.outages, outage)[-_MAX_OUTAGES:])
    if new.step is not Step.READY or not old.was_ready:
        return state
    ended = tuple(
        replace(one, until=now) if _is_same_outage(one, outage) else one for one in state.outages
    )
    return replace(state, outages=ended)


def _is_same_outage(one: Outage, other: Outage) -> bool:
    return one.until is None and (one.service, one.node) == (other.service, other.node)


def _with_step(item: Item, step: Step, evidence: str) -> Item:
    if step is Step.READY:
        return item.ready()
    return item.lost(evidence) if step is Step.LOST else replace(item, evidence=evidence)


def messages(before: HeadState, after: HeadState, event: HeadEvent) -> list[HeadAction]:
    """Return the log lines for what an event changed."""
    found: list[HeadAction] = [*waits.hang_messages(before, after, event)]
    if isinstance(event, StepOver) and before.steps != after.steps:
        items = after.steps.values()
        if all(item.step is Step.READY for item in items):
            found.append(LogLine(f"{listed(name for _, name in after.steps)}: done"))
    found += [
        LogLine(f"{service_title(after, key)} answers")
        for key in _services_in(event)
        if _is_ready(after, key) and not _is_ready(before, key)
    ]
    if isinstance(event, h.WorkerSilent) and before.fleet is not after.fleet:
        worker = after.fleet.workers[event.key]
        former = before.fleet.workers[event.key]
        doubt, then = contradiction(after.fleet, worker), contradiction(before.fleet, former)
        if (worker.silent, worker.lost, doubt) != (former.silent, former.lost, then):
            doubt = doubt or "nor does its Ray answer"
            found.append(LogLine(f"{worker.label} is silent, {worker.silent}; {doubt}", "warning"))
    was, are = before.fleet.alive, after.fleet.alive
    if was is not are:
        ray = "" if after.goal.by_torchrun else " Ray"
        joined = [ip for ip in are if ip not in was]
        found += [LogLine(f"{are[ip]} joined{ray}") for ip in joined]
        found += [LogLine(_spare_message(are[ip])) for ip in joined if _is_spare(after, ip)]
        found += [
            LogLine(f"{name} left{ray}{_contradiction_at(after, ip)}", "warning")
            for ip, name in was.items()
            if ip not in are
        ]
    return found


def _is_spare(state: HeadState, ip: str) -> bool:
    """Return whether the worker at an address is not part of the running attempt."""
    attempt, alive = state.attempt, state.fleet.alive
    if state.phase not in {HeadPhase.SUBMITTING, HeadPhase.RUNNING} or not state.goal.has_job:
        return False
    if not attempt.workers:
        return len(alive) > state.required
    return ip not in attempt.workers and alive[ip] not in attempt.lost_workers.values()


def _spare_message(name: str) -> str:
    return f"{name} is one more than the running attempt needs: unused until another begins"


def _contradiction_at(state: HeadState, ip: str) -> str:
    """Return the contradiction between GCS, which lost a node, and its agent, which reports."""
    worker = state.fleet.workers.get(state.fleet.agent_at.get(ip, ""))
    if worker is None or not worker.joined or worker.silent or worker.has_left:
        return ""
    doubt = contradiction(state.fleet, worker)
    return f", though {doubt}" if doubt else ""


def _services_in(event: HeadEvent) -> list[Key]:
    """Return the services that an event is about."""
    if isinstance(event, h.WorkerReported):
        return [(event.worker.key, item.name) for item in event.worker.items]
    return [(event.node, event.name)] if isinstance(event, ServiceReady) else []


def _is_ready(state: HeadState, key: Key) -> bool:
    item = state.services.get(key)
    return item is not None and item.step is Step.READY
