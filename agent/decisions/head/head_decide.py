"""The head's `decide`: (state, event, time) to (state, actions), and the order of its steps."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.base import times
from agent.base.text import first_names, in_url, listed
from agent.decisions import shared as v
from agent.decisions.durable import Durable, must_be_on_disk
from agent.decisions.head import (
    framework_check,
    limits_of_run,
    losses,
    members,
    notices,
    own_ray,
    phases,
    probes,
    service_order,
    shares,
)
from agent.decisions.head import head_state as h
from agent.decisions.head.boot_waits import pending_waits
from agent.decisions.head.fleet import Fleet, Worker
from agent.decisions.head.head_state import (
    HeadAction,
    HeadEvent,
    HeadPhase,
    HeadState,
    Turn,
    answer_of,
)
from agent.decisions.head.wanted import changed_nodes
from agent.plan import waits as wait_keys

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from agent.decisions.head.head_goal import HeadGoal
    from agent.decisions.head.head_state import Key

__all__ = ["deadline", "decide", "first_state", "pending_waits"]

_JOINED_TOGETHER = 1.0  # Nodes of a large run that join within this are logged in one line.
_MAX_OUTAGES = 200
_MANY_WORKERS = 16  # with so many, nodes that join within a second are logged in one line
_MOST_NAMED = 8  # of them


def first_state(goal: HeadGoal, durable: Durable) -> HeadState:
    """Return the state in which the head starts, with its first actions.

    `durable` is what earlier agents of the run have left. An attempt that is open in it is followed
    again; else the next one begins.
    """
    is_open = durable.attempt.is_submitted and goal.has_job
    leftovers: tuple[str, ...] = ()
    former_workers = durable.attempt.nodes
    if not is_open:
        former_workers = ()
        leftovers = former_nodes(goal, durable)
        durable = durable.without_shortage(0.0)
        durable = durable.before_attempt(goal.expected_workers, goal.submission_id)
    steps = {(v.HERE, step.name): v.Item() for step in goal.steps}
    for key, item in steps.items():
        if key[1] in goal.finished_steps:
            steps[key] = item.ready()
    fleet = Fleet(by_report=goal.by_shares, last_rank=goal.last_rank)
    state = HeadState(
        goal=goal,
        durable=durable,
        phase=HeadPhase.RESUMING if is_open else HeadPhase.BOOTING,
        has_resumed=is_open,
        ray=h.RayState(v.Item(v.Step.READY) if goal.by_shares else v.Item()),
        steps=h.StepsState(steps, holders=service_order.first_step_holders(goal, durable)),
        fleet=replace(fleet, dead_node_ids=durable.attempt.dead_node_ids),
        reports_due=times.AGENT_SILENT if goal.has_former_ray else None,
        earlier=h.EarlierAttempts(
            leftovers=dict.fromkeys(leftovers, 0.0), former_workers=former_workers
        ),
    )

    # The head's own services and steps start at once, as far as nothing blocks them.
    for spec in goal.services:
        if spec.where.includes(goal.rank, is_head=True):
            state = state.with_item((v.HERE, spec.name), v.Item(was_ready=is_open))
    own = [key for key, item in state.steps.by_key.items() if item.step is v.Step.PENDING]
    state = service_order.start_items(state, [*own, *state.services.by_key], 0.0)
    if goal.framework and not is_open:
        state = framework_check.ask(state)
    state = state.do(v.Publish((v.HERE,)))
    return losses.ask_of_last(state) if goal.has_job else state


def former_nodes(goal: HeadGoal, durable: Durable) -> tuple[str, ...]:
    """Return the nodes that may still run the last attempt: its workers and a lost head.

    On a given Ray the job's status covers all nodes.
    """
    if not durable.ended or goal.ray_is_given:
        return ()
    return (*durable.ended[-1].nodes, *filter(None, [goal.former_head]))


def decide(state: HeadState, event: HeadEvent, now: float) -> tuple[HeadState, h.Actions]:
    """Apply one event; return the new state and the actions to carry out."""
    after = _decide_event(replace(state, actions=()), event, now)

    # What nodes run follows from the whole decision, and comes after what is saved of it.
    nodes = changed_nodes(state, after, event)
    if nodes:
        after = after.do(v.Publish(nodes))

    # What is saved comes first, so that an agent that is killed while it acts leaves a record of
    # the decision. Once the outcome is decided, nothing more is.
    if after.durable == state.durable or state.phase is HeadPhase.LEAVING:
        return after, after.actions
    persist = h.Persist(after.durable, must_be_on_disk(state.durable, after.durable))
    after = replace(after, actions=(persist, *after.actions))
    return after, after.actions


def _decide_event(before: HeadState, event: HeadEvent, now: float) -> HeadState:
    # An answer about another attempt, or another Ray, only shows that time has passed.
    asked = answer_of(event, h.NodesAsked)
    if asked is not None and asked.id != before.attempt.id:
        event = v.Tick()
    if isinstance(event, h.RaySeen) and own_ray.is_of_former_ray(before, event):
        event = v.Tick()

    # Once the outcome is decided it stands. A refused head decides nothing else.
    if before.phase is HeadPhase.LEAVING:
        return apply_event(before, event, now)
    if before.goal.refusal is not None:
        return h.leave(before, before.goal.refusal, now)

    # A stop comes before everything else; two heads must not run one job.
    if isinstance(event, v.StopAsked):
        return phases.on_stop(before, event, now)
    if isinstance(event, h.LaterHead):
        return phases.on_later_head(before, event, now)
    price = answer_of(event, h.PriceKnown)
    if price is not None:
        before = replace(before, goal=replace(before.goal, price=price.price))

    turn = Turn(before, event, now)
    state = before
    for step, _ in STEPS:
        state = step(state, turn)
        if state.phase is HeadPhase.LEAVING:  # nothing starts any more
            break
    return state


def _apply(state: HeadState, turn: Turn) -> HeadState:
    return apply_event(state, turn.event, turn.now)


def _expire_due_reports(state: HeadState, turn: Turn) -> HeadState:
    """Stop waiting for agents that have not reported to this head yet."""
    if state.reports_due is None or turn.now < state.reports_due:
        return state
    return replace(state, reports_due=None)


def _expire_silent_without_ray(state: HeadState, turn: Turn) -> HeadState:
    return replace(state, fleet=state.fleet.expire_silent_without_ray(turn.now))


def _recount_absent(state: HeadState, turn: Turn) -> HeadState:
    return shares.recount_absent(turn.before, state)


def _log_changes(state: HeadState, turn: Turn) -> HeadState:
    state = state.do(*messages(turn.before, state, turn.event, turn.now))
    return _log_nodes(state, turn)


def _continue_phase(state: HeadState, turn: Turn) -> HeadState:
    return _BY_PHASE[state.phase](state, turn.event, turn.now)


_BY_PHASE = {
    HeadPhase.RESUMING: phases.resuming,
    HeadPhase.BOOTING: phases.booting,
    HeadPhase.SUBMITTING: phases.submitting,
    HeadPhase.RUNNING: phases.running,
    HeadPhase.JUDGING: phases.judging,
    HeadPhase.STOPPING: phases.stopping,
}

STEPS: tuple[tuple[Callable[[HeadState, Turn], HeadState], str], ...] = (
    (_apply, "first: all others decide on what the event changed"),
    (_expire_due_reports, "after the event, which may be the report that a worker owes"),
    (_expire_silent_without_ray, "after the event, for the same reason"),
    (_recount_absent, "after silent workers: the share of an absent worker is absent"),
    (_log_changes, "before anything changes more: it logs what the event alone changed"),
    (own_ray.expire_doubt, "before the phase, which handles a lost Ray"),
    (
        losses.record_nodes_that_left,
        "before the phase, which blames a recent loss for a job that fails",
    ),
    (
        framework_check.follow_framework,
        "before the phase, which may submit the job",
    ),
    (
        service_order.order_services,
        "before the phase, which waits for the services of a new worker",
    ),
    (members.restart_wedged, "before the phase, which restarts what has ended"),
    (probes.advance_probes, "before the phase, which submits once no probe is awaited"),
    (_continue_phase, "after all that it decides on"),
    (notices.answer_notices, "after the phase, which may have ended the run by the job's own end"),
    (limits_of_run.end_by_hours, "after the phase, for the same reason"),
    (limits_of_run.end_by_cost, "same"),
    (
        service_order.start_unblocked,
        "after the phase, which may have made ready what others depend on",
    ),
    (service_order.order_steps, "after the phase, as services"),
    (losses.record_fleet, "after the phase, which may have submitted the job"),
    (losses.ask_progress, "after the phase, which may have ended an attempt"),
)
"""The steps of a pass, in this order, each with the reason for its place."""


def deadline(state: HeadState) -> float | None:
    """Return when `decide` must run again even if no event arrives; None for never."""
    if state.phase is HeadPhase.LEAVING:
        return None
    goal = state.goal
    phase = state.phase
    if goal.refusal is not None:
        return state.phase_since

    # The waits of the phase; a boot without any goes on at once.
    moments = [wait.deadline for wait in pending_waits(state)]
    if phase is HeadPhase.BOOTING and not moments:
        moments.append(state.phase_since)
    moments += state.probes.due.values()

    # What else is due, some of it only in certain phases.
    others = [limits_of_run.hours_deadline(state), limits_of_run.cost_deadline(state)]
    others.append(state.fleet.silence_check_at)
    if phase in {HeadPhase.BOOTING, HeadPhase.RUNNING}:
        others += [state.services.by_key[key].restart_at for key in state.services.lost]
        others.append(service_order.service_node_deadline(state))
        others.append(service_order.late_member_deadline(state))
    if phase is HeadPhase.RUNNING:
        others.append(members.group_deadline(state))
    if phase is HeadPhase.BOOTING and math.isfinite(goal.boot_limit):
        moments.append(state.phase_since + goal.boot_limit)
    if phase is HeadPhase.STOPPING:
        others.append(shares.silent_shares_deadline(state))
    if state.joined.names:
        others.append(state.joined.since + _JOINED_TOGETHER)
    short_since = state.losses.below_required_since
    if phase is HeadPhase.RUNNING and goal.has_job and short_since is not None:
        moments.append(short_since + goal.limits[wait_keys.NODE])
    return min((*moments, *(at for at in others if at is not None)), default=None)


def apply_event(state: HeadState, event: HeadEvent, now: float) -> HeadState:  # noqa: PLR0911 - one case, one return
    """Return the state after an event, without what follows from it."""
    match event:
        # The clock
        case v.Woke(seconds):  # AGENT_MAX_HOURS counts what a pod bills
            hours = state.goal.used_hours + seconds / 3600
            began_at = state.goal.began_at + seconds
            return replace(state, goal=replace(state.goal, used_hours=hours, began_at=began_at))

        # Ray
        case h.RaySeen():
            return own_ray.apply_ray_seen(state, event)

        # Workers
        case h.WorkerIntroduced(key, _, facts, findings):
            fleet = replace(state.fleet, facts={**state.fleet.facts, key: facts})
            fleet = replace(fleet, findings={**fleet.findings, key: findings})
            return replace(state, fleet=fleet)
        case h.WorkerReported(worker):
            return _apply_report(state, worker, now)
        case h.WorkerSilent(key, evidence, ray_answers):
            fleet = state.fleet.mark_silent(key, evidence, now, is_lost=not ray_answers)
            return replace(state, fleet=fleet)
        case h.WorkerReplaced(key):
            return _forget_worker(state, key)

        # What runs on this node, the job included
        case v.ItemsReported(items):
            own = {**state.items, **{item.name: item for item in items}}
            state = own_ray.apply_ray(state, replace(state, items=own), now)
            return _apply_items(state, v.HERE, items, now)

        # An earlier attempt: its last step, the checkpoint to resume from
        case v.Answered(h.ProgressKnown() as made):
            return losses.apply_progress(state, made)

        case v.Answered(h.FrontSeen(service, seen, version)):
            groups = state.groups
            fronts = {**groups.fronts, service: seen}
            return state.with_groups(fronts=fronts, versions={**groups.versions, service: version})

        # The nodes of a failed job
        case v.Answered(h.NodesAsked(_, silent)) if silent:
            why = "; ".join(f"{name}: {evidence}" for name, evidence in silent.items())
            if state.goal.ray_is_given:  # a network policy may keep them out of reach
                return state.with_job(unreachable_nodes=why)
            state = state.with_attempt(lost_nodes=(*state.attempt.lost_nodes, *silent))
            return state.with_losses(last=f"lost {why}", last_at=now)
        case _:
            return state


def is_worker_needed(state: HeadState, key: str, now: float) -> bool:
    """Return whether the run may still need the state of an agent, even of one that left."""
    worker = state.fleet.workers.get(key)
    if worker is None:
        return False
    silent_at = worker.last_report_at + state.goal.limits[wait_keys.NODE]
    is_away = worker.has_left or worker.refused or now >= silent_at
    if not is_away or state.fleet.counts(worker):
        return True
    homes = (state.service_home(spec.name) for spec in state.goal.services)
    return key in state.earlier.leftovers or key in state.shares.by_node or key in homes


def is_in_ray(state: HeadState, key: str) -> bool:
    """Return whether an agent's node is in Ray, and the agent is the one that counts there."""
    worker = state.fleet.workers.get(key)
    return worker is not None and state.fleet.counts(worker)


