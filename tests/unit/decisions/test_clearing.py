"""An attempt has ended on every node before the next is submitted, or there is no next."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from agent.decisions import head
from agent.decisions.attempts import LostAttempt
from agent.decisions.head import head_state as h
from agent.decisions.head.head_state import HeadPhase
from agent.decisions.head.kept_ray import ClearAttempt, RayNotCleared
from agent.decisions.shared import LogLine
from agent.decisions.stall import Stalled
from support.heads import TICK, History, Trace, goal, job, nodes, reported

if TYPE_CHECKING:
    from collections.abc import Sequence


def runs(n: int, attempt: int, *, joined: bool = True) -> h.WorkerReported:
    """Return a worker's report with the attempt whose processes still run there."""
    said = reported(n, joined=joined).worker
    return h.WorkerReported(replace(said, running_attempt=attempt))


PAIR: History = [(3, nodes(2)), (4, runs(2, 1)), (5, h.Submitted("run-1")), (6, job("RUNNING"))]
LOST: History = [*PAIR, (9, nodes(dead=(2,))), (10, job("FAILED", 1)), (11, nodes(2))]
AGAIN = [h.SubmitJob("run-1"), h.SubmitJob("run-2")]
SILENT = h.WorkerSilent("agent2", "no answer")


def submitted(trace: Trace) -> Sequence[h.HeadAction]:
    """Return the submissions so far."""
    return [deed for deed in trace.effects if isinstance(deed, h.SubmitJob)]


def test_a_retry_after_a_loss_of_ray_begins_on_a_new_one() -> None:
    """Our own Ray ends with the attempt; a given Ray does not, and torchrun has none."""
    of = goal(1, retries=1)
    trace = Trace(of, [*PAIR, (10, h.RayGone("exit 1"))])
    assert trace.effects[-2:] == [ClearAttempt(1), h.RestartRay()]
    given = Trace(goal(1, retries=1, given=True), LOST)
    assert given.effects[-1] == ClearAttempt(1)


STALL = (9, Stalled(1, "no step for 5 min", then="retry"))
STALLED: History = [*PAIR, STALL, (10, job("STOPPED"))]


def test_a_healthy_ray_is_kept() -> None:
    """It is cleared for the next attempt, which begins once all nodes are clear."""
    trace = Trace(goal(1, retries=2), [*STALLED, (12, h.CheckpointSeen(1, last_step=8))])
    assert trace.effects[-1] == ClearAttempt(1, keeps_ray=True)
    assert submitted(trace) == AGAIN[:1]
    trace.take(runs(2, 2), 13)
    assert submitted(trace) == AGAIN
    assert h.RestartRay() not in trace.actions

    # The same Ray may be the fault: after another short attempt it is started anew.
    trace.take(h.Submitted("run-2"), 14)
    trace.take(Stalled(2, "no step for 5 min", then="retry"), 20)
    trace.take(job("STOPPED", attempt=2), 21)
    assert trace.effects[-2:] == [ClearAttempt(2), h.RestartRay()]


def test_what_lives_on_in_a_kept_ray_ends_with_it() -> None:
    """As a detached actor does; a late answer about an earlier attempt changes nothing."""
    trace = uncleared()
    trace.take(RayNotCleared(7, "an actor of class Old"), 11)
    assert h.RestartRay() not in trace.actions
    trace.take(RayNotCleared(1, "an actor of class Keeper"), 12)
    assert trace.effects[-2:] == [ClearAttempt(1), h.RestartRay()]
    assert "Ray cannot stay up for the next attempt (an actor of class Keeper)" in trace.log
    trace.take(RayNotCleared(1, "an actor of class Keeper"), 13)
    assert trace.actions.count(h.RestartRay()) == 1


def uncleared() -> Trace:
    """Return a head that keeps its Ray, and has not cleared it yet."""
    trace = Trace(goal(1, retries=1), [*PAIR, STALL])
    trace.state, _ = head.decide(trace.state, job("STOPPED"), 10)
    return trace


def test_a_ray_that_ends_while_it_is_cleared() -> None:
    """What the attempt left here is ended all the same, before the next one begins."""
    trace = uncleared()
    trace.take(h.RayGone("exit 1"), 12)
    assert trace.effects == [*trace.effects[:-2], ClearAttempt(1), h.RestartRay()]
    trace.take(RayNotCleared(1, "its Ray has ended meanwhile"), 13)
    trace.take(h.CheckpointSeen(1, last_step=8), 14)
    trace.take(nodes(2), 20)
    trace.take(runs(2, 2), 21)
    assert submitted(trace) == AGAIN


