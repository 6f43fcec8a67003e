"""A worker that cannot reach its head stops its processes, waits, and joins again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from agent.decisions import worker
from agent.decisions.shared import RAY, SHARE, Step
from agent.decisions.worker.worker_state import WorkerPhase
from agent.frameworks.recipe import NodeSize
from agent.job.share import ShareArgs, ShareEnd
from support.heads import RETRIEVER, ready
from support.workers import (
    GOAL,
    JOINED,
    RAY_UP,
    SILENT,
    STEP,
    TICK,
    Began,
    Ended,
    History,
    WorkerTrace,
    goal,
    replied,
    share_over,
    wanted,
    wanted_share,
)

if TYPE_CHECKING:
    from agent.decisions.worker import worker_state as w

PART = wanted_share(2, ShareArgs(1, (NodeSize(1), NodeSize(1))))
HEARD: History = [*JOINED, (30, replied()), (31, SILENT)]
"""Unreachable since 31; the fence is at 79, AGENT_HEAD_GRACE ends at 90."""
GCS = replied(epoch=None)


def stops(trace: WorkerTrace) -> list[w.WorkerAction]:
    """Return the stopped items, in order."""
    return [deed for deed in trace.effects if isinstance(deed, Ended)]


def test_a_worker_out_of_reach_ends_its_ray_and_joins_again() -> None:
    """At 0.8 of AGENT_NODE_GRACE, and not before; the same head is joined again on its reply."""
    trace = WorkerTrace(GOAL, [*HEARD, (40, SILENT), (78.9, SILENT)])
    assert (stops(trace), trace.state.ray_is_up) == ([], True)
    trace.take(TICK, 79)
    assert stops(trace) == [Ended(RAY)]
    assert "neither the head pod0 nor its GCS was reached for 48 s" in trace.log
    trace.take(SILENT, 85)
    assert (trace.outcomes, trace.state.joined) == ([], False)
    trace.take(replied(), 88)
    assert trace.effects[-1] == Began(RAY, 2)
    assert "`ray start` ended" not in trace.log
    trace.take(RAY_UP, 95)
    assert trace.state.phase is WorkerPhase.FOLLOWING
    assert not trace.state.fenced


def test_a_later_head_is_joined_too() -> None:
    """A head that came back elsewhere, while this node's Ray still stops."""
    trace = WorkerTrace(GOAL, [*HEARD, (79, TICK), (80, replied(epoch=2, ip="10.0.0.9"))])
    trace.take(TICK, 82)
    assert stops(trace) == [Ended(RAY)]
    assert (trace.effects[-1], trace.state.head_ip) == (Began(RAY, 2), "10.0.0.9")


def test_a_head_that_stays_out_of_reach_is_lost() -> None:
    """The fence changes nothing about AGENT_HEAD_GRACE."""
    trace = WorkerTrace(GOAL, [*HEARD, (79, TICK), (89, SILENT), (90, TICK)])
    (end,) = trace.outcomes
    assert end.exit_code == 75


@pytest.mark.parametrize("reached", [replied(), GCS], ids=["the agent", "GCS"])
def test_one_of_both_is_enough(reached: w.HeadSpoke) -> None:
    """Either the agent or GCS is enough; the limit starts again."""
    trace = WorkerTrace(GOAL, [*HEARD, (60, reached), (61, SILENT), (85, TICK)])
    assert stops(trace) == []


def test_services_end_too() -> None:
    """Also if no Ray runs yet; each is stopped once."""
    history: History = [(2, replied(ready=False)), (3, wanted(1, RETRIEVER)), (4, SILENT)]
    trace = WorkerTrace(GOAL, [*history, (52, TICK), (53, TICK)])
    assert stops(trace) == [Ended(RETRIEVER)]
    serves = (30, replace(replied(), wanted=wanted(1, RETRIEVER).wanted))
    joined = WorkerTrace(GOAL, [*JOINED, serves, (31, SILENT), (79, TICK), (80, TICK)])
    assert stops(joined) == [Ended(RETRIEVER), Ended(RAY)]


def test_a_service_that_the_fence_ended_starts_by_a_later_decision_alone() -> None:
    """The head learns that it is lost, and wants the next generation."""
    history: History = [(2, wanted(1, RETRIEVER)), (4, SILENT), (52, TICK), (53, replied())]
    trace = WorkerTrace(GOAL, history)
    assert (stops(trace), trace.state.fenced) == ([Ended(RETRIEVER)], False)
    item = trace.state.item(RETRIEVER)
    assert item is not None
    assert (item.step, item.was_stopped) == (Step.LOST, True)
    trace.take(wanted(2, RETRIEVER, generation=2), 54)
    assert trace.effects[-1] == Began(RETRIEVER, 2)


