"""Whether Ray stays up between two attempts, or is started anew.

Ray's start takes most of a boot. After a stall, or where the job failed by a loss that is over, Ray
stays up if it can be cleared of the attempt, in this order: its jobs, actors and placement groups
are gone, the head's processes of it are ended, then those of the workers.

Ray is started anew where it cannot be cleared (a detached actor, a process that cannot be ended, a
node that does not report that it is clear), and where it lists a lost node: it would place parts of
the job there until it drops the node after 17 s (Ray 2.60), and a start takes 11 s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.base import times
from agent.decisions.head import head_state as h
from agent.decisions.head.losses import unreturned_nodes
from agent.decisions.shared import HeadAction, HeadEvent, Item, Step

if TYPE_CHECKING:
    from agent.decisions.attempts import Attempt
    from agent.decisions.head.head_state import HeadState


class ClearAttempt(HeadAction):
    """End what is left of an attempt on this node: with its Ray, or within a Ray that is kept."""

    number: int
    keeps_ray: bool = False


class RayNotCleared(HeadEvent):
    """A Ray that was to be kept still has something of an attempt, or does not answer."""

    attempt: int
    left: str


def may_keep(state: HeadState) -> bool:
    """Return whether the attempt that has just ended leaves a healthy Ray of ours.

    A Ray that was kept once is kept again only after a long attempt: it may itself be the fault.
    """
    ray = state.ray
    attempt = state.attempt
    is_healthy = ray.item.step is Step.READY and ray.hang is None
    has_ended = attempt.report is not None and attempt.report.ended
    if not state.goal.owns_ray or not is_healthy or not has_ended:
        return False
    if ray.kept_for == attempt.number and not _was_long(attempt):
        return False

    # Is each of its nodes one to rely on? None may be lost, unless it came back with the same Ray,
    # or leave soon, and each needs an agent that answers, and ends what is left there.
    fleet = state.fleet
    agents = [fleet.workers.get(fleet.agent_at.get(ip, "")) for ip in fleet.ray_nodes]
    has_agents = all(agent is not None and not agent.silent for agent in agents)
    has_all = not any(fleet.uncounted()) and not unreturned_nodes(state)
    lost = set(attempt.lost_nodes) - set(attempt.lost_workers.values())
    is_known = not attempt.former_workers and not attempt.announced_nodes
    return has_agents and has_all and not lost and is_known


def _was_long(attempt: Attempt) -> bool:
    last = attempt.last_status_at
    return last - (last if attempt.submitted is None else attempt.submitted) > times.ATTEMPT_SHORT


def keep_ray(state: HeadState) -> HeadState:
    """Clear the Ray in which the last attempt ran, for the next one."""
    number = state.attempt.number
    state = state.with_ray(kept_for=number).log("Ray stays up for the next attempt")
    return state.do(ClearAttempt(number - 1, keeps_ray=True))


def is_being_cleared(state: HeadState) -> bool:
    """Return whether the head still clears its Ray: workers end the last attempt after that."""
    is_kept = state.ray.kept_for == state.attempt.number
    return is_kept and state.earlier.own_leftovers is not None


def is_about(state: HeadState, event: RayNotCleared) -> bool:
    """Return whether an answer is about the Ray that now stays up for the next attempt."""
    number = state.attempt.number
    return state.ray.kept_for == number and event.attempt == number - 1


def replace_ray(state: HeadState, ray: Item) -> HeadState:
    """Start Ray anew, and reset the state that belongs to the one before."""
    if is_being_cleared(state):
        state = state.do(ClearAttempt(state.attempt.number - 1))
    state = state.with_ray(
        item=ray, hang=None, gcs_answers=False, head_ip=None, node_sizes={}, kept_for=0
    )
    return replace(state, fleet=state.fleet.with_ray_nodes(())).do(h.RestartRay())


def replace_uncleared_ray(state: HeadState, why: str, now: float) -> HeadState:
    """Start a Ray anew that was to stay up and cannot be cleared; its deadlines start again."""
    what = f"Ray cannot stay up for the next attempt ({why})"
    state = state.log(f"{what}: starting it anew", "warning")
    state = replace(state, attempt=replace(state.attempt, began=now))
    return replace_ray(state.with_earlier(own_leftovers="it is being ended"), Item())
