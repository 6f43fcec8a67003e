"""Only an agent was killed: for head and fence, its node has never left."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from agent.base import times
from agent.decisions.head import head_decide as head
from agent.decisions.head import head_state as h
from agent.decisions.head.wanted import wanted_of
from agent.decisions.shared import RAY, Answered, ItemReport, Step
from agent.decisions.worker import worker_state as w
from agent.decisions.worker.worker_state import WorkerPhase
from agent.plan import waits as wait_keys
from support import heads
from support.heads import (
    FollowJob,
    Started,
    SubmitJob,
    accepted,
    never,
    nodes,
    ray_open,
    ready,
    reported,
)
from support.workers import RAY_UP, TICK, Began, Ended, WorkerTrace, goal, replied

KEPT = w.WorkerState(goal(), epoch=1, head_ip="10.0.0.1", run_id="run")
SILENT = w.HeadSilent("no answer")


def test_it_follows_from_its_first_word() -> None:
    """Nothing starts or prepares again; the first report has everything that runs there."""
    trace = WorkerTrace(goal(prepare=True), [], KEPT)
    assert (trace.state.joined, trace.state.preparing) == (True, False)
    trace.take(replied(phase="running"), 0.5)
    trace.take(TICK, 40)
    assert trace.effects == []
    assert (trace.state.phase, trace.state.joined) == (WorkerPhase.FOLLOWING, True)


def test_a_ray_of_an_earlier_attempt_is_reported_until_it_is_gone() -> None:
    """The head was started anew meanwhile: the next attempt waits for this node's."""
    trace = WorkerTrace(goal(), [(0.5, replied(epoch=2, ready=False))], KEPT)
    assert (trace.effects, trace.state.joined) == ([Ended(RAY)], False)
    trace.take(replied(epoch=2), 3)
    assert trace.effects[-1] == Began(RAY, 2)


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
    assert (trace.effects, trace.state.ray_is_up) == ([], True)
    trace.take(SILENT, fence)
    assert trace.effects == [Ended(RAY)]


def test_its_head_misses_nothing() -> None:
    """Another agent speaks for the same Ray: no node left, and a job's own failure is its own."""
    trace = heads.Trace(heads.goal(1, retries=1), [(3, nodes(2)), (4, reported(2))])
    trace.take(accepted(), 5)
    trace.take(heads.job("RUNNING"), 6)
    trace.take(h.WorkerSilent("agent2", "connection refused", ray_answers=True), 8)
    again = replace(reported(2).worker, key="agent2.2")
    trace.take(h.WorkerReported(again), 9)
    trace.take(h.WorkerReplaced("agent2"), 9)
    assert "left Ray" not in trace.log
    assert (trace.state.losses.below_required_since, trace.state.losses.last) == (None, "")
    trace.take(heads.job("FAILED", 7), 10)
    trace.take(Answered(h.NodesAsked("run-1", {})), 11)
    assert [end.exit_code for end in trace.outcomes] == [7]


RESTARTED = replace(heads.goal(2, services=(heads.RETRIEVER,)), has_former_ray=True)
"""Of an agent that replaces one which was killed during the boot."""


def submitted(trace: heads.Trace) -> bool:
    """Return whether the job was submitted."""
    return "SubmitJob" in trace.kinds()


def test_nodes_whose_agents_have_not_reported_yet_are_waited_for() -> None:
    """GCS lists them already; the job begins once their services are ready."""
    trace = heads.Trace(RESTARTED, [(0.5, ready(heads.RETRIEVER)), (1.0, nodes(2, 3))])
    (wait,) = [one for one in head.pending_waits(trace.state) if one.key == wait_keys.REPORTS]
    assert (wait.what, wait.deadline) == ("a report from 10.0.0.2 and 10.0.0.3", times.AGENT_SILENT)
    for number, at in ((2, 2.0), (3, 3.0)):
        trace.take(reported(number), at)
    started = [one.node for one in trace.effects if isinstance(one, Started)]
    assert (started, submitted(trace)) == (["agent2", "agent3"], False)
    for number in (2, 3):
        serves = ItemReport(heads.RETRIEVER, Step.READY)
        trace.take(reported(number, items=(serves,)), 20.0)
        assert submitted(trace) == (number == 3)


