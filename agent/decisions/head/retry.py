"""Losses of nodes, shares of a torchrun job, the next attempt, and how the run ends."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.base import ends, times
from agent.base.ends import Kind, Outcome
from agent.base.text import listed
from agent.decisions import attempts
from agent.decisions.attempts import (
    Attempt,
    AttemptSnapshot,
    JobReport,
    LostAttempt,
    is_loss,
    submission_id_of,
)
from agent.decisions.head import head_state as h
from agent.decisions.head.head_state import HeadPhase, HeadState, JobShares, NodeShare
from agent.decisions.shared import HERE, Step, Wait
from agent.frameworks.recipe import NodeSize
from agent.plan import waits as planned

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from agent.decisions.head.fleet import Fleet, Worker
    from agent.job.torchrun_command import ShareOver


def leave(state: HeadState, outcome: Outcome, now: float) -> HeadState:
    """Leave with an outcome, which also ends the running attempt."""
    outcome = outcome if outcome.phase else replace(outcome, phase=state.phase.value)
    attempt = state.attempt
    if attempt.submitted is not None:
        attempt = replace(attempt, ended=now, end=outcome)
    state = replace(state, verdict=outcome, attempt=attempt)
    return state.enter(HeadPhase.LEAVING, now).do(h.EndRun(outcome))


def ray_lost_outcome(state: HeadState) -> Outcome:
    """Return the outcome of an attempt whose Ray on the head exited."""
    return ends.RAY_LOST_ON_HEAD.outcome(evidence=state.ray.evidence)


def record_leftovers(state: HeadState, now: float) -> HeadState:
    """Record which nodes may still run processes of an attempt that has ended."""
    fleet = state.fleet
    running = (key for key, worker in fleet.workers.items() if worker.running_attempt)
    left = {key: now for key in running if state.relies_on(key)}
    known = {worker.name for worker in fleet.workers.values()}
    if state.goal.owns_ray:  # on a given Ray the job's status covers all nodes
        left |= {ip: now for ip in fleet.alive if ip not in fleet.agent_at}
        left |= {name: now for name in state.attempt.former_workers if name not in known}
    lost_at = now if state.last_loss_at is None else state.last_loss_at
    left |= {name: lost_at for name in state.attempt.lost_nodes if name not in known}
    return replace(state, leftovers=left, own_leftovers="it is being ended")


def apply_cleared(state: HeadState, worker: Worker) -> HeadState:
    """Apply a worker's report of what still runs there from earlier attempts."""
    left = state.leftovers
    is_early = state.attempt.submitted is None
    unclear = 0 < worker.running_attempt < state.attempt.number
    if not is_early or worker.has_left or (not left and not unclear):
        return state
    if not state.expects(worker):
        return state
    others = {name: since for name, since in left.items() if name not in {worker.key, worker.name}}
    return replace(state, leftovers={**others, worker.key: 0.0} if unclear else others)


def expire_leftovers(state: HeadState, now: float) -> HeadState:
    """Drop nodes that were unreachable for AGENT_NODE_GRACE: their fence has stopped all."""
    if not state.leftovers:
        return state
    grace = state.goal.limits[planned.NODE]
    left = {
        key: state.leftovers[key]
        for key, _, away in _leftovers(state)
        if away is None or away + grace > now  # the same sum as the wait's deadline
    }
    return state if len(left) == len(state.leftovers) else replace(state, leftovers=left)


def clearing_waits(state: HeadState) -> Iterator[Wait]:
    """Wait for reachable nodes to stop the last attempt, and for the fence of the others."""
    before = f"the end of attempt {state.attempt.number - 1}"
    here = sorted(name for _, name, at in _leftovers(state) if at is None)
    away = {name: at for _, name, at in _leftovers(state) if at is not None}
    grace = state.goal.limits[planned.NODE]
    if here or state.own_leftovers is not None:
        until = state.attempt.began + grace + times.EARLIER_ATTEMPT_ENDS
        own = [] if state.own_leftovers is None else ["this node"]
        evidence = state.own_leftovers or "its agent answers, and what it ran is not gone yet"
        yield Wait(planned.CLEAR, f"{before} on {listed([*own, *here])}", until, evidence)
    if away:
        what = f"{before} on {listed(sorted(away))}, out of reach"
        until = max(away.values()) + grace
        yield Wait(planned.UNREACHABLE, what, until, "it ends all itself by then")


