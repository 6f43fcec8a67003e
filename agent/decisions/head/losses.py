"""A lost node, from its loss until the next attempt begins.

1. A node that counted counts no longer, or GCS drops it: the running attempt has lost it.
2. If the attempt needs it, its grace begins (AGENT_NODE_GRACE): it may rejoin, and the job may
   recover. A spare takes the place of no node on which the attempt began. Once the grace is over,
   the job is stopped (`running` and `stop_job` in phases.py).
3. If the job fails, all nodes are asked first: a loss that nothing has reported yet may be the
   cause. A failure soon after a loss counts as this loss.
4. An attempt that ended by a loss is followed by another one, as AGENT_JOB_RETRIES allows, after
   a pause that grows with each one in vain. Losses that the platform announced do not count.
5. The next attempt is submitted once nothing of the last one runs any more: reachable nodes
   report it, the fence of the others stops it within the same grace. The job's output is read to
   its end by then, so that the last step is known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.base import ends, times
from agent.base.ends import Kind, Outcome
from agent.base.text import listed
from agent.decisions import attempts
from agent.decisions.attempts import JobReport, may_be_retried
from agent.decisions.head import head_state as h
from agent.decisions.head import shares
from agent.decisions.head.head_state import HeadPhase, HeadState, leave
from agent.decisions.head.members import lost_engine, renew_members
from agent.decisions.shared import JOB, RAY, SHARE, Step, Wait
from agent.plan import waits as wait_keys

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agent.decisions.durable import Durable
    from agent.decisions.head.fleet import Fleet, Worker
    from agent.decisions.head.head_state import Turn
    from agent.decisions.shared import ItemReport

_LOSS_NOTICED = 20.0  # After a loss: GCS reports a killed node after 15 s.
MAX_NODES_BY_NAME = 20_000  # how many nodes of an attempt are kept by name, the newest

# --- 1. a node is lost ---------------------------------------------------------------------------


def nodes_that_left(before: Fleet, state: HeadState) -> dict[str, str]:
    """Return the nodes, address to name, that counted or that GCS listed, and do so no longer.

    Ray uses each that it lists, also one that does not count. One that counted before was lost
    earlier than GCS drops it.
    """
    fleet = state.fleet
    was = before.alive
    nodes = dict[str, str]()
    if was is not fleet.alive:
        nodes = {ip: name for ip, name in was.items() if ip not in fleet.alive}
    if before.ray_nodes is not fleet.ray_nodes:
        gone = (ip for ip in before.ray_nodes if ip not in fleet.ray_nodes and ip not in was)
        late = {ip: before.label_at(ip) for ip in gone}
        late |= _replaced_nodes(before, fleet)
        known = {*state.attempt.lost_nodes} if late else set()
        nodes |= {ip: name for ip, name in late.items() if name not in known}
    return nodes


def _replaced_nodes(before: Fleet, fleet: Fleet) -> dict[str, str]:
    """Return the nodes that count, while GCS drops the Ray that an agent there ran before.

    A pod that is back within seconds joins again before GCS misses it: it was never away, and the
    job's processes on it are. A Ray that counted as dead was missed already.
    """
    return {
        ip: fleet.alive[ip]
        for ip, nodes in before.ray_nodes.items()
        if ip in fleet.alive
        and ip in fleet.agent_at
        and nodes != fleet.ray_nodes[ip]
        and not before.ids_at(ip) <= fleet.ids_at(ip) | before.dead_node_ids
    }


def record_nodes_that_left(state: HeadState, turn: Turn) -> HeadState:
    """Record the nodes that an event cost the running attempt."""
    return record_losses(state, nodes_that_left(turn.before.fleet, state), turn.now)


def record_losses(state: HeadState, lost: Mapping[str, str], now: float) -> HeadState:
    """Record nodes (address to name) that were lost while an attempt ran."""
    attempt = state.attempt
    if not lost or not state.runs_attempt:
        return state
    gone = tuple(dict.fromkeys((*attempt.lost_nodes, *lost.values())))[-MAX_NODES_BY_NAME:]
    own = {ip: name for ip, name in lost.items() if ip in attempt.workers}
    state = state.with_attempt(lost_nodes=gone, lost_workers={**attempt.lost_workers, **own})
    loss = f"{listed(lost.values())} {'was' if len(lost) == 1 else 'were'} lost"
    return state.with_losses(last=loss, last_at=now)


def record_fleet(state: HeadState, turn: Turn) -> HeadState:
    """Record what the next agent must know of the fleet: who took part, and what GCS may list."""
    attempt = state.attempt
    before = turn.before
    is_same = state.fleet is before.fleet and attempt is before.attempt
    if is_same or not attempt.is_submitted:
        return state
    present = state.fleet.alive.values()
    may_differ = not attempt.nodes or state.fleet.alive is not before.fleet.alive
    if may_differ and not {*present} <= {*attempt.nodes}:
        names = (*dict.fromkeys((*present, *attempt.nodes)),)
        state = state.with_attempt(nodes=names[:MAX_NODES_BY_NAME])
    if state.runs_attempt and state.fleet.dead_node_ids != attempt.dead_node_ids:
        state = state.with_attempt(dead_node_ids=state.fleet.dead_node_ids)
    return state


def record_losses_before_resume(state: HeadState, now: float) -> HeadState:
    """Record as lost the workers of an attempt that left while no head agent ran."""
    attempt = state.attempt
    alive = state.fleet.alive
    accounted = {*alive, *attempt.lost_workers}
    lost = {ip: name for ip, name in attempt.workers.items() if ip not in accounted}
    return record_losses(state, lost, now)


def ray_lost_outcome(state: HeadState) -> Outcome:
    """Return the outcome of an attempt whose Ray on the head exited."""
    return ends.RAY_LOST_ON_HEAD.outcome(evidence=state.ray.item.in_full)


# --- 2. does the attempt need it? ----------------------------------------------------------------


def fix_required_workers(state: HeadState) -> HeadState:
    """Set which workers an attempt requires, and how many, as it is submitted.

    A job that is sized to its nodes requires each worker in its size: without one of them ranks
    have no peer, however few workers were expected. If more were expected than its size counts,
    it requires all that joined. For a job without a size any worker may be a spare.
    """
    places = state.fleet.alive
    required = state.required
    if state.goal.by_shares:
        # services and checks were awaited on expected workers alone: a spare takes no part
        expected = {worker.ip for worker in state.fleet.present() if state.expects(worker)}
        places = {ip: name for ip, name in places.items() if ip in expected}
    if state.goal.is_sized_to_nodes:
        # the workers in the job's size: those with GPUs, if any node has GPUs
        having = {ip for ip, size in state.ray.node_sizes.items() if size.gpus}
        sized = places
        if not having.isdisjoint({state.ray.head_ip, *places}):
            sized = {ip: name for ip, name in places.items() if ip in having}
        places = sized if len(sized) >= required else places
        required = len(places)
    return state.with_attempt(workers=places, required=required)


def unreturned_nodes(state: HeadState) -> tuple[str, ...]:
    """Return the workers of the running attempt that were lost and have not rejoined."""
    missed = state.attempt.lost_workers
    alive = state.fleet.alive
    present = set(alive.values()) if missed else set()
    return tuple(name for ip, name in missed.items() if ip not in alive and name not in present)


def is_below_required(state: HeadState) -> bool:
    """Return whether required workers are missing; a spare does not replace an attempt's own."""
    if state.goal.by_shares:
        return bool(state.shares.absent)
    places = state.attempt.workers
    if len(state.fleet.alive) < state.required or not places:
        return len(state.fleet.alive) < state.required
    return len(places) - len(unreturned_nodes(state)) < state.required