def test_nodes_without_an_agent_are_waited_for_as_long_as_a_report_takes() -> None:
    """They have joined by hand; a Ray that this agent started has none that reported before."""
    trace = heads.Trace(replace(heads.goal(1), has_former_ray=True), [(1.0, nodes(2))])
    assert not submitted(trace)
    trace.take(heads.TICK, times.AGENT_SILENT)
    assert submitted(trace)
    assert submitted(heads.Trace(heads.goal(1), [(1.0, nodes(2))]))


def test_a_worker_that_joined_while_the_head_had_no_agent_has_not_joined() -> None:
    """It starts its Ray again as soon as the agent replies: no job begins on it before."""
    trace = WorkerTrace(goal(), [(at, replied(epoch=None)) for at in (0.5, 1 + times.PLAIN_RAY)])
    trace.take(RAY_UP, 20.0)
    assert (trace.state.phase, trace.state.joined) == (WorkerPhase.FOLLOWING, False)
    trace.take(replied(epoch=7), 22.0)
    trace.take(RAY_UP, 25.0)
    assert (trace.effects[-1], trace.state.joined) == (Began(RAY, 7), True)


def test_a_ray_of_a_former_head_is_replaced_however_often_it_was_restarted() -> None:
    """This head's clock is behind, so that its epoch follows on that of the one before."""
    former = 1_700_000_000_000
    ray = ItemReport(RAY, Step.READY, generation=former + 20, is_running=True)
    remembered = h.RunRemembered("run", 1, former, is_of_other_head=True)
    history: heads.History = [(3.0, nodes()), (4.0, remembered)]
    trace = heads.Trace(heads.goal(1, retries=1), history)
    trace.take(reported(2, joined=False, items=(ray,)), 4.1)
    worker = trace.state.fleet.workers["agent2"]
    want = wanted_of(trace.state, "agent2").get(RAY)
    assert not worker.joined
    assert "agent2" in trace.state.earlier.leftovers
    assert want is None or want.generation > ray.generation


REMEMBERED: heads.History = [(0.5, ray_open()), (0.6, h.RunRemembered("run", 1))]
"""A worker has followed attempt 1, of which the disk of the killed agent has no record."""


def test_a_remembered_attempt_is_followed_on_the_same_ray() -> None:
    """It is not lost: Ray is asked for its job, which nothing else may do as long as it runs."""
    trace = heads.Trace(replace(heads.goal(1), has_former_ray=True), REMEMBERED)
    assert trace.effects == []
    assert [one.open_attempt is not None for one in trace.persisted] == [True]
    trace.take(nodes(2), 1.0)
    trace.take(reported(2), 1.5)
    assert trace.effects == [FollowJob("run-1")]
    trace.take(accepted(), 2.0)
    trace.take(heads.job("FAILED", 7), 9.0)
    trace.take(Answered(h.NodesAsked("run-1")), 9.1)
    assert [end.exit_code for end in trace.outcomes] == [7]
    assert "SubmitJob" not in trace.kinds()


def test_a_remembered_attempt_that_ray_does_not_have_begins() -> None:
    """The agent was killed before Ray received it: it is the same attempt, and none is lost."""
    trace = heads.Trace(replace(heads.goal(1), has_former_ray=True), REMEMBERED)
    trace.take(nodes(2), 1.0)
    trace.take(reported(2), 1.5)
    trace.take(never(), 2.0)
    assert trace.effects[-1] == SubmitJob("run-1")


def test_a_remembered_attempt_of_another_ray_is_lost() -> None:
    """This agent has started Ray anew, or its workers follow a later one."""
    for of, epoch in ((heads.goal(1), 0), (replace(heads.goal(1), has_former_ray=True), 9)):
        trace = heads.Trace(of, [(0.6, h.RunRemembered("run", 1, epoch))])
        assert [end.exit_code for end in trace.outcomes] == [75]