def test_a_share_that_is_stopped_has_no_code_for_the_job() -> None:
    """The head counts it as lost, since other ranks may wait for it in a collective."""
    trace = WorkerTrace(replace(GOAL, by_shares=True), [(2, replied()), (9, PART)])
    trace.take(replied(), 30)
    trace.take(SILENT, 31)
    trace.take(TICK, 79)
    assert stops(trace) == [Ended(SHARE)]
    (never_began,) = worker.item_reports(trace.state)
    assert never_began.share == ShareEnd(143, by_stop=True, lost=True)
    trace.take(replied(), 80)
    trace.take(share_over(1, ShareEnd(143, by_stop=True), was_stopped=True), 81)
    (item,) = worker.item_reports(trace.state)
    assert item.share == ShareEnd(143, by_stop=True, lost=True)


def test_a_share_that_ended_before_counts() -> None:
    """A failure before the fence is reported; only stopped ranks are lost."""
    trace = WorkerTrace(replace(GOAL, by_shares=True), [(2, replied()), (9, PART)])
    trace.take(share_over(1, ShareEnd(7)), 20)
    trace.take(SILENT, 31)
    trace.take(TICK, 79)
    assert stops(trace) == []
    (item,) = worker.item_reports(trace.state)
    assert item.share == ShareEnd(7)


def test_a_plain_head_makes_no_attempts() -> None:
    """Without an agent beside GCS, Ray itself detects the loss of the head."""
    trace = WorkerTrace(GOAL, [(2, GCS), (8, RAY_UP), (9, GCS), (10, SILENT), (60, TICK)])
    assert stops(trace) == []


def test_what_is_noticed_late_ends_no_later() -> None:
    """Time without a reply before the loss was noticed counts as well."""
    trace = WorkerTrace(GOAL, [*JOINED, (20, replied()), (35, SILENT), (76, SILENT)])
    assert stops(trace) == []
    trace.take(TICK, 77)
    assert stops(trace) == [Ended(RAY)]


PREPARING: History = [(2, replied(ready=False)), (3, SILENT)]
"""A worker that prepares, and whose head is out of reach since 3; the fence is at 51."""


def test_prepare_steps_end_too_and_are_run_again() -> None:
    """Another node may take its turn meanwhile; the worker joins after its steps are done."""
    trace = WorkerTrace(goal(prepare=True), [*PREPARING, (50, SILENT)])
    assert stops(trace) == []
    trace.take(TICK, 51)
    trace.take(SILENT, 55)
    assert stops(trace) == [Ended(STEP.name)]
    assert not any(wait.what == STEP.name for wait in worker.pending_waits(trace.state))
    trace.take(replied(), 60)
    assert trace.effects == [Ended(STEP.name), Began(STEP.name, 2)]
    (until,) = [one.deadline for one in worker.pending_waits(trace.state) if one.what == STEP.name]
    assert until == 60 + STEP.within
    trace.take(ready(STEP.name), 70)
    assert trace.effects[-1] == Began(RAY)


def test_a_step_is_run_again_once() -> None:
    """The head may want it, too: the step runs only once."""
    trace = WorkerTrace(goal(prepare=True), [*PREPARING, (51, TICK)])
    trace.take(wanted(1, STEP.name), 59)
    trace.take(replied(ready=False), 60)
    trace.take(wanted(2, STEP.name), 61)
    assert trace.effects == [Ended(STEP.name), Began(STEP.name, 2)]


def test_its_time_does_not_run_while_it_is_stopped() -> None:
    """The wait for an unreachable head ends by its own deadline, not the step's."""
    short = replace(goal(prepare=True), steps=(replace(STEP, within=52.0),))
    trace = WorkerTrace(short, [*PREPARING, (51, TICK), (53, TICK), (99, TICK)])
    assert trace.outcomes == []
    assert trace.finish()
    (end,) = trace.outcomes
    assert end.exit_code == 69
    assert "the head pod0" in end.reason


def test_a_late_turn_is_waited_for_anew_after_the_fence() -> None:
    """The turns' limit of a start may be long over when a node is cut off."""
    late = replace(STEP, once="/data/.done", within=100.0)
    of = replace(goal(prepare=True), steps=(late,))
    trace = WorkerTrace(of, [(2, replied()), (60, wanted(1, late.name))])
    trace.take(replied(ready=False), 90)
    trace.take(SILENT, 91)
    trace.take(TICK, 139)
    trace.take(SILENT, 140)
    assert (stops(trace), trace.outcomes) == ([Ended(late.name)], [])
    trace.take(replied(ready=False), 145)
    assert "turn" in [wait.key for wait in worker.pending_waits(trace.state)]
    trace.take(wanted(9, late.name, generation=2), 150)
    assert trace.effects[-1] == Began(late.name, 2)


def test_a_head_that_never_answered_ends_no_prepare_step() -> None:
    """Workers may start long before their head."""
    trace = WorkerTrace(goal(prepare=True), [(2, SILENT), (60, SILENT), (99, TICK)])
    assert stops(trace) == []
