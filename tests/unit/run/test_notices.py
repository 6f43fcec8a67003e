"""Nodes that a platform takes away: the job saves, and the loss costs no retry."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from agent.base import ends
from agent.base.ends import Kind
from agent.decisions import worker
from agent.decisions.attempts import LostAttempt, count_losses, retries_exhausted
from agent.decisions.durable import Durable
from agent.decisions.head import head_state as h
from agent.decisions.head.head_state import HeadPhase
from agent.decisions.shared import NodeWanted
from agent.decisions.worker import worker_state as w
from agent.decisions.worker.worker_state import WorkerPhase
from agent.plan import waits as wait_keys
from agent.record.run_record import RunRecord
from agent.settings.jobs import notice_signal
from agent.settings.load import load
from support import workers as of_worker
from support.heads import (
    INT,
    PAIR,
    RUNNING,
    TERM,
    TICK,
    Released,
    SaveJob,
    StopJob,
    SubmitJob,
    Trace,
    accepted,
    asks_progress,
    goal,
    job,
    nodes,
    ray_lost,
    reported,
    saved,
)
from support.run_records import NOW, record_of, submitted

if TYPE_CHECKING:
    from agent.decisions.head.head_goal import HeadGoal
    from agent.decisions.head.head_state import HeadEvent
    from support.heads import History

USR1 = 10
SAVED = saved("the job has saved checkpoint-7")


def noticed(
    n: int, seconds: float, at: float, *, has_left: bool = False
) -> tuple[float, HeadEvent]:
    """Return a worker's report that its node is taken away in this many seconds."""
    report = reported(n, has_left=has_left, reported_at=at)
    return at, replace(report, worker=replace(report.worker, notice=seconds))


def taken(workers: int = 1, retries: int = 0, least: int | None = None) -> HeadGoal:
    """Return the goal of a run whose job saves on SIGUSR1."""
    return replace(goal(workers, least, retries=retries), notice_signal=USR1)


def signals(trace: Trace) -> list[str]:
    """Return the actions on the job and the workers, in order."""
    kinds = (SaveJob, StopJob, Released, h.EndRun)
    others = (one for one in trace.actions if isinstance(one, kinds) or asks_progress(one))
    return ["ended" if asks_progress(one) else type(one).__name__ for one in others]


ONE = noticed(2, 14.0, 10)


@pytest.mark.parametrize(
    ("history", "actions"),
    [
        ([ONE], ["SaveJob"]),
        ([ONE, noticed(2, 13.0, 11)], ["SaveJob"]),
        ([ONE, (12, SAVED)], ["SaveJob", "StopJob", "Released"]),
        ([ONE, (12, saved("another one", attempt=2))], ["SaveJob"]),
        ([ONE, (24, TICK)], ["SaveJob", "StopJob", "Released"]),
        ([ONE, noticed(2, 0.0, 12, has_left=True)], ["SaveJob", "StopJob"]),
        (
            [ONE, (12, SAVED), (14, job("STOPPED"))],
            ["SaveJob", "StopJob", "Released", "ended"],
        ),
        ([ONE, (12, job("FAILED", 138))], ["SaveJob", "ended", "Released"]),
        ([ONE, (12, job("SUCCEEDED", 0))], ["SaveJob", "EndRun"]),
        ([ONE, (12, ray_lost("exit code 1"))], ["SaveJob", "Released", "ended"]),
        ([ONE, (12, TERM), (13, TICK), (20, TICK)], ["SaveJob", "StopJob", "Released"]),
        ([ONE, (12, TERM), (13, SAVED)], ["SaveJob", "StopJob", "Released"]),
        ([ONE, (12, TERM), (13, TERM)], ["SaveJob", "StopJob"]),
        ([ONE, (12, INT)], ["SaveJob", "StopJob"]),
    ],
)
def test_the_job_saves_before_its_node_is_taken_away(history: History, actions: list[str]) -> None:
    """It is stopped after it has saved, or at the end of the notice; then the node may leave."""
    trace = Trace(taken(), [*PAIR, *history])
    assert signals(trace) == actions
    assert [d.id for d in trace.effects if isinstance(d, SaveJob)] == ["run-1"]


def test_another_attempt_begins_as_soon_as_the_node_is_back() -> None:
    """Without a retry and without a pause, although GCS may list the lost node for a while."""
    history = [*PAIR, ONE, (12, SAVED), (13, job("STOPPED")), noticed(2, 0.0, 14, has_left=True)]
    trace = Trace(taken(), history)
    assert "announced losses that AGENT_JOB_RETRIES does not count: 1 of 10" in trace.log
    assert (trace.state.phase, trace.state.attempt.number) == (HeadPhase.BOOTING, 2)
    trace.take(nodes(), 15)
    trace.take(h.WorkerReplaced("agent2"), 20)
    trace.take(nodes(2), 21)
    assert trace.effects[-1] == SubmitJob("run-2")
    assert "the platform takes away pod2" in trace.log


