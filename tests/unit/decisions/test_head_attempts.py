"""Attempts: what counts as a loss, when another follows, its pause, and the last one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.base.ends import Kind
from agent.decisions.attempts import (
    FailureCause,
    JobReport,
    LostAttempt,
    end_without_progress,
    pause_after,
    retries_exhausted,
)
from agent.decisions.head import head_state as h
from agent.decisions.head.head_state import HeadPhase
from agent.decisions.shared import CHECK, JOB, SAVE, Answered, ItemReport, Step
from agent.decisions.stall import Stalled
from support.heads import (
    PAIR,
    TERM,
    TICK,
    History,
    SubmitJob,
    Trace,
    accepted,
    after_losses,
    goal,
    job,
    nodes,
    ray_lost,
    reported,
    resumed,
    signaled,
    status_of,
)
from support.histories import ALONE_RUNS, LATER, PAIR_RUNS, Case, Logged, Row, Waits, play

if TYPE_CHECKING:
    from agent.decisions.shared import ItemsReported

GONE = (9, nodes(dead=(2,)))
FAILED = (10, job("FAILED", 1))
ASKED = Answered(h.NodesAsked("run-1"))
SILENT = Answered(h.NodesAsked("run-1", {"pod2": "connection refused"}))


@pytest.mark.parametrize(
    ("retries", "history", "code", "kind", "words"),
    [
        (0, [*PAIR, FAILED, (11, ASKED)], 1, Kind.JOB_FAILED, "exit code 1"),
        (0, [*PAIR, FAILED, (11, SILENT)], 1, Kind.JOB_FAILED, "lost pod2: connection refused"),
        (0, [*PAIR, FAILED, (15, TICK)], 1, Kind.JOB_FAILED, "exit code 1"),
        (0, [*PAIR, GONE, FAILED], 1, Kind.JOB_FAILED, "before that, lost a needed node"),
        (0, [*PAIR, FAILED, (11, TERM)], 1, Kind.JOB_FAILED, "exit code 1"),
        (0, [*PAIR, FAILED, (11, ray_lost("exit 1"))], 1, Kind.JOB_FAILED, "Ray was lost"),
        (3, [*PAIR, FAILED, (11, ASKED)], 1, Kind.JOB_FAILED, "exit code 1"),
        (3, [*PAIR, (10, job("SUCCEEDED", 0))], 0, Kind.DONE, "succeeded"),
        (3, [*PAIR, (10, job("FAILED", 75)), (11, ASKED)], 75, Kind.JOB_FAILED, "code 75"),
        (
            3,
            [*PAIR, GONE, (10, job("FAILED", 1, "ray.exceptions.OutOfMemoryError: Task was"))],
            1,
            Kind.JOB_FAILED,
            "ran out of memory",
        ),
        (
            3,
            [*PAIR, (10, job("FAILED", None, "the node running low on memory"))],
            75,
            Kind.JOB_FAILED,
            "ran out of memory",
        ),
        (
            3,
            [*PAIR, GONE, (12, nodes(2)), (70, job("FAILED", 1)), (71, ASKED)],
            1,
            Kind.JOB_FAILED,
            "exit code 1",
        ),
    ],
)
def test_a_jobs_failure_is_its_own(
    retries: int, history: History, code: int, kind: Kind, words: str
) -> None:
    """Nodes are probed once; without a recent loss or attempts left, the job's own code."""
    trace = Trace(goal(1, retries=retries), history[:-1])
    assert trace.outcomes == []
    trace.take(history[-1][1], history[-1][0])
    (end,) = trace.outcomes
    assert (end.exit_code, end.kind) == (code, kind)
    assert words in end.reason
    assert end.is_jobs_verdict


OUT = "this container ran out of memory: the kernel's OOM killer ended a process of it"


