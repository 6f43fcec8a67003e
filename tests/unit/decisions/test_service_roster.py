"""The services in the head's state: which are awaited, their limits, and their nodes."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from agent.decisions.head import head_state as h
from agent.decisions.head.service_addresses import service_address
from agent.decisions.shared import HERE, SCORE, Answer, Answered, ItemReport, Step
from agent.job.services import Where
from support.heads import (
    HEAD,
    RETRIEVER,
    RETRIEVER_SPEC,
    REWARD,
    REWARD_SPEC,
    SUBMITTED,
    TICK,
    History,
    Trace,
    goal,
    job,
    nodes,
    ready,
    reported,
)
from support.histories import Case, Row, Waits, play

ALONE = replace(REWARD_SPEC, where=Where("rank", 2), alone=True)
OF_ALONE = replace(goal(1), services=(ALONE,))
WITH_RETRIEVER = goal(2, services=(RETRIEVER,))
REFUSED = (ItemReport(RETRIEVER, Step.PENDING, "connection refused"),)
SERVES = (ItemReport(RETRIEVER, Step.READY),)
CUT_OFF = (ItemReport(RETRIEVER, Step.LOST, "its node stopped it", 1, was_stopped=True),)


def apart(step: Step = Step.READY, *, has_left: bool = False) -> h.WorkerReported:
    """Return a report of a node that is there for the reward server only."""
    items = (ItemReport(ALONE.name, step),)
    report = reported(3, joined=False, items=items, has_left=has_left)
    return h.WorkerReported(replace(report.worker, given_rank=2, service_only=True))


AT = "10.0.0.3"
IN_ITS_PLACE: list[Row] = [
    (3, nodes(2)),
    (4, reported(2)),
    (5, apart(Step.PENDING), f"start {REWARD} on agent3"),
    (6, apart()),
    (6, Answered(Answer(SCORE, AT))),
    (6, reported(2, answers=(Answer(SCORE, AT),)), "submit run-1"),
    (7, SUBMITTED),
    (8, job("RUNNING")),
]
"""Every other node got a score from there, and the job runs."""
LOST_ITS_SERVER = "lost a needed node (pod3, which runs reward server)"
BY_RANK: list[Row] = [
    (2, ready(RETRIEVER)),
    (3, reported(2, rank=1), f"start {RETRIEVER} on agent2"),
    (3, reported(3, rank=2), f"start {RETRIEVER} on agent3"),
    (4, reported(3, rank=2, items=REFUSED)),
    (4, reported(2, rank=1, items=SERVES)),
]
SPARE: list[Row] = [
    (4, reported(4, rank=3), f"start {RETRIEVER} on agent4"),
    (4, reported(4, rank=3, items=SERVES)),
]
FELL_SILENT = h.WorkerSilent("agent3", "no answer", ray_answers=False)

SERVICES: dict[str, Case] = {
    "a service on every node is one wait, with the first few nodes": [
        WITH_RETRIEVER,
        (3, nodes(2, 3)),
        (4, reported(2), f"start {RETRIEVER} on agent2"),
        (4, reported(3), f"start {RETRIEVER} on agent3"),
        (5, reported(2, items=REFUSED)),
        Waits(
            "waiting for retriever on every node, 3 not ready; retriever: no report yet; "
            "retriever on pod2: connection refused; retriever on pod3: no report yet (…)"
        ),
    ],
    "one that is not ready in time ends the run": [
        goal(services=(RETRIEVER,)),
        (3, nodes()),
        (300, TICK, "end 69: retriever not ready in time: no report yet"),
    ],
    "one that its node stopped has its whole time anew": [
        goal(1, services=(RETRIEVER,)),
        (3, nodes(2)),
        (4, reported(2), f"start {RETRIEVER} on agent2"),
        (5, ready(RETRIEVER)),
        (60, reported(2, items=CUT_OFF), f"start {RETRIEVER} on agent2, generation 2"),
        Waits("waiting for retriever on pod2, its node stopped it (5 min left)"),
    ],
    "a node of its own is no worker, and the job waits for its service": [OF_ALONE, *IN_ITS_PLACE],
    "a node of its own that never comes": [
        OF_ALONE,
        (3, nodes(2)),
        (4, reported(2)),
        Waits("waiting for rank 2, which is to run reward server, no report yet (3 min 16 s left)"),
        (200, TICK, "end 69: rank 2, which is to run reward server not ready in time…"),
    ],
    # Ray does not list it: AGENT_NODE_GRACE counts from its last report
    "a node of its own that falls silent": [
        OF_ALONE,
        *IN_ITS_PLACE,
        (65.9, TICK),
        (66, TICK, "stop run-1"),
        (67, job("STOPPED"), f"end 75: {LOST_ITS_SERVER}…"),
    ],
    "a node of its own that leaves": [
        OF_ALONE,
        *IN_ITS_PLACE,
        (10, apart(has_left=True)),
        (69, TICK),
        (70, TICK, "stop run-1"),
    ],
    "a node of its own that reported at a time that floats round": [
        OF_ALONE,
        *IN_ITS_PLACE,
        (16.1, apart()),
        (75.1, TICK),
        (76.1, TICK, "stop run-1"),
    ],
    # As many nodes are ready as the job needs
    "the service of a lost worker in whose place another is there": [
        WITH_RETRIEVER,
        *BY_RANK,
        *SPARE,
        (5, nodes(2, 3, 4)),
        (6, FELL_SILENT),
        (7, nodes(2, 4), "submit run-1"),
    ],
    "the service of a lost worker that is missed": [
        WITH_RETRIEVER,
        *BY_RANK,
        (5, nodes(2, 3)),
        (6, FELL_SILENT),
        (7, nodes(2)),
        Waits(
            "waiting for retriever on rank 2 (pod3), connection refused (…)",
            "waiting for workers, 1 of 2 joined; …",
        ),
    ],
}


@pytest.mark.parametrize("case", SERVICES.values(), ids=SERVICES)
def test_which_services_are_waited_for(case: Case) -> None:
    """Those of the nodes that the job needs, each within its limit."""
    play(case)


def test_a_service_that_its_node_stopped_has_not_failed() -> None:
    """No restart is used."""
    history: History = [(3, nodes(2)), (4, reported(2)), (60, reported(2, items=CUT_OFF))]
    trace = Trace(goal(1, services=(RETRIEVER,)), history)
    assert trace.state.services.by_key["agent2", RETRIEVER].restarts == 0
    assert "restart 1" not in trace.log


def test_a_node_of_its_own_is_no_worker() -> None:
    """The job finds its service, and the wait for workers does not name it."""
    trace = Trace(OF_ALONE, [(at, event) for at, event, *_ in IN_ITS_PLACE])
    assert service_address(trace.state, ALONE.name) == "10.0.0.3"
    assert "1 of 1 joined" in trace.state.fleet.describe_missing(1)
    assert "pod3" not in trace.state.fleet.describe_missing(2)


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


def test_what_answers_since_an_earlier_head_is_said() -> None:
    """A worker's first report has a service that answers: the log says so, as of any other."""
    trace = Trace(goal(1, services=(RETRIEVER,)), [(3, nodes(2))])
    trace.take(reported(2, items=(ItemReport(RETRIEVER, Step.READY, generation=3),)), 5)
    assert trace.log.count("retriever on pod2 answers") == 1


def test_the_heads_own_rank() -> None:
    """A platform may count the head as another rank than 0."""
    spec = replace(RETRIEVER_SPEC, where=Where("rank", 1))
    trace = Trace(replace(goal(0), services=(spec,), rank=1), [(3, h.RaySeen((HEAD,)))])
    assert trace.state.service_home(RETRIEVER) == HERE