def _leftovers(state: HeadState) -> Iterator[tuple[str, str, float | None]]:
    """Yield key and name of each node that may be left, and since when it is out of reach."""
    for key, since in state.leftovers.items():
        worker = state.fleet.workers.get(key)
        if worker is None:
            yield key, key, since
        elif worker.silent:
            yield key, worker.label, worker.silent_since
        else:
            yield key, worker.label, worker.last_report_at if worker.has_left else None


MAX_NODES_BY_NAME = 20_000  # how many nodes of an attempt are kept by name, the newest


def nodes_that_left(before: Fleet, state: HeadState) -> dict[str, str]:
    """Return the nodes, address to name, that counted or that GCS listed, and do so no longer.

    Ray uses each that it lists, also one that does not count. One that counted before was lost
    earlier than GCS drops it.
    """
    fleet = state.fleet
    was = before.alive
    left = dict[str, str]()
    if was is not fleet.alive:
        left = {ip: name for ip, name in was.items() if ip not in fleet.alive}
    if before.ray_nodes is not fleet.ray_nodes:
        gone = (ip for ip in before.ray_nodes if ip not in fleet.ray_nodes and ip not in was)
        uncounted = {ip: before.label_at(ip) for ip in gone}
        known = {*state.attempt.lost_nodes} if uncounted else set()
        left |= {ip: name for ip, name in uncounted.items() if name not in known}
    return left


def record_losses(state: HeadState, left: Mapping[str, str], now: float) -> HeadState:
    """Record nodes (address to name) that were lost while an attempt ran."""
    attempt = state.attempt
    if not left or attempt.submitted is None or attempt.ended is not None:
        return state
    gone = tuple(dict.fromkeys((*attempt.lost_nodes, *left.values())))[-MAX_NODES_BY_NAME:]
    own = {ip: name for ip, name in left.items() if ip in attempt.workers}
    attempt = replace(attempt, lost_nodes=gone, lost_workers={**attempt.lost_workers, **own})
    loss = f"{listed(left.values())} {'was' if len(left) == 1 else 'were'} lost"
    return replace(state, attempt=attempt, last_loss=loss, last_loss_at=now)


def record_losses_before_resume(state: HeadState, now: float) -> HeadState:
    """Record as lost the workers of an attempt that left while no head agent ran."""
    attempt = state.attempt
    alive = state.fleet.alive
    accounted = {*alive, *attempt.lost_workers}
    left = {ip: name for ip, name in attempt.workers.items() if ip not in accounted}
    return record_losses(state, left, now)


def fix_required_workers(state: HeadState) -> HeadState:
    """Set which workers an attempt requires, and how many, as it is submitted.

    A job that is sized to its nodes requires each worker in its size: without one of them ranks
    have no peer, however few workers were expected. If more were expected than its size counts,
    it requires all that joined. For a job without a size any worker may be a spare.
    """
    places = state.fleet.alive
    required = state.required
    if state.goal.is_sized_to_nodes:
        having = {ip for ip, size in state.node_sizes.items() if size.gpus}
        sized = places  # the workers in the job's size: those with GPUs, if any node has GPUs
        if not having.isdisjoint({state.ray_head_ip, *places}):
            sized = {ip: name for ip, name in places.items() if ip in having}
        places = sized if len(sized) >= required else places
        required = len(places)
    return replace(state, attempt=replace(state.attempt, workers=places), required=required)


def unreturned_nodes(state: HeadState) -> tuple[str, ...]:
    """Return the workers of the running attempt that were lost and have not rejoined."""
    missed = state.attempt.lost_workers
    alive = state.fleet.alive
    present = set(alive.values()) if missed else set()
    return tuple(name for ip, name in missed.items() if ip not in alive and name not in present)


def is_below_required(state: HeadState) -> bool:
    """Return whether required workers are missing; a spare does not replace an attempt's own."""
    if state.goal.by_torchrun:
        return bool(state.shares.absent)
    places = state.attempt.workers
    if len(state.fleet.alive) < state.required or not places:
        return len(state.fleet.alive) < state.required
    return len(places) - len(unreturned_nodes(state)) < state.required