@pytest.mark.parametrize(
    ("history", "code"),
    [
        ([*PAIR, (9, ray_lost("its raylet is gone", OUT))], 75),
        ([*PAIR, (9, status_of(JobReport("FAILED", "", 137, memory=OUT)))], 137),
        ([*PAIR, GONE, (10, status_of(JobReport("FAILED", "", 1, memory=OUT)))], 1),
        ([*PAIR, (8, reported(2, memory=OUT)), GONE, FAILED], 1),
        ([*PAIR, (8, reported(2, memory=OUT)), GONE, (80, TICK), (90, job("STOPPED", None))], 75),
    ],
    ids=["the head's Ray", "the driver", "a process of the job", "on a worker", "a worker's Ray"],
)
def test_memory_that_ran_out_is_no_loss(history: History, code: int) -> None:
    """It is reported as such for any killed process, is the job's own failure, and is final."""
    trace = Trace(goal(1, retries=3), history)
    (end,) = trace.outcomes
    assert (end.exit_code, end.kind, end.is_jobs_verdict) == (code, Kind.JOB_FAILED, True)
    assert OUT in end.reason
    assert "the job ran out of memory" in end.reason


def ended_before(seconds: float) -> ItemsReported:
    """Return Ray's late report of a failed job."""
    return status_of(JobReport("FAILED", "", 1, ended_ago=seconds))


@pytest.mark.parametrize(
    ("history", "reason"),
    [
        ([*PAIR, GONE, (12, nodes(2)), (100, ended_before(60))], None),
        ([*PAIR, GONE, (12, nodes(2)), (100, ended_before(21))], "exit code 1; before that, lost"),
        ([*PAIR, (60, nodes(dead=(2,))), (62, nodes(2)), (100, ended_before(90))], "exit code 1"),
        ([*PAIR, (60, nodes(dead=(2,))), (62, nodes(2)), (100, ended_before(50))], None),
        ([*PAIR, (50, job("RUNNING")), (60, nodes(dead=(2,))), (70, ended_before(900))], None),
    ],
    ids=["soon after", "long after", "long before", "noticed late", "another clock"],
)
def test_a_loss_counts_by_the_jobs_end(history: History, reason: str | None) -> None:
    """Ray may report it much later, and a killed node is noticed after some seconds."""
    trace = Trace(goal(1, retries=1), history)
    trace.take(ASKED, history[-1][0] + 1)
    reasons = [end.reason.partition(" a needed")[0] for end in trace.outcomes]
    assert reasons == ([] if reason is None else [f"the job failed with {reason}"])


@pytest.mark.parametrize(
    "history",
    [
        [*PAIR, GONE, FAILED],
        [*PAIR, FAILED, (11, SILENT)],
        [*PAIR, FAILED, (10.5, nodes(dead=(2,)))],
        [*PAIR, FAILED, (10.5, reported(2, joined=False))],
        [*PAIR, FAILED, (10.5, ray_lost("exit 1"))],
        [*PAIR, (10, ray_lost("exit 1"))],
        [*PAIR, GONE, (69, TICK), (70, job("STOPPED"))],
        [*PAIR, (10, job("FAILED", None, "the supervisor died")), (11, ASKED)],
        [*PAIR, (126, TICK)],
        [(0, ray_lost("exit 1", OUT)), *PAIR, GONE, FAILED],
        [
            (0, reported(3, memory=OUT)),
            (1, reported(3, joined=False, has_left=True, memory=OUT)),
            *PAIR,
            GONE,
            FAILED,
        ],
    ],
)
def test_a_loss_is_followed_by_another_attempt(history: History) -> None:
    """A node or Ray ended within a minute before the job: the attempt is made again."""
    trace = Trace(goal(1, retries=1), history)
    assert trace.outcomes == []
    assert (trace.state.attempt.number, trace.state.phase) == (2, HeadPhase.BOOTING)
    assert "attempt 1 of 2 is lost: " in trace.log
    trace.take(nodes(2), trace.now + 1)
    trace.take(reported(2), trace.now)
    assert trace.state.phase is HeadPhase.BOOTING
    trace.take(TICK, trace.state.not_before)
    assert trace.effects[-1] == SubmitJob("run-2")
    assert "attempt 2 of 2: " in trace.log
    assert "2 of 2 node(s)" in trace.log


def test_no_worker_reports_the_job() -> None:
    """It is the head's own: what a worker says under its names changes nothing."""
    trace = Trace(replace(goal(1), notice_signal=10), PAIR[:2])
    said = tuple(ItemReport(name, Step.READY, "done", 1) for name in (JOB, SAVE, CHECK))
    trace.take(reported(2, items=said), 5)
    assert trace.state.phase is HeadPhase.SUBMITTING
    for event in (accepted(), TERM):
        trace.take(event, 6)
    trace.take(reported(2, items=said), 7)
    assert (trace.state.phase, "StopJob" in trace.kinds()) == (HeadPhase.STOPPING, False)


