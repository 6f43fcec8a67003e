"""Nodes that a platform takes away: let the job save, stop it, and release the nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.base import ends
from agent.base.text import listed
from agent.decisions.head import retry
from agent.decisions.head import state as h
from agent.decisions.head.phases import stop_job
from agent.decisions.head.state import HeadPhase, Saving
from agent.decisions.values import LogLine

if TYPE_CHECKING:
    from agent.decisions.head.fleet import Worker
    from agent.decisions.head.state import Decision, HeadState, Turn


def answer_notices(state: HeadState, turn: Turn) -> Decision:
    """Have the job save before it loses an announced node; release nodes that nothing waits for."""
    event, former = turn.event, state.leaving
    if isinstance(event, h.WorkerReported) and event.worker.notice is not None:
        state = _with_notice(state, event.worker)
    if isinstance(event, h.WorkerReplaced) and event.key in state.leaving | state.released:
        gone = {event.key}
        state = replace(state, leaving=state.leaving - gone, released=state.released - gone)
    if not state.leaving:
        return state, ()
    is_free = state.phase is HeadPhase.RUNNING and state.goal.has_job and state.verdict is None
    if state.leaving != former and is_free and state.goal.notice_signal and _is_needed(state):
        return _save_first(state, turn.now)
    if state.saving is not None:
        return state, ()
    free = sorted(state.leaving)
    state = replace(state, leaving=frozenset(), released=state.released | state.leaving)
    return state, tuple(h.ReleaseWorker(key) for key in free)


def _with_notice(state: HeadState, worker: Worker) -> HeadState:
    """Record a notice with the running attempt, and that the worker waits for an answer."""
    attempt, goal = state.attempt, state.goal
    is_running = attempt.submitted is not None and attempt.ended is None
    # without retries and without the signal, a notice leads to no further attempt
    may_retry = bool(goal.retries or goal.notice_signal)
    if is_running and may_retry and worker.name not in attempt.announced_nodes:
        names = (*attempt.announced_nodes, worker.name)[-retry.MAX_LOST_NODES :]
        state = replace(state, attempt=replace(attempt, announced_nodes=names))
    if worker.has_left:
        return replace(state, leaving=state.leaving - {worker.key})
    if worker.key in state.released:
        return state
    return replace(state, leaving=state.leaving | {worker.key})


def _is_needed(state: HeadState) -> bool:
    """Return whether the attempt cannot go on without the nodes that are taken away."""
    if state.goal.by_torchrun:
        return not state.leaving.isdisjoint(state.shares.by_node)
    workers = state.fleet.workers
    ips = {workers[key].ip for key in state.leaving if key in workers}
    gone = {ip: name for ip, name in state.fleet.alive.items() if ip in ips}
    return retry.is_below_required(retry.without_workers(state, gone))


def _save_first(state: HeadState, now: float) -> Decision:
    """Send the job its signal; it is stopped when it has saved, or when the first node leaves."""
    known = state.fleet.workers
    workers = [known[key] for key in sorted(state.leaving) if key in known]
    nodes = listed([worker.label for worker in workers])
    seconds = min((worker.notice or 0.0 for worker in workers), default=0.0)
    end = ends.NODE_TAKEN.outcome(nodes=nodes)
    within = f"the job may save within {round(seconds)} s, and is stopped then"
    log = LogLine(f"{end.reason}: {within}", "warning")
    return stop_job(state, end, now, (log,), Saving(now + seconds, is_of_grace=False))
