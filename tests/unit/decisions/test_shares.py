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
from support import workers
from support.heads import (
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
from support.histories import BOOT, LATER, Case, Logged, Row, Waits, play
from support.shares import DONE, STOPPED, by_torchrun, failed, own, share_of

CUT_OFF = replace(STOPPED, lost=True)
REPLACED = h.WorkerReplaced("agent2")
MISFIT = unfit(Outcome(Kind.REFUSED, 78, "the recipe does not fit"))
WORDS = (None, DONE, STOPPED, failed(7), replace(STOPPED, lost=True))
STARTED: History = [(1.0, share_of(2, at=1.0)), (2.0, SUBMITTED), (3.0, share_of(2, at=3.0))]


def end_of(*history: tuple[float, h.HeadEvent], workers: int = 1) -> Outcome:
    """Return how a run ends to which this happens after its job was started."""
    trace = Trace(by_torchrun(workers), [*STARTED, *history])
    trace.finish()
    (end,) = trace.outcomes
    return end


NEVER_BEGAN = ItemReport(SHARE, Step.LOST, "stopped before it began", 1, was_stopped=True)
REFUSED = ItemReport(SHARE, Step.LOST, "this node's plan has no share to run", 1)
ASKED_FOR: list[Row] = [(1, share_of(2), "submit run-1")]
SHARES_RUN: list[Row] = [
    *ASKED_FOR,
    (2, SUBMITTED, f"start {SHARE}", f"start {SHARE} on agent2"),
    (3, share_of(2)),
]


def says(n: int, *items: ItemReport) -> h.WorkerReported:
    """Return the event of a worker's report about these things."""
    return h.WorkerReported(replace(share_of(n).worker, items=items))


JUDGE = replace(RETRIEVER_SPEC, where=Where("rank", 1))

ON_ALL_NODES: dict[str, Case] = {
    # With no worker, no service and no step there is nothing to wait for, not even an event
    "a head alone starts it at once": [
        by_torchrun(0),
        (0.1, TICK, "submit run-1"),
        (0.2, SUBMITTED, f"start {SHARE}"),
        (9, own(DONE), "end 0: the job succeeded"),
    ],
    # There is no Ray, of which the limit would be: that of the workers counts
    "the node of a service on a rank is waited for, and starts it": [
        replace(by_torchrun(1), services=(JUDGE,)),
        (1, TICK),
        Waits(
            "waiting for rank 1, which is to run retriever, no report yet (3 min 19 s left)",
            "waiting for workers, 0 of 1 joined; 1 never reported (3 min 19 s left)",
        ),
        (2, share_of(2, rank=1), "start retriever on agent2"),
    ],
    "the others are stopped by the first failure, and waited for": [
        by_torchrun(),
        *SHARES_RUN,
        (9, own(failed(7)), "stop run-1"),
        (9.1, share_of(2)),
        (9.4, share_of(2, STOPPED), "end 7: …exit code 7 (local rank 0 on pod0)"),
    ],
    # The others failed before its node received that it was wanted
    "a share that its node never began is not waited for": [
        by_torchrun(),
        *SHARES_RUN,
        (9, own(failed(127)), "stop run-1"),
        (9.1, share_of(2)),
        (9.2, says(2, NEVER_BEGAN), "end 127: …"),
    ],
    "no share is waited for if all are stopped before they are wanted": [
        by_torchrun(),
        *ASKED_FOR,
        (1.9, TERM, "stop run-1"),
        (2, SUBMITTED),
        (2.1, ItemsReported((NEVER_BEGAN,))),
        (2.2, says(2, NEVER_BEGAN), "end 143: …SIGTERM"),
    ],
    "a share that its node's plan does not have has failed": [
        by_torchrun(),
        *SHARES_RUN,
        (9, says(2, REFUSED), "stop run-1"),
        (9.5, own(STOPPED), "end 1: …this node's plan has no share to run"),
    ],
    "asked to stop, the run ends so, whatever the ranks make of their signal": [
        by_torchrun(),
        *SHARES_RUN,
        (9, TERM, "stop run-1"),
        (9.2, own(failed(1))),
        (9.4, share_of(2, STOPPED), "end 143: …SIGTERM"),
    ],
    "shares that all succeed before their stop are a success": [
        by_torchrun(retries=1),
        *SHARES_RUN,
        (9, share_of(2)),
        (24, TICK),
        (84.1, TICK, "stop run-1"),
        (84.2, share_of(2, DONE)),
        (84.3, own(DONE), "end 0: the job succeeded; before that, lost a needed node…"),
    ],
    "another attempt after a loss waits for a node in the place of the lost one": [
        by_torchrun(retries=1),
        *SHARES_RUN,
        (9, REPLACED),
        (9.5, own(failed(1))),
        (100, share_of(3), "submit run-2"),
        (101, accepted(2), f"start {SHARE}, generation 2", f"start {SHARE} on agent3, gen…"),
    ],
}


@pytest.mark.parametrize("case", ON_ALL_NODES.values(), ids=ON_ALL_NODES)
def test_shares_on_all_nodes(case: Case) -> None:
    """All nodes start their shares together, and the first failure stops them."""
    play(case)


def test_a_share_that_is_to_end_is_still_wanted() -> None:
    """Its node then reports it as over, also if it never began; nothing else is wanted there."""
    is_over = {SHARE: Want(1, is_over=True)}
    trace = Trace(by_torchrun(), [*STARTED, (9.0, own(failed(7)))])
    assert wanted_of(trace.state, "agent2") == is_over
    before = Trace(by_torchrun(), [*STARTED[:1], (1.9, TERM), (2.0, SUBMITTED)])
    assert wanted_of(before.state, HERE)[SHARE] == is_over[SHARE]


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
PREPARES = replace(workers.goal(prepare=True), by_shares=True)
(STEP,) = PREPARES.steps
SEAT = ShareArgs(1, (NodeSize(8), NodeSize(4)))
RUN = workers.wanted_share(1, SEAT)
FOLLOWS: list[Row] = [(1, workers.replied()), (2, RUN, f"start {SHARE}")]
BOTH = replace(
    workers.replied(), wanted=NodeWanted("head1", 2, {SHARE: Want(1, SEAT), RETRIEVER: Want()})
)

ON_A_WORKER: dict[str, Case] = {
    "it follows by its report alone, and starts what the head wants, once": [
        WORKER,
        *FOLLOWS,
        (3, RUN),
    ],
    # The fence ended the step, and the head wants the share as soon as it is reached
    "a share waits for the steps of its node": [
        PREPARES,
        (0, BOOT, f"start {STEP.name}"),
        (2, workers.replied()),
        (31, w.HeadSilent("no answer")),
        (79, workers.TICK, f"stop {STEP.name}"),
        (90, RUN, f"start {STEP.name}, generation 2"),
        (91, ready(STEP.name), f"start {SHARE}"),
    ],
    "a share that is wanted no more ends, and the next attempt's begins": [
        WORKER,
        *FOLLOWS,
        (3, workers.wanted(2), f"stop {SHARE}"),
        (4, workers.wanted_share(3, SEAT, attempt=2), f"start {SHARE}, generation 2"),
    ],
    # Rank 0 went with the former head
    "a head that was started anew has no such job: its first decision ends the share": [
        WORKER,
        *FOLLOWS,
        (5, workers.replied(epoch=2)),
        (6, workers.wanted(1, by="head2"), f"stop {SHARE}"),
        Logged("the head was restarted: following it"),
    ],
    # A port is open there, and no agent answers: there is nothing to follow
    "a plain Ray head is no head for it": [
        WORKER,
        (1, workers.replied(epoch=None)),
        (LATER, workers.TICK, "end 69: the head pod0 not ready in time: no agent answers…"),
    ],
    "a head that stays silent is left": [
        WORKER,
        *FOLLOWS,
        (LATER, workers.TICK, "end 75: the head pod0 has been silent for 60 s…"),
    ],
}


@pytest.mark.parametrize("case", ON_A_WORKER.values(), ids=ON_A_WORKER)
def test_a_share_on_a_worker(case: Case) -> None:
    """It runs as the head wants it, and only while the head is there."""
    play(case)


def test_the_end_of_a_share_is_reported() -> None:
    """With the result of its ranks."""
    trace = workers.WorkerTrace(WORKER, [(1, workers.replied()), (2, RUN)])
    trace.take(workers.share_over(1, failed(7)), 4)
    (item,) = worker.item_reports(trace.state)
    assert (item.share, item.is_running) == (failed(7), False)


def test_a_share_is_none_of_a_workers_services() -> None:
    """Its status lists what serves, and not the job."""
    trace = workers.WorkerTrace(WORKER, [(1, workers.replied()), (2, RUN), (3, BOTH)])
    assert trace.effects == [workers.Began(SHARE), workers.Began(RETRIEVER)]
    assert [item.name for item in trace.state.services] == [RETRIEVER]


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
