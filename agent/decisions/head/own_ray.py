"""The Ray of the head's node: what is reported of it, and when another is wanted.

It is an item of the head's node, wanted from the first state on. It answers once its port accepts
connections, and is up once GCS lists the head's own node. A Ray that is lost in the boot is
replaced by another, and so is each attempt's: it is wanted anew, as its next generation, which the
node starts once nothing of the former one is left. A new Ray is a new epoch, by which workers join
again.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.base import ends, times
from agent.decisions.head import head_state as h
from agent.decisions.head import losses
from agent.decisions.head.head_state import HeadPhase, HeadState, leave
from agent.decisions.shared import RAY, Item, LogLine, Step, Wait
from agent.plan import waits as wait_keys

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.decisions.head.head_state import Turn

RAY_RESTARTS = 2

# --- what is reported of it -----------------------------------------------------------------------


def apply_ray(before: HeadState, state: HeadState, now: float) -> HeadState:
    """Apply a change of this node's Ray, which `state` has among its items."""
    report = state.items.get(RAY)
    if report is None or report == before.items.get(RAY):
        return state
    ray = state.ray
    item = ray.item
    if losses.left_here(before) is not None and losses.left_here(state) is None:
        item = replace(item, deadline=now + state.goal.limits[wait_keys.HEAD])  # it starts now

    # Of a former one only matters why it is not gone yet.
    if report.generation < item.generation:
        return state.with_ray(item=item.with_evidence(report.doubt) if report.doubt else item)

    # No older one runs any more: the next agent may keep this one.
    state = state.with_durable(replaces_ray=False)
    lasts = ray.doubt != "" and ray.beside_job == report.beside_job
    since = ray.doubt_since if lasts else now  # a job that starts or ends resets the time
    state = state.with_ray(doubt=report.doubt, beside_job=report.beside_job, doubt_since=since)

    if report.step is Step.LOST:
        lost = item.lost(report.evidence, report.output)
        return state.with_ray(item=lost, oom_evidence=report.memory)
    evidence = report.evidence
    if report.step is Step.READY:
        state = state.with_ray(gcs_answers=True)
        evidence = ""
        if item.step is Step.PENDING:
            evidence = "GCS answered, the head's node is not in it yet"
    return state.with_ray(item=item.with_evidence(evidence) if evidence else item)


def is_of_former_ray(state: HeadState, event: h.RaySeen) -> bool:
    """Return whether a bridge has seen a Ray that this node has replaced, or is to replace."""
    return state.goal.owns_ray and event.generation < state.ray.item.generation


def apply_ray_seen(state: HeadState, event: h.RaySeen) -> HeadState:
    """Apply GCS's list of nodes, or why there is none; Ray is up once it has the head's own."""
    if event.evidence:
        return state.with_ray(item=state.ray.item.with_evidence(event.evidence, event.output))
    head = next((node.ip for node in event.nodes if node.is_head and node.alive), None)
    ray = state.ray.item if head is None else state.ray.item.ready()
    sizes = {node.ip: node.size for node in event.nodes if node.alive}
    fleet = state.fleet.with_ray_nodes(event.nodes)
    return replace(state, fleet=fleet).with_ray(item=ray, head_ip=head, node_sizes=sizes)


# --- a stopped process ----------------------------------------------------------------------------


def expire_doubt(state: HeadState, turn: Turn) -> HeadState:
    """Treat Ray as lost if one of its processes is stopped for too long while it is needed."""
    ray = state.ray
    until = ray.doubt_since + times.RAY_HANGS
    if not ray.doubt or not _is_needed(state) or turn.now < until:
        return state
    evidence = f"{ray.doubt} for {round(turn.now - ray.doubt_since)} s"
    return state.with_ray(item=ray.item.lost(evidence), doubt="")


def doubt_waits(state: HeadState) -> Iterator[Wait]:
    """Yield the wait for a stopped process of Ray; `doubt_messages` has logged it already."""
    if state.ray.doubt and _is_needed(state):
        what = "the stopped processes of Ray to continue"
        until = state.ray.doubt_since + times.RAY_HANGS
        yield Wait(wait_keys.HANG, what, until, state.ray.doubt, is_following=True)


