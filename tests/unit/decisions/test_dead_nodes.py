"""Nodes that Ray lists though they are dead: no job begins on them, and none goes unnoticed."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from agent.base import times
from agent.decisions.head import head_decide as head
from agent.decisions.head import head_state as h
from agent.decisions.head.fleet import RayNode
from agent.plan import waits as wait_keys
from support.heads import (
    HEAD,
    NODES,
    RUNNING,
    TICK,
    History,
    Trace,
    accepted,
    goal,
    job,
    nodes,
    reported,
)

CUT = h.WorkerSilent("agent3", "timed out", ray_answers=False)
SPARE_IS_CUT: History = [(1.0, reported(3)), (1.5, CUT), (1.7, nodes(2, 3)), (2.0, reported(2))]
"""Node 3 is one more than is needed; Ray misses it 15 s later."""


def is_submitted(trace: Trace) -> bool:
    """Return whether the job was submitted."""
    return "SubmitJob" in trace.kinds()


def test_a_job_is_not_submitted_while_ray_lists_a_dead_node() -> None:
    """Ray would start parts of it there: the job would fail, or hang without a loss."""
    trace = Trace(goal(1), SPARE_IS_CUT)
    (wait,) = [one for one in head.pending_waits(trace.state) if one.key == wait_keys.DEAD_NODES]
    assert (wait.what, wait.deadline) == ("Ray to drop pod3", 1.7 + times.GCS_REPORTS_LOSS)
    assert not is_submitted(trace)
    trace.take(nodes(2, dead=(3,)), 17.0)
    assert is_submitted(trace)


def test_a_node_that_left_is_waited_for_too() -> None:
    """Its agent said goodbye; so did one whose Ray is started again."""
    for leaves in (reported(3, has_left=True, joined=False), reported(3, joined=False)):
        trace = Trace(goal(1), [(1.0, leaves), (1.5, nodes(2, 3)), (2.0, reported(2))])
        assert not is_submitted(trace)
        trace.take(nodes(2), 3.0)
        assert is_submitted(trace)


def test_a_former_ray_of_a_node_that_is_back_is_waited_for() -> None:
    """An agent runs one Ray: of two at its address, one is dead."""
    again = RayNode("id2b", NODES[2].ip)
    both = h.RaySeen((HEAD, NODES[2], again))
    trace = Trace(goal(1), [(1.0, reported(2)), (2.0, both)])
    assert not is_submitted(trace)
    trace.take(h.RaySeen((HEAD, again)), 9.0)
    assert is_submitted(trace)
    assert is_submitted(Trace(goal(1), [(1.0, both)]))  # by hand there may be two


def test_ray_that_never_drops_a_node_does_not_end_the_run() -> None:
    """After as long as GCS may take to report a loss the job begins; the loss counts then."""
    trace = Trace(goal(1, retries=1), SPARE_IS_CUT)
    trace.take(TICK, 1.7 + times.GCS_REPORTS_LOSS)
    assert is_submitted(trace)
    trace.take(accepted(), 80.0)
    trace.take(nodes(2, dead=(3,)), 90.0)
    assert trace.state.attempt.lost_nodes == ("pod3",)
    trace.take(job("FAILED", 1), 95.0)
    assert (trace.state.attempt.number, trace.outcomes) == (2, [])


@pytest.mark.parametrize("joined", [False, True])
def test_a_listed_node_that_goes_is_a_loss_whoever_counted_it(joined: bool) -> None:  # noqa: FBT001 - a table
    """Ray uses any node that joins, also one whose agent has not reported that it joined."""
    trace = Trace(goal(retries=1), RUNNING)
    trace.take(reported(2, joined=joined), 6.0)
    trace.take(nodes(2), 7.0)
    trace.take(nodes(dead=(2,)), 8.0)
    assert trace.state.attempt.lost_nodes == ("pod2",)
    assert "pod2 was lost" in trace.state.losses.last
    trace.take(job("FAILED", 1), 20.0)
    assert (trace.state.attempt.number, trace.outcomes) == (2, [])


def test_a_cluster_without_a_job_is_up_at_once() -> None:
    """Nothing begins on the dead node."""
    trace = Trace(replace(goal(1), has_job=False), SPARE_IS_CUT)
    assert trace.state.phase is h.HeadPhase.RUNNING


@pytest.mark.parametrize("has_agent", [True, False])
def test_a_node_that_is_back_before_ray_missed_it_is_a_loss(has_agent: bool) -> None:  # noqa: FBT001 - a table
    """The job's processes on its former Ray are gone; two Rays by hand are two nodes."""
    again = RayNode("id2b", NODES[2].ip)
    trace = Trace(goal(1, retries=1), [(1.0, nodes(2)), (5.0, accepted())])
    if has_agent:
        trace.take(reported(2), 6.0)
    trace.take(h.RaySeen((HEAD, NODES[2], again)), 8.0)
    assert trace.state.attempt.lost_nodes == ()
    trace.take(h.RaySeen((HEAD, again)), 20.0)
    assert trace.state.attempt.lost_nodes == (("pod2",) if has_agent else ())
    assert trace.state.phase is h.HeadPhase.RUNNING


@pytest.mark.parametrize("is_cut_off", [True, False])
def test_a_loss_that_counted_does_not_count_again_when_ray_misses_it(is_cut_off: bool) -> None:  # noqa: FBT001 - a table
    """It is back on another Ray since; what fails later is the job's own."""
    again = RayNode("id2b", NODES[2].ip)
    trace = Trace(goal(1, retries=1), [(1.0, nodes(2)), (1.5, reported(2))])
    trace.take(accepted(), 5.0)
    if is_cut_off:
        trace.take(h.WorkerSilent("agent2", "timed out", ray_answers=False), 100.0)
    trace.take(reported(2, joined=False), 100.0)
    trace.take(h.RaySeen((HEAD, NODES[2], again)), 103.0)
    trace.take(reported(2, joined=True), 103.5)
    trace.take(h.RaySeen((HEAD, again)), 115.0)
    assert trace.state.losses.last_at == 100.0
    trace.take(job("FAILED", 1), 170.0)
    trace.take(TICK, 200.0)
    assert trace.state.attempt.number == 1
    assert [outcome.exit_code for outcome in trace.outcomes] == [1]


def test_who_ends_before_the_heads_pod() -> None:
    """All agents that answer, but those that are held until their cluster is deleted."""
    trace = Trace(goal(3), [(1.0, reported(n)) for n in (2, 3, 4)])
    trace.take(reported(5, refused="another Ray"), 2.0)
    fleet = trace.state.fleet
    assert [worker.name for worker in fleet.ending_before_head(())] == ["pod2", "pod3", "pod4"]
    assert [worker.name for worker in fleet.ending_before_head({"agent2", "agent4"})] == ["pod3"]