def test_a_node_that_does_not_come_back_ends_the_run() -> None:
    """The wait for workers has its deadline; the end is a loss with its name."""
    trace = Trace(taken(), [*PAIR, ONE, noticed(2, 0.0, 12, has_left=True), (13, job("STOPPED"))])
    assert trace.finish()
    (end,) = trace.outcomes
    assert (end.exit_code, end.kind) == (75, Kind.LOST)


@pytest.mark.parametrize(
    ("of", "history"),
    [
        (taken(2, least=1), [(3.0, nodes(2, 3)), (4.0, reported(2)), ONE]),
        (taken(1), [(3.0, nodes()), (4.0, reported(2, joined=False)), ONE]),
        (replace(taken(), notice_signal=0), [*PAIR, ONE]),
        (replace(goal(1, job=False), notice_signal=USR1), [*PAIR[:2], ONE]),
        (taken(1), [(3.0, nodes(2, 3)), (4.0, reported(2)), (4.5, accepted()), ONE]),
    ],
    ids=["booting", "not joined", "no signal", "no job", "a spare"],
)
def test_a_node_that_nothing_waits_for_may_leave_at_once(of: HeadGoal, history: History) -> None:
    """The job continues, and the worker is released once."""
    trace = Trace(of, [*history, noticed(2, 13.0, 11)])
    assert signals(trace) == ["Released"]


@pytest.mark.parametrize(("retries", "free"), [(0, False), (2, True)])
def test_a_loss_by_sigterm_costs_no_retry_where_retries_are_allowed(
    retries: int, *, free: bool
) -> None:
    """Without a signal to save on AGENT_NODE_GRACE holds; without retries the run ends."""
    gone = noticed(2, 0.0, 10, has_left=True)
    trace = Trace(goal(1, retries=retries), [*PAIR, gone, (11, nodes()), (71, TICK)])
    trace.take(job("STOPPED"), 72)
    assert ("does not count: 1 of 10" in trace.log) == free
    assert [end.exit_code for end in trace.outcomes] == ([] if free else [75])


def test_a_loss_that_was_not_announced_counts_beside_one_that_was() -> None:
    """Only an attempt that lost nothing but announced nodes is free."""
    pair: History = [(3.0, nodes(2, 3)), (4.0, reported(2)), (4.2, reported(3)), *PAIR[2:]]
    trace = Trace(taken(2), [*pair, (9, nodes(2)), ONE, (12, SAVED), (13, job("STOPPED"))])
    (end,) = trace.outcomes
    assert (end.exit_code, end.attempts_are_used_up) == (75, True)


@pytest.mark.parametrize(
    ("announced", "others", "counted"),
    [(0, 2, 2), (1, 0, 0), (10, 0, 0), (11, 0, 1), (12, 1, 3)],
)
def test_ten_announced_losses_are_free(announced: int, others: int, counted: int) -> None:
    """The eleventh counts like any other."""
    tried = [LostAttempt(9e3, announced=True)] * announced + [LostAttempt(9e3)] * others
    assert count_losses(tried) == counted
    assert retries_exhausted(tried, counted) is None
    if counted:
        assert retries_exhausted(tried, counted - 1) is not None


def test_announced_losses_are_recorded() -> None:
    """A later head counts like its former one."""
    taken = ends.NODE_TAKEN.outcome(nodes="pod2")
    for announced in ((), ("pod2",)):
        begun = submitted(Durable("r"), announced_nodes=announced, lost_nodes=("pod2",))
        found = RunRecord.from_dict(record_of(begun.with_end(taken, NOW)).to_dict())
        assert isinstance(found, RunRecord)
        assert [one.announced for one in found.durable.tried] == [bool(announced)]


# --- the head's own node, and AGENT_MAX_HOURS -----------------------------------------------------


@pytest.mark.parametrize(
    ("event", "actions"),
    [(TERM, ["SaveJob"]), (INT, ["StopJob"])],
)
def test_sigterm_to_the_head_lets_the_job_save_first(event: HeadEvent, actions: list[str]) -> None:
    """Within half of the job's grace, and in all no longer than any stop; Ctrl-C stops at once."""
    trace = Trace(taken(0), [*RUNNING, (10, event)])
    assert signals(trace) == actions
    assert trace.finish()
    assert signals(trace) == [*actions, *(["StopJob"] if event is TERM else []), "EndRun"]
    assert trace.now == 10 + 16.0
    assert [end.exit_code for end in trace.outcomes] == [143 if event is TERM else 130]


def test_a_job_that_cannot_save_is_stopped_at_once() -> None:
    """It does not handle the signal, so there is no wait; nor after a second stop."""
    trace = Trace(taken(0), [*RUNNING, (10, TERM), (10.1, SAVED)])
    assert signals(trace) == ["SaveJob", "StopJob"]
    trace = Trace(taken(0), [*RUNNING, (10, TERM), (11, TERM)])
    assert signals(trace) == ["SaveJob", "StopJob"]