# --- what follows a loss, and what ends the run ---------------------------------------------------

KILLED = ray_lost("exit 1")
LOST_HEAD = LostAttempt(100.0, "its head was lost")
ANNOUNCED = replace(LOST_HEAD, announced=True)
QUOTA = FailureCause("disk quota", "the quota is used up", is_permanent=True)
SHAPE = FailureCause("illegal access", "a CUDA kernel accessed memory illegally")
AGAIN = "start Ray, generation 2"
AGAIN_AGAIN = "start Ray, generation 3"
STARTED_BY_3: list[Row] = [(3, nodes(), "submit run-3"), (4, accepted(3))]


def failed_by(cause: FailureCause) -> tuple[float, ItemsReported]:
    """Return the event that the job failed by a cause."""
    return (10, status_of(JobReport("FAILED", "", 1, cause=cause)))


def made(attempt: int, step: int | None = None, saved: int | None = None) -> Answered:
    """Return the event that an attempt's last step and newest checkpoint are known."""
    return Answered(h.ProgressKnown(attempt, saved, "/ckpt", step))


def wedged(attempt: int, long: str, suspects: str, key: str) -> Stalled:
    """Return the event that a job makes no step."""
    return Stalled(attempt, f"no step for {long}", suspects, "retry", cause_key=key)


# In one function, on whichever node and rank, and whatever else the sentence says
IN_REWARD = "steps: compute_score reward.py"
FIRST = ("12 min", "rank 17 on abcx is in `compute_score` (reward.py:44) since 01:12")
SECOND = ("12 min 30 s", "rank 3 on xyz is in `compute_score` (reward.py:44) (and 1 more group)")


def wedged_twice(first: str, second: str, *last: str) -> list[Row]:
    """Return two attempts that are wedged at step 25, by these causes."""
    return [
        (60, nodes(), "submit run-1"),
        (61, accepted()),
        (100, wedged(1, *FIRST, first), "stop run-1"),
        (101, job("STOPPED"), AGAIN),
        (102, made(1, 25, 20)),
        (163, nodes(), "submit run-2"),
        (164, accepted(2)),
        (203, wedged(2, *SECOND, second), "stop run-2"),
        (204, job("STOPPED", attempt=2), AGAIN_AGAIN),
        (205, made(2, 25, 20), *last),
    ]


