"""Shares of a torchrun job by node, and the verdict that follows from their ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.base import ends
from agent.base.text import listed
from agent.decisions.attempts import JobReport, verdict_of
from agent.decisions.head.state import JobShares, NodeShare
from agent.decisions.values import HERE
from agent.plan import waits as planned
from agent.work.recipes.recipe import NodeSize

if TYPE_CHECKING:
    from agent.base.ends import Outcome
    from agent.decisions.head.state import HeadState
    from agent.work.torchrun import ShareOver


def start_shares(state: HeadState) -> HeadState:
    """Give each node that counts a share: the head first, then workers by rank."""
    fleet, goal = state.fleet, state.goal
    shares = {HERE: NodeShare(goal.node, goal.size)}
    for worker in fleet.present():
        facts, size = fleet.facts.get(worker.key), NodeSize(worker.gpus)
        if facts is not None:
            size = NodeSize(worker.gpus, facts.cpus, facts.memory, facts.gpu_memory)
        shares[worker.key] = NodeShare(worker.name, size)
    return replace(state, shares=JobShares(shares))


def apply_share_end(state: HeadState, key: str, over: ShareOver | None, now: float) -> HeadState:
    """Record the end of a node's share of this attempt, once."""
    share = state.shares.by_node.get(key)
    if over is None or share is None or share.end is not None:
        return state
    if over.attempt != state.attempt.number:
        return state
    end = over.end
    all_shares = state.shares
    by_node = {**all_shares.by_node, key: replace(share, end=end, failed_at=now - end.ago)}
    absent = all_shares.absent | {key} if end.lost else all_shares.absent - {key}
    return replace(state, shares=replace(all_shares, by_node=by_node, absent=absent))


def recount_absent(before: HeadState, state: HeadState) -> HeadState:
    """Recompute which running shares are absent, if the counted workers changed."""
    then, now = before.fleet, state.fleet
    if then.alive is now.alive and then.agent_at is now.agent_at:
        return state
    running = (key for key in state.shares.running if key != HERE)
    absent = frozenset(key for key in running if not _node_has_share(state, key))
    return replace(state, shares=replace(state.shares, absent=absent))


def job_report(state: HeadState) -> JobReport | None:
    """Return the job's status from all shares; None while none failed and some run."""
    failed = state.shares.first_failed
    if failed is None or failed.end is None:
        return JobReport("SUCCEEDED", driver_exit_code=0) if state.shares.all_succeeded else None
    rank, end = failed.end.local_rank, failed.end
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
    return verdict_of(report, state.last_loss)


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
    worker, end = state.fleet.workers.get(key), state.shares.by_node[key].end
    has_lost_it = end is not None and end.lost
    return worker is not None and state.fleet.counts(worker) and not has_lost_it