def doubt_messages(before: HeadState, after: HeadState) -> Iterator[LogLine]:
    """Yield the log lines for a Ray that hangs or runs again."""
    was = before.ray
    ray = after.ray
    if ray.item.step is Step.LOST or not (was.doubt or ray.doubt):
        return
    if (was.doubt, was.beside_job) == (ray.doubt, ray.beside_job):
        return
    if not ray.doubt:
        yield LogLine("Ray runs again: none of its processes is stopped")
        return
    follows = "left alone, since a job runs that does not need it"
    if _is_needed(after):
        follows = f"Ray is started again unless it continues within {round(times.RAY_HANGS)} s"
    yield LogLine(f"Ray hangs, {ray.doubt}: {follows}", "warning")


def _is_needed(state: HeadState) -> bool:
    """Return whether Ray is needed with all of its processes: no job runs that does without."""
    serves = state.phase is HeadPhase.RUNNING and not state.goal.has_job
    return (serves or state.phase is HeadPhase.BOOTING) and not state.ray.beside_job


# --- the next one ---------------------------------------------------------------------------------


def deadline(state: HeadState) -> float:
    """Return when Ray must be up: later after a lost attempt, whose Ray had to end first."""
    own = state.ray.item.deadline
    until = state.deadline_of(wait_keys.HEAD)
    return max(until, own) if math.isfinite(own) else until


def restart_ray(state: HeadState, now: float) -> HeadState:
    """Restart Ray, which on a busy node exceeds its own start limit of 30 s now and then.

    If Ray was up before, all deadlines of the boot start again: workers have to rejoin. With
    AGENT_JOB=none a running cluster is restarted the same way.
    """
    ray = state.ray.item
    is_running = state.phase is HeadPhase.RUNNING
    most = 0 if state.goal.ray_is_given else RAY_RESTARTS
    tried = ray.recent_restarts(now) if is_running else ray.restarts
    what = "Ray was lost on the head" if ray.was_ready else "Ray did not start"

    # Is a restart left, and time for it?
    is_late = now >= deadline(state) and not ray.was_ready
    if tried >= most or is_late:
        end = ends.RAY_NOT_STARTED.outcome(what=what, evidence=ray.in_full)
        return leave(state, losses.ray_lost_outcome(state) if is_running else end, now)

    if ray.was_ready:
        state = replace(state, began=now)
    again = Item(evidence=ray.evidence, restarts=tried + 1, deadline=ray.deadline)
    again = replace(again, output=ray.output)
    if is_running:
        state = state.enter(HeadPhase.BOOTING, now)
        again = replace(again, restarted_at=now)
    text = f"{what}: {ray.in_full}; starting it again: {tried + 1} of {most}"
    return _replaced(state.log(text, "warning"), again, now)


def renew_ray(state: HeadState, now: float) -> HeadState:
    """Want a new Ray for the next attempt: with the former one all ends that an attempt leaves.

    A given Ray stays: only its watch begins anew, once the attempt has left nothing here.
    """
    if state.goal.owns_ray:
        return _replaced(state, Item(), now)
    if state.goal.by_shares:
        return state
    item = state.ray.item
    return state.with_ray(item=replace(item, generation=item.generation + 1))


def _replaced(state: HeadState, ray: Item, now: float) -> HeadState:
    """Want Ray anew, and reset the state that belongs to the one before.

    Workers stop and join again by the epoch, so that it is on disk before Ray is there.
    """
    durable = state.durable.with_epoch(state.goal.began_at + now)
    state = replace(state, durable=replace(durable, replaces_ray=True))
    ray = replace(ray, generation=state.ray.item.generation + 1)
    state = state.with_ray(item=ray, doubt="", gcs_answers=False, head_ip=None, node_sizes={})
    return replace(state, fleet=state.fleet.with_ray_nodes(()))
