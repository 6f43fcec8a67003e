"""An attempt has ended on every node before the next is submitted, or there is no next."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from agent.decisions.attempts import LostAttempt
from agent.decisions.head import head_decide as head
from agent.decisions.head import head_state as h
from agent.decisions.head.head_state import HeadPhase
from agent.decisions.shared import JOB, RAY, ItemReport, ItemsReported, LogLine, Step
from agent.decisions.stall import Stalled
from agent.plan import waits as wait_keys
from support.heads import (
    LATEST,
    RUNNING,
    TICK,
    History,
    RayStarted,
    SubmitJob,
    Trace,
    accepted,
    after_losses,
    goal,
    job,
    nodes,
    of_now,
    ray_lost,
    ray_open,
    ray_waits,
    reported,
)

if TYPE_CHECKING:
    from collections.abc import Sequence


def runs(n: int, attempt: int, *, joined: bool = True) -> h.WorkerReported:
    """Return a worker's report with the Ray of an attempt, the first one or a later one."""
    if not attempt:
        return reported(n, joined=joined)
    generation = 1 if attempt == 1 else LATEST
    ray = ItemReport(RAY, Step.READY, generation=generation, is_running=True)
    return reported(n, joined=False, items=(ray,))


PAIR: History = [(3, nodes(2)), (4, runs(2, 1)), (5, accepted()), (6, job("RUNNING"))]
LOST: History = [*PAIR, (9, nodes(dead=(2,))), (10, job("FAILED", 1)), (11, nodes(2))]
AGAIN = [SubmitJob("run-1"), SubmitJob("run-2")]
SILENT = h.WorkerSilent("agent2", "no answer")


def submitted(trace: Trace) -> Sequence[h.HeadAction]:
    """Return the submissions so far."""
    return [deed for deed in trace.effects if isinstance(deed, SubmitJob)]


STALLED: History = [
    *PAIR,
    (9, Stalled(1, "no step for 5 min", then="retry")),
    (10, job("STOPPED")),
]


@pytest.mark.parametrize("history", [[*PAIR, (10, ray_lost("exit 1"))], LOST[:-1], STALLED])
def test_each_attempt_begins_on_a_new_ray(history: History) -> None:
    """Our own Ray ends with an attempt, whatever that was lost by; a given Ray does not."""
    trace = Trace(goal(1, retries=1), history)
    assert trace.effects[-1] == RayStarted(2)
    assert [(one.number, one.id) for one in trace.state.durable.ended] == [(1, "run-1")]
    assert trace.state.fleet.alive == {}
    given = Trace(goal(1, retries=1, given=True), LOST)
    assert given.state.ray.item.step is Step.READY


def test_a_worker_in_reach_must_have_ended_it() -> None:
    """The wait names it, although GCS lists the node again and the pause is over."""
    trace = Trace(goal(1, retries=1), [*LOST, (12, runs(2, 1)), (30, TICK)])
    assert submitted(trace) == AGAIN[:1]
    assert "the end of attempt 1 on pod2" in [wait.what for wait in head.pending_waits(trace.state)]
    trace.take(runs(2, 0, joined=False), 31)
    assert submitted(trace) == AGAIN[:1]
    trace.take(runs(2, 2), 33)
    assert submitted(trace) == AGAIN


def test_one_that_never_ends_it_ends_the_run() -> None:
    """75, with the reason, within AGENT_NODE_GRACE and a minute."""
    trace = Trace(goal(1, retries=1), [*LOST, (12, runs(2, 1))])
    trace.take(runs(2, 1), 100)
    assert trace.outcomes == []
    assert trace.finish()
    (end,) = trace.outcomes
    assert (end.exit_code, trace.now) == (75, 10 + 60 + 60)
    assert "the end of attempt 1 on pod2 not ready in time" in end.reason


@pytest.mark.parametrize(("silent", "until"), [(9.5, 69.5), (20, 80)])
def test_one_out_of_reach_has_its_time(silent: float, until: float) -> None:
    """AGENT_NODE_GRACE after its last report its fence has ended everything: others continue."""
    history: History = sorted([*PAIR, (9, nodes(dead=(2,))), (10, job("FAILED", 1))], key=at)
    trace = Trace(goal(1, retries=1), sorted([*history, (silent, SILENT)], key=at))
    trace.take(nodes(3), max(silent, 12))
    trace.take(runs(3, 2), 21)
    assert submitted(trace) == AGAIN[:1]
    away = "the end of attempt 1 on pod2, out of reach"
    assert away in [wait.what for wait in head.pending_waits(trace.state)]
    trace.take(TICK, until - 0.1)
    assert submitted(trace) == AGAIN[:1]
    trace.take(TICK, until)
    assert submitted(trace) == AGAIN


def at(one: tuple[float, h.HeadEvent]) -> float:
    """Return when something happens."""
    return one[0]


def test_a_later_agent_of_a_node_is_proof() -> None:
    """The pod was started again: no former process runs there."""
    trace = Trace(goal(1, retries=1), [*LOST, (12, runs(2, 1)), (13, h.WorkerReplaced("agent2"))])
    trace.take(nodes(3), 14)
    trace.take(runs(3, 2), 15)
    trace.take(TICK, 20)
    assert submitted(trace) == AGAIN


RESISTS = "python (pid 7) cannot be ended"


