"""Nodes that Ray lists though they are dead: no job begins on them, and none goes unnoticed."""

from __future__ import annotations

import pytest

from agent.base import times
from agent.decisions.head import head_state as h
from agent.decisions.head.fleet import RayNode
from support.heads import (
    HEAD,
    NODES,
    TICK,
    Trace,
    accepted,
    goal,
    job,
    nodes,
    reported,
)
from support.histories import ALONE_RUNS, Case, Logged, Row, Waits, play

CUT = h.WorkerSilent("agent3", "timed out", ray_answers=False)
SPARE_IS_CUT: list[Row] = [
    (1, reported(3)),
    (1.5, CUT),
    (1.7, nodes(2, 3)),
    (2, reported(2)),
]
"""Node 3 is one more than is needed; Ray misses it 15 s later."""
AGAIN = RayNode("id2b", NODES[2].ip)
BOTH = h.RaySeen((HEAD, NODES[2], AGAIN))
LATER_ONE = h.RaySeen((HEAD, AGAIN))
FAILED_BY_LOSS = (20, job("FAILED", 1), "start Ray, generation 2")

DEAD_NODES: dict[str, Case] = {
    # Ray would start parts of the job there: it would fail, or hang without a loss
    "no job is submitted before Ray has dropped a dead node": [
        goal(1),
        *SPARE_IS_CUT,
        Waits("waiting for Ray to drop pod3, Ray lists it, and … (75 s left)"),
        (17, nodes(2, dead=(3,)), "submit run-1"),
    ],
    "a node whose agent said goodbye": [
        goal(1),
        (1, reported(3, has_left=True, joined=False)),
        (1.5, nodes(2, 3)),
        (2, reported(2)),
        (3, nodes(2), "submit run-1"),
    ],
    "a node whose Ray is started again": [
        goal(1),
        (1, reported(3, joined=False)),
        (1.5, nodes(2, 3)),
        (2, reported(2)),
        (3, nodes(2), "submit run-1"),
    ],
    # An agent runs one Ray: of two at its address, one is dead
    "a former Ray of a node that is back": [
        goal(1),
        (1, reported(2)),
        (2, BOTH),
        (9, LATER_ONE, "submit run-1"),
    ],
    "two Rays by hand are two nodes": [goal(1), (1, BOTH, "submit run-1")],
    # After as long as GCS may take to report a loss the job begins; the loss counts then
    "a node that Ray never drops ends no run": [
        goal(1, retries=1),
        *SPARE_IS_CUT,
        (1.7 + times.GCS_REPORTS_LOSS, TICK, "submit run-1"),
        (80, accepted()),
        (90, nodes(2, dead=(3,))),
        (95, job("FAILED", 1), "start Ray, generation 2"),
        Logged("attempt 1 of 2 is lost: …pod3"),
    ],
    "nothing begins on it without a job": [goal(1, job=False), *SPARE_IS_CUT, Waits()],
    # Ray uses any node that joins
    "a listed node that goes is a loss, though nobody counted it": [
        goal(retries=1),
        *ALONE_RUNS,
        (6, reported(2)),
        (7, nodes(2)),
        (8, nodes(dead=(2,))),
        FAILED_BY_LOSS,
        Logged("attempt 1 of 2 is lost: …pod2 was lost"),
    ],
    "it is, though its agent has not reported that it joined": [
        goal(retries=1),
        *ALONE_RUNS,
        (6, reported(2, joined=False)),
        (7, nodes(2)),
        (8, nodes(dead=(2,))),
        FAILED_BY_LOSS,
        Logged("attempt 1 of 2 is lost: …pod2 was lost"),
    ],
}


@pytest.mark.parametrize("case", DEAD_NODES.values(), ids=DEAD_NODES)
def test_dead_nodes(case: Case) -> None:
    """The job waits for Ray to drop them, within limits, and what it loses with them is a loss."""
    play(case)


@pytest.mark.parametrize("has_agent", [True, False])
def test_a_node_that_is_back_before_ray_missed_it_is_a_loss(has_agent: bool) -> None:  # noqa: FBT001 - a table
    """The job's processes on its former Ray are gone; two Rays by hand are two nodes."""
    trace = Trace(goal(1, retries=1), [(1.0, nodes(2)), (5.0, accepted())])
    if has_agent:
        trace.take(reported(2), 6.0)
    trace.take(BOTH, 8.0)
    assert trace.state.attempt.lost_nodes == ()
    trace.take(LATER_ONE, 20.0)
    assert trace.state.attempt.lost_nodes == (("pod2",) if has_agent else ())
    assert trace.state.phase is h.HeadPhase.RUNNING


@pytest.mark.parametrize("is_cut_off", [True, False])
def test_a_loss_that_counted_does_not_count_again_when_ray_misses_it(is_cut_off: bool) -> None:  # noqa: FBT001 - a table
    """It is back on another Ray since; what fails later is the job's own."""
    trace = Trace(goal(1, retries=1), [(1.0, nodes(2)), (1.5, reported(2))])
    trace.take(accepted(), 5.0)
    if is_cut_off:
        trace.take(h.WorkerSilent("agent2", "timed out", ray_answers=False), 100.0)
    trace.take(reported(2, joined=False), 100.0)
    trace.take(BOTH, 103.0)
    trace.take(reported(2, joined=True), 103.5)
    trace.take(LATER_ONE, 115.0)
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
