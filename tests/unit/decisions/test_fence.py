"""A worker that cannot reach its head stops its processes, waits, and joins again."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from agent.base import times
from agent.decisions import worker
from agent.decisions.shared import RAY, SHARE
from agent.frameworks.recipe import NodeSize
from agent.job.share import ShareArgs, ShareEnd
from support.heads import RETRIEVER, ready
from support.histories import BOOT, LATER, Case, Logged, Row, Waits, play
from support.workers import (
    GOAL,
    RAY_UP,
    SILENT,
    STEP,
    TICK,
    Ended,
    WorkerTrace,
    goal,
    replied,
    share_over,
    wanted,
    wanted_share,
)

PART = wanted_share(2, ShareArgs(1, (NodeSize(1), NodeSize(1))))
GCS = replied(epoch=None)
OF_STEP = goal(prepare=True)
SHORT_STEP = replace(OF_STEP, steps=(replace(STEP, within=52.0),))
LATE = replace(STEP, once="/data/.done", within=100.0)
CLEARS = replied(ready=False)

FOLLOWS: list[Row] = [(2, replied(), f"start {RAY}"), (8, RAY_UP)]
OUT_OF_REACH: list[Row] = [*FOLLOWS, (30, replied()), (31, SILENT)]
"""Unreachable since 31; the fence is at 79, AGENT_HEAD_GRACE ends at 90."""
PREPARES: list[Row] = [(0, BOOT, f"start {STEP.name}"), (2, CLEARS), (3, SILENT)]
"""A worker that prepares, and whose head is out of reach since 3; the fence is at 51."""

FENCES: dict[str, Case] = {
    # At 0.8 of AGENT_NODE_GRACE, and not before
    "Ray ends, and is started again by the same head's reply": [
        GOAL,
        *OUT_OF_REACH,
        (78.9, SILENT),
        (79, TICK, f"stop {RAY}"),
        (85, SILENT),
        (88, replied(), f"start {RAY}, generation 2"),
        (95, RAY_UP),
        Logged("neither the head pod0 nor its GCS was reached for 48 s"),
        Logged("Ray is up on this node"),
        Waits("waiting for a reply from the head pod0, …"),
    ],
    "a head that came back elsewhere is joined, too": [
        GOAL,
        *OUT_OF_REACH,
        (79, TICK, f"stop {RAY}"),
        (80, replied(epoch=2, ip="10.0.0.9"), f"start {RAY}, generation 2"),
        Logged("joining Ray at the head pod0 (10.0.0.9)"),
    ],
    "AGENT_HEAD_GRACE stays as it is": [
        GOAL,
        *OUT_OF_REACH,
        (79, TICK, f"stop {RAY}"),
        (89, SILENT),
        (90, TICK, "end 75: waited too long for the head pod0 to come back: …"),
    ],
    "an answer of the agent is enough: the limit begins again": [
        GOAL,
        *OUT_OF_REACH,
        (60, replied()),
        (61, SILENT),
        (85, TICK),
    ],
    "an answer of GCS is enough": [GOAL, *OUT_OF_REACH, (60, GCS), (61, SILENT), (85, TICK)],
    "time without a reply before the loss was noticed counts": [
        GOAL,
        *FOLLOWS,
        (20, replied()),
        (35, SILENT),
        (76, SILENT),
        (77, TICK, f"stop {RAY}"),
    ],
    # Ray itself detects the loss of such a head
    "a head without an agent makes no attempts: nothing ends": [
        GOAL,
        (2, GCS),
        (2 + times.PLAIN_RAY, GCS, f"start {RAY}"),
        (13, RAY_UP),
        (14, GCS),
        (15, SILENT),
        (65, TICK),
    ],
    "a service ends, once, also where no Ray runs yet": [
        GOAL,
        (2, CLEARS),
        (3, wanted(1, RETRIEVER), f"start {RETRIEVER}"),
        (4, SILENT),
        (52, TICK, f"stop {RETRIEVER}"),
        (53, TICK),
    ],
    "a service and Ray end, once": [
        GOAL,
        *FOLLOWS,
        (30, replace(replied(), wanted=wanted(1, RETRIEVER).wanted), f"start {RETRIEVER}"),
        (31, SILENT),
        (79, TICK, f"stop {RETRIEVER}", f"stop {RAY}"),
        (80, TICK),
    ],
    # The head learns that it is lost, and wants the next generation
    "a service starts again by a later decision alone": [
        GOAL,
        (2, wanted(1, RETRIEVER), f"start {RETRIEVER}"),
        (4, SILENT),
        (52, TICK, f"stop {RETRIEVER}"),
        (53, CLEARS),
        (54, wanted(2, RETRIEVER, generation=2), f"start {RETRIEVER}, generation 2"),
    ],
    # Another node may take its turn meanwhile; the worker joins after its steps are done
    "prepare steps end, and run again with their whole time": [
        OF_STEP,
        *PREPARES,
        (50, SILENT),
        (51, TICK, f"stop {STEP.name}"),
        (55, SILENT),
        (60, replied(), f"start {STEP.name}, generation 2"),
        Waits(f"waiting for {STEP.name} (2 h left)"),
        (70, ready(STEP.name), f"start {RAY}"),
    ],
    "a step that the head wants, too, runs again once": [
        OF_STEP,
        *PREPARES,
        (51, TICK, f"stop {STEP.name}"),
        (59, wanted(1, STEP.name), f"start {STEP.name}, generation 2"),
        (60, CLEARS),
        (61, wanted(2, STEP.name)),
    ],
    # It does not run: the wait for the head ends by its own deadline
    "the time of a step that is stopped does not count": [
        SHORT_STEP,
        *PREPARES,
        (51, TICK, f"stop {STEP.name}"),
        (53, TICK),
        (99, TICK),
        (LATER, TICK, "end 69: the head pod0 not ready in time…"),
    ],
    # The turns' limit of a start may be long over when a node is cut off
    "a turn is waited for anew": [
        replace(OF_STEP, steps=(LATE,)),
        (2, replied()),
        (60, wanted(1, LATE.name), f"start {LATE.name}"),
        (90, CLEARS),
        (91, SILENT),
        (139, TICK, f"stop {LATE.name}"),
        (140, SILENT),
        (145, CLEARS),
        (150, wanted(9, LATE.name, generation=2), f"start {LATE.name}, generation 2"),
    ],
    "workers may start long before their head: no step ends": [
        OF_STEP,
        (2, SILENT),
        (60, SILENT),
        (99, TICK),
    ],
}


@pytest.mark.parametrize("case", FENCES.values(), ids=FENCES)
def test_what_a_worker_out_of_reach_ends(case: Case) -> None:
    """All that could run beside the next attempt, before that may begin; then it joins again."""
    play(case)


def test_a_share_that_is_stopped_has_no_code_for_the_job() -> None:
    """The head counts it as lost, since other ranks may wait for it in a collective."""
    trace = WorkerTrace(replace(GOAL, by_shares=True), [(2, replied()), (9, PART)])
    trace.take(replied(), 30)
    trace.take(SILENT, 31)
    trace.take(TICK, 79)
    assert trace.effects[-1] == Ended(SHARE)
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
    assert Ended(SHARE) not in trace.effects
    (item,) = worker.item_reports(trace.state)
    assert item.share == ShareEnd(7)