ATTEMPTS: dict[str, Case] = {
    # A job's failure on a given Ray: is a lost node behind it?
    "all nodes answer: it is final at once": [
        goal(1, given=True, retries=1),
        *PAIR_RUNS,
        (*FAILED, "ask the nodes"),
        (10.1, ASKED, "end 1: the job failed with exit code 1"),
    ],
    "GCS reports it: another attempt follows": [
        goal(1, given=True, retries=1),
        *PAIR_RUNS,
        (*FAILED, "ask the nodes"),
        (12, SILENT),
        (72, nodes(dead=(2,)), AGAIN),
    ],
    "GCS reports it, and no retry is left": [
        goal(1, given=True),
        *PAIR_RUNS,
        (*FAILED, "ask the nodes"),
        (12, SILENT),
        (72, nodes(dead=(2,)), "end 1: …exit code 1; before that, …pod2…"),
    ],
    "GCS does not report it: it is final": [
        goal(1, given=True, retries=1),
        *PAIR_RUNS,
        (*FAILED, "ask the nodes"),
        (12, SILENT),
        Waits("waiting for GCS to report a lost node, pod2: connection refused (73 s left)"),
        (84.9, TICK),
        (85.1, TICK, "end 1: the job failed with exit code 1…"),
    ],
    # A job that is stopped for a loss, or for a signal
    "its success came before the stop": [
        goal(1, retries=1),
        *PAIR_RUNS,
        GONE,
        (69, TICK, "stop run-1"),
        (70, job("SUCCEEDED", 0), "end 0: the job succeeded; before that, lost a needed node…"),
    ],
    "a driver that exits with 0 on the agent's SIGTERM has not succeeded": [
        goal(1),
        *PAIR_RUNS,
        GONE,
        (69, TICK, "stop run-1"),
        (74, signaled()),
        (75, job("SUCCEEDED", 0), "end 75: lost a needed node…"),
    ],
    "a signal outranks a success": [
        goal(1, retries=1),
        *PAIR_RUNS,
        (9, TERM, "stop run-1"),
        (71, job("SUCCEEDED", 0), "end 143: …SIGTERM…"),
    ],
    "a signal outranks a success after a loss": [
        goal(1, retries=1),
        *PAIR_RUNS,
        GONE,
        (69, TICK, "stop run-1"),
        (70, TERM),
        (71, job("SUCCEEDED", 0), "end 143: …SIGTERM…"),
    ],
    # What the next attempt waits for
    "AGENT_PARTIAL=proceed ends the wait for workers, not the pause after a loss": [
        goal(2, least=1, retries=9),
        replace(
            after_losses(*(LostAttempt(1.0),) * 5), attempt=resumed(number=6, required=2).attempt
        ),
        (1, KILLED, "start Ray, generation 2"),
        (3, nodes(2)),
        (3, reported(2)),
        (201, TICK),
        (301, TICK, "submit run-7"),
        Logged("going on with 1 worker(s), as AGENT_PARTIAL=proceed"),
    ],
    "its steps are known, and end the pause": [
        goal(retries=2),
        *ALONE_RUNS,
        (20, KILLED, AGAIN),
        (22, nodes()),
        (23, made(1, 5), "submit run-2"),
    ],
    "it made no step: the pause stays": [
        goal(retries=2),
        *ALONE_RUNS,
        (20, KILLED, AGAIN),
        (22, nodes()),
        (23, made(1)),
        Waits("waiting for attempt 2 to begin, a pause after the loss (7 s left)"),
    ],
    "what was there for an attempt and does not come back is a loss, not a missing worker": [
        goal(1, retries=1),
        *PAIR_RUNS,
        GONE,
        (*FAILED, AGAIN),
        (12, nodes()),
        (LATER, TICK, "end 75: workers not ready in time: …pod2…"),
    ],
    "the next attempt names the node that was lost": [
        goal(2, retries=2),
        (3, nodes(2, 3), "submit run-1"),
        (3, reported(2)),
        (3, reported(3)),
        (5, accepted()),
        (9, nodes(3, dead=(2,))),
        (10, job("FAILED", 1), AGAIN),
        (12, nodes(2, 3)),
        (20, TICK, "submit run-2"),
        Logged("attempt 2 of 3: lost a needed node"),
        Logged("pod2"),
        Logged("; 3 of 3 node(s)"),
    ],
    # When no other attempt follows
    "attempts are used up": [
        goal(retries=0),
        *ALONE_RUNS,
        (9, KILLED, "end 75: Ray was lost on the head: exit 1…"),
    ],
    "three short attempts in a row made no progress, restarts included": [
        goal(retries=2),
        after_losses(ANNOUNCED, replace(ANNOUNCED, seconds=5.0)),
        *STARTED_BY_3,
        (9, KILLED, "start Ray, generation 2"),
        (9.1, made(3), "end 75: …no progress: 3 attempts in a row…"),
    ],
    "three losses of the head end no run that allows more attempts": [
        goal(retries=3),
        after_losses(LOST_HEAD, LOST_HEAD),
        *STARTED_BY_3,
        (9, KILLED, "start Ray, generation 2"),
        (9.1, made(3)),
    ],
    "a permanent cause is not tried again": [
        goal(1, retries=3),
        *PAIR_RUNS,
        GONE,
        (
            *failed_by(QUOTA),
            "end 1: …before that, lost a needed node…not tried again…: the quota is used up",
        ),
    ],
    "a cause that may pass is tried again": [
        goal(1, retries=3),
        *PAIR_RUNS,
        GONE,
        (*failed_by(SHAPE), AGAIN),
        Logged("attempt 1 of 4 is lost"),
    ],
    "a permanent cause of a node that is away is tried again": [
        goal(1, retries=3),
        *PAIR_RUNS,
        GONE,
        (*failed_by(replace(QUOTA, node="pod2")), AGAIN),
    ],
    "a job that is wedged at the same step and place twice is not tried again": [
        goal(retries=40),
        *wedged_twice(
            IN_REWARD,
            IN_REWARD,
            "end 75: …the same cause ended two attempts at step 25: …`compute_score` "
            "(reward.py:44)…",
        ),
    ],
    "a job that is wedged at another place is tried again": [
        goal(retries=40),
        *wedged_twice("steps: load", "steps: save"),
    ],
    # Ray has no exit code where its supervisor is killed: the cause may be outside
    "a driver that is killed at the same step twice is tried again": [
        goal(retries=40),
        (60, nodes(), "submit run-1"),
        (61, accepted()),
        (5000, job("FAILED", None, "actor 4711 died"), AGAIN),
        (5001, made(1, 25, 10)),
        (5062, nodes(), "submit run-2"),
        (5063, accepted(2)),
        (9999, job("FAILED", None, "actor 815 died", 2), AGAIN_AGAIN),
        (10_000, made(2, 25, 20)),
    ],
    "a newer checkpoint is progress, and the next attempt says from where it resumes": [
        goal(retries=9),
        (0, made(0, saved=10)),
        (90, nodes(), "submit run-1"),
        (141, accepted()),
        (142, KILLED, AGAIN),
        (143, made(1, saved=10)),
        (180, nodes(), "submit run-2"),
        (231, accepted(2)),
        (232, KILLED, AGAIN_AGAIN),
        (233, made(2, saved=10)),
        (270, nodes(), "submit run-3"),
        (321, accepted(3)),
        (322, KILLED, "start Ray, generation 4"),
        (323, made(3, saved=20)),
        (360, nodes()),
        (410, TICK, "submit run-4"),
        Logged(
            "attempt 4 of 10: Ray was lost on the head: exit 1; 1 of 1 node(s); resumes from /ckpt"
        ),
    ],
}


