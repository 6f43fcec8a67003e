"""Attempts: what counts as a loss, when another follows, its pause, and the last one."""

from __future__ import annotations

import re
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
from agent.decisions.head import head_decide as head
from agent.decisions.head import head_state as h
from agent.decisions.head.head_state import HeadPhase
from agent.decisions.shared import CHECK, JOB, SAVE, Answered, ItemReport, Step
from agent.decisions.stall import Stalled
from agent.plan import waits as wait_keys
from support.heads import (
    PAIR,
    RUNNING,
    TERM,
    TICK,
    History,
    StopJob,
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


@pytest.mark.parametrize("retries", [0, 1])
@pytest.mark.parametrize("is_lost", [True, False])
def test_gcs_reports_a_lost_node_of_a_given_ray_late(retries: int, *, is_lost: bool) -> None:
    """If a node does not answer, a job's failure is final after GCS had time to report it."""
    trace = Trace(goal(1, given=True, retries=retries), [*PAIR, FAILED])
    assert trace.effects[-1] == h.Ask(h.AskNodes("run-1"))
    trace.take(SILENT, 12)
    assert trace.state.phase is HeadPhase.JUDGING
    (wait,) = head.pending_waits(trace.state)
    why = "pod2: connection refused"
    assert wait.sentence(12) == f"waiting for GCS to report a lost node, {why} (73 s left)"
    if is_lost:
        trace.take(nodes(dead=(2,)), 72)
    else:
        trace.take(TICK, 84.9)
        assert trace.state.phase is HeadPhase.JUDGING
        trace.take(TICK, 85.1)
    assert trace.state.attempt.number == (2 if is_lost and retries else 1)
    reasons = [end.reason for end in trace.outcomes]
    assert [end.exit_code for end in trace.outcomes] == [1] * len(reasons)
    assert all(("before that, pod2 was lost" in reason) == is_lost for reason in reasons)


def test_a_failure_on_a_given_ray_is_final_where_all_nodes_answer() -> None:
    """There is no wait."""
    trace = Trace(goal(1, given=True, retries=1), [*PAIR, FAILED, (10.1, ASKED)])
    assert [end.exit_code for end in trace.outcomes] == [1]


def test_a_job_that_succeeds_while_it_is_stopped_for_a_loss_has_succeeded() -> None:
    """Its success came before the stop: no other attempt follows, and the code is 0."""
    for retries in (0, 1):
        trace = Trace(goal(1, retries=retries), [*PAIR, GONE, (69, TICK)])
        assert trace.effects[-1] == StopJob("run-1")
        trace.take(job("SUCCEEDED", 0), 70)
        (end,) = trace.outcomes
        assert (end.exit_code, end.kind, end.is_jobs_verdict) == (0, Kind.DONE, True)
        assert "the job succeeded; before that, lost a needed node" in end.reason


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


def test_a_driver_that_handled_sigterm_has_not_succeeded() -> None:
    """Where Ray did not take the stop, the agent signals the driver, which may exit with 0."""
    history = [*PAIR, GONE, (69, TICK), (74, signaled())]
    trace = Trace(goal(1, retries=0), [*history, (75, job("SUCCEEDED", 0))])
    assert [end.exit_code for end in trace.outcomes] == [75]


@pytest.mark.parametrize("history", [[(9, TERM)], [GONE, (69, TICK), (70, TERM)]])
def test_a_stop_that_was_asked_for_outranks_a_success(history: History) -> None:
    """A signal decides the exit code, with and without a loss before."""
    trace = Trace(goal(1, retries=1), [*PAIR, *history, (71, job("SUCCEEDED", 0))])
    assert [end.exit_code for end in trace.outcomes] == [143]


def test_an_attempt_with_fewer_workers_waits_for_its_pause() -> None:
    """AGENT_PARTIAL=proceed ends the wait for workers, not the pause after a loss."""
    known = replace(
        after_losses(*(LostAttempt(1.0),) * 5), attempt=resumed(number=6, required=2).attempt
    )
    history: History = [(1, ray_lost("killed")), (3, nodes(2)), (3, reported(2)), (201, TICK)]
    trace = Trace(goal(2, least=1, retries=9), history, known)
    assert "going on with 1 worker(s), as AGENT_PARTIAL=proceed" in trace.log
    (wait,) = head.pending_waits(trace.state)
    assert (wait.key, wait.deadline) == (wait_keys.PAUSE, 301.0)
    trace.take(TICK, 301)
    assert trace.effects[-1] == SubmitJob("run-7")


def test_a_lost_node_is_named_by_the_next_attempt() -> None:
    """One line gives the next attempt and its reason."""
    trace = Trace(goal(2, retries=2), [(3, nodes(2, 3)), (3, reported(2)), (3, reported(3))])
    trace.take(accepted(), 5)
    trace.take(nodes(3, dead=(2,)), 9)
    trace.take(job("FAILED", 1), 10)
    trace.take(nodes(2, 3), 12)
    trace.take(TICK, 20)
    assert re.search(r"attempt 2 of 3: .*pod2.*; 3 of 3 node\(s\)", trace.log)


def test_what_an_attempt_had_and_does_not_come_back_was_lost() -> None:
    """A missing worker is 69 at first, and 75 if an earlier attempt had it."""
    trace = Trace(goal(1, retries=1), [*PAIR, GONE, FAILED, (12, nodes())])
    assert trace.finish()
    (end,) = trace.outcomes
    assert (end.exit_code, end.culprit) == (75, "workers")
    assert "pod2" in end.reason
    assert end.phase == "booting"


def test_attempts_that_are_used_up_are_worth_a_hold() -> None:
    """The last loss ends the run; a restarted pod could do no more."""
    (end,) = Trace(goal(retries=0), [*RUNNING, (9, ray_lost("exit 1"))]).outcomes
    assert (end.exit_code, end.is_jobs_verdict, end.holds_pod) == (75, False, True)


LOST_HEAD = LostAttempt(100.0, "its head was lost")


@pytest.mark.parametrize("retries", [3, 40])
def test_many_retries_are_used_however_short_the_attempts_are(retries: int) -> None:
    """Three losses of the head within 100 s end no run that allows more attempts."""
    trace = Trace(goal(retries=retries), [(3, nodes())], after_losses(*(LOST_HEAD,) * 2))
    trace.take(accepted(3), 4)
    trace.take(ray_lost("exit 1"), 9)
    trace.take(Answered(h.ProgressKnown(3)), 9.1)
    assert trace.outcomes == []


def test_no_progress() -> None:
    """The third lost attempt in a row within ten minutes ends the run, restarts included."""
    before = (replace(LOST_HEAD, announced=True), replace(LOST_HEAD, seconds=5.0, announced=True))
    trace = Trace(goal(retries=2), [], after_losses(*before))
    assert trace.state.attempt.number == 3
    trace.take(nodes(), 3)
    trace.take(accepted(3), 4)
    trace.take(ray_lost("exit 1"), 9)
    assert trace.outcomes == []
    trace.take(Answered(h.ProgressKnown(3)), 9.1)
    (end,) = trace.outcomes
    assert end.exit_code == 75
    assert "no progress: 3 attempts in a row" in end.reason
    assert end.holds_pod


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


@pytest.mark.parametrize(("last_step", "begins"), [(5, True), (None, False)])
def test_the_pause_is_over_once_its_steps_are_known(last_step: int | None, *, begins: bool) -> None:
    """They are counted when its output was read to the end, after the decision to go on."""
    trace = Trace(goal(retries=2), [*RUNNING, (20, ray_lost("exit 1")), (22, nodes())])
    assert SubmitJob("run-2") not in trace.actions
    trace.take(Answered(h.ProgressKnown(1, last_step=last_step)), 23)
    assert trace.persisted[-1].ended[0].last_step == last_step
    assert (SubmitJob("run-2") in trace.actions) == begins


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


QUOTA = FailureCause("disk quota", "the quota is used up", is_permanent=True)
SHAPE = FailureCause("illegal access", "a CUDA kernel accessed memory illegally")


def _failed_by(cause: FailureCause) -> History:
    """Return a job that fails by a cause just after its node was lost."""
    return [*PAIR, GONE, (10, status_of(JobReport("FAILED", "", 1, cause=cause)))]


def test_a_permanent_cause_is_not_tried_again() -> None:
    """A full quota ends the run though a node was lost just before, and the run says why."""
    (end,) = Trace(goal(1, retries=3), _failed_by(QUOTA)).outcomes
    assert (end.exit_code, end.kind) == (1, Kind.JOB_FAILED)
    assert end.reason.endswith(
        "; not tried again, since another try on the same nodes cannot help: the quota is used up"
    )
    assert "before that, lost a needed node" in end.reason


@pytest.mark.parametrize("cause", [SHAPE, replace(QUOTA, node="pod2")])
def test_other_causes_are_tried_again(cause: FailureCause) -> None:
    """One that may pass, and one of a node that is away."""
    trace = Trace(goal(1, retries=3), _failed_by(cause))
    assert trace.outcomes == []
    assert "attempt 1 of 4 is lost" in trace.log


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


@pytest.mark.parametrize("is_same", [True, False])
def test_a_job_that_is_wedged_at_the_same_step_twice_is_not_tried_again(
    is_same: bool,  # noqa: FBT001 - a row
) -> None:
    """In the same function, on whichever node and rank, and whatever else the sentence says."""
    trace = Trace(goal(retries=40), [])
    at = 0.0
    rows = (
        (1, "12 min", "rank 17 on abcx is in `compute_score` (reward.py:44) since 01:12"),
        (2, "12 min 30 s", "rank 3 on xyz is in `compute_score` (reward.py:44) (and 1 more group)"),
    )
    for attempt, long, suspects in rows:
        trace.take(nodes(), at + 60)
        trace.take(accepted(attempt), at + 61)
        key = "steps: compute_score reward.py" if is_same else f"steps: function_{attempt}"
        stalled = Stalled(attempt, f"no step for {long}", suspects, "retry", cause_key=key)
        trace.take(stalled, at + 100)
        trace.take(job("STOPPED", None, "", attempt), at + 101)
        assert trace.outcomes == []
        trace.take(Answered(h.ProgressKnown(attempt, 20, "/ckpt", 25)), at + 102)
        at += 103
    if not is_same:
        assert trace.outcomes == []
        return
    (end,) = trace.outcomes
    assert "the same cause ended two attempts at step 25: " in end.reason
    assert "`compute_score` (reward.py:44)" in end.reason


def test_a_driver_that_is_killed_at_the_same_step_twice_is_tried_again() -> None:
    """Ray has no exit code where its supervisor dies: who killed it may be outside."""
    trace = Trace(goal(retries=40), [])
    at = 0.0
    for attempt, pid in ((1, 4711), (2, 815)):
        trace.take(nodes(), at + 60)
        trace.take(accepted(attempt), at + 61)
        ended = job("FAILED", None, f"actor {pid} died", attempt)
        trace.take(ended, at + 5_000)
        trace.take(Answered(h.ProgressKnown(attempt, 10 * attempt, "/ckpt", 25)), at + 5_001)
        assert trace.outcomes == []
        at += 5_002


def test_a_saved_checkpoint_is_reported_and_counts() -> None:
    """The next attempt says from where it resumes, and a newer checkpoint is progress."""
    trace = Trace(goal(retries=9), [(0, Answered(h.ProgressKnown(0, 10, "/ckpt/global_step_10")))])
    for attempt in (1, 2, 3):
        at = 90.0 * attempt
        trace.take(nodes(), at)
        trace.take(TICK, at + 50)
        trace.take(accepted(attempt), at + 51)
        trace.take(ray_lost("exit 1"), at + 52)
        trace.take(
            Answered(h.ProgressKnown(attempt, 10 if attempt < 3 else 20, "/ckpt/x")), at + 53
        )
    assert trace.outcomes == []
    trace.take(nodes(), 360)
    trace.take(TICK, 410)
    assert "attempt 4 of 10: Ray was lost" in trace.log
    assert "1 of 1 node(s); resumes from /ckpt/x" in trace.log