def test_a_node_that_does_not_say_that_it_is_clear_takes_ray_with_it() -> None:
    """Its agent is out of reach while its Ray answers: in a kept Ray it would get the next one."""
    trace = Trace(goal(1, retries=1), [*STALLED, (11, h.CheckpointSeen(1, last_step=8))])
    trace.take(h.WorkerSilent("agent2", "no answer", ray_answers=True), 12)
    trace.take(TICK, 71.9)
    assert h.RestartRay() not in trace.actions
    trace.take(TICK, 72)
    assert trace.effects[-2:] == [ClearAttempt(1), h.RestartRay()]
    assert submitted(trace) == AGAIN[:1]
    assert "pod2 did not report the end of the last attempt" in trace.log


def test_a_ray_is_kept_again_after_a_long_attempt() -> None:
    """It has proved to work."""
    trace = Trace(goal(1, retries=2), [*STALLED, (12, h.CheckpointSeen(1, last_step=8))])
    trace.take(runs(2, 2), 13)
    trace.take(h.Submitted("run-2"), 14)
    for at in range(60, 720, 60):
        trace.take(job("RUNNING", attempt=2), at)
    trace.take(Stalled(2, "no step for 5 min", then="retry"), 721)
    trace.take(job("STOPPED", attempt=2), 722)
    assert trace.effects[-1] == ClearAttempt(2, keeps_ray=True)


LEAVES_SOON = h.WorkerReported(replace(reported(2).worker, notice=60.0))


@pytest.mark.parametrize(
    "before",
    [
        h.RayHangs("dashboard (pid 5) is stopped", beside_job=True),
        nodes(2, 3),  # pod3 joined by hand: no agent ends there what the attempt left
        LEAVES_SOON,  # its node is about to leave
        SILENT,  # Ray lists the lost node for a while
        h.WorkerSilent("agent2", "no answer", ray_answers=True),  # nobody ends anything there
    ],
)
def test_a_ray_is_not_kept(before: h.HeadEvent) -> None:
    """Where it is not healthy, or where something of the attempt could run beside the next."""
    trace = Trace(goal(1, retries=1), [*PAIR, (8, before), *STALLED[-2:]])
    assert trace.effects[-2:] == [ClearAttempt(1), h.RestartRay()]


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


def test_this_node_must_be_clear_too() -> None:
    """A process that cannot be killed here is named, and no attempt starts beside it."""
    trace = Trace(goal(1, retries=1), PAIR)
    trace.state, actions = head.decide(trace.state, h.RayGone("exit 1"), 10)
    assert [type(one).__name__ for one in actions if not isinstance(one, LogLine)][-3:] == [
        "Retry",
        "ClearAttempt",
        "RestartRay",
    ]
    trace.take(h.Cleared(1, "python (pid 7)"), 12)
    trace.take(nodes(2), 15)
    trace.take(runs(2, 2), 15)
    assert trace.state.phase is HeadPhase.BOOTING
    assert trace.finish()
    assert (
        "on this node not ready in time: python (pid 7) cannot be ended" in trace.outcomes[0].reason
    )
    assert submitted(trace) == AGAIN[:1]


def test_a_restarted_head_has_the_earlier_nodes() -> None:
    """From its record: a silent worker gets its grace, one that reports must have ended it."""
    of = replace(
        goal(1, retries=3, tried=(LostAttempt(5.0, "x"),)), former_workers=("pod2", "pod4")
    )
    trace = Trace(of, [(3, nodes(3)), (4, runs(3, 2)), (30, TICK)])
    assert submitted(trace) == []
    trace.take(runs(2, 1), 31)
    trace.take(TICK, 60)
    assert submitted(trace) == []
    trace.take(runs(2, 0, joined=False), 61)
    assert submitted(trace) == [h.SubmitJob("run-2")]


def test_a_lost_spare_is_cleared_too() -> None:
    """It joined a running attempt, which may use it: the next begins once it is out of reach."""
    spare = replace(reported(3, rank=9, reported_at=7.0).worker, running_attempt=1)
    history: History = [
        *PAIR,
        (7, h.WorkerReported(spare)),
        (8, nodes(2, 3)),
        (20, h.WorkerSilent("agent3", "no answer")),
        (21, job("FAILED", 1)),
    ]
    trace = Trace(goal(1, retries=1), history)
    assert "Retry" in trace.kinds()
    assert "agent3" in trace.state.earlier.leftovers