@pytest.mark.parametrize("case", ATTEMPTS.values(), ids=ATTEMPTS)
def test_attempts(case: Case) -> None:
    """A lost attempt is followed by another one, if that may help."""
    play(case)


# --- the rules -----------------------------------------------------------------------------------


def test_attempts_that_are_used_up_are_worth_a_hold() -> None:
    """The last loss ends the run; a restarted pod could do no more."""
    history: History = [(3, nodes()), (4, accepted()), (9, KILLED)]
    (end,) = Trace(goal(retries=0), history).outcomes
    assert (end.exit_code, end.is_jobs_verdict, end.holds_pod) == (75, False, True)


@pytest.mark.parametrize(
    ("seconds", "retries", "words"),
    [
        ([], 0, None),
        ([5], 0, "1 attempt(s) lost"),
        ([5], 1, None),
        ([5, 5], 1, "2 attempt(s) lost"),
    ],
)
def test_spent(seconds: list[float], retries: int, words: str | None) -> None:
    """A run is spent when its attempts are used up."""
    end = retries_exhausted([LostAttempt(one, "Ray was lost") for one in seconds], retries)
    assert (end is None) == (words is None)
    assert end is None or words is None or words in end.reason


def test_pauses_double_up_to_five_minutes() -> None:
    """10 s after an attempt in vain, doubling, and never more than five minutes."""
    vain = LostAttempt(5, "Ray was lost")
    assert [pause_after([vain] * n) for n in (1, 2, 3, 6, 7)] == [10, 20, 40, 300, 300]
    assert pause_after([vain] * 1000) == 300


@pytest.mark.parametrize(
    ("steps", "pause"),
    [
        ([3], 0),  # it made steps
        ([0], 10),  # its first step never came
        ([3, 3], 10),  # it came no further than the one before
        ([3, 4], 0),
        ([3, 3, 3], 20),
        ([3, None, 3], 20),
        ([3, None, 5], 0),
        ([None, 3, 2], 10),
    ],
)
def test_an_attempt_that_made_steps_is_followed_without_a_pause(
    steps: list[int | None], pause: float
) -> None:
    """Pauses are for attempts that fail at once again; a pod that bills waits for nothing else."""
    tried = [LostAttempt(5, "Ray was lost", last_step=step) for step in steps]
    assert pause_after(tried) == pause


