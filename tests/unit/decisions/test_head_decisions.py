"""The head's decisions: a history of events gives a phase, actions, and an outcome."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from agent.base.ends import Kind, Outcome
from agent.decisions.head import head_decide as head
from agent.decisions.head import head_state as h
from agent.decisions.head.fleet import RayNode
from agent.decisions.head.head_state import HeadPhase
from agent.decisions.shared import (
    RAY,
    ItemReport,
    Step,
    StopAsked,
)
from agent.frameworks.recipe import NodeSize
from agent.job.job import sizes
from support.heads import (
    HEAD,
    LOST,
    NODES,
    PAIR,
    PREPARED,
    READY,
    RETRIEVER,
    REWARD,
    RUNNING,
    SERVED,
    SERVING,
    SPECS,
    SUBMITTED,
    TERM,
    TICK,
    WITH_REWARD,
    History,
    Trace,
    goal,
    job,
    lost,
    nodes,
    pending,
    ray_lost,
    ready,
    reported,
    unfit,
    waits,
)
from support.histories import ALONE_RUNS, Case, Logged, Row, Waits, play

if TYPE_CHECKING:
    from agent.decisions.head.head_goal import HeadGoal

PARTIAL = goal(2, least=1)


UNDER_WAY: dict[str, tuple[HeadGoal, History, HeadPhase, list[str]]] = {
    "nothing yet": (goal(), [(1, TICK)], HeadPhase.BOOTING, []),
    "a list without the head is no Ray": (goal(), [(1, nodes(up=False))], HeadPhase.BOOTING, []),
    "one machine": (goal(), [(3, nodes())], HeadPhase.SUBMITTING, ["SubmitJob"]),
    "a worker is missing": (goal(1), [(3, nodes())], HeadPhase.BOOTING, []),
    "a worker joined": (
        goal(1),
        [(3, nodes(2)), (4, reported(2))],
        HeadPhase.SUBMITTING,
        ["SubmitJob"],
    ),
    "its word came first": (
        goal(1),
        [(2, reported(2)), (4, nodes(2))],
        HeadPhase.SUBMITTING,
        ["SubmitJob"],
    ),
    "in GCS, but not joined by its own word": (
        goal(1),
        [(2, reported(2, "joining Ray", joined=False)), (3, nodes(2))],
        HeadPhase.BOOTING,
        [],
    ),
    "joined by hand": (goal(1), [(3, nodes(2))], HeadPhase.SUBMITTING, ["SubmitJob"]),
    "more than expected": (goal(1), [(3, nodes(2, 3))], HeadPhase.SUBMITTING, ["SubmitJob"]),
    "a dead node does not count": (goal(1), [(3, nodes(dead=(2,)))], HeadPhase.BOOTING, []),
    "one address counts once": (
        goal(2),
        [(3, h.RaySeen((*nodes(2).nodes, RayNode("again", NODES[2].ip))))],
        HeadPhase.BOOTING,
        [],
    ),
    "a worker that left does not count": (
        goal(1),
        [(2, reported(2)), (3, reported(2, "leaving", has_left=True)), (4, nodes(2))],
        HeadPhase.BOOTING,
        [],
    ),
    "a dead node came back": (
        goal(1),
        [(3, nodes(dead=(2,))), (4, nodes(3, dead=(2,)))],
        HeadPhase.SUBMITTING,
        ["SubmitJob"],
    ),
    "the reward server is awaited": (WITH_REWARD, [(3, nodes())], HeadPhase.BOOTING, []),
    "the reward server answers": (
        WITH_REWARD,
        [(3, nodes()), READY],
        HeadPhase.SUBMITTING,
        ["SubmitJob"],
    ),
    "Ray is awaited": (WITH_REWARD, [READY], HeadPhase.BOOTING, []),
    "data is prepared": (goal(prepare=True), [(3, nodes())], HeadPhase.BOOTING, []),
    "data is there": (
        goal(prepare=True),
        [(3, nodes()), (9, PREPARED[0]), (9, PREPARED[1])],
        HeadPhase.SUBMITTING,
        ["SubmitJob"],
    ),
    "a Ray that does not start is started again": (
        goal(),
        [(1, ray_lost("exit 1")), (2, ray_lost("exit 1")), (3, nodes())],
        HeadPhase.SUBMITTING,
        ["RayStarted", "RayStarted", "SubmitJob"],
    ),
    "a preparing worker has more time": (
        goal(1, prepare=True),
        [
            *[(1, event) for event in PREPARED],
            (3, nodes()),
            (190, reported(2, joined=False, preparing=True, reported_at=190)),
            (201, TICK),
        ],
        HeadPhase.BOOTING,
        [],
    ),
    "one that prepares unheard has not": (
        goal(1),
        [(3, nodes()), (4, reported(2, joined=False, preparing=True, reported_at=4)), (201, TICK)],
        HeadPhase.LEAVING,
        ["EndRun"],
    ),
    "going on with fewer": (
        PARTIAL,
        [(3, nodes(2)), (199, TICK), (200, TICK)],
        HeadPhase.SUBMITTING,
        ["SubmitJob"],
    ),
    "with fewer, once the reward server answers": (
        goal(2, least=1, services=(REWARD,)),
        [(3, nodes(2)), (200, TICK), (210, ready(REWARD))],
        HeadPhase.SUBMITTING,
        ["SubmitJob"],
    ),
    "Ray does not take the job yet": (
        goal(),
        [(3, nodes()), (4, waits("No available agent"))],
        HeadPhase.SUBMITTING,
        ["SubmitJob"],
    ),
    "the job runs": (goal(), RUNNING, HeadPhase.RUNNING, ["SubmitJob"]),
    "submitted is said twice": (
        goal(),
        [*RUNNING, (9, SUBMITTED)],
        HeadPhase.RUNNING,
        ["SubmitJob"],
    ),
    "a node is short": (goal(1), [*PAIR, (9, nodes(dead=(2,)))], HeadPhase.RUNNING, ["SubmitJob"]),
    "it is back in time": (
        goal(1),
        [*PAIR, (9, nodes(dead=(2,))), (60, nodes(2)), (70, job("RUNNING")), (100, TICK)],
        HeadPhase.RUNNING,
        ["SubmitJob"],
    ),
    "it is not back": (
        goal(1),
        [*PAIR, (9, nodes(dead=(2,))), (60, job("RUNNING")), (69, TICK)],
        HeadPhase.STOPPING,
        ["SubmitJob", "StopJob"],
    ),
    "more than needed may go": (
        goal(1),
        [(3, nodes(2, 3)), (4, SUBMITTED), (9, nodes(2)), (80, TICK)],
        HeadPhase.RUNNING,
        ["SubmitJob"],
    ),
    "the reward server is restarted": (
        WITH_REWARD,
        [*SERVED, (9, LOST), (12, ready(REWARD))],
        HeadPhase.RUNNING,
        ["SubmitJob", "Started"],
    ),
    "asked to stop": (goal(), [*RUNNING, (9, TERM)], HeadPhase.STOPPING, ["SubmitJob", "StopJob"]),
    "asked to stop while submitting": (
        goal(),
        [(3, nodes()), (4, TERM)],
        HeadPhase.STOPPING,
        ["SubmitJob", "StopJob"],
    ),
    "submitted late, then silent for a while": (
        goal(),
        [(3, nodes()), (110, SUBMITTED), (229, TICK)],
        HeadPhase.RUNNING,
        ["SubmitJob"],
    ),
    "serving for days": (SERVING, [(3, nodes(2)), (500_000, TICK)], HeadPhase.RUNNING, []),
    "serving": (SERVING, [(3, nodes(2))], HeadPhase.RUNNING, []),
}


@pytest.mark.parametrize(
    ("of", "history", "phase", "actions"), UNDER_WAY.values(), ids=UNDER_WAY.keys()
)
def test_under_way(of: HeadGoal, history: History, phase: HeadPhase, actions: list[str]) -> None:
    """A history gives a phase, with exactly these actions."""
    trace = Trace(of, history)
    assert trace.state.phase is phase
    assert list(trace.kinds()) == actions


NAMED = replace(WITH_REWARD, job="train.py", gcs_port=6379, watch="ssh -L 8266:localhost:8266 pod0")
NOT_ESSENTIAL = replace(goal(), services=(replace(SPECS[REWARD], essential=False, restarts=0),))
GIVEN_UP = replace(goal(1), services=(replace(SPECS[RETRIEVER], essential=False, restarts=0),))
HAS_ENDED = (ItemReport(RETRIEVER, Step.LOST, "exit code 1"),)
WAITS_FOR_RAY: list[Row] = [
    (3, nodes(), "submit run-1"),
    (9, waits("No agent")),
    (10, TERM, "stop run-1"),
    (11, waits("No agent")),
]

ON_THE_WAY: dict[str, Case] = {
    "every change is a line that a person can grep": [
        NAMED,
        (3, nodes()),
        Logged("Ray 10.0.0.1:6379"),
        (5, ready(REWARD), "submit run-1"),
        Logged("reward server scored a test answer"),
        Logged("nodes 1 of 1"),
        (6, SUBMITTED),
        Logged("job train.py, attempt 1 of 1"),
        Logged("watch ssh -L 8266:localhost:8266 pod0"),
        (7, job("RUNNING")),
        (9, LOST, f"start {REWARD}, generation 2"),
        Logged("reward server is down (exit code 1): restart 1 of 3"),
        (12, ready(REWARD)),
        (13, TERM, "stop run-1"),
        Logged("asked to stop by SIGTERM: stopping the job"),
        (29, TICK, "end 143: …SIGTERM"),
        Logged("the job did not stop in time"),
    ],
    "what a service printed last is in the log, and in the reason": [
        WITH_REWARD,
        (3, nodes()),
        (5, ready(REWARD), "submit run-1"),
        (6, SUBMITTED),
        (9, lost(REWARD, "exit code 1", output="no port"), f"start {REWARD}, generation 2"),
        Logged("reward server is down (exit code 1; last output: no port): restart 1 of 3"),
        Waits(
            "waiting for the job's status from Ray, …",
            "waiting for reward server, exit code 1; last output: no port (2 min left)",
        ),
        (12, pending(REWARD, "connection refused")),
        Waits(
            "waiting for the job's status from Ray, …",
            "waiting for reward server, connection refused (117 s left)",
        ),
    ],
    "what a step printed last is in the reason": [
        goal(prepare=True),
        (3, nodes()),
        (
            9,
            lost("AGENT_PREPARE", "exit code 2", output="no set"),
            "end 69: AGENT_PREPARE failed: exit code 2; last output: no set",
        ),
    ],
    "what `ray start` printed last is in the log, and in the reason": [
        goal(),
        (1, lost(RAY, "exit code 1", output="no port"), "start Ray, generation 2"),
        Logged("Ray did not start: exit code 1; last output: no port; starting it again: 1 of 2"),
        Waits("waiting for Ray on this node, exit code 1; last output: no port (99 s left)"),
        (2, lost(RAY, "exit code 1", output="no port"), "start Ray, generation 3"),
        (
            3,
            lost(RAY, "exit code 1", output="no memory"),
            "end 69: Ray did not start: exit code 1; last output: no memory",
        ),
    ],
    # Nobody sent the SIGTERM for which it stands
    "a stop on request is named so": [
        goal(),
        *ALONE_RUNS,
        (9, StopAsked(15, on_request=True), "stop run-1"),
        Logged("asked to stop by `pod-agent stop` or the page: stopping the job"),
        (10, job("STOPPED"), "end 143: …"),
    ],
    "nodes that join and leave are named, or given by address": [
        goal(2),
        (2, reported(2)),
        (3, nodes(2, 3), "submit run-1"),
        Logged("pod2 joined Ray"),
        Logged("10.0.0.3 joined Ray"),
        (4, nodes(3, dead=(2,))),
        Logged("pod2 left Ray"),
    ],
    "a service that is not essential is done without": [
        NOT_ESSENTIAL,
        (3, nodes()),
        (5, ready(REWARD), "submit run-1"),
        (6, SUBMITTED),
        (9, LOST),
        (10, TICK),
        Logged("reward server is lost for good: exit code 1; the run goes on without it"),
    ],
    "a service that is not essential is not waited for longer than its limit": [
        NOT_ESSENTIAL,
        (3, nodes()),
        (300, TICK, "submit run-1"),
    ],
    "a service that was given up on a worker is not started again": [
        GIVEN_UP,
        (1, reported(2), f"start {RETRIEVER} on agent2"),
        (2, reported(2, items=HAS_ENDED)),
        (3, reported(2, items=HAS_ENDED)),
        Logged("the run goes on without it"),
    ],
    # Only Ray's answer ends the wait for a job that it may still accept, or its grace
    "silence is no proof that a given Ray has no such job": [
        goal(given=True),
        *WAITS_FOR_RAY,
        (25.9, TICK),
        (26, TICK, "end 143: …"),
    ],
    "a given Ray has no such job": [
        goal(given=True),
        *WAITS_FOR_RAY,
        (12, waits("stopped", canceled=True), "end 143: …"),
    ],
}


@pytest.mark.parametrize("case", ON_THE_WAY.values(), ids=ON_THE_WAY)
def test_on_the_way(case: Case) -> None:
    """What is done about each event, and what is logged."""
    play(case)


def test_the_loss_of_a_service_that_is_not_essential_is_logged_once() -> None:
    """Whatever follows."""
    trace = Trace(NOT_ESSENTIAL, [*SERVED, (9, LOST), (10, TICK), (11, TICK)])
    assert trace.log.count("the run goes on without it") == 1


def test_nodes_of_a_large_run_are_logged_together() -> None:
    """Up to 16 nodes each have a line; beyond that, those of one second share one."""
    few = Trace(goal(15), [(3, nodes(*range(2, 17)))])
    assert few.log.count(" joined Ray") == 15

    many = goal(17)
    history: History = [(3.0, nodes(2, 3)), (3.5, nodes(2, 3, 4)), (3.9, TICK)]
    trace = Trace(many, history)
    assert " joined Ray" not in trace.log
    assert head.deadline(trace.state) == 4.0
    trace = Trace(many, [*history, (4.0, TICK), (5.0, nodes(*range(2, 15)))])
    assert trace.log.splitlines().count("10.0.0.2, 10.0.0.3 and 10.0.0.4 joined Ray") == 1
    assert trace.log.count(" joined Ray") == 1

    # Nobody waits for the line once all are there.
    trace = Trace(many, [*history, (4.0, TICK), (5.0, nodes(*range(2, 19)))])
    last = next(line for line in trace.log.splitlines() if "10.0.0.5" in line)
    assert last.endswith("10.0.0.12 and 6 more joined Ray")


def test_a_node_whose_agent_left_is_not_counted_for_gcs_still_lists_it() -> None:
    """Until GCS reports its loss, GCS's data about that node is older than the agent's end."""
    history: History = [(2, reported(2)), (3, nodes(2)), (4, h.WorkerReplaced("agent2"))]
    trace = Trace(goal(2), [*history, (5, nodes(2))])
    assert trace.state.fleet.alive == {}
    gone = Trace(goal(2), [*history, (5, nodes()), (6, nodes(2))])
    assert gone.state.fleet.alive == {"10.0.0.2": "10.0.0.2"}
    back = Trace(goal(2), [*history, (5, reported(2)), (6, nodes(2))])
    assert back.state.fleet.alive == {"10.0.0.2": "pod2"}


def gpus_of(state: h.HeadState) -> tuple[int, int, int]:
    """Return the nodes that count, the minimum GPUs per node, and all GPUs."""
    return sizes([node.gpus for node in state.nodes()])


def test_the_fewest_gpus_count() -> None:
    """A job is sized by the node with the fewest GPUs; dead nodes do not count."""
    few = RayNode("few", "10.0.0.9", gpus=4.0)
    dead = RayNode("dead", "10.0.0.8", gpus=1.0, alive=False)
    trace = Trace(goal(2), [(3, h.RaySeen((*nodes(2).nodes, few, dead)))])
    assert gpus_of(trace.state) == (3, 4, 20)


def test_a_head_without_gpus_is_not_counted_where_others_have_some() -> None:
    """A CPU-only head does not make the GPUs of each node 0."""
    bare = replace(HEAD, gpus=0.0)
    trace = Trace(goal(2), [(3, h.RaySeen((bare, *nodes(2, 3).nodes[1:])))])
    assert gpus_of(trace.state) == (2, 8, 16)
    none = [replace(node, gpus=0.0) for node in nodes(2, 3).nodes]
    assert gpus_of(Trace(goal(2), [(3, h.RaySeen(tuple(none)))]).state) == (3, 0, 0)


def test_a_job_that_does_not_fit_what_joined_is_not_submitted() -> None:
    """A recipe is made when all have joined; where that cannot be, the run ends with 78."""
    refused = Outcome(Kind.REFUSED, 78, "5 GPUs are not divisible by 2")
    sized = RayNode("id1", "10.0.0.1", is_head=True, gpus=5.0, cpus=12.0, memory=2.0**30)
    trace = Trace(goal(), [(3, h.RaySeen((sized,))), (4, unfit(refused))])
    assert trace.state.nodes() == (NodeSize(5, 12, 1 << 30),)
    (end,) = trace.outcomes
    assert (end.exit_code, end.phase) == (78, "submitting")


def test_waits_carry_deadline_and_evidence() -> None:
    """A wait is data: its subject, its deadline, and its last evidence."""
    of = goal(1, services=(REWARD,), prepare=True)
    state = Trace(of, [(2, pending(REWARD, "connection refused"))]).state
    found = {wait.what: (wait.deadline, wait.evidence) for wait in head.pending_waits(state)}
    assert found == {
        "Ray on this node": (100, ""),
        REWARD: (300, "connection refused"),
        "AGENT_PREPARE_EACH and AGENT_PREPARE": (7200, ""),
        "workers": (200, "0 of 1 joined; 1 never reported"),
    }
    sentence = head.pending_waits(state)[1].sentence(now=295.0)
    assert sentence == "waiting for reward server, connection refused (5 s left)"


def test_only_a_jobs_own_end_is_worth_a_hold() -> None:
    """A job's verdict is marked as such; the agent's own reasons to end are not."""
    for history, own in (([*RUNNING, (9, job("FAILED", 7))], True), ([*RUNNING, (9, TERM)], False)):
        trace = Trace(goal(), history)
        assert trace.finish()
        assert trace.outcomes[0].is_jobs_verdict is own