def test_this_node_must_be_clear_too() -> None:
    """A process that cannot be killed here is named, and no attempt starts beside it."""
    trace = Trace(goal(retries=1), [(1, ray_open()), *RUNNING])
    trace.state, actions = head.decide(trace.state, ray_lost("exit 1", generation=1), 10)
    assert [type(one).__name__ for one in actions if not isinstance(one, LogLine)] == [
        "Persist",
        "Publish",
    ]
    ray, output = (w for w in head.pending_waits(trace.state) if w.key == wait_keys.CLEAR)
    assert (ray.what, ray.evidence) == ("the end of attempt 1 on this node", "it is being ended")
    assert output.what == "the rest of the job's output"
    trace.take(ray_lost("exit 1", generation=1, doubt=RESISTS), 20)
    assert trace.state.phase is HeadPhase.BOOTING
    assert trace.finish()
    assert f"on this node not ready in time: {RESISTS}" in trace.outcomes[0].reason
    assert submitted(trace) == AGAIN[:1]


def test_the_next_ray_has_its_whole_time_once_nothing_is_left_here() -> None:
    """It cannot start before; what was reported of the former one does not apply to it."""
    trace = Trace(goal(retries=1), [(1, ray_open()), *RUNNING])
    trace.state, _ = head.decide(trace.state, ray_lost("exit 1", generation=1), 10)
    trace.take(nodes(generation=1), 11)
    trace.take(ray_lost("exit 1", generation=1, doubt=RESISTS), 21)
    assert trace.state.ray.head_ip is None
    assert trace.state.durable.replaces_ray
    trace.take(ray_lost("exit 1", generation=1, is_running=False), 50)
    trace.take(ray_waits("connection refused", generation=2), 50)
    assert not trace.state.durable.replaces_ray
    (ray,) = head.pending_waits(trace.state)
    assert (ray.what, ray.deadline) == ("Ray on this node", 150)
    trace.take(nodes(generation=2), 60)
    assert submitted(trace) == AGAIN


def test_a_restart_of_the_next_ray_keeps_its_time() -> None:
    """`ray start` may give up on a busy node, long after the boot's own limit for Ray."""
    trace = Trace(goal(retries=1), [(1, ray_open()), *RUNNING])
    trace.state, _ = head.decide(trace.state, ray_lost("exit 1", generation=1), 200)
    trace.take(ray_lost("exit 1", generation=1, is_running=False), 290)
    trace.take(ray_waits("connection refused", generation=2), 290)
    trace.take(ray_lost("it gave up", generation=2), 325)
    assert "starting it again: 1 of 2" in trace.log
    assert trace.outcomes == []


def test_the_output_of_the_job_is_read_to_its_end() -> None:
    """Then the last step is asked for; the next attempt is submitted later, on a given Ray, too."""
    trace = Trace(goal(1, retries=1, given=True), [(2, ray_open()), *PAIR])
    trace.state = reading(trace.state)
    trace.state, actions = head.decide(trace.state, nodes(dead=(2,)), 9)
    trace.state, actions = head.decide(trace.state, of_now(job("FAILED", 1), trace.state, 10), 10)
    trace.state = reading(trace.state)
    assert trace.state.phase is HeadPhase.BOOTING
    for event in (ray_waits("", generation=2), ray_open(generation=2), nodes(2), runs(2, 1), TICK):
        trace.state, actions = head.decide(trace.state, event, 40)
        assert not any(isinstance(one, h.Ask) for one in actions)
    (wait,) = head.pending_waits(trace.state)
    assert (wait.what, wait.evidence) == ("the rest of the job's output", "it is being read")
    over = ItemsReported((replace(trace.state.items[JOB], is_running=False),))
    trace.take(over, 41)
    assert trace.progress_asked == [1]
    assert submitted(trace) == AGAIN


def reading(state: h.HeadState) -> h.HeadState:
    """Return a state in which the output of the job is not read to its end."""
    left = replace(state.items[JOB], is_running=True)
    return replace(state, items={**state.items, JOB: left})


@pytest.mark.parametrize("given", [False, True])
def test_what_holds_gpu_memory_here_is_waited_for(*, given: bool) -> None:
    """Also where the job ran on a given Ray, of which only the watch begins anew."""
    stalled = Stalled(1, "no step for 5 min", then="retry")
    trace = Trace(goal(retries=1, given=given), [(1, ray_open()), *RUNNING, (9, stalled)])
    trace.state, _ = head.decide(trace.state, of_now(job("STOPPED"), trace.state, 10), 10)
    assert "the end of attempt 1 on this node" in [
        wait.what for wait in head.pending_waits(trace.state)
    ]
    trace.take(ray_waits("", generation=2), 30)
    assert wait_keys.CLEAR not in [wait.key for wait in head.pending_waits(trace.state)]


def test_a_restarted_head_has_the_earlier_nodes() -> None:
    """From its record: a silent worker gets its grace, one that reports must have ended it."""
    known = replace(after_losses(LostAttempt(5.0, "x")), epoch=5_000)
    known = replace(known, ended=(replace(known.ended[0], nodes=("pod2", "pod4")),))
    history: History = [(3, nodes(3)), (4, runs(3, 2)), (30, TICK)]
    trace = Trace(goal(1, retries=3), history, known)
    assert submitted(trace) == []
    trace.take(runs(2, 1), 31)
    trace.take(TICK, 60)
    assert submitted(trace) == []
    trace.take(runs(2, 0, joined=False), 61)
    assert submitted(trace) == [SubmitJob("run-2")]


def test_a_lost_spare_is_cleared_too() -> None:
    """It joined a running attempt, which may use it: the next begins once it is out of reach."""
    history: History = [
        *PAIR,
        (7, reported(3, rank=9, reported_at=7.0)),
        (8, nodes(2, 3)),
        (20, h.WorkerSilent("agent3", "no answer")),
        (21, job("FAILED", 1)),
    ]
    trace = Trace(goal(1, retries=1), history)
    assert trace.state.attempt.number == 2
    assert "agent3" in trace.state.earlier.leftovers
