"""Services and prepare steps on all nodes: dependencies, starts, restarts, losses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.base import ends, times
from agent.base.text import listed
from agent.decisions.head import state as h
from agent.decisions.head.state import HeadAction, HeadPhase, HeadState
from agent.decisions.head.waits import service_title
from agent.decisions.values import HERE, Item, LogLine, Step, StepOver, Tick
from agent.plan import waits as planned
from agent.work.services import ordered_steps

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from agent.base.ends import Outcome
    from agent.decisions.head.fleet import Worker
    from agent.decisions.head.state import Decision, Key, StepOnDisk, Turn
    from agent.work.services import PrepareStep, ServiceSpec


def first_actions(state: HeadState) -> tuple[HeadAction, ...]:
    """Return the starts at the beginning, and log lines for what is blocked."""
    own = [*state.steps, *(key for key in state.services if key[0] == HERE)]
    return tuple(
        waiting_message(state, key) if key in state.blocked else _start(state, key)
        for key in own
        if _item(state, key).step is Step.PENDING
    )


def waiting_message(state: HeadState, key: Key) -> LogLine:
    """Return the log line for a blocked service or step."""
    return LogLine(f"{service_title(state, key)} {_item(state, key).evidence}")


def hold_back(state: HeadState, keys: Iterable[Key], now: float) -> HeadState:
    """Block those of these whose dependencies are not ready."""
    for key in keys:
        missing = unmet_dependencies(state, key[0], _spec(state, key).after)
        if missing:
            until = now + state.goal.max_prepare_seconds
            evidence = f"waits for {listed(missing)}"
            item = replace(_item(state, key), evidence=evidence, deadline=until)
            state = _with_item(state, key, item)
            state = replace(state, blocked=state.blocked | {key})
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
        state, more = _start_if_unblocked(state, key, turn.now)
        actions += more
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
    return _is_done(state, node, name) if spec is None else _is_ready(state, node, spec)


def _is_done(state: HeadState, node: str, name: str) -> bool:
    """Return whether a step is done; a node without the step does not wait for it."""
    own = state.steps.get((HERE, name))
    on_head = any(step.where.kind == "head" for step in state.goal.steps if step.name == name)
    if node == HERE or on_head:
        return own is None or own.step is Step.READY
    worker = state.fleet.workers.get(node)
    items = () if worker is None else worker.items
    return all(item.step is Step.READY for item in items if item.name == name)


def _is_ready(state: HeadState, node: str, spec: ServiceSpec) -> bool:
    worker = state.fleet.workers.get(node)
    rank = state.goal.rank if worker is None else worker.effective_rank
    if spec.where.includes(rank, is_head=node == HERE):
        return _is_ready_or_abandoned(state, (node, spec.name))
    if spec.where.kind == "workers":
        keys = {key for key in (*state.services, *state.abandoned_services) if key[1] == spec.name}
        return len(keys) >= state.required and all(
            _is_ready_or_abandoned(state, key) for key in keys
        )
    if any(name == spec.name for _, name in state.abandoned_services):
        return True
    home = state.service_home(spec.name)
    return home is not None and _is_ready_or_abandoned(state, (home, spec.name))


def _is_ready_or_abandoned(state: HeadState, key: Key) -> bool:
    item = state.services.get(key)
    return key in state.abandoned_services or (item is not None and item.step is Step.READY)


def _start_if_unblocked(
    state: HeadState, key: Key, now: float
) -> tuple[HeadState, list[HeadAction]]:
    item = state.steps.get(key) or state.services.get(key)
    if item is None or item.step is not Step.PENDING:  # its node left, or it already runs
        return replace(state, blocked=state.blocked - {key}), []
    missing = unmet_dependencies(state, key[0], _spec(state, key).after)
    if missing:
        evidence = f"waits for {listed(missing)}"
        changed = item.evidence != evidence
        return _with_item(state, key, replace(item, evidence=evidence)) if changed else state, []
    until = now + _time_limit(state, key, item)
    state = _with_item(state, key, replace(item, evidence="", started_at=now, deadline=until))
    return replace(state, blocked=state.blocked - {key}), [_start(state, key)]


def _start(state: HeadState, key: Key) -> HeadAction:
    node, name = key
    if key in state.steps:
        return h.OrderStep(name, node)
    return h.StartService(name, node, state.services[key].generation)


def _item(state: HeadState, key: Key) -> Item:
    return state.steps[key] if key in state.steps else state.services[key]


def _spec(state: HeadState, key: Key) -> PrepareStep | ServiceSpec:
    return state.goal.step(key[1]) if key in state.steps else state.goal.service(key[1])


def _time_limit(state: HeadState, key: Key, item: Item) -> float:
    """Return the seconds within which it must be done or ready after its start."""
    if key in state.steps:
        return state.goal.step(key[1]).within
    spec = state.goal.service(key[1])
    return spec.within if item.restarted_at is None else spec.restarted_within


def _with_item(state: HeadState, key: Key, item: Item) -> HeadState:
    if key in state.steps:
        return replace(state, steps={**state.steps, key: item})
    return state.with_service(key, item)


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
    missing = {
        (worker.key, spec.name): first_item(state.goal, spec, now)
        for spec in state.goal.services
        if spec.where.includes(worker.effective_rank, is_head=False)
        and state.services.get((worker.key, spec.name)) is None
        and (worker.key, spec.name) not in state.abandoned_services
    }
    for key, item in missing.items():
        state = state.with_service(key, item)
    state = hold_back(state, missing, now)
    return state, tuple(
        waiting_message(state, key) if key in state.blocked else h.StartService(key[1], key[0])
        for key in missing
    )


def restart_services(
    state: HeadState, now: float
) -> tuple[HeadState, tuple[HeadAction, ...], Outcome | None]:
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
        if spec.argv is None:
            state = state.with_service(key, item.restarting(now, spec.within))
            retry = f"it is asked for {round(spec.within)} s more"
            actions.append(
                LogLine(f"{title} no longer answers ({item.evidence}): {retry}", "warning")
            )
            actions.append(h.StartService(key[1], key[0], item.generation + 1))
            continue
        again_at = now + item.restart_pause(now) if item.restart_at is None else item.restart_at
        if now < again_at:
            state = state.with_service(key, replace(item, restart_at=again_at))
            continue
        again = item.restarting(now, spec.restarted_within)
        state = state.with_service(key, again)
        count = f"restart {again.restarts} of {spec.restarts}"
        actions.append(LogLine(f"{title} exited ({item.evidence}): {count}", "warning"))
        state = hold_back(state, (key,), now)
        start = h.StartService(key[1], key[0], again.generation)
        actions.append(waiting_message(state, key) if key in state.blocked else start)
    for spec, worker in _service_only_workers(state):
        # the same sum as in `service_node_deadline`
        if now >= worker.last_report_at + state.goal.limits[planned.NODE]:
            broken = ends.SERVICE_NODE_LOST.outcome(node=worker.label, service=spec.name)
            return state, tuple(actions), broken
    return state, tuple(actions), None


def service_node_deadline(state: HeadState) -> float | None:
    """Return the time by which such workers must report again; None if there are none."""
    grace = state.goal.limits[planned.NODE]
    return min(
        (worker.last_report_at + grace for _, worker in _service_only_workers(state)), default=None
    )


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
    if ended and not item.was_ready:
        loss = f"{title} ended before it was ready"
    elif no_restart_left or _is_overdue(state, key, item, now):
        loss = f"{title} is lost for good"
    else:
        return None
    evidence = item.evidence or "it no longer answers"
    return ends.SERVICE_LOST.outcome(loss=loss, evidence=evidence, name=key[1])


def _is_overdue(state: HeadState, key: Key, item: Item, now: float) -> bool:
    """Return whether a service is past its deadline; the boot's waits cover first starts."""
    awaited = item.restarted_at is None and state.goal.service(key[1]).essential
    first = awaited and state.phase is HeadPhase.BOOTING
    return item.step is Step.PENDING and not first and now >= item.deadline


