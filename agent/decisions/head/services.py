"""Services and prepare steps on all nodes: dependencies, starts, restarts, losses."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.base import ends, times
from agent.base.text import listed
from agent.decisions.head import state as h
from agent.decisions.head.state import HeadAction, HeadPhase, HeadState
from agent.decisions.head.waits import service_title
from agent.decisions.values import HERE, Item, LogLine, Step, StepOver, Tick
from agent.plan import waits as planned
from agent.work.services import ServiceSpec, ordered_steps

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from agent.base.ends import Outcome
    from agent.decisions.head.fleet import Worker
    from agent.decisions.head.state import Actions, Decision, Key, StepOnDisk, Turn
    from agent.work.services import PrepareStep


def first_actions(state: HeadState) -> Actions:
    """Return the starts at the beginning, and log lines for what is blocked."""
    keys = [*state.steps, *(key for key in state.services if key[0] == HERE)]
    return tuple(_start(state, key) for key in keys if _item(state, key).step is Step.PENDING)


def hold_back(state: HeadState, keys: Iterable[Key], now: float) -> HeadState:
    """Block those of these whose dependencies are not ready."""
    for key in keys:
        missing = unmet_dependencies(state, key[0], _spec(state, key).after)
        if missing:
            until = now + state.goal.max_prepare_seconds
            evidence = f"waits for {listed(missing)}"
            item = replace(_item(state, key), evidence=evidence, deadline=until)
            state = replace(state.with_item(key, item), blocked=state.blocked | {key})
    return state


def start_unblocked(state: HeadState, turn: Turn) -> Decision:
    """Start blocked services and steps whose dependencies are ready now."""
    if not state.blocked:
        return state, ()
    keys: Iterable[Key] = state.blocked
    event = turn.event
    if isinstance(event, h.WorkerReported) and not unblocks_other_nodes(turn.before, state):
        own = event.worker.key  # checking all is too slow for thousands of workers
        keys = state.blocked.intersection((own, spec.name) for spec in state.goal.services)
    actions: list[HeadAction] = []
    for key in sorted(keys):
        item = state.steps.get(key) or state.services.get(key)
        if item is None or item.step is not Step.PENDING:  # its node left, or it already runs
            state = replace(state, blocked=state.blocked - {key})
            continue
        spec = _spec(state, key)
        missing = unmet_dependencies(state, key[0], spec.after)
        if missing:
            evidence = f"waits for {listed(missing)}"
            if item.evidence != evidence:
                state = state.with_item(key, replace(item, evidence=evidence))
            continue
        within = spec.within
        if isinstance(spec, ServiceSpec) and item.restarted_at is not None:
            within = spec.restarted_within
        until = turn.now + within
        item = replace(item, evidence="", deadline=until)
        state = replace(state.with_item(key, item), blocked=state.blocked - {key})
        actions.append(_start(state, key))
    return state, tuple(actions)


def unblocks_other_nodes(before: HeadState, state: HeadState) -> bool:
    """Return whether a change may unblock services or steps on other nodes."""
    if before.steps is not state.steps or before.required != state.required:
        return True
    was, now = before.services, state.services
    changed = () if was is now else (k for k in was.keys() | now if was.get(k) is not now.get(k))
    return any(state.goal.service(name).where.kind != "every" for _, name in changed)


def unmet_dependencies(state: HeadState, node: str, after: tuple[str, ...]) -> tuple[str, ...]:
    """Return the dependencies that are not ready for a service or step on this node."""
    return tuple(name for name in after if not _is_dependency_ready(state, node, name))


def _is_dependency_ready(state: HeadState, node: str, name: str) -> bool:
    spec = next((one for one in state.goal.services if one.name == name), None)
    worker = state.fleet.workers.get(node)
    if spec is None:  # a step: a node that does not have it does not wait for it
        own = state.steps.get((HERE, name))
        on_head = any(step.where.kind == "head" for step in state.goal.steps if step.name == name)
        if node == HERE or on_head:
            return own is None or own.step is Step.READY
        items = () if worker is None else worker.items
        return all(item.step is Step.READY for item in items if item.name == name)
    rank = state.goal.rank if worker is None else worker.effective_rank
    known, abandoned = state.services, state.abandoned_services
    if spec.where.includes(rank, is_head=node == HERE):
        keys = {(node, name)}
    elif spec.where.kind == "workers":
        keys = {key for key in (*known, *abandoned) if key[1] == name}
        if len(keys) < state.required:
            return False
    elif any(one == name for _, one in abandoned):
        return True
    else:
        keys = {(state.service_home(name) or "", name)}
    return all(key in abandoned or known.get(key, Item()).step is Step.READY for key in keys)


def _start(state: HeadState, key: Key) -> HeadAction:
    """Return the start of a service or step; a log line if it is blocked."""
    node, name = key
    if key in state.blocked:
        return LogLine(f"{service_title(state, key)} {_item(state, key).evidence}")
    if key in state.steps:
        return h.OrderStep(name, node)
    return h.StartService(name, node, state.services[key].generation)


def _item(state: HeadState, key: Key) -> Item:
    return state.steps[key] if key in state.steps else state.services[key]


def _spec(state: HeadState, key: Key) -> PrepareStep | ServiceSpec:
    return state.goal.step(key[1]) if key in state.steps else state.goal.service(key[1])


def first_item(goal: h.HeadGoal, spec: ServiceSpec, now: float) -> Item:
    """Return a service's first state; with a resumed job it was ready before."""
    return Item(was_ready=goal.resumed_attempt is not None, deadline=now + spec.within)


