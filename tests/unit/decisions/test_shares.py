"""Decisions of head and worker for a torchrun job: results, verdicts, losses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.base.ends import Kind, Outcome
from agent.decisions import worker
from agent.decisions.head import head_decide as head
from agent.decisions.head import head_state as h
from agent.decisions.head.head_state import HeadPhase
from agent.decisions.head.shares import job_report, job_status
from agent.decisions.head.wanted import wanted_of
from agent.decisions.shared import (
    HERE,
    SHARE,
    ItemReport,
    ItemsReported,
    NodeWanted,
    Step,
    Want,
)
from agent.decisions.worker import worker_state as w
from agent.frameworks.recipe import NodeSize
from agent.job.services import Where
from agent.job.share import ShareArgs
from agent.plan import waits as wait_keys
from support import workers
from support.heads import (
    LIMITS,
    PREPARED,
    RETRIEVER,
    RETRIEVER_SPEC,
    STEPS,
    SUBMITTED,
    TERM,
    TICK,
    History,
    StopJob,
    SubmitJob,
    Trace,
    accepted,
    ready,
    unfit,
)
from support.shares import DONE, STOPPED, by_torchrun, failed, own, share_of

CUT_OFF = replace(STOPPED, lost=True)
REPLACED = h.WorkerReplaced("agent2")
MISFIT = unfit(Outcome(Kind.REFUSED, 78, "the recipe does not fit"))
WORDS = (None, DONE, STOPPED, failed(7), replace(STOPPED, lost=True))
STARTED: History = [(1.0, share_of(2, at=1.0)), (2.0, SUBMITTED), (3.0, share_of(2, at=3.0))]


NEVER_BEGAN = ItemReport(SHARE, Step.LOST, "stopped before it began", 1, was_stopped=True)


def never_began(n: int, at: float) -> h.WorkerReported:
    """Return the event of a worker's report: its share is over, and never began."""
    return h.WorkerReported(replace(share_of(n, at=at).worker, items=(NEVER_BEGAN,)))


def end_of(*history: tuple[float, h.HeadEvent], workers: int = 1) -> Outcome:
    """Return how a run ends to which this happens after its job was started."""
    trace = Trace(by_torchrun(workers), [*STARTED, *history])
    trace.finish()
    (end,) = trace.outcomes
    return end


def test_alone_it_starts_at_once() -> None:
    """With no worker, no service and no step there is nothing to wait for, not even an event."""
    trace = Trace(by_torchrun(0), [])
    then = head.deadline(trace.state)
    assert then is not None
    trace.take(TICK, then)
    assert list(trace.kinds()) == ["SubmitJob"]
    trace.take(SUBMITTED, then)
    trace.take(own(DONE), 9.0)
    assert [(end.kind, end.exit_code) for end in trace.outcomes] == [(Kind.DONE, 0)]


def test_a_service_on_a_rank_is_waited_for() -> None:
    """There is no Ray, of which the limit would be; that of the workers counts."""
    judge = replace(RETRIEVER_SPEC, where=Where("rank", 1))
    trace = Trace(replace(by_torchrun(1), services=(judge,)), [(1.0, TICK)])
    awaited = {wait.key: wait.deadline for wait in head.pending_waits(trace.state)}
    assert awaited["retriever rank 1"] == awaited[wait_keys.WORKERS] == LIMITS[wait_keys.WORKERS]
    trace.take(share_of(2, at=2.0, rank=1), 2.0)
    assert [*trace.kinds()] == ["Started"]


def test_shares_stand_in_the_order_of_ranks() -> None:
    """The head first, then by the platform's ranks, then by the first hello; sizes beside them."""
    history: History = [
        (1.0, share_of(4, at=1.0)),
        (1.1, share_of(3, at=1.1, rank=2)),
        (1.2, share_of(5, at=1.2)),
        (1.3, share_of(2, at=1.3, rank=1)),
    ]
    trace = Trace(by_torchrun(4), history)
    assert list(trace.state.shares.by_node) == [HERE, "agent2", "agent3", "agent4", "agent5"]
    assert [part.size.gpus for part in trace.state.shares.by_node.values()] == [8, 4, 4, 4, 4]
    assert "nodes 5 of 5" in trace.log
    assert "joined Ray" not in trace.log


