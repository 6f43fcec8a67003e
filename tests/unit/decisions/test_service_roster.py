"""The services in the head's state: which are awaited, their limits, and their nodes."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from agent.decisions.head import head_decide as head
from agent.decisions.head import head_state as h
from agent.decisions.head.service_addresses import service_address
from agent.decisions.head.wanted import wanted_of
from agent.decisions.shared import HERE, SCORE, Answer, Answered, ItemReport, Step, Want
from agent.job.services import Where
from agent.plan import waits as wait_keys
from support.heads import (
    HEAD,
    RETRIEVER,
    RETRIEVER_SPEC,
    REWARD_SPEC,
    SUBMITTED,
    TICK,
    History,
    SubmitJob,
    Trace,
    goal,
    job,
    nodes,
    ready,
    reported,
)


def test_many_nodes_are_one_wait() -> None:
    """A service on every node is logged once, with the first few nodes that are not ready."""
    history: History = [(3, nodes(2, 3)), (4, reported(2)), (4, reported(3))]
    trace = Trace(goal(2, services=(RETRIEVER,)), history)
    items = (ItemReport(RETRIEVER, Step.PENDING, "connection refused"),)
    trace.take(reported(2, items=items), 5)
    (wait,) = head.pending_waits(trace.state)
    assert wait.what == "retriever on every node"
    assert wait.evidence == (
        "3 not ready; retriever: no report yet; retriever on pod2: connection refused; "
        "retriever on pod3: no report yet"
    )
    trace.take(TICK, 301)
    assert trace.outcomes[0].exit_code == 69
    assert "retriever on every node not ready in time: 3 not ready" in trace.outcomes[0].reason


def test_a_service_that_its_node_stopped_has_not_failed() -> None:
    """A node that was cut off stopped it while it loaded: it has its whole time anew."""
    history: History = [(3, nodes(2)), (4, reported(2))]
    trace = Trace(goal(1, services=(RETRIEVER,)), history)
    stopped = ItemReport(RETRIEVER, Step.LOST, "its node stopped it", 1, was_stopped=True)
    trace.take(reported(2, items=(stopped,), reported_at=60), 60)
    assert trace.outcomes == []
    assert wanted_of(trace.state, "agent2")[RETRIEVER] == Want(2)
    item = trace.state.services.by_key["agent2", RETRIEVER]
    assert (item.restarts, item.deadline) == (0, 60 + RETRIEVER_SPEC.within)
    assert "restart 1" not in trace.log


ALONE = replace(REWARD_SPEC, where=Where("rank", 2), alone=True)
OF_ALONE = replace(goal(1), services=(ALONE,))


def apart(
    at: float, step: Step = Step.READY, *, has_left: bool = False
) -> tuple[float, h.HeadEvent]:
    """Return a report of a node that is there for the reward server only."""
    items = (ItemReport(ALONE.name, step),)
    report = reported(3, joined=False, reported_at=at, items=items, has_left=has_left)
    return at, h.WorkerReported(replace(report.worker, given_rank=2, service_only=True))


AT = "10.0.0.3"
SCORED: History = [
    (6, Answered(Answer(SCORE, AT))),
    (6, reported(2, answers=(Answer(SCORE, AT),))),
]
"""Every other node got a score from there."""
JOINED: History = [(3, nodes(2)), (4, reported(2)), apart(5, Step.PENDING), apart(6), *SCORED]


def test_a_node_of_its_own_is_awaited() -> None:
    """The job waits for the node with that rank, and for its service; it is no worker."""
    trace = Trace(OF_ALONE, [(3, nodes(2)), (4, reported(2))])
    assert trace.state.phase == "booting"
    (wait,) = head.pending_waits(trace.state)
    assert (wait.what, wait.deadline) == ("rank 2, which is to run reward server", 200.0)
    trace.take(apart(5, Step.PENDING)[1], 5)
    assert [type(deed).__name__ for deed in trace.effects] == ["Started"]
    trace.take(apart(6)[1], 6)
    assert [wait.key for wait in head.pending_waits(trace.state)] == [wait_keys.PROBE]
    for at, event in SCORED:
        trace.take(event, at)
    assert trace.state.phase == "submitting"
    assert service_address(trace.state, ALONE.name) == "10.0.0.3"
    assert "1 of 1 joined" in trace.state.fleet.describe_missing(1)
    assert "pod3" not in trace.state.fleet.describe_missing(2)


def test_a_node_that_never_comes() -> None:
    """Without it the run ends at the workers' deadline, naming the missing service."""
    trace = Trace(OF_ALONE, [(3, nodes(2)), (4, reported(2)), (200, TICK)])
    assert trace.outcomes[0].exit_code == 69
    assert "rank 2, which is to run reward server not ready in time" in trace.outcomes[0].reason


