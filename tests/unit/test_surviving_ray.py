"""Only a worker's agent was killed: for head and fence, its node has never left."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from agent.decisions.head import state as h
from agent.decisions.worker import state as w
from agent.decisions.worker.state import RayStep, StartRay, StopRay, WorkerPhase
from unit import heads
from unit.heads import nodes, reported
from unit.workers import TICK, WorkerTrace, goal, replied

KEPT = w.WorkerState(goal(), epoch=1, head_ip="10.0.0.1", run_id="run", ray_attempt=2)
DOWN = w.RayExited("exit code 1")
SILENT = w.HeadSilent("no answer")


def test_it_follows_from_its_first_word() -> None:
    """Nothing starts or prepares again; the first report has everything that runs there."""
    trace = WorkerTrace(goal(prepare=True), [], KEPT)
    assert (trace.state.joined, trace.state.running_attempt, trace.state.preparing) == (
        True,
        2,
        False,
    )
    trace.take(replace(replied(phase="running"), attempt=2), 0.5)
    trace.take(TICK, 40)
    assert trace.effects == []
    assert (trace.state.phase, trace.state.running_attempt) == (WorkerPhase.FOLLOWING, 2)


def test_a_ray_of_an_earlier_attempt_is_reported_until_it_is_gone() -> None:
    """The head was started anew meanwhile: the next attempt waits for this node's."""
    trace = WorkerTrace(goal(), [(0.5, replace(replied(epoch=2), attempt=3))], KEPT)
    assert (trace.effects, trace.state.running_attempt, trace.state.joined) == (
        [StopRay()],
        2,
        False,
    )
    trace.take(DOWN, 2)
    assert trace.state.running_attempt == 0
    trace.take(TICK, 3)
    assert (trace.effects[-1], trace.state.running_attempt) == (StartRay("10.0.0.1"), 3)


def test_a_head_that_began_another_run_ends_it() -> None:
    """It belongs to the run that the killed agent followed."""
    trace = WorkerTrace(goal(), [(0.5, replied(run="another"))], KEPT)
    assert [end.exit_code for end in trace.outcomes] == [75]


@pytest.mark.parametrize(
    ("unreached", "fence"),
    [(None, 42), (-30.0, 18), (-60.0, 3)],
    ids=["reached to the end", "missed for 30 s", "missed for long"],
)
def test_the_fence_counts_from_the_killed_agents_word(unreached: float | None, fence: int) -> None:
    """At 0.8 of AGENT_NODE_GRACE since the head was out of reach, whichever agent noticed that."""
    kept = replace(KEPT, unreached_since=unreached)
    trace = WorkerTrace(goal(), [(at, SILENT) for at in range(3, fence)], kept)
    assert (trace.effects, trace.state.ray) == ([], RayStep.UP)
    trace.take(SILENT, fence)
    assert trace.effects == [StopRay()]


def test_its_head_misses_nothing() -> None:
    """Another agent speaks for the same Ray: no node left, and a job's own failure is its own."""
    trace = heads.Trace(heads.goal(1, retries=1), [(3, nodes(2)), (4, reported(2))])
    trace.take(h.Submitted("run-1"), 5)
    trace.take(heads.job("RUNNING"), 6)
    trace.take(h.WorkerSilent("agent2", "connection refused", ray_answers=True), 8)
    again = replace(reported(2).worker, key="agent2.2", running_attempt=1)
    trace.take(h.WorkerReported(again), 9)
    trace.take(h.WorkerReplaced("agent2"), 9)
    assert "left Ray" not in trace.log
    assert (trace.state.below_required_since, trace.state.last_loss) == (None, "")
    trace.take(heads.job("FAILED", 7), 10)
    trace.take(h.NodesAsked("run-1", {}), 11)
    assert [end.exit_code for end in trace.outcomes] == [7]
