"""Services and prepare steps on all nodes: dependencies, starts, restarts, losses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.base import ends, times
from agent.base.text import listed
from agent.decisions.head import head_state as h
from agent.decisions.head.boot_waits import service_title
from agent.decisions.head.head_state import HeadAction, HeadPhase, HeadState
from agent.decisions.shared import HERE, Item, LogLine, Step, Tick
from agent.job.services import ServiceSpec, ordered_steps
from agent.plan import waits as planned

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from agent.base.ends import Outcome
    from agent.decisions.head.fleet import Worker
    from agent.decisions.head.head_state import Key, StepOnDisk, Turn
    from agent.job.services import PrepareStep


def start_items(state: HeadState, keys: Iterable[Key], now: float) -> HeadState:
    """Start those of these items whose dependencies are ready; block the others."""
    for key in keys:
        item = _item(state, key)
        was_blocked = key in state.blocked
        name = key[1]
        specs = state.goal.steps if key in state.steps else state.goal.services
        spec = next(one for one in specs if one.name == name)
        missing = unmet_dependencies(state, key[0], spec.after)
        if missing:
            evidence = f"waits for {listed(missing)}"
            blocked = state.blocked | {key}
            until = item.deadline if was_blocked else now + state.goal.max_prepare_seconds
            if was_blocked and item.evidence == evidence:
                continue
        else:
            evidence = "" if was_blocked else item.evidence
            blocked = state.blocked - {key}
            until = now + spec.within
            if isinstance(spec, ServiceSpec) and spec.argv and item.restarted_at is not None:
                until = now + spec.restarted_within
        item = replace(item, evidence=evidence, deadline=until)
        state = replace(state.with_item(key, item), blocked=blocked)
        if not (missing and was_blocked):
            state = state.do(_start(state, key))
    return state


def start_unblocked(state: HeadState, turn: Turn) -> HeadState:
    """Start blocked services and steps whose dependencies are ready now."""
    if not state.blocked:
        return state
    keys = state.blocked
    event = turn.event
    if isinstance(event, h.WorkerReported) and not _unblocks_other_nodes(turn.before, state):
        own = event.worker.key  # checking all is too slow for thousands of workers
        keys = state.blocked.intersection((own, spec.name) for spec in state.goal.services)
    # without those whose node left, or that already run
    items = {key: state.steps.get(key) or state.services.get(key) for key in keys}
    pending = {key for key, item in items.items() if item and item.step is Step.PENDING}
    state = replace(state, blocked=state.blocked - (keys - pending))
    return start_items(state, sorted(pending), turn.now)


def _unblocks_other_nodes(before: HeadState, state: HeadState) -> bool:
    """Return whether a change may unblock services or steps on other nodes."""
    if before.steps is not state.steps or before.required != state.required:
        return True
    was = before.services
    now = state.services
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
    known = state.services
    abandoned = state.abandoned_services
    if spec.where.includes(rank, is_head=node == HERE):
        keys = {(node, name)}
    elif spec.where.kind == "workers":
        keys = {key for key in (*known, *abandoned) if key[1] == name and state.relies_on(key[0])}
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


def order_services(state: HeadState, turn: Turn) -> HeadState:
    """Order a reporting worker to start its services, once, when they are not blocked."""
    if not isinstance(turn.event, h.WorkerReported):
        return state
    worker = turn.event.worker
    specs = state.goal.services
    if worker.has_left or worker.refused:
        return state
    rank = worker.effective_rank
    known = (state.services, state.abandoned_services)
    own = [(worker.key, one.name) for one in specs if one.where.includes(rank, is_head=False)]
    new = [key for key in own if not any(key in keys for keys in known)]
    new = [key for key in new if not _has_other_home(state, worker, key[1])]
    for key in new:
        state = state.with_item(key, Item(was_ready=state.goal.resumed_attempt is not None))
    return start_items(state, new, turn.now)


def _has_other_home(state: HeadState, worker: Worker, name: str) -> bool:
    """Return whether a service of one rank runs on another node, which still reports."""
    if state.goal.service(name).where.kind != "rank":
        return False
    home = state.fleet.workers.get(state.service_home(name) or HERE)
    return home is not None and home.ip != worker.ip and not (home.has_left or home.silent)


def restart_services(state: HeadState, now: float) -> tuple[HeadState, Outcome | None]:
    """Restart services that ended, with a growing pause; return the outcome of a fatal loss.

    A worker with only an essential service is such a loss by its reports: Ray does not list it.
    """
    late = [
        (node, name)
        for name, nodes in state.pending_services.items()
        if nodes and now >= min(nodes.values())
        for node in nodes
        if now >= nodes[node]
    ]
    for key in (*sorted(state.lost_services), *late):
        item = state.services[key]
        spec = state.goal.service(key[1])
        broken = _lost_for_good(state, key, item, now)
        if broken is not None and spec.essential and state.relies_on(key[0]):
            return state, broken
        if broken is not None:
            given_up = state.abandoned_services | {key}
            state = replace(state.without_service(key), abandoned_services=given_up)
            state = state.log(f"{broken.reason}; the run goes on without it", "warning")
        elif item.step is Step.LOST:
            state = _restart(state, key, item, now)
    for spec, worker in _service_only_workers(state):
        # the same sum as in `service_node_deadline`
        if now >= worker.last_report_at + state.goal.limits[planned.NODE]:
            loss = f"lost a needed node ({worker.label}, which runs {spec.name})"
            return state, ends.NODE_LOST.outcome(loss=loss)
    return state, None


def _restart(state: HeadState, key: Key, item: Item, now: float) -> HeadState:
    """Restart a service that ended, once its pause is over."""
    spec = state.goal.service(key[1])
    title = service_title(state, key)
    before = item.recent_restarts(now)
    generation = item.generation + 1
    again = replace(item, step=Step.PENDING, restarts=before + 1, generation=generation)
    again = replace(again, restarted_at=now, restart_at=None)
    pause = min(times.LONGEST_RESTART_PAUSE, 2.0 ** (before - 1)) if before else 0.0
    again_at = now + pause if item.restart_at is None else item.restart_at
    if spec.argv is None:  # nothing to restart: it is only asked again
        more = f"it is asked for {round(spec.within)} s more"
        state = state.log(f"{title} no longer answers ({item.evidence}): {more}", "warning")
    elif now < again_at:
        return state.with_item(key, replace(item, restart_at=again_at))
    else:
        count = f"restart {again.restarts} of {spec.restarts}"
        state = state.log(f"{title} exited ({item.evidence}): {count}", "warning")
    return start_items(state.with_item(key, again), (key,), now)


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
    spec = state.goal.service(key[1])
    title = service_title(state, key)
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


_BY_NAME = "named "  # before the name of a holder that has not reported to this agent yet


def first_step_holders(goal: h.HeadGoal) -> Mapping[StepOnDisk, str]:
    """Return the first holders of disks: the head runs its own steps from the start.

    Workers may still run what an earlier agent has ordered.
    """
    known = {} if goal.facts is None else goal.facts.disks
    steps = ordered_steps(goal.steps)
    disks = {step.name: known.get(step.once, _UNKNOWN) for step in steps if step.once}
    former = {one: f"{_BY_NAME}{name}" for one, name in goal.step_holders.items()}
    return {**former, **dict.fromkeys(disks.items(), HERE)}


def _with_reported_holders(state: HeadState) -> Mapping[StepOnDisk, str]:
    """Return the holders, with the agents of those known by name that have reported."""
    known = state.step_holders
    if not any(node.startswith(_BY_NAME) for node in known.values()):
        return known
    there = (one for one in state.fleet.workers.values() if not (one.has_left or one.refused))
    keys = {f"{_BY_NAME}{worker.name}": worker.key for worker in there}
    return {one: keys.get(node, node) for one, node in known.items()}


def _names_of_holders(state: HeadState) -> Mapping[StepOnDisk, str]:
    """Return the workers that hold a disk, by name."""
    workers = state.fleet.workers
    names = {key: worker.name for key, worker in workers.items()}
    others = {one: node for one, node in state.step_holders.items() if node != HERE}
    return {one: names.get(node, node.removeprefix(_BY_NAME)) for one, node in others.items()}


def order_steps(state: HeadState, turn: Turn) -> HeadState:
    """Order workers to run prepare steps: those on one disk run a step one after another."""
    event = turn.event
    steps = ordered_steps(state.goal.steps)
    if not steps:
        return state
    saved = _names_of_holders(state)
    ordered_before = state.actions
    known = _with_reported_holders(state)
    holders = {one: node for one, node in known.items() if _runs(state, one[0], node, turn.now)}
    may_unblock = len(holders) < len(known) or _unblocks_other_nodes(turn.before, state)
    state = replace(state, step_holders=holders)
    if may_unblock or isinstance(event, Tick | h.RayNodes):
        workers: Iterable[Worker] = state.fleet.workers.values()
    else:
        workers = [event.worker] if isinstance(event, h.WorkerReported) else []
    for worker in workers:
        if _runs_steps(worker, turn.now):
            state = _order_steps_of(state, worker, steps)
    names = _names_of_holders(state)
    orders = state.actions[len(ordered_before) :]
    if not orders or names == saved:
        return state
    # before the orders: an agent that replaces this one must find who may run what
    return replace(state, actions=(*ordered_before, h.SaveStepHolders(names), *orders))


def _runs(state: HeadState, name: str, node: str, now: float) -> bool:
    if node == HERE:
        return state.steps[HERE, name].step is Step.PENDING
    if node.startswith(_BY_NAME):
        return now < times.STEP_HOLDER_SILENT
    worker = state.fleet.workers.get(node)
    if worker is None or not _runs_steps(worker, now):
        return False
    return not any(item.name == name and item.step is Step.READY for item in worker.items)


def _runs_steps(worker: Worker, now: float) -> bool:
    """Return whether a worker runs steps: not one that has been silent for long."""
    is_silent = now >= worker.last_report_at + times.STEP_HOLDER_SILENT
    return not (worker.has_left or worker.refused or is_silent)


def _order_steps_of(state: HeadState, worker: Worker, steps: tuple[PrepareStep, ...]) -> HeadState:
    key = worker.key
    facts = state.fleet.facts.get(worker.key)
    done = {item.name for item in worker.items if item.step is Step.READY}
    holders = {**state.step_holders}
    ordered = state.steps_ordered.get(key, frozenset())
    chosen = []
    for step in steps:
        if step.name in done or unmet_dependencies(state, key, step.after):
            continue
        is_short = len(state.fleet.alive) < state.required
        if step.once is not None and is_short and not state.expects(worker):
            continue  # it would keep those that share its disk from the step: they come first
        if step.once is not None:
            disk = _UNKNOWN if facts is None else facts.disks.get(step.once, _UNKNOWN)
            if holders.setdefault((step.name, disk), key) != key:
                continue
        chosen.append(step.name)
    new = [name for name in chosen if name not in ordered]
    if new:
        state = replace(state, steps_ordered={**state.steps_ordered, key: ordered.union(new)})
    return replace(state, step_holders=holders).do(*(h.OrderStep(name, key) for name in new))