_UNKNOWN = "?"
"""The disk of a node without facts: it may be shared with any other."""

Orders = tuple[h.OrderStep, ...]


def first_step_queues(goal: h.HeadGoal) -> Mapping[StepOnDisk, tuple[str, ...]]:
    """Return the first queues: the head's own steps run from the start."""
    return {
        (step.name, goal.disks.get(step.once, _UNKNOWN)): (HERE,)
        for step in ordered_steps(goal.steps)
        if step.once and step.name not in goal.finished_steps
    }


def order_steps(state: HeadState, turn: Turn) -> tuple[HeadState, Orders]:
    """Order workers to run the prepare steps whose turn it is."""
    event, steps = turn.event, ordered_steps(state.goal.steps)
    if not steps:
        return state, ()
    if isinstance(event, h.WorkerReported):
        is_away = event.worker.has_left or event.worker.refused
        return (
            _leave_all_queues(state, event.worker.key)
            if is_away
            else _queue_new_steps(state, event.worker, steps)
        )
    if isinstance(event, h.WorkerReplaced):
        return _leave_all_queues(state, event.key)
    if isinstance(event, StepOver) and event.node == HERE and not event.failure:
        return _leave_queue(state, HERE, event.name)
    if isinstance(event, Tick | h.RayNodes):
        return _drop_silent_holders(state, turn.now)
    return state, ()