@pytest.mark.parametrize(
    ("history", "code", "words"),
    [
        ([(9.0, own(DONE)), (9.5, share_of(2, DONE, 9.5))], 0, "succeeded"),
        ([(9.0, own(failed(7, 3))), (9.5, share_of(2, STOPPED, 9.5))], 7, "local rank 3 on pod0"),
        ([(9.0, share_of(2, failed(3), 9.0)), (9.5, own(STOPPED))], 3, "local rank 0 on pod2"),
        # pod2's rank failed first, though torchrun there took longer to stop the others
        ([(9.0, own(failed(1))), (9.5, share_of(2, failed(7, ago=2.0), 9.5))], 7, "on pod2"),
        ([(9.0, own(failed(1, ago=1.0))), (9.5, share_of(2, failed(7), 9.5))], 1, "on pod0"),
        ([(9.0, own(failed(-9))), (9.5, share_of(2, STOPPED, 9.5))], 137, "SIGKILL"),
        (
            [(9.0, own(failed(1, words="no data"))), (9.5, share_of(2, STOPPED, 9.5))],
            1,
            ": no data",
        ),
        (
            [(9.0, own(failed(2, None))), (9.5, share_of(2, STOPPED, 9.5))],
            2,
            "torchrun itself on pod0",
        ),
        # a share of an earlier attempt says nothing of this one
        (
            [(9.0, own(failed(5), attempt=7)), (9.1, own(DONE)), (9.2, share_of(2, DONE, 9.2))],
            0,
            "",
        ),
    ],
)
def test_verdicts(history: History, code: int, words: str) -> None:
    """The first rank that failed gives the code, its node and local rank are named."""
    end = end_of(*history)
    assert end.exit_code == code
    assert words in end.reason
    assert end.is_jobs_verdict


@pytest.mark.parametrize(
    ("history", "words"),
    [
        # the worker falls silent, and nobody else notices
        ([], "lost a needed node: pod2, longer"),
        # it says goodbye: AGENT_NODE_GRACE, too
        ([(9.0, share_of(2, at=9.0, has_left=True))], "lost a needed node: pod2, longer"),
        # its agent was started anew, and has none of the job's processes
        (
            [(9.0, REPLACED), (9.1, share_of(3, at=9.1))],
            "lost a needed node: pod2, longer",
        ),
        # it was out of reach, and stopped its share itself before it came back
        ([(60.0, share_of(2, CUT_OFF, 60.0))], "lost a needed node: pod2, longer"),
        # the others fail since it is gone: that is no verdict of the job's
        ([(9.0, own(failed(1)))], "lost a needed node while the job ran: pod2"),
    ],
)
def test_a_lost_node_is_a_loss(history: History, words: str) -> None:
    """For any reports of other ranks, the run ends with 75 and names the node."""
    end = end_of(*history)
    assert (end.kind, end.exit_code) == (Kind.LOST, 75)
    assert words in end.reason
    assert not end.is_jobs_verdict


def test_the_others_are_stopped_by_the_first_failure() -> None:
    """One StopJob, and no outcome before all have reported or their time is over."""
    trace = Trace(by_torchrun(), STARTED)
    trace.take(own(failed(7)), 9.0)
    assert (trace.state.phase, list(trace.kinds())) == (
        HeadPhase.STOPPING,
        ["SubmitJob", "Started", "Started", "StopJob"],
    )
    assert wanted_of(trace.state, "agent2") == {SHARE: Want(1, is_over=True)}
    trace.take(share_of(2, at=9.1), 9.1)
    assert trace.state.phase is HeadPhase.STOPPING
    trace.take(share_of(2, STOPPED, 9.4), 9.4)
    assert trace.outcomes[0].exit_code == 7


@pytest.mark.parametrize(
    "history",
    [
        [(9.0, own(failed(127))), (9.1, never_began(2, 9.1))],
        [(9.0, own(failed(127))), (9.1, share_of(2, at=9.1)), (9.2, never_began(2, 9.2))],
    ],
)
def test_a_share_that_its_node_never_began(history: History) -> None:
    """The others failed before it received that its share was wanted: nothing is waited for."""
    trace = Trace(by_torchrun(), [*STARTED, *history])
    assert [end.exit_code for end in trace.outcomes] == [127]
    assert trace.now == history[-1][0]
    assert "did not stop in time" not in trace.log


