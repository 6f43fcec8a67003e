"""Only an agent was killed: for head and fence, its node has never left."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from agent.base import times
from agent.decisions.head import head_state as h
from agent.decisions.head.wanted import wanted_of
from agent.decisions.shared import RAY, Answered, ItemReport, Step
from agent.decisions.worker import worker_state as w
from agent.decisions.worker.worker_state import WorkerPhase
from support import heads
from support.heads import (
    accepted,
    never,
    nodes,
    ray_open,
    ready,
    reported,
)
from support.histories import PAIR_RUNS, Case, Row, Waits, play
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


OF_FORMER_RAY = replace(heads.goal(1), has_former_ray=True)
RESTARTED = replace(heads.goal(2, services=(heads.RETRIEVER,)), has_former_ray=True)
"""Of an agent that replaces one which was killed during the boot."""
SERVES = (ItemReport(heads.RETRIEVER, Step.READY),)
ITS_NEXT_AGENT = h.WorkerReported(replace(reported(2).worker, key="agent2.2"))
REMEMBERED: list[Row] = [(0.5, ray_open()), (0.6, h.RunRemembered("run", 1))]
"""A worker has followed attempt 1, of which the disk of the killed agent has no record."""

SURVIVING: dict[str, Case] = {
    # Another agent speaks for the same Ray: no node left, and a job's own failure is its own
    "the head misses nothing of a worker whose agent is replaced": [
        heads.goal(1, retries=1),
        *PAIR_RUNS,
        (8, h.WorkerSilent("agent2", "connection refused", ray_answers=True)),
        (9, ITS_NEXT_AGENT),
        (9, h.WorkerReplaced("agent2")),
        (10, heads.job("FAILED", 7), "ask the nodes"),
        (11, Answered(h.NodesAsked("run-1", {})), "end 7: the job failed with exit code 7"),
    ],
    # GCS lists them already; the job begins once their services are ready
    "nodes whose agents have not reported yet are waited for": [
        RESTARTED,
        (0.5, ready(heads.RETRIEVER)),
        (1, nodes(2, 3)),
        Waits("waiting for a report from 10.0.0.2 and 10.0.0.3, … (14 s left)"),
        (2, reported(2), "start retriever on agent2"),
        (3, reported(3), "start retriever on agent3"),
        (20, reported(2, items=SERVES)),
        (20, reported(3, items=SERVES), "submit run-1"),
    ],
    "nodes that have joined by hand are waited for as long as a report takes": [
        OF_FORMER_RAY,
        (1, nodes(2)),
        (times.AGENT_SILENT - 0.1, heads.TICK),
        (times.AGENT_SILENT, heads.TICK, "submit run-1"),
    ],
    "a Ray that this agent started has no node that reported before": [
        heads.goal(1),
        (1, nodes(2), "submit run-1"),
    ],
    # Ray is asked for its job, which nothing else may do as long as it runs
    "a remembered attempt is followed on the same Ray": [
        OF_FORMER_RAY,
        *REMEMBERED,
        (1, nodes(2), "follow run-1"),
        (1.5, reported(2)),
        (2, accepted()),
        (9, heads.job("FAILED", 7), "ask the nodes"),
        (9.1, Answered(h.NodesAsked("run-1")), "end 7: …"),
    ],
    # The agent was killed before Ray received it
    "a remembered attempt that Ray does not have begins": [
        OF_FORMER_RAY,
        *REMEMBERED,
        (1, nodes(2), "follow run-1"),
        (1.5, reported(2)),
        (2, never(), "submit run-1"),
    ],
    "a remembered attempt of a Ray before this agent's is lost": [
        heads.goal(1),
        (0.6, h.RunRemembered("run", 1), "end 75: …"),
    ],
    "a remembered attempt is lost whose workers follow a later Ray": [
        OF_FORMER_RAY,
        (0.6, h.RunRemembered("run", 1, 9), "end 75: …"),
    ],
}


@pytest.mark.parametrize("case", SURVIVING.values(), ids=SURVIVING)
def test_a_head_on_a_ray_that_survives(case: Case) -> None:
    """It waits for the nodes that Ray has, and follows the job that runs there."""
    play(case)


def test_another_agent_of_a_node_is_no_loss() -> None:
    """No node left Ray."""
    trace = heads.Trace(heads.goal(1, retries=1), [(3, nodes(2)), (4, reported(2))])
    trace.take(accepted(), 5)
    trace.take(h.WorkerSilent("agent2", "connection refused", ray_answers=True), 8)
    trace.take(ITS_NEXT_AGENT, 9)
    trace.take(h.WorkerReplaced("agent2"), 9)
    assert "left Ray" not in trace.log
    assert (trace.state.losses.below_required_since, trace.state.losses.last) == (None, "")


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