@pytest.mark.parametrize(
    ("last", "over"),
    [((10.0, TICK), 66.0), (apart(10.0, has_left=True), 70.0), (apart(16.1), 76.1)],
    ids=["silent", "gone", "at a time that floats round"],
)
def test_a_lost_node_of_its_own(last: tuple[float, h.HeadEvent], over: float) -> None:
    """Ray does not list it: AGENT_NODE_GRACE counts from its last report."""
    trace = Trace(OF_ALONE, [*JOINED, (7, SUBMITTED), (8, job("RUNNING")), last])
    trace.take(TICK, over - 1)
    assert trace.state.phase == "running"
    assert head.deadline(trace.state) == over
    trace.take(TICK, over)
    assert trace.state.phase == "stopping"
    assert trace.state.outcome is not None
    assert "lost a needed node (pod3, which runs reward server)" in trace.state.outcome.reason
    assert trace.state.outcome.exit_code == 75


def test_what_ran_on_a_worker_that_left_is_awaited_no_more() -> None:
    """Its services go with it; the workers' wait says what is missing."""
    history: History = [
        (3, nodes(2)),
        (4, reported(2, joined=False)),
        (5, reported(2, has_left=True)),
    ]
    trace = Trace(goal(1, services=(RETRIEVER,)), history)
    assert {key[0] for key in trace.state.services.by_key} == {HERE}


def test_what_an_earlier_head_started_is_taken_over() -> None:
    """A worker may report a later start than any that this head wanted."""
    trace = Trace(goal(1, services=(RETRIEVER,)), [(3, nodes(2)), (4, reported(2))])
    trace.take(reported(2, items=(ItemReport(RETRIEVER, Step.READY, generation=3),)), 5)
    item = trace.state.services.by_key["agent2", RETRIEVER]
    assert (item.step, item.generation) == (Step.READY, 3)


def test_the_heads_own_rank() -> None:
    """A platform may count the head as another rank than 0."""
    spec = replace(RETRIEVER_SPEC, where=Where("rank", 1))
    trace = Trace(replace(goal(0), services=(spec,), rank=1), [(3, h.RaySeen((HEAD,)))])
    assert trace.state.service_home(RETRIEVER) == HERE


@pytest.mark.parametrize("others", [1, 2], ids=["too few are there", "another took its place"])
def test_the_service_of_a_lost_worker_is_awaited_only_as_long_as_it_is_missed(others: int) -> None:
    """It would be 69 after all of its limit, though as many nodes are ready as the job needs."""
    serves = (ItemReport(RETRIEVER, Step.READY),)
    waiting = (ItemReport(RETRIEVER, Step.PENDING, "connection refused"),)
    spares = [4] if others == 2 else []
    history: History = [
        (2, ready(RETRIEVER)),
        *((3, reported(number, rank=number - 1)) for number in (2, 3, *spares)),
        (4, reported(3, rank=2, items=waiting)),
        *((4, reported(number, rank=number - 1, items=serves)) for number in (2, *spares)),
        (5, nodes(2, 3, *spares)),
    ]
    trace = Trace(goal(2, services=(RETRIEVER,)), history)
    assert [wait.what for wait in head.pending_waits(trace.state)] == ["retriever on rank 2 (pod3)"]

    trace.take(h.WorkerSilent("agent3", "no answer", ray_answers=False), 6)
    trace.take(nodes(2, *spares), 7)
    submitted = any(isinstance(action, SubmitJob) for action in trace.actions)
    assert submitted == (others == 2)

    trace.take(TICK, 400)
    reasons = [outcome.reason for outcome in trace.outcomes]
    assert any(RETRIEVER in reason for reason in reasons) == (others == 1)
