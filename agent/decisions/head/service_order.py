"""Services and prepare steps on all nodes: dependencies, starts, restarts, losses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.base import ends, times
from agent.base.text import listed
from agent.decisions.durable import StepHolder
from agent.decisions.head import head_state as h
from agent.decisions.head.boot_waits import needs_service, service_title
from agent.decisions.head.head_state import HeadPhase, HeadState
from agent.decisions.head.members import is_short, next_generation, nodes_of
from agent.decisions.head.service_addresses import addresses_by_rank, unknown_nodes
from agent.decisions.shared import HERE, Item, LogLine, Step, Tick
from agent.job.services import REWARD, ServiceSpec, service_of, wanted_steps
from agent.plan import waits as wait_keys

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from agent.base.ends import Outcome
    from agent.decisions.durable import Durable
    from agent.decisions.head.fleet import Worker
    from agent.decisions.head.head_goal import HeadGoal, StepOnDisk
    from agent.decisions.head.head_state import Key, Turn
    from agent.job.services import PrepareStep

_SPARES_REPORT = 10.0  # Workers beyond the expected ones find a head that is back within this.
_STEP_HOLDER_SILENT = 60.0  # A silent worker loses its turn at a step on a shared disk.


def start_items(state: HeadState, keys: Iterable[Key], now: float) -> HeadState:
    """Start those of these items whose dependencies are ready; block the others."""
    for key in keys:
        missing = _missing(state, key[0], _spec(state, key))
        state = _block(state, key, missing, now) if missing else _start(state, key, now)
    return state


def _missing(state: HeadState, node: str, row: PrepareStep | ServiceSpec) -> tuple[str, ...]:
    """Return what must be ready or known before a service or step starts on this node."""
    return (*unmet_dependencies(state, node, row.after), *unknown_nodes(state, row))


def _start(state: HeadState, key: Key, now: float) -> HeadState:
    """Start a service or step; its time to become ready begins."""
    item = _item(state, key)
    spec = _spec(state, key)
    within = spec.within
    if isinstance(spec, ServiceSpec) and spec.argv and item.restarted_at is not None:
        within = spec.restarted_within
    if key in state.services.blocked:
        item = item.with_evidence("")
    item = replace(item, deadline=now + within)
    return state.with_item(key, item).with_services(blocked=state.services.blocked - {key})


def _block(state: HeadState, key: Key, missing: tuple[str, ...], now: float) -> HeadState:
    """Block a service or step until these are ready; only the first time is logged."""
    item = _item(state, key)
    evidence = f"waits for {listed(missing)}"
    if key in state.services.blocked:
        if item.evidence == evidence:
            return state
        return state.with_item(key, item.with_evidence(evidence))

    until = now + state.goal.max_prepare_seconds
    state = state.with_item(key, replace(item.with_evidence(evidence), deadline=until))
    state = state.with_services(blocked=state.services.blocked | {key})
    return state.do(LogLine(f"{service_title(state, key)} {evidence}"))


def _spec(state: HeadState, key: Key) -> ServiceSpec | PrepareStep:
    specs = state.goal.steps if key in state.steps.by_key else state.goal.services
    name = service_of(key[1])
    return next(spec for spec in specs if spec.name == name)


def start_unblocked(state: HeadState, turn: Turn) -> HeadState:
    """Start blocked services and steps whose dependencies are ready now."""
    blocked = state.services.blocked
    if not blocked:
        return state

    # A report mostly affects its own node: checking all is too slow for thousands of workers.
    keys = blocked
    event = turn.event
    if isinstance(event, h.WorkerReported) and not _unblocks_other_nodes(turn.before, state):
        own = event.worker.key
        keys = blocked.intersection((own, name) for name in state.service_names(own))

    # Without those whose node left, or that already run.
    items = {key: state.steps.by_key.get(key) or state.services.by_key.get(key) for key in keys}
    pending = {key for key, item in items.items() if item and item.step is Step.PENDING}
    state = state.with_services(blocked=blocked - (keys - pending))
    return start_items(state, sorted(pending), turn.now)


def _unblocks_other_nodes(before: HeadState, state: HeadState) -> bool:
    """Return whether a change may unblock services or steps on other nodes."""
    if before.steps.by_key is not state.steps.by_key or before.required != state.required:
        return True
    if state.goal.addressed and addresses_by_rank(before) != addresses_by_rank(state):
        return True
    was = before.services.by_key
    now = state.services.by_key
    if was is now:
        return False
    changed = (key for key in was.keys() | now if was.get(key) is not now.get(key))
    return any(state.goal.service(name).where.kind != "every" for _, name in changed)


def unmet_dependencies(state: HeadState, node: str, after: tuple[str, ...]) -> tuple[str, ...]:
    """Return the dependencies that are not ready for a service or step on this node."""
    return tuple(name for name in after if not _is_dependency_ready(state, node, name))


def _is_dependency_ready(state: HeadState, node: str, name: str) -> bool:
    spec = next((spec for spec in state.goal.services if spec.name == name), None)
    if spec is None:
        return _is_step_done(state, node, name)

    # Which services of this name does the node wait for: its own, all workers', or the only one?
    worker = state.fleet.workers.get(node)
    rank = state.goal.rank if worker is None else worker.effective_rank
    known = state.services.by_key
    abandoned = state.services.abandoned
    if spec.where.includes(rank, is_head=node == HERE):
        count = 1 if worker is None else worker.members.get(name, 1)
        keys = {(node, member) for member in spec.names(count)}
    elif spec.where.kind == "group":
        group = next(group for group in state.goal.groups if group.name == spec.where.group)
        return not is_short(state, group, spec)
    elif spec.where.kind == "workers":
        keys = {key for key in (*known, *abandoned) if key[1] == name and needs_service(state, key)}
        if len(keys) < state.required:
            return False
    elif any(other == name for _, other in abandoned):
        return True
    else:
        keys = {(state.service_home(name) or "", name)}
    return all(key in abandoned or known.get(key, Item()).step is Step.READY for key in keys)


def _is_step_done(state: HeadState, node: str, name: str) -> bool:
    """Return whether a step is done; a node that does not have it does not wait for it."""
    own = state.steps.by_key.get((HERE, name))
    on_head = any(step.where.kind == "head" for step in state.goal.steps if step.name == name)
    if node == HERE or on_head:
        return own is None or own.step is Step.READY
    worker = state.fleet.workers.get(node)
    items = () if worker is None else worker.items
    return all(item.step is Step.READY for item in items if item.name == name)


def _item(state: HeadState, key: Key) -> Item:
    return state.steps.by_key[key] if key in state.steps.by_key else state.services.by_key[key]


def order_services(state: HeadState, turn: Turn) -> HeadState:
    """Have a reporting worker run its services, once they are not blocked.

    What runs there since an earlier head wanted it is kept, by its generation, and so is what a
    killed agent of the node has left: its process has the weights that it had. A member that the
    node had with another rank is not: at the port of this one it would be taken for another.
    """
    if not isinstance(turn.event, h.WorkerReported):
        return state
    worker = turn.event.worker
    specs = state.goal.services
    if worker.has_left or worker.refused:
        return state

    before = turn.before.fleet.workers.get(worker.key)
    has_new_rank = before is not None and before.effective_rank != worker.effective_rank

    # Its services that the head does not know yet, and that no other node runs.
    new = []
    for spec in specs:
        if not spec.where.includes(worker.effective_rank, is_head=False):
            continue
        for name in spec.names(worker.members.get(spec.name, 1)):
            key = (worker.key, name)
            is_known = key in state.services.by_key or key in state.services.abandoned
            if not is_known and not _has_other_home(state, worker, name):
                new.append((spec, key))

    reported = {item.name: item for item in worker.items}
    for spec, key in new:
        known = reported.get(key[1])
        is_of_former_rank = has_new_rank and spec.where.kind == "group"
        runs = known is not None and known.step is not Step.LOST and not is_of_former_rank
        if known is not None and runs:
            generation = known.generation
        elif known is None and key[1] in worker.left and not is_of_former_rank:
            generation = worker.left[key[1]]
        else:
            counted = next_generation(state, spec, key)
            if counted is None:
                continue
            generation = counted if known is None else max(counted, known.generation + 1)
        item = Item(was_ready=state.has_resumed, generation=generation)
        if known is not None and runs and known.step is Step.READY:  # it need not report so again
            state = state.with_item(key, item.ready())
            state = state.do(line_of_ready(state, key, turn.now))
            continue
        state = state.with_item(key, item)
        start = _start(state, key, turn.now)  # what runs has what it depends on
        state = start if runs else start_items(state, (key,), turn.now)
    return state


def line_of_ready(state: HeadState, key: Key, now: float) -> LogLine:
    """Return the line about a service that answers."""
    began = state.services.by_key[key].restarted_at or state.began
    what = "scored a test answer" if key[1] == REWARD else "answers"
    return LogLine(what, "done", service_title(state, key), now - began)


def _has_other_home(state: HeadState, worker: Worker, name: str) -> bool:
    """Return whether the service of a rank runs on another node of it, which still reports."""
    where = state.goal.service(name).where
    if where.kind == "group":
        home = nodes_of(state, where.ranks).get(worker.effective_rank or 0)
    elif where.kind == "rank":
        home = state.fleet.workers.get(state.service_home(name) or HERE)
    else:
        return False
    if home is None or home.has_left or home.silent:
        return False
    return home.ip != worker.ip and home.name != worker.name


def restart_services(state: HeadState, now: float) -> tuple[HeadState, Outcome | None]:
    """Restart services that ended, with a growing pause; return the outcome of a fatal loss.

    A worker with only an essential service is such a loss by its reports: Ray does not list it.
    """
    late = [
        (node, name)
        for name, nodes in state.services.pending.items()
        if nodes and now >= min(nodes.values())
        for node in nodes
        if now >= nodes[node] and _may_be_late(state, (node, name))
    ]

    # Those that ended, and those that are late: restarted, given up, or the end of the run.
    for key in (*sorted(state.services.lost), *late):
        spec = state.goal.service(key[1])
        item = _with_lateness(state.services.by_key[key], spec, now)
        broken = _lost_for_good(state, key, item, now)
        if broken is not None and spec.essential and needs_service(state, key):
            return state, broken
        if broken is not None:
            abandoned = state.services.abandoned | {key}
            state = state.without_service(key).with_services(abandoned=abandoned)
            state = state.log(f"{broken.reason}; the run goes on without it", "warning")
        elif item.step is Step.LOST:
            state = _restart(state, key, item, now)

    # Workers with only an essential service; the same sum as in `service_node_deadline`.
    for spec, worker in _service_only_workers(state):
        if now >= worker.last_report_at + state.goal.limits[wait_keys.NODE]:
            loss = f"lost a needed node ({worker.label}, which runs {spec.name})"
            return state, ends.NODE_LOST.outcome(loss=loss)
    return state, None


def _with_lateness(item: Item, spec: ServiceSpec, now: float) -> Item:
    """Return a member of a group as ended that is not ready in time: it is started again."""
    if spec.where.kind != "group" or item.step is not Step.PENDING or now < item.deadline:
        return item
    late = f"not ready in time: {item.evidence or 'no answer'}"
    return replace(item.lost(late), restart_at=now)


def _may_be_late(state: HeadState, key: Key) -> bool:
    """Return whether a service may be late: a member only once it starts on a present node."""
    return not state.goal.is_of_group(key[1]) or _is_starting(state, key)


def _is_starting(state: HeadState, key: Key) -> bool:
    worker = state.fleet.workers.get(key[0])
    is_away = worker is not None and (worker.has_left or bool(worker.silent))
    return key not in state.services.blocked and not is_away


def late_member_deadline(state: HeadState) -> float | None:
    """Return when the first member of a group will be late; None if none loads."""
    moments = [
        until
        for name, nodes in state.services.pending.items()
        if nodes and state.goal.is_of_group(name)
        for node, until in nodes.items()
        if _is_starting(state, (node, name))
    ]
    return min(moments, default=None)


def _restart(state: HeadState, key: Key, item: Item, now: float) -> HeadState:
    """Restart a service that ended, once its pause is over."""
    spec = state.goal.service(key[1])
    title = service_title(state, key)
    before = item.recent_restarts(now)
    again = replace(
        item,
        step=Step.PENDING,
        restarts=before + 1,
        generation=item.generation + 1,
        restarted_at=now,
        restart_at=None,
        was_stopped=False,
    )

    # Did its node, which was cut off, stop it? Then no restart is used.
    if item.was_stopped:
        again = replace(again, restarts=before, restarted_at=item.restarted_at)
        state = state.log(f"{title} is down ({item.in_full}): it is started again", "warning")
        return start_items(state.with_item(key, again), (key,), now)

    # Is there no process to restart? Then it is only asked again, at once.
    if spec.argv is None:
        more = f"it is asked for {round(spec.within)} s more"
        state = state.log(f"{title} no longer answers ({item.in_full}): {more}", "warning")
        return start_items(state.with_item(key, again), (key,), now)

    # Is its pause over, which grows with each restart?
    again_at = item.restart_at
    if again_at is None:
        pause = min(times.LONGEST_RESTART_PAUSE, 2.0 ** (before - 1)) if before else 0.0
        again_at = now + pause
    if now < again_at:
        return state.with_item(key, replace(item, restart_at=again_at))

    count = f"restart {again.restarts} of {spec.restarts}"
    state = state.log(f"{title} is down ({item.in_full}): {count}", "warning")
    return start_items(state.with_item(key, again), (key,), now)


def service_node_deadline(state: HeadState) -> float | None:
    """Return the time by which such workers must report again; None if there are none."""
    reports = [worker.last_report_at for _, worker in _service_only_workers(state)]
    return min(reports) + state.goal.limits[wait_keys.NODE] if reports else None


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
    ended = item.step is Step.LOST and not item.was_stopped
    no_restart_left = ended and spec.argv and item.recent_restarts(now) >= spec.restarts

    # Is it overdue? The boot's waits cover first starts.
    first = item.restarted_at is None and spec.essential and state.phase is HeadPhase.BOOTING
    overdue = item.step is Step.PENDING and not first and now >= item.deadline

    if ended and not item.was_ready and spec.where.kind != "group":
        what = f"{title} ended before it was ready"
    elif no_restart_left or overdue:
        what = f"{title} is lost for good"
    else:
        return None
    evidence = item.in_full or "it no longer answers"
    return ends.SERVICE_LOST.outcome(
        service=what, evidence=evidence, name=key[1], remedy=spec.remedy
    )


_UNKNOWN = "?"  # the disk of a node without facts: it may be shared with any other


_BY_NAME = "named "  # before the name of a holder that has not reported to this agent yet


def first_step_holders(goal: HeadGoal, durable: Durable) -> Mapping[StepOnDisk, str]:
    """Return the first holders of disks: the head runs its own steps from the start.

    Workers may still run what an earlier agent has wanted.
    """
    known = {} if goal.facts is None else goal.facts.disks
    steps = wanted_steps(goal.steps)
    disks = {step.name: known.get(step.once, _UNKNOWN) for step in steps if step.once}
    former = {(one.step, one.disk): f"{_BY_NAME}{one.node}" for one in durable.holders}
    return {**former, **dict.fromkeys(disks.items(), HERE)}


def _with_reported_holders(state: HeadState) -> Mapping[StepOnDisk, str]:
    """Return the holders, with the agents of those known by name that have reported."""
    known = state.steps.holders
    if not any(node.startswith(_BY_NAME) for node in known.values()):
        return known
    workers = state.fleet.workers.values()
    there = (worker for worker in workers if not (worker.has_left or worker.refused))
    keys = {f"{_BY_NAME}{worker.name}": worker.key for worker in there}
    return {disk: keys.get(node, node) for disk, node in known.items()}


def _names_of_holders(state: HeadState) -> Mapping[StepOnDisk, str]:
    """Return the workers that hold a disk, by name."""
    workers = state.fleet.workers
    names = {key: worker.name for key, worker in workers.items()}
    others = {disk: node for disk, node in state.steps.holders.items() if node != HERE}
    return {disk: names.get(node, node.removeprefix(_BY_NAME)) for disk, node in others.items()}


def order_steps(state: HeadState, turn: Turn) -> HeadState:
    """Order workers to run prepare steps: those on one disk run a step one after another."""
    event = turn.event
    steps = wanted_steps(state.goal.steps)
    if not steps:
        return state

    # Which disks are free again?
    saved = _names_of_holders(state)
    known = _with_reported_holders(state)
    holders = {
        (name, disk): node
        for (name, disk), node in known.items()
        if _runs(state, name, node, turn.now)
    }
    may_unblock = len(holders) < len(known) or _unblocks_other_nodes(turn.before, state)
    if isinstance(event, h.WorkerReported) and _runs_steps(event.worker, turn.now):
        holders = {**_steps_that_run(state, event.worker), **holders}
    if isinstance(event, h.RunRemembered) and event.is_of_other_head:
        state = state.with_steps(are_of_other_head=True)
    state = state.with_steps(holders=holders)
    awaits_holders = _awaits_holders(state, turn.now)
    may_unblock |= _awaits_holders(turn.before, turn.now) and not awaits_holders

    # Whose turn may it be: any worker's, or only that of the one which reported?
    if may_unblock or isinstance(event, Tick | h.RaySeen):
        workers: Iterable[Worker] = state.fleet.workers.values()
    else:
        workers = [event.worker] if isinstance(event, h.WorkerReported) else []
    for worker in workers:
        if _runs_steps(worker, turn.now):
            state = _order_steps_of(state, worker, steps, turn.now, awaits_holders=awaits_holders)

    # An agent that replaces this one must find who may run what.
    names = _names_of_holders(state)
    if names.items() <= saved.items():
        return state
    rows = (StepHolder(step, disk, node) for (step, disk), node in names.items())
    return state.with_durable(holders=(*rows,))


def _runs(state: HeadState, name: str, node: str, now: float) -> bool:
    if node == HERE:
        return state.steps.by_key[HERE, name].step is Step.PENDING
    if node.startswith(_BY_NAME):
        return now < _STEP_HOLDER_SILENT
    worker = state.fleet.workers.get(node)
    if worker is None or not _runs_steps(worker, now):
        return False
    return not any(item.name == name and item.step is Step.READY for item in worker.items)


def _runs_steps(worker: Worker, now: float) -> bool:
    """Return whether a worker runs steps: not one that has been silent for long."""
    is_silent = now >= worker.last_report_at + _STEP_HOLDER_SILENT
    return not (worker.has_left or worker.refused or is_silent)


def _replaces_expected(state: HeadState, worker: Worker, now: float) -> bool:
    """Return whether a worker takes the place of an expected one that is missing.

    Without ranks of a platform the head gives them in order, and a replacement a further one: each
    expected rank was given before. After a restart of the head's agent its workers report first.
    """
    if worker.rank is not None or now < _STEP_HOLDER_SILENT:
        return False
    workers = state.fleet.workers.values()
    there = [other for other in workers if _runs_steps(other, now) and not other.lost]
    expected = [other for other in there if state.expects(other)]
    return len(expected) < state.goal.last_rank


def _steps_that_run(state: HeadState, worker: Worker) -> Mapping[StepOnDisk, str]:
    """Return a worker as the holder of the steps on a disk that it runs already.

    An earlier head wanted them, of which this one may have no record.
    """
    with_marker = {step.name: step for step in state.goal.steps if step.once is not None}
    running = [item.name for item in worker.items if item.is_running and item.name in with_marker]
    return {(name, disk_of(state, worker.key, with_marker[name])): worker.key for name in running}


def disk_of(state: HeadState, key: str, step: PrepareStep) -> str:
    """Return the disk on which a step's marker lies for a worker."""
    facts = state.fleet.facts.get(key)
    return _UNKNOWN if facts is None else facts.disks.get(step.once or "", _UNKNOWN)


