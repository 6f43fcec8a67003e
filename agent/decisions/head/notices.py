"""Notices: a worker reports that its platform takes its node away.

A notice is recorded with the running attempt: an attempt that was lost by such nodes alone does
not count against AGENT_JOB_RETRIES. Where the job saves on a signal (AGENT_NOTICE_SIGNAL) and
cannot go on without the node, the job gets the signal, and is stopped once it has saved or the
node leaves; the next attempt follows as after any loss. A worker that nothing waits for is
released: it may leave at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.base import ends
from agent.base.text import listed
from agent.decisions.head import head_state as h
from agent.decisions.head import losses
from agent.decisions.head.head_state import HeadPhase, Notices, Saving
from agent.decisions.head.phases import stop_job

if TYPE_CHECKING:
    from agent.decisions.head.fleet import Worker
    from agent.decisions.head.head_state import HeadState, Turn


def answer_notices(state: HeadState, turn: Turn) -> HeadState:
    """Have the job save before it loses an announced node; release nodes that nothing waits for."""
    event = turn.event
    now = turn.now

    # Which workers' nodes are taken away?
    former = state.notices.leaving
    if isinstance(event, h.WorkerReported) and event.worker.notice is not None:
        state = _with_notice(state, event.worker)
    if isinstance(event, h.WorkerReplaced):
        state = replace(state, notices=state.notices.without(event.key))
    leaving = state.notices.leaving
    if not leaving:
        return state

    # Does the job need one of them? It gets its signal, and is stopped when it has saved, or when
    # the first node leaves.
    is_free = state.phase is HeadPhase.RUNNING and state.goal.has_job and state.outcome is None
    if leaving != former and is_free and state.goal.notice_signal and _is_needed(state):
        workers = state.fleet.workers
        taken = [workers[key] for key in sorted(leaving) if key in workers]
        seconds = min((worker.notice or 0.0 for worker in taken), default=0.0)
        end = ends.NODE_TAKEN.outcome(nodes=listed([worker.label for worker in taken]))
        within = f"the job may save within {round(seconds)} s, and is stopped then"
        state = state.log(f"{end.reason}: {within}", "warning")
        return stop_job(state, end, now, Saving(now + seconds, is_of_grace=False))
    if state.ending.saving is not None:
        return state

    # Nothing waits for them: they may leave.
    return replace(state, notices=Notices(released=state.notices.released | leaving))


def _with_notice(state: HeadState, worker: Worker) -> HeadState:
    """Record a notice with the running attempt, and that the worker waits for an answer."""
    attempt = state.attempt
    goal = state.goal
    notices = state.notices

    # Is it none of the run's? Nothing waits for it.
    if not state.expects(worker):
        if worker.refused or worker.has_left or worker.key in notices.released:
            return state
        notices = replace(notices, released=notices.released | {worker.key})
        return replace(state, notices=notices)

    # Without retries and without the signal, a notice leads to no further attempt.
    may_retry = bool(goal.retries or goal.notice_signal)
    if state.runs_attempt and may_retry and worker.name not in attempt.announced_nodes:
        names = (*attempt.announced_nodes, worker.name)[-losses.MAX_NODES_BY_NAME :]
        state = state.with_attempt(announced_nodes=names)

    if worker.has_left:
        notices = replace(notices, leaving=notices.leaving - {worker.key})
    elif worker.key not in notices.released:
        notices = replace(notices, leaving=notices.leaving | {worker.key})
    return replace(state, notices=notices)


def _is_needed(state: HeadState) -> bool:
    """Return whether the attempt cannot go on without the nodes that are taken away."""
    if state.goal.by_shares:
        return not state.notices.leaving.isdisjoint(state.shares.by_node)
    # as if these nodes were lost
    fleet = state.fleet
    workers = state.attempt.workers
    ips = {fleet.workers[key].ip for key in state.notices.leaving if key in fleet.workers}
    alive = {ip: name for ip, name in fleet.alive.items() if ip not in ips}
    lost = {ip: fleet.alive[ip] for ip in workers.keys() & ips & fleet.alive.keys()}
    state = state.with_attempt(lost_workers={**state.attempt.lost_workers, **lost})
    return losses.is_below_required(replace(state, fleet=replace(fleet, alive=alive)))