@pytest.mark.parametrize("ended", [0, 1, 2])
def test_a_head_asks_first_what_the_last_attempt_has_made(ended: int) -> None:
    """One that was lost with its head has steps, too; what is known of it stays."""
    known = after_losses(*(LOST_HEAD,) * ended)
    trace = Trace(goal(retries=3), [], known)
    assert h.Ask(h.AskProgress(ended)) in trace.state.actions
    trace.take(Answered(h.ProgressKnown(ended, 10, "/ckpt/x", 12)), 1)
    trace.take(Answered(h.ProgressKnown(ended)), 2)
    steps = [one.last_step for one in trace.state.durable.ended]
    assert steps == [None, None, 12][3 - ended :]
    assert not any(Trace(goal(job=False), []).state.actions[1:])


def test_a_long_or_announced_attempt_adds_no_pause() -> None:
    """One of hours worked, whatever it printed; an announced loss is no fault of the job."""
    vain = LostAttempt(5, "Ray was lost")
    assert pause_after([vain, vain, LostAttempt(601, "Ray was lost")]) == 0
    assert pause_after([vain, replace(vain, announced=True)]) == 10


@pytest.mark.parametrize(
    ("tried", "newest", "is_vain"),
    [
        ([(5, None)] * 2, None, False),
        ([(5, None)] * 3, None, True),
        ([(5, None), (5, None), (601, None)], None, False),
        ([(601, None), (5, None), (5, None), (600, None)], None, True),
        ([(5, None)] * 3, 10, False),
        ([(5, 10)] * 3, 10, True),
        ([(5, 10)] * 3, 20, False),
        ([(5, 10), (5, 20), (5, 20)], 20, False),
        ([(5, 10), (5, 20), (5, 20), (5, 20)], 20, True),
        ([(5, 10)] * 3, None, True),
    ],
)
def test_in_vain(
    tried: list[tuple[float, int | None]], newest: int | None, *, is_vain: bool
) -> None:
    """Three short attempts in a row without a newer checkpoint; if unknown, by time."""
    lost = [LostAttempt(seconds, "Ray was lost", step) for seconds, step in tried]
    end = end_without_progress(lost, newest, 2)
    assert (end is not None) == is_vain
    assert end is None or "no progress: 3 attempts in a row" in end.reason
    assert end_without_progress(lost, newest, 3) is None


def test_short_attempts_that_made_more_steps_are_not_in_vain() -> None:
    """Steps are progress, also where none are saved."""
    tried = [LostAttempt(5.0, last_step=step) for step in (3, 3, 4)]
    assert end_without_progress(tried, None, 2) is None
    assert end_without_progress([*tried, *tried[:2], tried[0]], None, 2) is not None


@pytest.mark.parametrize(
    ("causes", "steps", "ends"),
    [
        ((SHAPE, SHAPE), (10, 10, 10), True),
        ((SHAPE, SHAPE), (None, None, None), True),
        ((SHAPE, SHAPE), (10, 10, 20), False),
        ((SHAPE, SHAPE), (10, 20, 20), False),
        ((SHAPE, QUOTA), (10, 10, 10), False),
        ((None, None), (10, 10, 10), False),
        ((SHAPE, None), (10, 10, 10), False),
        ((SHAPE,), (10, 10), False),
    ],
)
def test_the_same_cause_at_the_same_step_twice_ends_the_run(
    causes: tuple[FailureCause | None, ...], steps: tuple[int | None, ...], *, ends: bool
) -> None:
    """Two attempts with one cause and no newer checkpoint are enough, however long they took."""
    tried = [
        LostAttempt(9_999.0, "lost", step, cause)
        for step, cause in zip(steps, causes, strict=False)
    ]
    end = end_without_progress(tried, steps[-1], 1000)
    assert (end is not None) == ends
    assert end is None or end.reason == (
        "the same cause ended two attempts without a newer checkpoint: "
        "a CUDA kernel accessed memory illegally"
    )


WEDGED = FailureCause("no step for # min", "no step for 12 min", needs_step=True)
OUTSIDE = None