def watch_required_nodes(state: HeadState, now: float) -> HeadState:
    """Begin the grace when needed nodes are missing, and end it when all are back."""
    is_short = is_below_required(state)
    if is_short and state.losses.below_required_since is None:
        loss = f"lost a needed node ({_missing_nodes(state)})"
        follows = "the cluster stays up, and the node can rejoin"
        if state.goal.has_job:
            grace = round(state.goal.limits[wait_keys.NODE])
            follows = f"the job is stopped unless it is back within {grace} s"
        state = state.with_losses(below_required_since=now, last=loss, last_at=now)
        return state.log(f"{loss}: {follows}", "warning")

    if not is_short and state.losses.below_required_since is not None:
        state = state.with_losses(below_required_since=None)
        return state.log("all needed nodes are back")
    return state


def _missing_nodes(state: HeadState) -> str:
    """Return the names of needed nodes that are missing, if known, and how many joined."""
    gone = shares.absent_share_nodes(state)
    # spares do not replace the attempt's own workers
    has_spares = len(state.fleet.alive) >= state.required
    if not gone and has_spares:
        gone = listed(unreturned_nodes(state))
    missing = state.fleet.describe_missing(state.required)
    return f"{gone}; {missing}" if gone else missing


# --- 3. did the job fail by the loss? ------------------------------------------------------------