def test_a_stop_while_the_shares_are_about_to_be_wanted() -> None:
    """No node has begun its own, and each reports that; so no grace is waited for."""
    trace = Trace(by_torchrun(), [*STARTED[:1], (1.9, TERM), (2.0, SUBMITTED)])
    assert trace.state.phase is HeadPhase.STOPPING
    assert wanted_of(trace.state, HERE)[SHARE] == Want(1, is_over=True)
    trace.take(ItemsReported((NEVER_BEGAN,)), 2.1)
    trace.take(never_began(2, 2.2), 2.2)
    assert [end.exit_code for end in trace.outcomes] == [143]


def test_a_share_that_cannot_run_has_failed() -> None:
    """Its node's plan has none, though the head wants it there."""
    refused = ItemReport(SHARE, Step.LOST, "this node's plan has no share to run", 1)
    said = share_of(2, at=9.0).worker
    end = end_of((9.0, h.WorkerReported(replace(said, items=(refused,)))), (9.5, own(STOPPED)))
    assert (end.exit_code, "has no share to run" in end.reason) == (1, True)


def test_a_stop_is_no_failure() -> None:
    """Asked to stop, the run ends with 143, whatever the ranks make of their signal."""
    end = end_of((9.0, TERM), (9.2, own(failed(1))), (9.4, share_of(2, STOPPED, 9.4)))
    assert (end.kind, end.exit_code) == (Kind.STOPPED, 143)


def test_shares_that_succeed_while_they_are_stopped_for_a_loss() -> None:
    """Where all have succeeded before their stop, so has the job."""
    trace = Trace(by_torchrun(retries=1), [*STARTED, (9.0, share_of(2, at=9.0)), (24.0, TICK)])
    trace.take(TICK, 84.1)
    assert trace.state.phase is HeadPhase.STOPPING
    trace.take(share_of(2, DONE, 84.2), 84.2)
    trace.take(own(DONE), 84.3)
    assert [end.exit_code for end in trace.outcomes] == [0]


@pytest.mark.parametrize(
    ("workers", "history", "status"),
    [
        (1, [(1.0, TICK)], "not submitted"),
        (0, [(1.0, TICK)], "pending"),
        (1, STARTED, "running"),
        (1, [*STARTED, (9.0, own(DONE))], "running"),
        (1, [*STARTED, (9.0, own(failed(7)))], "failed"),
        (1, [*STARTED, (9.0, own(DONE)), (9.2, share_of(2, DONE, 9.2))], "succeeded"),
        (0, [(1.0, TICK), (2.0, SUBMITTED), (9.0, TERM)], "running"),
        (0, [(1.0, TICK), (2.0, SUBMITTED), (9.0, TERM), (9.2, own(STOPPED))], "stopped"),
        (0, [(1.0, TICK), (2.0, SUBMITTED), (9.0, TERM), (99.0, TICK)], "stopped"),
        (0, [(1.0, TICK), (2.0, MISFIT)], "not submitted"),
        (1, [*STARTED, (9.0, REPLACED), (9.1, own(failed(1))), (900.0, TICK)], "failed"),
    ],
)
def test_the_status_of_the_job(workers: int, history: History, status: str) -> None:
    """It is in the words of Ray's job API."""
    assert job_status(Trace(by_torchrun(workers), history).state) == status


def test_another_attempt_after_a_loss() -> None:
    """It waits for the node again, and gives new ranks to the nodes that are present."""
    trace = Trace(by_torchrun(retries=1), [*STARTED, (9.0, REPLACED)])
    trace.take(own(failed(1)), 9.5)
    assert [deed.id for deed in trace.effects if isinstance(deed, SubmitJob)] == ["run-1"]
    assert trace.progress_asked == [1]
    trace.take(share_of(3, at=100.0), 100.0)
    assert list(trace.state.shares.by_node) == [HERE, "agent3"]
    assert [deed.id for deed in trace.effects if isinstance(deed, SubmitJob)] == [
        "run-1",
        "run-2",
    ]


ENDS = st.sampled_from([DONE, STOPPED, failed(7), failed(-9), failed(1, ago=1.0), failed(2, None)])
BYES = st.sampled_from([False, False, True])
EVENTS = st.one_of(
    st.sampled_from([TICK, TICK, TERM, SUBMITTED, accepted(2), REPLACED]),
    st.builds(own, ENDS, st.sampled_from([1, 1, 2])),
    st.builds(share_of, st.integers(2, 4), st.none() | ENDS, has_left=BYES),
    st.sampled_from(PREPARED),
)
PAUSES = st.sampled_from([0.0, 0.1, 1.0, 1.0, 5.0, 16.0, 61.0, 500.0])