def order_services(state: HeadState, turn: Turn) -> Decision:
    """Order a reporting worker to start its services, once, when they are not blocked."""
    if not isinstance(turn.event, h.WorkerReported):
        return state, ()
    worker, now = turn.event.worker, turn.now
    if worker.has_left or worker.refused:
        return state, ()
    rank, specs = worker.effective_rank, state.goal.services
    own = {(worker.key, one.name): one for one in specs if one.where.includes(rank, is_head=False)}
    known = (state.services, state.abandoned_services)
    new = [key for key in own if not any(key in keys for keys in known)]
    for key in new:
        state = state.with_item(key, first_item(state.goal, own[key], now))
    state = hold_back(state, new, now)
    return state, tuple(_start(state, key) for key in new)


def restart_services(state: HeadState, now: float) -> tuple[HeadState, Actions, Outcome | None]:
    """Restart services that ended, with a growing pause; return the outcome of a fatal loss.

    A worker with only an essential service is such a loss by its reports: Ray does not list it.
    """
    actions: list[HeadAction] = []
    late = [
        (node, name)
        for name, nodes in state.pending_services.items()
        if nodes and now >= min(nodes.values())
        for node in nodes
        if now >= nodes[node]
    ]
    for key in (*sorted(state.lost_services), *late):
        item = state.services[key]
        broken = _lost_for_good(state, key, item, now)
        if broken is not None and state.goal.service(key[1]).essential:
            return state, tuple(actions), broken
        if broken is not None:
            given_up = state.abandoned_services | {key}
            state = replace(state.without_services(frozenset({key})), abandoned_services=given_up)
            actions.append(LogLine(f"{broken.reason}; the run goes on without it", "warning"))
            continue
        if item.step is not Step.LOST:
            continue
        spec, title = state.goal.service(key[1]), service_title(state, key)
        before = item.recent_restarts(now)
        pause = min(times.LONGEST_RESTART_PAUSE, 2.0 ** (before - 1)) if before else 0.0
        again_at = now + pause if item.restart_at is None else item.restart_at
        if spec.argv is None:  # nothing to restart: it is only asked again
            again = item.restarting(now, spec.within)
            more = f"it is asked for {round(spec.within)} s more"
            log = LogLine(f"{title} no longer answers ({item.evidence}): {more}", "warning")
        elif now < again_at:
            state = state.with_item(key, replace(item, restart_at=again_at))
            continue
        else:
            again = item.restarting(now, spec.restarted_within)
            count = f"restart {again.restarts} of {spec.restarts}"
            log = LogLine(f"{title} exited ({item.evidence}): {count}", "warning")
        state = hold_back(state.with_item(key, again), (key,), now)
        actions += [log, _start(state, key)]
    for spec, worker in _service_only_workers(state):
        # the same sum as in `service_node_deadline`
        if now >= worker.last_report_at + state.goal.limits[planned.NODE]:
            loss = f"lost a needed node ({worker.label}, which runs {spec.name})"
            broken = ends.NODE_LOST.outcome(loss=loss)
            return state, tuple(actions), broken
    return state, tuple(actions), None


def service_node_deadline(state: HeadState) -> float | None:
    """Return the time by which such workers must report again; None if there are none."""
    reports = [worker.last_report_at for _, worker in _service_only_workers(state)]
    return min(reports) + state.goal.limits[planned.NODE] if reports else None


def service_address(state: HeadState, name: str) -> str | None:
    """Return the address of the worker that runs a service; None for the head."""
    worker = state.fleet.workers.get(state.service_home(name) or HERE)
    return None if worker is None else worker.ip


def _service_only_workers(state: HeadState) -> Iterator[tuple[ServiceSpec, Worker]]:
    for spec in state.goal.services:
        if spec.alone and spec.essential:
            worker = state.fleet.workers.get(state.service_home(spec.name) or HERE)
            if worker is not None:
                yield spec, worker