def job_ended_at(state: HeadState, report: JobReport, now: float) -> float | None:
    """Return when the job ended, on the run's clock; None while it runs.

    The clock of a given Ray's machine may differ: a job that Ray reported as running ended later.
    """
    if not report.ended:
        return None
    earliest = state.attempt.submitted or 0.0
    if state.job.report is not None:
        earliest = state.job.last_status_at
    return max(earliest, now - report.ended_ago)


def recent_loss(state: HeadState, now: float) -> str:
    """Return the loss that may have caused a failure of the job, or ''.

    The job's end counts, not when Ray reported it. A loss is noticed some seconds later.
    """
    if state.ray.item.step is Step.LOST:
        return ray_lost_outcome(state).reason
    ended_at = state.job.ended_at
    if ended_at is None:
        ended_at = now
    engine = lost_engine(state, ended_at)
    if engine:  # the job fails once it needs it: at the next weight sync, or the next request
        return engine
    lost_at = state.losses.last_at
    late = times.GCS_REPORTS_LOSS if state.goal.ray_is_given else _LOSS_NOTICED
    if lost_at is None or not ended_at - times.RECENT_LOSS < lost_at <= ended_at + late:
        return ""
    return state.losses.last


def out_of_memory_nodes(state: HeadState) -> str:
    """Return the nodes on which the kernel just killed a process for memory, or ''."""
    workers = (worker for worker in state.fleet.workers.values() if worker.memory)
    nodes = {worker.name: worker.memory for worker in workers if state.expects(worker)}
    nodes[state.goal.node or "the head"] = state.ray.oom_evidence
    return "; ".join(f"on {name} {memory}" for name, memory in nodes.items() if memory)


def must_ask_nodes(state: HeadState, report: JobReport, now: float) -> bool:
    """Return whether to ask all nodes first: the job failed, and a lost node may be the cause."""
    failed = report.status == "FAILED" and not report.blames_runtime_env
    if not failed or report.ran_out_of_memory or recent_loss(state, now):
        return False
    return state.goal.has_job and bool(state.fleet.alive)


def verdict_of_attempt(state: HeadState, report: JobReport, now: float) -> Outcome:
    """Return the end of an attempt: the job's own result, or a loss that may be retried."""
    report = replace(report, memory=report.memory or out_of_memory_nodes(state))
    ended_at = state.job.ended_at
    is_before = ended_at is None or (state.losses.last_at or 0.0) <= ended_at
    own = attempts.verdict_of(report, state.losses.last if is_before else "")

    # Did a loss cause the failure?
    loss = recent_loss(state, now)
    if not loss or own.kind is not Kind.JOB_FAILED or report.ran_out_of_memory:
        return own
    if not state.another_follows:
        return attempts.verdict_of(report, loss)

    # Does its output show a cause that another try on the same nodes cannot help?
    cause = report.cause
    if cause is not None and cause.is_permanent and cause.node not in unreturned_nodes(state):
        own = attempts.verdict_of(report, loss)
        why = f"; not tried again, since another try on the same nodes cannot help: {cause.text}"
        return replace(own, reason=f"{own.reason}{why}")

    why = attempts.verdict_of(report).reason
    return ends.FAILED_AFTER_LOSS.outcome(loss=loss, failure=why)


# --- 4. the next attempt -------------------------------------------------------------------------