def _apply_report(state: HeadState, worker: Worker, now: float) -> HeadState:
    """Apply a worker's report: its own state and that of the services it runs."""
    before = state.fleet.workers.get(worker.key)
    worker = _with_what_items_show(state, worker, before)
    state = replace(state, fleet=state.fleet.with_report(worker))
    if worker.refused:
        return state

    if worker.preparing and state.expects(worker):
        fleet = replace(state.fleet, last_preparing_at=worker.last_report_at)
        state = replace(state, fleet=fleet)
    state = losses.apply_cleared(state, worker)

    # Has it another rank than before? Its members were those of the former one.
    if before is not None and before.effective_rank != worker.effective_rank:
        state = state.without_members_on(worker.key)

    state = _apply_items(state, worker.key, worker.items, now)

    # Did it leave? While the job runs, a node that only runs a service may come back in its grace.
    stays = worker.service_only and state.phase is HeadPhase.RUNNING
    has_just_left = worker.has_left and not (before and before.has_left)
    return state.without_services_on(worker.key) if has_just_left and not stays else state


def _with_what_items_show(state: HeadState, worker: Worker, before: Worker | None) -> Worker:
    """Return a worker with what follows from the things on its node."""
    steps = state.goal.step_names
    preparing = any(item.name in steps and item.step is v.Step.PENDING for item in worker.items)
    service_only = state.goal.is_outside_ray(worker.effective_rank, worker.group)

    # Has it joined: with a Ray of this epoch, or, where none runs, once it has prepared?
    ray = worker.item(v.RAY)
    is_up = ray is not None and ray.step is v.Step.READY and ray.is_running
    joined = is_up and ray is not None and ray.generation >= state.durable.epoch
    if state.goal.by_shares:
        joined = all(item.step is v.Step.READY for item in worker.items if item.name in steps)
    joined = joined and not (worker.has_left or service_only)

    ray_end = None if before is None or joined else before.ray_end
    if ray is not None and ray.step is v.Step.LOST and not ray.was_stopped:
        ray_end = ray
    return replace(
        worker, joined=joined, preparing=preparing, service_only=service_only, ray_end=ray_end
    )


