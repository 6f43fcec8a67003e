"""Which workers count as there, and what is known of those that do not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.decisions.shared import listed

if TYPE_CHECKING:
    from agent.decisions.head.state import HeadState, Worker


def alive_workers(state: HeadState) -> dict[str, str]:
    """Return the workers that count, address to name.

    Alive in GCS, once per address; one whose agent ever reported must also have said that it
    joined. A node joined by hand has no agent, and counts by GCS's word alone.
    """
    by_ip = {worker.ip: worker for worker in state.workers.values() if worker.ip}
    found = {}
    for node in state.ray_nodes:
        if node.is_head or not node.alive:
            continue
        worker = by_ip.get(node.ip)
        if worker is None:
            found[node.ip] = node.ip
        elif worker.joined and not worker.gone:
            found[node.ip] = worker.name
    return found


def ray_head(state: HeadState) -> str | None:
    """Return the address of Ray's head, as GCS knows it."""
    return next((n.ip for n in state.ray_nodes if n.is_head and n.alive), None)


def min_gpus(state: HeadState) -> int:
    """Return the GPUs that every node has at least."""
    return min((int(node.gpus) for node in state.ray_nodes if node.alive), default=0)


def never_heard(state: HeadState) -> int:
    """Return how many needed workers neither reported nor joined by hand."""
    alive = alive_workers(state)
    absent = [worker for worker in state.workers.values() if worker.ip not in alive]
    return max(0, state.required - len(alive) - len(absent))


def describe_missing(state: HeadState, now: float | None) -> str:
    """Say how many workers are there, which are not, and the last that was heard of each."""
    alive = alive_workers(state)
    known = sorted(state.workers.values(), key=lambda w: (w.rank is None, w.rank or 0, w.name))
    absent = [worker for worker in known if worker.ip not in alive]
    parts = [f"{len(alive)} of {state.required} joined"]
    ranks = {worker.rank for worker in known if worker.rank is not None}
    never = [rank for rank in range(1, state.required + 1) if rank not in ranks]
    if ranks and never:
        parts.append(f"never heard of rank {listed([str(rank) for rank in never])}")
    else:
        unheard = never_heard(state)
        if unheard:
            parts.append(f"{unheard} never heard of")
    parts += [_last_word(worker, now) for worker in absent]
    return "; ".join(parts)


def _last_word(worker: Worker, now: float | None) -> str:
    name = worker.name if worker.rank is None else f"rank {worker.rank} ({worker.name})"
    if worker.refused:
        return f"{name} was refused: {worker.refused}"
    age = "" if now is None else f" {max(0, round(now - worker.heard))} s ago"
    detail = f", {worker.detail}" if worker.detail else ""
    return f"{name} last said{age}: {worker.phase}{detail}"
