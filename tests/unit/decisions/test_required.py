"""The workers that an attempt requires: those it is sized for, also after a restart."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from agent.decisions.durable import Succession
from agent.decisions.head import head_state as h
from agent.decisions.head.head_state import HeadPhase
from agent.record.run_record import ChosenRun
from agent.run.make_goal import make_goal
from agent.run.run_store import RunStore
from support.heads import (
    HEAD,
    NODES,
    PREPARED,
    SUBMITTED,
    TICK,
    History,
    StopJob,
    SubmitJob,
    Trace,
    goal,
    job,
    nodes,
    reported,
)
from support.run_records import store_of, written
from support.shares import DONE, by_torchrun, share_of
from support.worlds import plan_of

if TYPE_CHECKING:
    from pathlib import Path

SIZED = replace(goal(1, retries=1), is_sized_to_nodes=True)
THREE: History = [
    *((2, reported(2)), (2, reported(3)), (3, nodes(2, 3))),
    *((5, SUBMITTED), (6, job("RUNNING"))),
]
"""One worker is expected, and two have joined when the job is submitted."""
TWO: History = [(2, reported(2)), (3, nodes(2)), (5, SUBMITTED), (6, job("RUNNING"))]
ONE_LOST: History = [*THREE, (9, nodes(2, dead=(3,)))]


@pytest.mark.parametrize(
    ("command", "environ", "is_sized"),
    [
        (["train", "--nnodes={nodes}"], {}, True),
        (["train", "--gpus", "{gpus_per_node}"], {}, True),
        (["sh", "-c", "exec train {total_gpus}"], {}, True),
        (["train", "{head_ip}", "{checkpoints}", "{attempt}"], {}, False),
        (None, {"AGENT_JOB": "rehearsal"}, True),
        (None, {"AGENT_JOB": "none"}, False),
        (["train.py"], {"AGENT_LAUNCHER": "torchrun"}, True),
    ],
)
def test_a_job_is_sized_for_its_nodes(
    command: list[str] | None, environ: dict[str, str], *, is_sized: bool, tmp_path: Path
) -> None:
    """A recipe, a node or GPU placeholder, and torchrun are sized; other commands are not."""
    plan = plan_of(environ, command=command)
    store = RunStore(tmp_path, "f" * 16, ChosenRun("run", None))
    assert make_goal(plan, store, 0.0).is_sized_to_nodes is is_sized
    store.close()


def test_a_sized_attempt_requires_each_worker_that_it_counts() -> None:
    """More than expected: one of them is lost for good, and the job does not hang."""
    trace = Trace(SIZED, ONE_LOST)
    assert "lost a needed node (1 of 2 joined; pod3 last reported" in trace.log
    trace.take(job("RUNNING"), 68)
    trace.take(nodes(2), 69)
    assert trace.effects[-1] == StopJob("run-1")
    trace.take(job("STOPPED"), 70)
    assert "attempt 1 of 2 is lost: lost a needed node (1 of 2" in trace.log
    trace.take(nodes(2), 75)
    trace.take(reported(2), 75)
    assert trace.finish()
    assert trace.effects[-2] == SubmitJob("run-2")  # sized for the remaining nodes


def test_more_workers_than_a_command_without_a_size_needs_are_spares() -> None:
    """It continues without one of them."""
    trace = Trace(goal(1), ONE_LOST)
    assert (trace.state.phase, trace.state.losses.below_required_since) == (HeadPhase.RUNNING, None)


@pytest.mark.parametrize(("lost", "is_short"), [(2, True), (3, False)])
def test_a_node_without_gpus_is_no_part_of_a_size_in_gpus(lost: int, *, is_short: bool) -> None:
    """If any node has GPUs; a worker outside the size is a spare."""
    bare = replace(NODES[3], gpus=0.0)
    both = h.RaySeen((HEAD, NODES[2], bare))
    history = [(at, both if event == nodes(2, 3) else event) for at, event in THREE]
    left = h.RaySeen((HEAD, bare if lost == 2 else NODES[2]))
    trace = Trace(SIZED, [*history, (9, left)])
    assert (trace.state.losses.below_required_since is not None) is is_short


def test_as_many_as_were_expected_are_required_whatever_they_have() -> None:
    """Nodes without GPUs that were expected; then no spare can be distinguished from them."""
    bare = tuple(replace(NODES[n], gpus=0.0) for n in (2, 3))
    joined: History = [(2, reported(2)), (2, reported(3)), (3, h.RaySeen((HEAD, *bare)))]
    trace = Trace(SIZED, [*joined, (5, SUBMITTED), (9, h.RaySeen((HEAD, bare[0])))])
    assert trace.state.losses.below_required_since == 9


def test_every_share_of_torchrun_is_required() -> None:
    """Until it has ended: a node whose ranks are done may leave."""
    of = replace(by_torchrun(1, prepare=True), is_sized_to_nodes=True)
    joined: History = [(1, share_of(2, at=1)), (1, share_of(3, at=1))]
    begun: History = [*joined, *((2, done) for done in PREPARED), (5, SUBMITTED)]
    lost = Trace(of, [*begun, (6, share_of(3, at=6, has_left=True))])
    assert lost.state.losses.below_required_since == 6
    assert "lost a needed node (pod3; 1 of 2 joined" in lost.log
    over = Trace(of, [*begun, (6, share_of(3, DONE, 6)), (7, share_of(3, DONE, 7, has_left=True))])
    assert over.state.losses.below_required_since is None


# --- after the death of the head's agent -------------------------------------------------------


def goes_on(trace: Trace, tmp_path: Path, after: float = 2.0) -> Trace:
    """Return the trace of the agent that follows a killed one, by what `run.json` has."""
    store = store_of(tmp_path)
    store.put(trace.state.durable, trace.now)
    store.close()
    chosen = ChosenRun("run", written(tmp_path))
    how = Succession(replaces_agent=True, job_survives=True)
    again = RunStore(tmp_path, "f" * 16, chosen, how, now=-after)
    again.close()
    return Trace(trace.state.goal, [], again.durable)


def test_a_spare_does_not_stand_in_for_a_worker_lost_with_the_agent(tmp_path: Path) -> None:
    """A worker left and another joined while no agent ran: the job hangs, and is stopped."""
    after = goes_on(Trace(goal(1, retries=1), TWO), tmp_path)
    after.take(nodes(3, dead=(2,)), 1)
    after.take(reported(3), 1.5)
    after.take(SUBMITTED, 2)
    assert "lost a needed node (pod2" in after.log
    after.take(job("RUNNING"), 60)
    after.take(TICK, 62)
    assert after.effects[-1] == StopJob("run-1")
    after.take(job("STOPPED"), 63)
    assert "attempt 1 of 2 is lost: lost a needed node (pod2" in after.log


def test_a_worker_that_is_back_at_another_address_is_back(tmp_path: Path) -> None:
    """It is identified by its name, as without the restart."""
    after = goes_on(Trace(goal(1), TWO), tmp_path)
    after.take(nodes(3, dead=(2,)), 1)
    back = replace(reported(3).worker, name="pod2")
    after.take(SUBMITTED, 2)
    after.take(h.WorkerReported(back), 3)
    assert "all needed nodes are back" in after.log


def test_a_worker_that_stays_is_not_lost(tmp_path: Path) -> None:
    """Nothing is lost if all are present, or if a record has no nodes."""
    after = goes_on(Trace(goal(1), TWO), tmp_path)
    left = after.state.durable
    without_nodes = replace(left, attempt=replace(left.attempt, workers={}))
    before = Trace(after.state.goal, [], without_nodes)
    for trace, there in ((after, 2), (before, 3)):
        trace.take(nodes(there), 1)
        trace.take(SUBMITTED, 2)
        assert (trace.state.phase, trace.state.losses.last) == (HeadPhase.RUNNING, "")