def begin_next_attempt(state: HeadState, end: Outcome, now: float) -> HeadState:
    """Begin the next attempt if this end is a loss and retries are left, else leave."""
    if not may_be_retried(end) or not state.goal.has_job:
        return leave(state, end, now)

    # Did a node run out of memory? The next attempt would do so too.
    memory = out_of_memory_nodes(state)
    if memory:
        end = ends.OUT_OF_MEMORY.outcome(evidence=f"{end.reason}; {memory}")
        return leave(state, end, now)

    # Is a retry left? Announced losses do not use one, up to a number.
    durable = durable_after_attempt(state, end, now)
    tried = durable.tried
    losses = attempts.count_losses(tried)
    if losses > state.goal.retries:
        return leave(state, replace(end, attempts_are_used_up=True), now)

    # After an announced loss the next attempt begins at once, else after a pause, which
    # `shorten_pause` drops where the lost attempt made steps.
    announced = sum(attempt.announced for attempt in tried)
    ended = durable.ended[-1]
    if ended.announced and announced <= attempts.MOST_ANNOUNCED:
        pause = 0.0
        count = f"{announced} of {attempts.MOST_ANNOUNCED}"
        free = f"announced losses that AGENT_JOB_RETRIES does not count: {count}"
        follows = f"the next begins once the nodes are there ({free})"
    else:
        pause = attempts.pause_after(tried)
        follows = "the next begins once the nodes are there"
        if pause:
            follows = f"the next begins in {pause:g} s at the earliest, sooner if this made steps"
    lost = f"attempt {ended.number} of {state.last_attempt_number} is lost: {end.reason}"
    state = state.log(f"{lost}; {follows}", "warning")

    # The boot begins again: with all expected workers, once the nodes are clear.
    state = record_leftovers(state, now)
    state = renew_members(state.with_earlier(number=state.earlier.number + 1, former_workers=()))
    durable = durable.without_shortage(now).before_attempt(state.goal.expected_workers)
    state = replace(state, durable=durable)
    state = replace(state, job=state.job.of_next(), began=now, not_before=now + pause)
    return state.enter(HeadPhase.BOOTING, now)


def durable_after_attempt(state: HeadState, end: Outcome, now: float) -> Durable:
    """Return what is durable once the present attempt has ended so."""
    submitted = state.attempt.submitted
    seconds = None if submitted is None else now - submitted
    return state.durable.with_end(end, state.utc(now), seconds, state.job.report)


def ask_progress(state: HeadState, turn: Turn) -> HeadState:
    """Ask what an attempt has made once it has ended, and its output was read to its end."""
    has_ended = state.earlier.number > turn.before.earlier.number
    was_left = is_output_left(turn.before)
    if is_output_left(state) or not (has_ended or was_left):
        return state
    return ask_of_last(state)


def ask_of_last(state: HeadState) -> HeadState:
    """Ask what the last attempt has made, this head's or one of an earlier agent."""
    ended = state.durable.ended
    return state.do(h.Ask(h.AskProgress(ended[-1].number if ended else 0)))


def apply_progress(state: HeadState, made: h.ProgressKnown) -> HeadState:
    """Apply what an attempt has made; a step that an earlier agent has recorded stays."""
    state = state.with_earlier(newest_checkpoint=made.checkpoint, resumes_from=made.path)
    if made.last_step is None:
        return state
    ended = (
        replace(one, last_step=made.last_step) if one.number == made.attempt else one
        for one in state.durable.ended
    )
    return state.with_durable(ended=tuple(ended))


def shorten_pause(state: HeadState) -> HeadState:
    """Drop the pause before this attempt if the last one is known now to have made steps."""
    pause = attempts.pause_after(state.lost_attempts)
    return replace(state, not_before=min(state.not_before, state.began + pause))


def attempt_sentence(state: HeadState) -> str:
    """Describe the attempt that begins: its number, the loss before, its nodes."""
    before = [attempt.reason for attempt in state.lost_attempts[-1:]]
    nodes = f"{len(state.fleet.alive) + 1} of {state.goal.expected_workers + 1} node(s)"
    checkpoint = state.earlier.resumes_from
    resumes = [f"resumes from {checkpoint}"] if checkpoint else []
    what = "; ".join([*before, nodes, *resumes])
    return f"attempt {state.attempt.number} of {state.last_attempt_number}: {what}"


# --- 5. what is left of the last attempt ---------------------------------------------------------


def record_leftovers(state: HeadState, now: float) -> HeadState:
    """Record which nodes may still run processes of an attempt that has ended."""
    fleet = state.fleet
    running = (key for key, worker in fleet.workers.items() if _runs_attempt(worker))
    leftovers = {key: now for key in running if state.relies_on(key)}
    known = {worker.name for worker in fleet.workers.values()}

    # Nodes without an agent, and those that only a killed agent counted. On a given Ray the
    # job's status covers all nodes.
    if state.goal.owns_ray:
        leftovers |= {ip: now for ip in fleet.alive if ip not in fleet.agent_at}
        leftovers |= {name: now for name in state.earlier.former_workers if name not in known}

    # Lost nodes whose agent never reported to this head.
    lost_at = now if state.losses.last_at is None else state.losses.last_at
    leftovers |= {name: lost_at for name in state.attempt.lost_nodes if name not in known}
    return state.with_earlier(leftovers=leftovers, ray=state.ray.item.generation)