def _forget_worker(state: HeadState, key: str) -> HeadState:
    worker = state.fleet.workers.get(key)
    leftovers = {name: since for name, since in state.earlier.leftovers.items() if name != key}
    fleet = state.fleet.without_agent(key)
    is_elsewhere = worker is None or worker.ip in fleet.agent_at or worker.ip in fleet.ray_nodes
    probes = state.probes.without_node(key, "" if worker is None or is_elsewhere else worker.ip)
    abandoned = frozenset(item for item in state.services.abandoned if item[0] != key)
    wanted = {node: names for node, names in state.steps.wanted.items() if node != key}
    state = replace(state, fleet=fleet, probes=probes).with_earlier(leftovers=leftovers)
    state = state.with_services(abandoned=abandoned).with_steps(wanted=wanted)
    return state.without_services_on(key)


def _apply_items(
    state: HeadState, node: str, items: Iterable[v.ItemReport], now: float
) -> HeadState:
    """Apply what a node reports of its services and its share.

    Of the head's own node also its steps, the job and its save. What is left of an earlier start is
    on its way to its end: nothing follows from it.
    """
    for report in items:
        if report.name == v.SHARE:
            state = shares.apply_share_end(state, node, report, now)
            continue
        if report.name == v.SAVE:
            state = _apply_save(state, node, report)
            continue
        if report.name == v.JOB:
            state = _apply_job(state, report, now)
            continue
        key = (node, report.name)
        is_step = key in state.steps.by_key
        item = state.steps.by_key[key] if is_step else state.services.by_key.get(key)
        if item is None or report.generation < item.generation:
            continue
        new = _item_after(item, report)
        if new == item:
            continue
        if not is_step:
            state = _record_outage(state, key, item, new, now)
        state = state.with_item(key, new)
    return state


