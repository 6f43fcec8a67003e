"""The shares of a job that a launcher starts, one for each node.

At submission each node that counts gets a share: the head first, then the workers by rank. Each
node reports how its share ended. The first share that failed is the verdict of the job, and the
others are stopped. A running share whose node is absent, or which its node lost, is absent; an
attempt with such a share is lost. The attempt is settled once no share can report any more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.base import ends
from agent.base.text import listed
from agent.decisions import attempts
from agent.decisions.attempts import JobReport
from agent.decisions.head.head_state import HeadPhase, JobShares, NodeShare
from agent.decisions.head.members import lost_engine
from agent.decisions.head.service_addresses import service_address
from agent.decisions.shared import HERE
from agent.frameworks.recipe import NodeSize
from agent.job.services import REWARD
from agent.job.share import ShareArgs
from agent.plan import waits as wait_keys
from agent.settings.jobs import TORCHRUN

if TYPE_CHECKING:
    from agent.base.ends import Outcome
    from agent.decisions.head.head_state import HeadState
    from agent.decisions.shared import ItemReport
    from agent.frameworks.recipe import JobBasis


def start_shares(state: HeadState) -> HeadState:
    """Give each node that counts a share: the head first, then workers by rank."""
    fleet = state.fleet
    goal = state.goal
    shares = {HERE: NodeShare(goal.node, 0, goal.size)}
    for rank, worker in enumerate(filter(state.expects, fleet.present()), 1):
        facts = fleet.facts.get(worker.key)
        gpus = state.gpus_for_job(worker)
        size = NodeSize(gpus)
        if facts is not None:
            size = NodeSize(gpus, facts.cpus, facts.memory, facts.gpu_memory)
        shares[worker.key] = NodeShare(worker.name, rank, size)
    return replace(state, shares=JobShares(shares))


def want_shares(state: HeadState, basis: JobBasis) -> HeadState:
    """Want all shares of the attempt to run, as parts of one job."""
    shares = state.shares
    everywhere = ShareArgs(0, shares.sizes, service_address(state, REWARD) or "", basis)
    wanted = {key: replace(everywhere, rank=share.rank) for key, share in shares.by_node.items()}
    return replace(state, shares=replace(shares, wanted=wanted))


def stop_shares(state: HeadState) -> HeadState:
    """Want all shares to be over: each node ends its own, or reports that it has not begun.

    A node that has not received yet that its share was wanted would have no end to report.
    """
    shares = state.shares
    return replace(state, shares=replace(shares, wanted=dict.fromkeys(shares.by_node)))


def apply_share_end(state: HeadState, key: str, item: ItemReport, now: float) -> HeadState:
    """Record the end of a node's share of this attempt, once."""
    shares = state.shares
    share = shares.by_node.get(key)
    end = item.share_end
    if end is None or share is None or share.end or item.generation != state.attempt.number:
        return state
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


def _node_has_share(state: HeadState, key: str) -> bool:
    worker = state.fleet.workers.get(key)
    end = state.shares.by_node[key].end
    is_there = key == HERE or (worker is not None and state.fleet.counts(worker))
    return is_there and not (end and end.lost)


def job_report(state: HeadState) -> JobReport | None:
    """Return the job's status from all shares; None while none failed and some run."""
    failed = state.shares.first_failed
    if failed is None or failed.end is None:
        shares = state.shares.by_node.values()
        succeeded = shares and all(share.end and share.end.code == 0 for share in shares)
        return JobReport("SUCCEEDED", driver_exit_code=0) if succeeded else None
    end = failed.end
    place = f"local rank {end.local_rank} on {failed.node}"
    if end.local_rank is None:
        what = "torchrun itself" if state.goal.shares_by == TORCHRUN else "the command"
        place = f"{what} on {failed.node}"
    return JobReport("FAILED", end.words, end.code, place=place)


def job_status(state: HeadState) -> str:
    """Return the job's status in the words of Ray's job API, by Ray or by the job's shares."""
    shares = state.shares
    if not state.goal.by_shares:
        report = state.job.report
    elif not shares.by_node:
        report = None
    else:
        report = job_report(state) or JobReport(_status_of_shares(state))
    return report.status.lower() if report else "not submitted"


def _status_of_shares(state: HeadState) -> str:
    """Return the status of a job of which no share failed, and not all succeeded."""
    shares = state.shares
    if state.phase is HeadPhase.SUBMITTING:
        return "PENDING"
    if not shares.is_settled and state.phase is not HeadPhase.LEAVING:
        return "RUNNING"
    return "FAILED" if shares.absent else "STOPPED"


def absent_share_nodes(state: HeadState) -> str:
    """Return the absent nodes whose share has not ended.

    A restarted agent has none of the job's processes, even if its node is back.
    """
    shares = state.shares
    return listed(share.node for key, share in shares.by_node.items() if key in shares.absent)


def shares_verdict(state: HeadState, now: float) -> Outcome:
    """Return the end of an attempt whose shares have all ended or are absent.

    A node that cannot report the end of its share was lost, and other failures follow from that.
    """
    absent = absent_share_nodes(state)
    if absent:
        return ends.SHARE_LOST.outcome(nodes=absent)
    report = job_report(state)
    assert report is not None  # noqa: S101 - one failed, or all have ended
    verdict = attempts.verdict_of(report, state.losses.last)

    # Did it fail since it has lost an engine, which a further attempt has again?
    engine = lost_engine(state, now)
    if engine and verdict.kind is ends.Kind.JOB_FAILED and state.another_follows:
        return ends.FAILED_AFTER_LOSS.outcome(loss=engine, failure=verdict.reason)
    return verdict


def silent_shares_deadline(state: HeadState) -> float | None:
    """Return when workers that do not answer since the stop count as absent."""
    if state.shares.is_settled or state.shares.silent_are_absent:
        return None
    return state.phase_since + state.goal.limits[wait_keys.JOB]


def expire_silent_shares(state: HeadState, now: float) -> HeadState:
    """Mark workers as lost that have not reported since the stop."""
    until = silent_shares_deadline(state)
    if until is None or now < until:
        return state
    workers = state.fleet.workers
    present = [key for key in state.shares.running if key != HERE and _node_has_share(state, key)]
    silent = [key for key in present if workers[key].last_report_at < state.phase_since]
    after = replace(state, fleet=state.fleet.mark_lost(silent, now))
    after = recount_absent(state, after)
    return replace(after, shares=replace(after.shares, silent_are_absent=True))