def is_output_left(state: HeadState) -> bool:
    """Return whether the output of a job that is not wanted any more is not read to its end."""
    job = state.items.get(JOB)
    return state.job.want is None and job is not None and job.is_running


def left_here(state: HeadState) -> ItemReport | None:
    """Return what the last attempt ran in on this node, while anything of it is left."""
    name, last = RAY, state.earlier.ray
    if state.goal.by_shares:
        name, last = SHARE, state.attempt.number - 1
    item = state.items.get(name)
    return item if item is not None and item.is_running and item.generation <= last else None


def _runs_attempt(worker: Worker) -> bool:
    """Return whether processes of an attempt may run on a node."""
    return any(item.is_running for item in (worker.item(RAY), worker.item(SHARE)) if item)


def _runs_earlier_attempt(state: HeadState, worker: Worker) -> bool:
    """Return whether processes of an attempt before this one may run on a node."""
    if state.attempt.number == 1:
        return False
    ray = worker.item(RAY)
    share = worker.item(SHARE)
    in_ray = ray is not None and ray.is_running and ray.generation < state.durable.epoch
    in_share = share is not None and share.is_running and share.generation < state.attempt.number
    return in_ray or in_share


def apply_cleared(state: HeadState, worker: Worker) -> HeadState:
    """Apply a worker's report of what still runs there from earlier attempts."""
    leftovers = state.earlier.leftovers
    is_early = not state.runs_attempt
    is_unclear = _runs_earlier_attempt(state, worker)
    if not is_early or worker.has_left or (not leftovers and not is_unclear):
        return state
    if not state.expects(worker):
        return state

    # This node is one of them only while it runs an earlier attempt.
    names = {worker.key, worker.name}
    others = {name: since for name, since in leftovers.items() if name not in names}
    if is_unclear:
        others[worker.key] = 0.0
    return state.with_earlier(leftovers=others)


def expire_leftovers(state: HeadState, now: float) -> HeadState:
    """Drop nodes that were unreachable for AGENT_NODE_GRACE: their fence has stopped all."""
    leftovers = state.earlier.leftovers
    if not leftovers:
        return state
    grace = state.goal.limits[wait_keys.NODE]
    remaining = {
        key: leftovers[key]
        for key, _, away in _leftovers(state)
        if away is None or away + grace > now  # the same sum as the wait's deadline
    }
    return state if len(remaining) == len(leftovers) else state.with_earlier(leftovers=remaining)


def clearing_waits(state: HeadState) -> Iterator[Wait]:
    """Wait for reachable nodes to stop the last attempt, and for the fence of the others."""
    before = f"the end of attempt {state.attempt.number - 1}"
    here = sorted(name for _, name, at in _leftovers(state) if at is None)
    away = {name: at for _, name, at in _leftovers(state) if at is not None}
    grace = state.goal.limits[wait_keys.NODE]

    until = state.began + grace + times.EARLIER_ATTEMPT_ENDS

    own_item = left_here(state)
    if here or own_item is not None:
        own = []
        evidence = "its agent answers, and what it ran is not gone yet"
        if own_item is not None:
            own = ["this node"]
            evidence = own_item.doubt or "it is being ended"
        yield Wait(wait_keys.CLEAR, f"{before} on {listed([*own, *here])}", until, evidence)
    if is_output_left(state):
        yield Wait(wait_keys.CLEAR, "the rest of the job's output", until, "it is being read")

    if away:
        what = f"{before} on {listed(sorted(away))}, out of reach"
        fenced_at = max(away.values()) + grace
        yield Wait(wait_keys.UNREACHABLE, what, fenced_at, "it ends all itself by then")


def _leftovers(state: HeadState) -> Iterator[tuple[str, str, float | None]]:
    """Yield key and name of each node that may be left, and since when it is out of reach."""
    for key, since in state.earlier.leftovers.items():
        worker = state.fleet.workers.get(key)
        if worker is None:
            yield key, key, since
        elif worker.silent:
            yield key, worker.label, worker.silent_since
        else:
            yield key, worker.label, worker.last_report_at if worker.has_left else None