@given(
    st.integers(0, 3), st.sampled_from([0, 0, 2]), st.lists(st.tuples(PAUSES, EVENTS), max_size=25)
)
def test_no_history_breaks_the_rules(
    count: int, retries: int, drawn: list[tuple[float, h.HeadEvent]]
) -> None:
    """Each attempt is started once, stopped at most once; one outcome, with a known code."""
    trace, now = Trace(by_torchrun(count, retries=retries), []), 1.0
    for pause, event in drawn:
        now += pause
        received = event
        if isinstance(event, h.WorkerReported):
            received = h.WorkerReported(replace(event.worker, last_report_at=now))
        trace.take(received, now)
        runs = (
            trace.state.phase is HeadPhase.RUNNING
        )  # its own processes are watched, with no limit
        assert runs or trace.outcomes or head.deadline(trace.state) is not None
    submitted = [deed.id for deed in trace.effects if isinstance(deed, SubmitJob)]
    stopped = [deed.id for deed in trace.effects if isinstance(deed, StopJob)]
    assert len(set(submitted)) == len(submitted) <= retries + 1
    assert set(stopped) <= set(submitted)
    assert len(stopped) <= len(submitted)
    if not trace.finish():
        pytest.fail("no end by time alone, and no rest")
    if trace.state.phase is HeadPhase.RUNNING:
        trace.take(TERM, trace.now)
        trace.finish()
    (end,) = trace.outcomes
    assert end.exit_code in {0, 1, 2, 7, 69, 75, 137, 143}
    assert end.reason


def test_a_worker_whose_step_the_fence_ended_is_not_ready() -> None:
    """Its share would run beside the step, without what that makes."""
    of = replace(by_torchrun(1), steps=STEPS)
    own = ItemsReported(tuple(ItemReport(step.name, Step.READY) for step in STEPS))
    ended = tuple(ItemReport(step.name, Step.LOST, was_stopped=True) for step in STEPS)
    said = replace(share_of(2).worker, items=ended)
    trace = Trace(of, [(1.0, own), (2.0, h.WorkerReported(said))])
    assert trace.state.fleet.alive == {}
    trace.take(h.WorkerReported(replace(said, items=own.items)), 3.0)
    assert trace.state.fleet.alive == {"10.0.0.2": "pod2"}


# --- the worker ----------------------------------------------------------------------------------

WORKER = replace(workers.goal(), by_shares=True)
SEAT = ShareArgs(1, (NodeSize(8), NodeSize(4)))
RUN = workers.wanted_share(1, SEAT)
FOLLOWS: workers.History = [(1.0, workers.replied()), (2.0, RUN)]


def test_a_worker_follows_without_ray_and_starts_its_share() -> None:
    """It joins by its report alone, and starts what the head wants, once."""
    trace = workers.WorkerTrace(WORKER, FOLLOWS)
    trace.take(RUN, 3.0)
    assert trace.effects == [workers.Began(SHARE)]
    trace.take(workers.share_over(1, failed(7)), 4.0)
    (item,) = worker.item_reports(trace.state)
    assert (item.share, item.is_running) == (failed(7), False)


def test_a_share_waits_for_the_steps_of_its_node() -> None:
    """The fence ended one, and the head wants the share as soon as it is reached."""
    of = replace(workers.goal(prepare=True), by_shares=True)
    silent = w.HeadSilent("no answer")
    trace = workers.WorkerTrace(of, [(2, workers.replied()), (31, silent), (79, workers.TICK)])
    trace.take(RUN, 90)
    (step,) = of.steps
    assert trace.effects == [workers.Ended(step.name), workers.Began(step.name, 2)]
    trace.take(ready(step.name), 91)
    assert trace.effects[2:] == [workers.Began(SHARE)]


def test_a_share_is_none_of_a_workers_services() -> None:
    """Its status lists what serves, and not the job."""
    trace = workers.WorkerTrace(WORKER, FOLLOWS)
    both = {SHARE: Want(1, SEAT), RETRIEVER: Want()}
    trace.take(replace(workers.replied(), wanted=NodeWanted("head1", 2, both)), 3.0)
    assert trace.effects == [workers.Began(SHARE), workers.Began(RETRIEVER)]
    assert [item.name for item in trace.state.services] == [RETRIEVER]