def _apply_job(state: HeadState, report: v.ItemReport, now: float) -> HeadState:
    """Apply what this node reports of the job: no message of a worker is such an item."""
    want = state.job.want
    known = state.job.item
    is_of_now = want is not None and report.generation == want.generation
    if not isinstance(report, v.JobItem) or not is_of_now or report == known:
        return state
    if report.signaled and not state.attempt.signaled:
        state = state.with_attempt(signaled=True)

    # Has Ray answered since the last report?
    before = (None, None) if known is None else (known.status_at, known.report)
    if (report.status_at, report.report) == before:
        return state.with_job(item=report)
    at = None if report.report is None else losses.job_ended_at(state, report.report, now)
    return state.with_job(item=report, last_status_at=now, ended_at=at)


def _apply_save(state: HeadState, node: str, report: v.ItemReport) -> HeadState:
    """Apply that the job has saved, or why it cannot."""
    saving = state.ending.saving
    is_over = report.step is not v.Step.PENDING and bool(report.evidence)
    if node != v.HERE or saving is None or report.generation != state.attempt.number:
        return state
    return state.with_ending(saving=replace(saving, over=report.evidence)) if is_over else state


def _item_after(item: v.Item, report: v.ItemReport) -> v.Item:
    """Return an item after a report; a later generation was wanted by an earlier head."""
    item = replace(item, generation=report.generation)
    if report.step is v.Step.READY:
        return item.ready()
    if report.step is v.Step.LOST:
        lost = item.lost(report.evidence, report.output)
        return replace(lost, was_stopped=report.was_stopped)
    return item.with_evidence(report.evidence) if report.evidence else item