def test_the_job_saves_before_its_hours_are_over() -> None:
    """AGENT_MAX_HOURS stops like SIGTERM, with its own outcome."""
    trace = Trace(replace(taken(0), max_hours=0.01), [*RUNNING, (36, TICK), (38, SAVED)])
    assert signals(trace) == ["SaveJob", "StopJob"]
    trace.take(job("STOPPED"), 40)
    assert [(end.exit_code, end.kind) for end in trace.outcomes] == [(78, Kind.STOPPED)]


# --- the worker -----------------------------------------------------------------------------------

JOINED: list[tuple[float, w.WorkerEvent]] = [
    (1.0, of_worker.replied()),
    (3.0, of_worker.RAY_UP),
]
LEAVE = replace(of_worker.replied(), wanted=NodeWanted("head1", 1, {}, may_leave=True))


def saving_worker(*, limit: float | None = 14.0) -> w.WorkerGoal:
    """Return a worker's goal with a time to save."""
    of = of_worker.goal()
    own = {} if limit is None else {wait_keys.SAVE: limit}
    return replace(of, limits={**of.limits, **own})


@pytest.mark.parametrize(
    ("history", "leaves_at"),
    [
        ([(10, of_worker.TERM)], 24.0),
        ([(10, of_worker.TERM), (12, LEAVE)], 12.0),
        ([(10, of_worker.TERM), (12, of_worker.TERM)], 12.0),
        ([(10, of_worker.INT)], 10.0),
        ([(9, w.HeadSilent("refused")), (10, of_worker.TERM)], 10.0),
        ([(10, LEAVE), (11, of_worker.TERM)], 25.0),
    ],
)
def test_a_worker_waits_until_the_job_has_saved(
    history: list[tuple[float, w.WorkerEvent]], leaves_at: float
) -> None:
    """It keeps its Ray until the head releases it, at most until its time is over."""
    trace = of_worker.WorkerTrace(saving_worker(), [*JOINED, *history])
    assert trace.state.phase is WorkerPhase.LEAVING or trace.state.notice(20.0) == max(
        0.0, leaves_at - 20.0
    )
    assert trace.finish()
    assert (trace.now, trace.outcomes[0].exit_code) == (
        leaves_at,
        130 if history[-1][1] is of_worker.INT else 143,
    )


def test_a_worker_leaves_at_once_where_no_job_saves() -> None:
    """As before it has joined; its goodbye still has the platform's notice."""
    for of, history in ((saving_worker(limit=None), JOINED), (saving_worker(), JOINED[:1])):
        trace = of_worker.WorkerTrace(of, [*history, (10, of_worker.TERM)])
        assert [end.exit_code for end in trace.outcomes] == [143]
        assert trace.state.notice(10.0) == 0.0
    by_hand = of_worker.WorkerTrace(saving_worker(), [*JOINED, (10, of_worker.INT)])
    assert by_hand.state.notice(10.0) is None


def test_the_verdict_ends_a_worker_that_waits() -> None:
    """A run that is over has nothing to save."""
    over = of_worker.replied(verdict=ends.JOB_SUCCEEDED.outcome(before=""))
    trace = of_worker.WorkerTrace(saving_worker(), [*JOINED, (10, of_worker.TERM), (11, over)])
    assert [end.exit_code for end in trace.outcomes] == [0]
    wait = worker.pending_waits(
        of_worker.WorkerTrace(saving_worker(), [*JOINED, (10, TERM)]).state
    )[0]
    assert (wait.key, wait.deadline) == (wait_keys.SAVE, 24.0)


# --- the setting ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environ", "signum"),
    [
        ({}, 0),
        ({"AGENT_NOTICE_SIGNAL": "SIGUSR1"}, 10),
        ({"AGENT_NOTICE_SIGNAL": "usr2"}, 12),
        ({"AGENT_NOTICE_SIGNAL": "off"}, 0),
        ({"AGENT_JOB": "trl-grpo"}, 10),
        ({"AGENT_JOB": "trl-grpo", "AGENT_NOTICE_SIGNAL": "off"}, 0),
        ({"AGENT_JOB": "trl-grpo", "AGENT_NOTICE_SIGNAL": "SIGTERM"}, 15),
    ],
)
def test_the_signal_is_the_users_else_the_recipes(environ: dict[str, str], signum: int) -> None:
    """A recipe has one only if its program was observed to save on it."""
    recipe = {"AGENT_MODEL": "m/m", "AGENT_TRAIN_DATA": "/d.jsonl"}
    given = environ | (recipe if "AGENT_JOB" in environ else {})
    assert notice_signal(load(given, None).settings) == signum