def test_a_share_that_is_wanted_no_more_ends() -> None:
    """So it is once the head stops the job, or begins another attempt."""
    trace = workers.WorkerTrace(WORKER, [*FOLLOWS, (3.0, workers.wanted(2))])
    assert trace.effects == [workers.Began(SHARE), workers.Ended(SHARE)]
    trace.take(workers.wanted_share(3, SEAT, attempt=2), 4.0)
    assert trace.effects[2:] == [workers.Began(SHARE, 2)]


def test_a_head_that_was_started_anew_has_no_such_job() -> None:
    """Rank 0 went with the former head: this share ends by its first decision."""
    trace = workers.WorkerTrace(WORKER, [*FOLLOWS, (5.0, workers.replied(epoch=2))])
    assert trace.state.phase is w.WorkerPhase.FOLLOWING
    assert trace.effects == [workers.Began(SHARE)]
    trace.take(workers.wanted(1, by="head2"), 6.0)
    assert trace.effects[-1] == workers.Ended(SHARE)


def test_a_plain_ray_head_is_no_head_for_it() -> None:
    """Where a port is open and no agent answers, there is nothing to follow: 69 in time."""
    trace = workers.WorkerTrace(WORKER, [(1.0, workers.replied(epoch=None))])
    assert trace.finish()
    assert trace.outcomes[0].exit_code == 69


def test_a_silent_head_is_left_with_75() -> None:
    """As with Ray."""
    trace = workers.WorkerTrace(WORKER, FOLLOWS)
    assert trace.finish()
    assert trace.outcomes[0].exit_code == 75


def heard_at(event: h.HeadEvent, now: float) -> h.HeadEvent:
    """Have a report be of now."""
    if isinstance(event, h.WorkerReported):
        return h.WorkerReported(replace(event.worker, last_report_at=now))
    return event


ANYTHING = st.lists(
    st.tuples(
        st.floats(0.1, 20.0),
        st.sampled_from(
            [TICK, own(DONE), own(failed(3)), own(STOPPED), REPLACED, TERM]
            + [h.WorkerSilent("agent3", "no answer", ray_answers=False)]
            + [
                share_of(n, end, has_left=has_left)
                for n in (2, 3)
                for end in WORDS
                for has_left in (False, True)
            ]
            + [h.WorkerReported(replace(share_of(4).worker, ip="10.0.0.3"))]
        ),
    ),
    max_size=12,
)


@given(ANYTHING)
def test_counted_state_agrees_with_a_full_scan(
    history: list[tuple[float, h.HeadEvent]],
) -> None:
    """For any events in any order: the running, missing and failed nodes are correct."""
    start: History = [(1.0, share_of(2, at=1.0)), (1.1, share_of(3, at=1.1)), (2.0, SUBMITTED)]
    trace = Trace(by_torchrun(2), start)
    now = 2.0
    for after, event in history:
        now += after
        trace.take(heard_at(event, now), now)
        if trace.state.phase is HeadPhase.LEAVING:
            return
        parts, fleet = trace.state.shares, trace.state.fleet
        lost = {key for key, part in parts.by_node.items() if part.end and part.end.lost}
        running = lost | {key for key, part in parts.by_node.items() if part.end is None}
        assert set(parts.running) == running
        known = {key: fleet.workers.get(key) for key in running - {HERE}}
        gone = {key for key, worker in known.items() if not worker or not fleet.counts(worker)}
        assert parts.absent == lost | gone
        ends = {key: part for key, part in parts.by_node.items() if part.end is not None}
        done = [part for part in ends.values() if part.end == DONE]
        report = job_report(trace.state)
        succeeded = report is not None and report.status == "SUCCEEDED"
        assert succeeded == (0 < len(done) == len(parts.by_node))
        bad = [part.failed_at for part in ends.values() if part.end and part.end.failed]
        first = parts.first_failed
        assert (first.failed_at if first else None) == min(bad, default=None)


def test_a_spare_takes_no_part() -> None:
    """Nothing is awaited on a further rank: it gets no share, though it is there at the start."""
    workers = [share_of(n, at=1.0).worker for n in (2, 3, 4)]
    ranked = [replace(worker, given_rank=rank) for rank, worker in enumerate(workers, 1)]
    trace = Trace(
        replace(by_torchrun(2), steps=STEPS), [(1.0, h.WorkerReported(one)) for one in ranked]
    )
    for event in PREPARED:
        trace.take(event, 2.0)
    assert list(trace.state.shares.by_node) == [HERE, "agent2", "agent3"]
    assert "nodes 3 of 3" in trace.log