def _awaits_holders(state: HeadState, now: float) -> bool:
    """Return whether a worker that has not reported yet may run a step of an earlier head.

    That is so without a record of the run where a worker has outlived its head. Spare workers find
    a head that is back as soon as the others.
    """
    if state.goal.has_record or not state.steps.are_of_other_head:
        return False
    workers = [worker for worker in state.fleet.workers.values() if state.expects(worker)]
    has_all = len(workers) >= state.goal.expected_workers
    limit = _SPARES_REPORT if has_all else _STEP_HOLDER_SILENT
    return now < limit


def _order_steps_of(
    state: HeadState,
    worker: Worker,
    steps: tuple[PrepareStep, ...],
    now: float,
    *,
    awaits_holders: bool,
) -> HeadState:
    key = worker.key
    done = {item.name for item in worker.items if item.step is Step.READY}
    holders = {**state.steps.holders}
    wanted = state.steps.wanted.get(key, frozenset())
    is_short = len(state.fleet.alive) < state.required
    takes_part = state.expects(worker) or _replaces_expected(state, worker, now)

    # The steps that are its turn: those on a shared disk only if no other node runs them.
    chosen = []
    for step in steps:
        if step.name in done or _missing(state, key, step):
            continue
        if step.once is not None and is_short and not takes_part:
            continue  # it would keep those that share its disk from the step: they come first
        if step.once is not None:
            disk = disk_of(state, key, step)
            if awaits_holders and (step.name, disk) not in holders:
                continue
            if holders.setdefault((step.name, disk), key) != key:
                continue
        chosen.append(step.name)

    new = [name for name in chosen if name not in wanted]
    if new:
        state = state.with_steps(wanted={**state.steps.wanted, key: wanted.union(new)})
    return state.with_steps(holders=holders)