def without_loss(state: HeadState) -> HeadState:
    """Forget the losses of an attempt that is over; the next needs all expected workers."""
    state = replace(state, below_required_since=None, last_loss="", last_loss_at=None)
    return replace(state, required=state.goal.expected_workers)


def job_ended_at(attempt: Attempt, report: JobReport, now: float) -> float | None:
    """Return when the job ended, on the run's clock; None while it runs.

    The clock of a given Ray's machine may differ: a job that Ray reported as running ended later.
    """
    if not report.ended:
        return None
    has_status = attempt.report is not None
    earliest = attempt.last_status_at if has_status else attempt.submitted or 0.0
    return max(earliest, now - report.ended_ago)


def recent_loss(state: HeadState, now: float) -> str:
    """Return the loss that may have caused a failure of the job, or ''.

    The job's end counts, not when Ray reported it. A loss is noticed some seconds later.
    """
    if state.ray.step is Step.LOST:
        return ray_lost_outcome(state).reason
    lost_at = state.last_loss_at
    ended_at = state.attempt.job_ended_at
    ended_at = now if ended_at is None else ended_at
    late = times.GCS_REPORTS_LOSS if state.goal.ray_is_given else times.LOSS_NOTICED
    if lost_at is None or not ended_at - times.RECENT_LOSS < lost_at <= ended_at + late:
        return ""
    return state.last_loss


def out_of_memory_nodes(state: HeadState) -> str:
    """Return the nodes on which the kernel just killed a process for memory, or ''."""
    workers = (worker for worker in state.fleet.workers.values() if worker.memory)
    nodes = {worker.name: worker.memory for worker in workers if state.expects(worker)}
    nodes[state.goal.node or "the head"] = state.oom_evidence
    return "; ".join(f"on {name} {memory}" for name, memory in nodes.items() if memory)


def must_ask_nodes(state: HeadState, report: JobReport, now: float) -> bool:
    """Return whether to ask all nodes first: the job failed, and a lost node may be the cause."""
    failed = report.status == "FAILED" and not report.blames_runtime_env
    if not failed or report.ran_out_of_memory or recent_loss(state, now):
        return False
    return state.goal.has_job and bool(state.fleet.alive)


def attempt_end(state: HeadState, report: JobReport, now: float) -> Outcome:
    """Return the end of an attempt: the job's own result, or a loss that may be retried."""
    report = replace(report, memory=report.memory or out_of_memory_nodes(state))
    loss = recent_loss(state, now)
    ended_at = state.attempt.job_ended_at
    is_before = ended_at is None or (state.last_loss_at or 0.0) <= ended_at
    own = attempts.verdict_of(report, state.last_loss if is_before else "")
    if not loss or own.kind is not Kind.JOB_FAILED or report.ran_out_of_memory:
        return own
    if not state.another_follows:
        return attempts.verdict_of(report, loss)
    cause = report.cause
    if cause is not None and cause.is_permanent and cause.node not in unreturned_nodes(state):
        own = attempts.verdict_of(report, loss)
        why = f"; not tried again, since another try on the same nodes cannot help: {cause.text}"
        return replace(own, reason=f"{own.reason}{why}")
    why = attempts.verdict_of(report).reason
    return ends.FAILED_AFTER_LOSS.outcome(loss=loss, failure=why)