def _record_outage(state: HeadState, key: Key, old: v.Item, new: v.Item, now: float) -> HeadState:
    worker = state.fleet.workers.get(key[0])
    outages = state.durable.outages
    outage = v.Outage(key[1], key[0] if worker is None else worker.name, now)
    if old.step is v.Step.READY and new.step is not v.Step.READY:
        outages = (*outages, outage)[-_MAX_OUTAGES:]
    elif new.step is v.Step.READY:  # an open outage may have begun under a former agent
        is_open = {replace(outage, since=known.since) for known in outages}
        outages = tuple(
            replace(known, until=now) if known in is_open else known for known in outages
        )
    return state.with_durable(outages=outages)


def messages(before: HeadState, after: HeadState, event: HeadEvent, now: float) -> list[HeadAction]:
    """Return the log lines for what an event changed, without the nodes that joined and left."""
    lines: list[HeadAction] = [*own_ray.doubt_messages(before, after)]
    took = now - after.began

    # Is Ray up now?
    if after.ray.item.step is v.Step.READY and before.ray.item.step is not v.Step.READY:
        where = f"{in_url(after.ray.head_ip or '')}:{after.goal.gcs_port}"
        lines.append(v.LogLine(where, "done", "Ray", took))

    # Are all prepare steps done now?
    has_ended = isinstance(event, v.ItemsReported) and before.steps.by_key != after.steps.by_key
    if has_ended and all(item.step is v.Step.READY for item in after.steps.by_key.values()):
        names = listed(name for _, name in after.steps.by_key)
        lines.append(v.LogLine("done", "done", names, took))

    lines += _messages_of_services(before, after, event, now)
    if isinstance(event, h.WorkerSilent) and before.fleet is not after.fleet:
        lines += _messages_of_silence(before, after, event.key)
    return lines