def _lost_for_good(state: HeadState, key: Key, item: Item, now: float) -> Outcome | None:
    """Return the outcome of a service that ended before it was ready, too often or too late."""
    spec, title = state.goal.service(key[1]), service_title(state, key)
    ended = item.step is Step.LOST
    no_restart_left = ended and spec.argv and item.recent_restarts(now) >= spec.restarts
    # the boot's waits cover first starts
    first = item.restarted_at is None and spec.essential and state.phase is HeadPhase.BOOTING
    overdue = item.step is Step.PENDING and not first and now >= item.deadline
    if ended and not item.was_ready:
        loss = f"{title} ended before it was ready"
    elif no_restart_left or overdue:
        loss = f"{title} is lost for good"
    else:
        return None
    evidence = item.evidence or "it no longer answers"
    return ends.SERVICE_LOST.outcome(loss=loss, evidence=evidence, name=key[1])


_UNKNOWN = "?"  # the disk of a node without facts: it may be shared with any other


def first_step_queues(goal: h.HeadGoal) -> Mapping[StepOnDisk, tuple[str, ...]]:
    """Return the first queues: the head's own steps run from the start."""
    return {
        (step.name, goal.disks.get(step.once, _UNKNOWN)): (HERE,)
        for step in ordered_steps(goal.steps)
        if step.once and step.name not in goal.finished_steps
    }


def order_steps(state: HeadState, turn: Turn) -> Decision:
    """Order workers to run the prepare steps whose turn it is."""
    event, now, steps = turn.event, turn.now, ordered_steps(state.goal.steps)
    before, orders = state, tuple[HeadAction, ...]()
    if not steps:
        return state, ()
    if isinstance(event, h.WorkerReported):
        worker = event.worker
        if worker.has_left or worker.refused:
            state = _leave_all_queues(state, worker.key)
        else:
            state, orders = _queue_new_steps(state, worker, steps)
    elif isinstance(event, h.WorkerReplaced):
        state = _leave_all_queues(state, event.key)
    elif isinstance(event, StepOver) and event.node == HERE and not event.failure:
        state = _leave_queues(state, HERE, {event.name})
    elif isinstance(event, Tick | h.RayNodes):  # a silent node must not hold up the others
        for queue in state.step_queues.values():
            holder = state.fleet.workers.get(queue[0])
            silent_at = holder.last_report_at + times.QUEUE_HOLDER_SILENT if holder else math.inf
            if len(queue) > 1 and now >= silent_at:
                state = _leave_all_queues(state, queue[0])
    return state, (*orders, *_orders_of_new_firsts(before, state))


def order_unblocked_steps(state: HeadState, turn: Turn) -> Decision:
    """Order steps that were blocked by something on another node that is ready now."""
    before, orders = state, list[HeadAction]()
    steps = ordered_steps(state.goal.steps) if state.goal.steps else ()
    if any(step.after for step in steps) and unblocks_other_nodes(turn.before, state):
        for worker in state.fleet.workers.values():
            if worker.key in state.steps_ordered:  # else it has left
                state, more = _queue_new_steps(state, worker, steps)
                orders += more
    return state, (*orders, *_orders_of_new_firsts(before, state))


def _queue_new_steps(state: HeadState, worker: Worker, steps: tuple[PrepareStep, ...]) -> Decision:
    """Queue a worker for steps that it can run now; order those that need no queue."""
    key, facts = worker.key, state.fleet.facts.get(worker.key)
    done = {item.name for item in worker.items if item.step is Step.READY}
    state = _leave_queues(state, key, done)
    known = state.steps_ordered.get(key, frozenset()) | done
    new = [
        step
        for step in steps
        if step.name not in known and not unmet_dependencies(state, key, step.after)
    ]
    queues = {**state.step_queues}
    for step in new:
        if step.once is not None:
            disk = _UNKNOWN if facts is None else facts.disks.get(step.once, _UNKNOWN)
            queues[step.name, disk] = (*queues.get((step.name, disk), ()), key)
    ordered = {**state.steps_ordered, key: known.union(step.name for step in new)}
    state = replace(state, step_queues=queues, steps_ordered=ordered)
    return state, tuple(h.OrderStep(step.name, key) for step in new if step.once is None)


def _leave_queues(state: HeadState, node: str, names: set[str]) -> HeadState:
    """Remove a node from the queues of these steps."""
    queues = {**state.step_queues}
    for group, queue in state.step_queues.items():
        if group[0] in names and node in queue:
            queues[group] = tuple(one for one in queue if one != node)
            if not queues[group]:
                del queues[group]
    return replace(state, step_queues=queues)


def _leave_all_queues(state: HeadState, key: str) -> HeadState:
    if key not in state.steps_ordered:
        return state
    ordered = {worker: names for worker, names in state.steps_ordered.items() if worker != key}
    names = {step.name for step in state.goal.steps}
    return _leave_queues(replace(state, steps_ordered=ordered), key, names)


def _orders_of_new_firsts(before: HeadState, state: HeadState) -> Iterator[HeadAction]:
    """Yield the order to each worker that has become the first of its queue."""
    for group, queue in state.step_queues.items():
        if queue[0] != HERE and queue[:1] != before.step_queues.get(group, ())[:1]:
            yield h.OrderStep(group[0], queue[0])
