"""A worker's Ray that outlived its agent: what the next agent knows of it from the start."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.decisions.worker.state import KeptRay, Phase

if TYPE_CHECKING:
    from agent.boot.node_run import NodeRun
    from agent.decisions.worker.state import WorkerState


def kept_ray(run: NodeRun) -> KeptRay | None:
    """Return what a killed agent left behind; None where there is no Ray of an agent's head."""
    left = run.left
    if left is None or not left.has_ray:
        return None
    was = left.record
    if not (was.epoch and was.attempt and was.head_ip and run.run_id):
        return None
    return KeptRay(was.epoch, was.head_ip, run.run_id, was.attempt, run.at(was.unreached or None))


def had_agent(run: NodeRun) -> bool:
    """Say whether a head's agent answered the killed agent in whose stead this one goes on."""
    return run.left is not None and run.left.record.epoch > 0


def note_reach(run: NodeRun, before: WorkerState, after: WorkerState) -> None:
    """Keep since when the head is out of reach, for an agent that goes on in this one's stead.

    Its epoch is kept from the first answer on: it shows that the head has an agent.
    """
    if after.phase is Phase.FINDING and after.epoch != before.epoch:
        run.node.in_epoch(after.epoch or 0, after.head_ip or "", 0)
    if before.unreached != after.unreached:
        run.node.out_of_reach(0.0 if after.unreached is None else run.started + after.unreached)