def _messages_of_services(
    before: HeadState, after: HeadState, event: HeadEvent, now: float
) -> Iterator[v.LogLine]:
    """Yield a line for each reported service that answers now."""
    reported: list[Key] = []
    if isinstance(event, h.WorkerReported):
        reported = [(event.worker.key, item.name) for item in event.worker.items]
    elif isinstance(event, v.ItemsReported):
        reported = [(v.HERE, item.name) for item in event.items]
    for key in reported:
        former = before.services.by_key.get(key, v.Item())
        item = after.services.by_key.get(key, v.Item())
        if item.step is v.Step.READY and former.step is not v.Step.READY:
            yield service_order.line_of_ready(after, key, now)


def _messages_of_silence(before: HeadState, after: HeadState, key: str) -> Iterator[v.LogLine]:
    """Yield a line if a worker's silence is new, or its Ray is silent too by now."""
    worker = after.fleet.workers[key]
    former = before.fleet.workers[key]
    if (worker.silent, worker.lost) == (former.silent, former.lost):
        return
    its_ray = "; nor does its Ray answer" if worker.lost else "; its Ray still answers"
    if worker.service_only:
        its_ray = ""
    yield v.LogLine(f"{worker.label} is silent, {worker.silent}{its_ray}", "warning")


def _log_nodes(state: HeadState, turn: Turn) -> HeadState:
    """Log the nodes that count now, then those that do not any more.

    Nodes of a large run that join within a second have one line.
    """
    was = turn.before.fleet.alive
    alive = state.fleet.alive
    joined = [] if alive is was else [ip for ip in alive if ip not in was]
    names = [alive[ip] for ip in joined]
    ray = "" if state.goal.by_shares else " Ray"
    if state.goal.expected_workers < _MANY_WORKERS:
        state = state.do(*(v.LogLine(f"{name} joined{ray}") for name in names))
    else:
        state = _log_together(state, names, turn.now)

    unused = "is one more than the running attempt needs: unused until another begins"
    for ip in joined:
        if _is_spare(state, ip):
            state = state.log(f"{alive[ip]} {unused}")
    for ip, name in was.items():
        if ip not in alive:
            state = state.log(f"{name} left{ray}", "warning")
    return state


def _log_together(state: HeadState, names: list[str], now: float) -> HeadState:
    """Log nodes that joined once a second has passed since the first, or all are there."""
    joined = state.joined
    if names:
        since = joined.since if joined.names else now
        joined = h.Joined((*joined.names, *names), since)
    if not joined.names:
        return state
    is_complete = len(state.fleet.alive) >= state.required
    if is_complete or now >= joined.since + _JOINED_TOGETHER:
        ray = "" if state.goal.by_shares else " Ray"
        state = state.log(f"{first_names(joined.names, _MOST_NAMED)} joined{ray}")
        joined = h.Joined()
    return replace(state, joined=joined)


def _is_spare(state: HeadState, ip: str) -> bool:
    attempt = state.attempt
    alive = state.fleet.alive
    if state.phase not in {HeadPhase.SUBMITTING, HeadPhase.RUNNING} or not state.goal.has_job:
        return False
    if not attempt.workers:
        return len(alive) > state.required
    return ip not in attempt.workers and alive[ip] not in attempt.lost_workers.values()