@pytest.mark.parametrize(
    ("tried", "newest", "step"),
    [
        # the same step: a checkpoint between the two has not helped
        ([(SHAPE, 25, 10), (SHAPE, 25, 20)], 20, 25),
        ([(SHAPE, 25, 10), (OUTSIDE, 12, 20), (SHAPE, 25, 20)], 20, 25),
        ([(WEDGED, 25, None), (WEDGED, 25, None)], None, 25),
        # further, another cause, or lost from outside
        ([(SHAPE, 25, 10), (SHAPE, 26, 10)], 10, None),
        ([(SHAPE, 25, 10), (WEDGED, 25, 10)], 10, None),
        ([(SHAPE, 25, 10), (SHAPE, 25, 10), (OUTSIDE, 25, 10)], 10, None),
        ([(OUTSIDE, 25, 10)] * 9, 10, None),
        # earlier: a newer checkpoint is progress; what lies between may be
        ([(SHAPE, 25, 10), (SHAPE, 22, 20)], 20, None),
        ([(SHAPE, 25, 10), (SHAPE, 22, 10)], 10, 0),
        ([(SHAPE, 25, 10), (OUTSIDE, 40, 10), (SHAPE, 22, 10)], 10, None),
        # unknown steps: how an attempt ended is no cause by itself
        ([(WEDGED, None, None), (WEDGED, None, None)], None, None),
        ([(WEDGED, 25, None), (WEDGED, 22, None)], None, None),
    ],
)
def test_attempts_are_compared_by_their_steps(
    tried: list[tuple[FailureCause | None, int | None, int | None]],
    newest: int | None,
    step: int | None,
) -> None:
    """The same cause at the same step twice ends the run; 0 stands for a step that is not named."""
    lost = [LostAttempt(9_999.0, "lost", saved, why, last_step=last) for why, last, saved in tried]
    end = end_without_progress(lost, newest, 1000)
    assert (end is not None) == (step is not None)
    if end is not None:
        assert (f"two attempts at step {step}: " in end.reason) == bool(step)
        assert end.holds_pod


def _attempts(
    causes: st.SearchStrategy[FailureCause | None],
) -> st.SearchStrategy[list[LostAttempt]]:
    numbers = st.none() | st.integers(0, 30)
    seconds = st.floats(0, 10_000)
    attempt = st.builds(
        LostAttempt, seconds=seconds, checkpoint=numbers, cause=causes, last_step=numbers
    )
    return st.lists(attempt, max_size=9)


CAUSES = st.sampled_from([SHAPE, QUOTA, WEDGED])


@given(_attempts(st.none()), st.none() | st.integers(0, 30), st.integers(3, 1000))
def test_losses_from_outside_never_end_a_run_early(
    tried: list[LostAttempt], newest: int | None, retries: int
) -> None:
    """However often pods and links are lost: only AGENT_JOB_RETRIES counts them."""
    assert end_without_progress(tried, newest, retries) is None


@given(_attempts(st.none() | CAUSES), st.none() | st.integers(0, 30), st.integers(0, 1000))
def test_attempts_that_each_got_further_go_on(
    tried: list[LostAttempt], newest: int | None, retries: int
) -> None:
    """Whatever ended them, and however short they were."""
    further = [replace(attempt, last_step=number) for number, attempt in enumerate(tried)]
    assert end_without_progress(further, newest, retries) is None


@given(_attempts(st.none() | CAUSES), CAUSES, st.integers(0, 30), st.integers(0, 1000), st.data())
def test_same_step_and_same_cause_end_every_run(
    before: list[LostAttempt], cause: FailureCause, step: int, retries: int, data: st.DataObject
) -> None:
    """Whatever AGENT_JOB_RETRIES is, whatever was saved and whatever was lost in between."""
    outside = data.draw(_attempts(st.none()))
    own = LostAttempt(data.draw(st.floats(0, 10_000)), "lost", 5, cause, last_step=step)
    later = replace(own, checkpoint=data.draw(st.none() | st.integers(0, 30)))
    newest = data.draw(st.none() | st.integers(0, 30))
    end = end_without_progress([*before, own, *outside, later], newest, retries)
    assert end is not None
    assert end.reason == f"the same cause ended two attempts at step {step}: {cause.text}"