def order_unblocked_steps(state: HeadState, turn: Turn) -> tuple[HeadState, Orders]:
    """Order steps that were blocked by something on another node that is ready now."""
    steps = ordered_steps(state.goal.steps) if state.goal.steps else ()
    orders = Orders()
    if any(step.after for step in steps) and unblocks_other_nodes(turn.before, state):
        for worker in state.fleet.workers.values():
            if worker.key in state.steps_ordered:  # else it has left
                state, more = _queue_new_steps(state, worker, steps)
                orders += more
    return state, orders


def _queue_new_steps(
    state: HeadState, worker: Worker, steps: tuple[PrepareStep, ...]
) -> tuple[HeadState, Orders]:
    key, orders = worker.key, Orders()
    done = sorted(item.name for item in worker.items if item.step is Step.READY)
    for name in done:
        state, more = _leave_queue(state, key, name)
        orders += more
    known = state.steps_ordered.get(key, frozenset()).union(done)
    new = [
        step
        for step in steps
        if step.name not in known and not unmet_dependencies(state, key, step.after)
    ]
    for step in new:
        if step.once is None:
            orders += (h.OrderStep(step.name, key),)
            continue
        group = (step.name, _disk(state, key, step.once))
        queue = (*state.step_queues.get(group, ()), key)
        state = replace(state, step_queues={**state.step_queues, group: queue})
        orders += _order_first_in_queue(group, queue) if len(queue) == 1 else ()
    known = known.union(step.name for step in new)
    return replace(state, steps_ordered={**state.steps_ordered, key: known}), orders


def _leave_queue(state: HeadState, node: str, name: str) -> tuple[HeadState, Orders]:
    """Remove a node from the queue of a step, and order the new first node to run it."""
    for group, queue in state.step_queues.items():
        if group[0] == name and node in queue:
            left = tuple(one for one in queue if one != node)
            queues = {at: q for at, q in state.step_queues.items() if at != group}
            state = replace(state, step_queues={**queues, group: left} if left else queues)
            return state, _order_first_in_queue(group, left) if queue[0] == node else ()
    return state, ()


def _leave_all_queues(state: HeadState, key: str) -> tuple[HeadState, Orders]:
    if key not in state.steps_ordered:
        return state, ()
    orders = Orders()
    for step in ordered_steps(state.goal.steps):
        state, more = _leave_queue(state, key, step.name)
        orders += more
    others = {worker: names for worker, names in state.steps_ordered.items() if worker != key}
    return replace(state, steps_ordered=others), orders


def _drop_silent_holders(state: HeadState, now: float) -> tuple[HeadState, Orders]:
    orders = Orders()
    for queue in [*state.step_queues.values()]:
        holder = state.fleet.workers.get(queue[0])
        if (
            len(queue) > 1
            and holder is not None
            and now >= holder.last_report_at + times.QUEUE_HOLDER_SILENT
        ):
            state, more = _leave_all_queues(state, holder.key)
            orders += more
    return state, orders


def _order_first_in_queue(group: StepOnDisk, queue: tuple[str, ...]) -> Orders:
    return (h.OrderStep(group[0], queue[0]),) if queue and queue[0] != HERE else ()


def _disk(state: HeadState, key: str, once: str) -> str:
    facts = state.fleet.facts.get(key)
    return _UNKNOWN if facts is None else facts.disks.get(once, _UNKNOWN)
