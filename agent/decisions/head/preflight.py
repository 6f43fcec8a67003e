"""The all-reduce over all nodes before the job (AGENT_PREFLIGHT).

Once all nodes are there it is wanted of each of them, once in a run: each runs its ranks, the head
the first. The head's own item has the result, on which the run goes on or ends. A member that is
lost meanwhile, or whose ranks fail, shortens the wait for that result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.base import ends, times
from agent.base.text import listed
from agent.checks.network import PREFLIGHT, all_reduce_result
from agent.decisions import shared as v
from agent.decisions.head.head_state import Preflight, leave
from agent.frameworks.recipe import NodeSize
from agent.job.share import ShareArgs
from agent.plan import waits as wait_keys

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.decisions.head.head_state import HeadState


def begin_preflight(state: HeadState, now: float) -> HeadState:
    """Want the all-reduce of all nodes, once, if AGENT_PREFLIGHT asks for it."""
    goal = state.goal
    fleet = state.fleet
    if not goal.preflight or state.preflight is not None:
        return state

    # The members by rank, each with its GPUs: as Ray counts them where a job runs on Ray.
    by_ray = {} if goal.by_shares else state.ray.node_sizes
    own = by_ray.get(state.ray.head_ip or "", goal.size)
    members = [(v.HERE, goal.node or "the head", own.gpus)]
    for worker in fleet.present():
        gpus = by_ray.get(worker.ip, NodeSize(state.gpus_for_job(worker))).gpus
        members.append((worker.key, worker.name, gpus))

    # A killed agent may have begun one: that ends first.
    reports = (_item(state, key) for key, *_ in members)
    generation = 1 + max(0 if item is None else item.generation for item in reports)
    sizes = tuple(NodeSize(gpus) for _, _, gpus in members)
    wanted = {key: ShareArgs(rank, sizes) for rank, (key, *_) in enumerate(members)}
    until = now + times.ALL_REDUCE + times.ALL_REDUCE_SPARE
    preflight = Preflight(tuple(members), generation, until, wanted)
    text = f"{PREFLIGHT}: an all-reduce over {len(members)} node(s) before the job"
    return replace(state, preflight=preflight).log(text)


def _item(state: HeadState, node: str) -> v.ItemReport | None:
    """Return a node's ranks, as it last reported them."""
    if node == v.HERE:
        return state.items.get(v.ALL_REDUCE)
    worker = state.fleet.workers.get(node)
    return None if worker is None else worker.item(v.ALL_REDUCE)


def _ended(state: HeadState, preflight: Preflight, node: str) -> v.ItemReport | None:
    """Return how a node's ranks have ended; None while they run."""
    item = _item(state, node)
    if item is None or item.generation != preflight.generation or item.step is v.Step.PENDING:
        return None
    return item


def preflight_waits(state: HeadState) -> Iterator[v.Wait]:
    """Yield the wait for the head's result of the all-reduce."""
    preflight = state.preflight
    if preflight is not None and preflight.until is not None:
        what = f"an all-reduce over all nodes ({PREFLIGHT})"
        yield v.Wait(wait_keys.PREFLIGHT, what, preflight.until)


def finish_preflight(state: HeadState, now: float) -> HeadState:
    """Report the result of the all-reduce once known; leave if it failed."""
    preflight = state.preflight
    if preflight is None or preflight.until is None:
        return state
    until = preflight.until

    # Has a node failed? Then the head's result follows soon, or never.
    names = {key: name for key, name, _ in preflight.members}
    own = _ended(state, preflight, v.HERE)
    ended = {key: _ended(state, preflight, key) for key in names}
    failures = {
        names[key]: item.evidence
        for key, item in ended.items()
        if item is not None and item.step is v.Step.LOST
    }
    if failures and not preflight.has_failed:
        preflight = replace(preflight, has_failed=True)
        until = min(until, now + times.HEAD_RESULT)

    # Was a member lost? It cannot succeed without it: the others have the grace to end.
    present = {v.HERE, *(worker.key for worker in state.fleet.present())}
    gone = tuple(names[key] for key in names if key not in present)
    if own is None and gone and not preflight.lost:
        preflight = replace(preflight, lost=gone)
        until = min(until, now + state.goal.limits[wait_keys.NODE])

    # Is it over: by the head's result, or for lack of it?
    if own is None and now < until:
        return replace(state, preflight=replace(preflight, until=until))
    state = replace(state, preflight=replace(preflight, until=None, wanted={}))

    # Did it succeed, or was it aborted after a loss?
    words = own.words if isinstance(own, v.JobItem) else ""
    members = [(name, gpus) for _, name, gpus in preflight.members]
    speed, failure = all_reduce_result(words, members)
    if not failure:
        return state.log(speed)
    if preflight.lost:
        end = ends.ALL_REDUCE_ABORTED.outcome(check=PREFLIGHT, nodes=listed(preflight.lost))
        return leave(state, end, now)

    # The head's own result is the most detailed; without it, those of the others.
    if failures and not words:
        failure = listed(f"{name}: {why}" for name, why in failures.items())
    return leave(state, ends.ALL_REDUCE_FAILED.outcome(check=PREFLIGHT, failure=failure), now)