def begin_next_attempt(state: HeadState, end: Outcome, now: float) -> HeadState:
    """Begin the next attempt if this end is a loss and retries are left, else leave."""
    if not is_loss(end) or not state.goal.has_job:
        return leave(state, end, now)
    memory = out_of_memory_nodes(state)
    if memory:
        end = ends.OUT_OF_MEMORY.outcome(evidence=f"{end.reason}; {memory}")
        return leave(state, end, now)
    ended = replace(state.attempt, ended=now, end=end)
    earlier = (*state.earlier_attempts, ended)
    tried = (*state.goal.lost_attempts, *(one.as_lost for one in earlier))
    losses = attempts.count_losses(tried)
    if losses > state.goal.retries:
        return leave(state, replace(end, attempts_are_used_up=True), now)
    number = ended.number + 1
    announced = sum(one.announced for one in tried)
    is_free = ended.loss_was_announced and announced <= attempts.MOST_ANNOUNCED
    pause = 0.0 if is_free else attempts.pause_after(losses)
    follows = f"the next begins in {pause:g} s at the earliest"
    if is_free:
        free = f"announced losses that AGENT_JOB_RETRIES does not count: {announced}"
        follows = f"the next begins once the nodes are there ({free} of {attempts.MOST_ANNOUNCED})"
    lost = f"attempt {ended.number} of {state.last_attempt_number} is lost: {end.reason}"
    state = without_loss(record_leftovers(state.log(f"{lost}; {follows}", "warning"), now))
    attempt = Attempt(submission_id_of(state.goal.run_id, number), number, now, now + pause)
    state = replace(state, attempt=attempt, earlier_attempts=earlier, verdict=None)
    return state.enter(HeadPhase.BOOTING, now).do(h.Retry(ended))


def adopt_run(state: HeadState, event: h.RunRemembered, now: float) -> HeadState:
    """Continue the run that a worker reports; leave if no attempt is left."""
    if event.attempt and not state.goal.ray_is_given:  # its last attempt may still run there
        state = replace(state, leftovers={**state.leftovers, "the former head": now})
    tried = (LostAttempt(math.inf, ends.HEAD_LOST.reason),) * event.attempt
    number = event.attempt + 1
    attempt = replace(state.attempt, id=submission_id_of(event.run_id, number), number=number)
    goal = replace(state.goal, run_id=event.run_id, lost_attempts=tried, first_attempt=number)
    text = f"a worker reports run {event.run_id}: continuing it, attempts so far: {event.attempt}"
    state = replace(state, goal=goal, attempt=attempt).log(text)
    state = state.do(h.AdoptRun(event.run_id, event.attempt, event.epoch))
    over = attempts.retries_exhausted(tried, goal.retries)
    return state if over is None else leave(state, over, now)


def may_run_on(state: HeadState, event: h.RunRemembered) -> bool:
    """Return whether the attempt that a worker reports may run on this node's Ray.

    A killed agent has started that Ray, and the worker follows no later one.
    """
    is_former_ray = state.goal.has_former_ray and not state.ray.restarts
    return is_former_ray and bool(event.attempt) and not event.epoch


def newest_job(first: str, ids: Collection[str]) -> int:
    """Return the number of a run's newest attempt in Ray, by the id of its first; 0 for none."""
    numbers = [1] if first in ids else []
    for one in ids:
        name, _, number = one.rpartition("-")
        if name == first and number.isdecimal():
            numbers.append(int(number))
    return max(numbers, default=0)


def follow_remembered(state: HeadState, event: h.RunRemembered, now: float) -> HeadState:
    """Follow an attempt that has no record, if Ray has its job; else it is the next to begin."""
    run_id = event.run_id
    number = event.attempt
    own = submission_id_of(run_id, number, state.goal.submission_id)
    attempt = Attempt(own, number, began=state.attempt.began)
    snapshot = AttemptSnapshot(replace(attempt, submitted=now), state.required)
    tried = (LostAttempt(math.inf, ends.HEAD_LOST.reason),) * (number - 1)
    goal = replace(state.goal, run_id=run_id, lost_attempts=tried, first_attempt=number)
    goal = replace(goal, resumed_attempt=snapshot)
    state = replace(state, goal=goal, attempt=attempt).enter(HeadPhase.RESUMING, now)
    state = state.log(f"attempt {number} of run {run_id} has no record: looking for its job")
    return state.do(h.AdoptRun(run_id, number - 1, is_running=True))


def attempt_sentence(state: HeadState) -> str:
    """Describe the attempt that begins: its number, the loss before, its nodes."""
    before = [one.reason for one in state.lost_attempts[-1:]]
    nodes = f"{len(state.fleet.alive) + 1} of {state.goal.expected_workers + 1} node(s)"
    resumes = [f"resumes from {state.resumes_from}"] if state.resumes_from else []
    what = "; ".join([*before, nodes, *resumes])
    return f"attempt {state.attempt.number} of {state.last_attempt_number}: {what}"


def start_shares(state: HeadState) -> HeadState:
    """Give each node that counts a share: the head first, then workers by rank."""
    fleet = state.fleet
    goal = state.goal
    shares = {HERE: NodeShare(goal.node, goal.size)}
    for worker in filter(state.expects, fleet.present()):
        facts = fleet.facts.get(worker.key)
        size = NodeSize(worker.gpus)
        if facts is not None:
            size = NodeSize(worker.gpus, facts.cpus, facts.memory, facts.gpu_memory)
        shares[worker.key] = NodeShare(worker.name, size)
    return replace(state, shares=JobShares(shares))


def apply_share_end(state: HeadState, key: str, over: ShareOver | None, now: float) -> HeadState:
    """Record the end of a node's share of this attempt, once."""
    shares = state.shares
    share = shares.by_node.get(key)
    if over is None or share is None or share.end or over.attempt != state.attempt.number:
        return state
    end = over.end
    by_node = {**shares.by_node, key: replace(share, end=end, failed_at=now - end.ago)}
    return replace(state, shares=replace(shares, by_node=by_node))


def recount_absent(before: HeadState, state: HeadState) -> HeadState:
    """Recompute which running shares are absent, if the counted workers or shares changed."""
    then = before.fleet
    now = state.fleet
    is_same = then.alive is now.alive and then.agent_at is now.agent_at
    if is_same and before.shares.by_node is state.shares.by_node:
        return state
    absent = frozenset(key for key in state.shares.running if not _node_has_share(state, key))
    return replace(state, shares=replace(state.shares, absent=absent))


def job_report(state: HeadState) -> JobReport | None:
    """Return the job's status from all shares; None while none failed and some run."""
    failed = state.shares.first_failed
    if failed is None or failed.end is None:
        shares = state.shares.by_node.values()
        succeeded = shares and all(share.end and share.end.code == 0 for share in shares)
        return JobReport("SUCCEEDED", driver_exit_code=0) if succeeded else None
    rank = failed.end.local_rank
    end = failed.end
    name = "torchrun itself" if rank is None else f"local rank {rank}"
    return JobReport("FAILED", end.words, end.code, place=f"{name} on {failed.node}")


def absent_share_nodes(state: HeadState) -> str:
    """Return the absent nodes whose share has not ended.

    A restarted agent has none of the job's processes, even if its node is back.
    """
    shares = state.shares
    return listed(share.node for key, share in shares.by_node.items() if key in shares.absent)


def shares_verdict(state: HeadState) -> Outcome:
    """Return the end of an attempt whose shares have all ended or are absent.

    A node that cannot report the end of its share was lost, and other failures follow from that.
    """
    absent = absent_share_nodes(state)
    if absent:
        return ends.SHARE_LOST.outcome(nodes=absent)
    report = job_report(state)
    assert report is not None  # noqa: S101 - one failed, or all have ended
    return attempts.verdict_of(report, state.last_loss)


def silent_shares_deadline(state: HeadState) -> float | None:
    """Return when workers that do not answer the order to stop count as absent."""
    if state.shares.is_settled or state.shares.silent_are_absent:
        return None
    return state.phase_since + state.goal.limits[planned.JOB]


def expire_silent_shares(state: HeadState, now: float) -> HeadState:
    """Mark workers as lost that have not reported since the order to stop."""
    until = silent_shares_deadline(state)
    if until is None or now < until:
        return state
    workers = state.fleet.workers
    present = [key for key in state.shares.running if key != HERE and _node_has_share(state, key)]
    silent = [key for key in present if workers[key].last_report_at < state.phase_since]
    after = replace(state, fleet=state.fleet.mark_lost(silent, now))
    after = recount_absent(state, after)
    return replace(after, shares=replace(after.shares, silent_are_absent=True))


def _node_has_share(state: HeadState, key: str) -> bool:
    worker = state.fleet.workers.get(key)
    end = state.shares.by_node[key].end
    is_there = key == HERE or (worker is not None and state.fleet.counts(worker))
    return is_there and not (end and end.lost)
