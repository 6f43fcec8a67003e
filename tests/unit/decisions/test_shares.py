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
from agent.frameworks.recipe import NodeSize
from agent.job.services import Where
from agent.job.share import ShareArgs
from support import workers
from support.event_words import cases, rows_of
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
    unfit,
)
from support.histories import Case, head_after, play, worker_after
from support.shares import DONE, STOPPED, by_torchrun, failed, own, share_of

CUT_OFF = replace(STOPPED, lost=True)
REPLACED = h.WorkerReplaced("agent2")
NEVER_BEGAN = ItemReport(SHARE, Step.LOST, "stopped before it began", 1, was_stopped=True)
REFUSED = ItemReport(SHARE, Step.LOST, "this node's plan has no share to run", 1)
JUDGE = replace(RETRIEVER_SPEC, where=Where("rank", 1))


def says(n: int, *items: ItemReport) -> h.WorkerReported:
    """Return the event of a worker's report about these things."""
    return h.WorkerReported(replace(share_of(n).worker, items=items))


WORDS = {
    "alone": by_torchrun(0),
    "judge on rank 1": replace(by_torchrun(1), services=(JUDGE,)),
    "sized, prepares": replace(by_torchrun(1, prepare=True), is_sized_to_nodes=True),
    "two nodes, 1 retry": by_torchrun(retries=1),
    "asked for": "1 pod2 works -> submit run-1",
    "shares run": "asked for | 2 accepted -> start share & start share on agent2 | 3 pod2 works",
    "it does not fit": unfit(Outcome(Kind.REFUSED, 78, "the recipe does not fit")),
    "own launcher fails with 2": own(failed(2, None)),
    "own share done": own(DONE),
    **{f"own share fails with {code}": own(failed(code)) for code in (1, 7, 127, -9)},
    "own share fails with 1 at rank 3": own(failed(1, 3)),
    "own share fails with 1, a second ago": own(failed(1, ago=1.0)),
    "own share fails with 1: no data": own(failed(1, words="no data")),
    "own share never began": ItemsReported((NEVER_BEGAN,)),
    "own share of attempt 7 fails with 5": own(failed(5), attempt=7),
    "own share stopped": own(STOPPED),
    "pod2 done": share_of(2, DONE),
    "pod2 failed with 7, 2 s ago": share_of(2, failed(7, ago=2.0)),
    "pod2 fails with 3": share_of(2, failed(3)),
    "pod2 fails with 7": share_of(2, failed(7)),
    "pod2 has no share": says(2, REFUSED),
    "pod2 has stopped": share_of(2, STOPPED),
    "pod2 is rank 1": share_of(2, rank=1),
    "pod2 leaves": share_of(2, has_left=True),
    "pod2 never began": says(2, NEVER_BEGAN),
    "pod2 was cut off": share_of(2, CUT_OFF),
    "pod2 works": share_of(2),
    "pod3 done": share_of(3, DONE),
    "pod3 done, has left": share_of(3, DONE, has_left=True),
    "pod3 leaves": share_of(3, has_left=True),
    "pod3 works": share_of(3),
}

ON_ALL_NODES = cases(
    """\
# With no worker, no service and no step there is nothing to wait for, not even an event
a head alone starts it at once [alone]
    0.1 tick -> submit run-1 | 0.2 accepted -> start share
    9 own share done -> end 0: the job succeeded
# There is no Ray, of which the limit would be: that of the workers counts
the node of a service on a rank is waited for, and starts it [judge on rank 1]
    1 tick
    waits waiting for rank 1, which is to run retriever, no report yet (3 min 19 s left)
        & waiting for workers, 0 of 1 joined; 1 never reported (3 min 19 s left)
    2 pod2 is rank 1 -> start retriever on agent2
the others are stopped by the first failure, and waited for
    shares run | 9 own share fails with 7 -> stop run-1 | 9.1 pod2 works
    9.4 pod2 has stopped -> end 7: …exit code 7 (local rank 0 on pod0)
# The others failed before its node received that it was wanted
a share that its node never began is not waited for
    shares run | 9 own share fails with 127 -> stop run-1 | 9.1 pod2 works
    9.2 pod2 never began -> end 127: …
no share is waited for if all are stopped before they are wanted
    asked for | 1.9 TERM -> stop run-1 | 2 accepted | 2.1 own share never began
    2.2 pod2 never began -> end 143: …SIGTERM
a share that its node's plan does not have has failed
    shares run | 9 pod2 has no share -> stop run-1
    9.5 own share stopped -> end 1: …this node's plan has no share to run
asked to stop, the run ends so, whatever the ranks make of their signal
    shares run | 9 TERM -> stop run-1 | 9.2 own share fails with 1
    9.4 pod2 has stopped -> end 143: …SIGTERM
shares that all succeed before their stop are a success [two nodes, 1 retry]
    shares run | 9 pod2 works | 24 tick | 84.1 tick -> stop run-1 | 84.2 pod2 done
    84.3 own share done -> end 0: the job succeeded; before that, lost a needed node…
another attempt after a loss waits for a node in the place of the lost one [two nodes, 1 retry]
    shares run | 9 pod2 replaced | 9.5 own share fails with 1 | 100 pod3 works -> submit run-2
    101 accepted 2 -> start share, generation 2 & start share on agent3, gen…
# Until it has ended: a node whose ranks are done may leave
every share of a sized job is required [sized, prepares]
    1 pod2 works | 1 pod3 works | 2 ready AGENT_PREPARE_EACH | 2 ready AGENT_PREPARE -> submit run-1
    5 accepted -> start share & start share on agent2 & start share on agent3 | 6 pod3 leaves
    log lost a needed node (pod3; 1 of 2 joined | short since 6
a share that is done is not [sized, prepares]
    1 pod2 works | 1 pod3 works | 2 ready AGENT_PREPARE_EACH | 2 ready AGENT_PREPARE -> submit run-1
    5 accepted -> start share & start share on agent2 & start share on agent3 | 6 pod3 done
    7 pod3 done, has left | short nothing
""",
    WORDS,
    by_torchrun(),
)
# The first rank that failed gives the code; its node and local rank are named
VERDICTS = cases(
    """\
all succeed
    shares run | 9 own share done | 9.5 pod2 done -> end 0: the job succeeded
a rank of the head fails
    shares run | 9 own share fails with 1 at rank 3 -> stop run-1
    9.5 pod2 has stopped -> end 1: the job failed with exit code 1 (local rank 3 on pod0)
a rank of a worker fails
    shares run | 9 pod2 fails with 3 -> stop run-1
    9.5 own share stopped -> end 3: the job failed with exit code 3 (local rank 0 on pod2)
# torchrun there took longer to stop the others
pod2's rank failed first
    shares run | 9 own share fails with 1 -> stop run-1
    9.5 pod2 failed with 7, 2 s ago -> end 7: the job failed with exit code 7 (local rank 0 on pod2)
the head's rank failed first
    shares run | 9 own share fails with 1, a second ago -> stop run-1
    9.5 pod2 fails with 7 -> end 1: the job failed with exit code 1 (local rank 0 on pod0)
a rank is killed
    shares run | 9 own share fails with -9 -> stop run-1
    9.5 pod2 has stopped
        -> end 137: the job failed with exit code 137 (SIGKILL) (local rank 0 on pod0)
a rank says why
    shares run | 9 own share fails with 1: no data -> stop run-1
    9.5 pod2 has stopped -> end 1: the job failed with exit code 1 (local rank 0 on pod0): no data
torchrun itself fails
    shares run | 9 own launcher fails with 2 -> stop run-1
    9.5 pod2 has stopped -> end 2: the job failed with exit code 2 (torchrun itself on pod0)
a share of an earlier attempt says nothing of this one
    shares run | 9 own share of attempt 7 fails with 5 | 9.1 own share done
    9.2 pod2 done -> end 0: the job succeeded
""",
    WORDS,
    by_torchrun(),
)
LOSSES = cases(
    """\
a worker falls silent, and nobody else notices
    shares run
    later tick -> stop run-1 & end 75: lost a needed node: pod2, longer than AGENT_NODE_GRACE
it says goodbye: AGENT_NODE_GRACE, too
    shares run | 9 pod2 leaves
    later tick -> stop run-1 & end 75: lost a needed node: pod2, longer than AGENT_NODE_GRACE
its agent was started anew, and has none of the job's processes
    shares run | 9 pod2 replaced | 9.1 pod3 works
    later tick -> stop run-1 & end 75: lost a needed node: pod2, longer than AGENT_NODE_GRACE
it was out of reach, and stopped its share itself before it came back
    shares run | 60 pod2 was cut off
    later tick -> stop run-1 & end 75: lost a needed node: pod2, longer than AGENT_NODE_GRACE
# That is no verdict of the job's
the others fail since it is gone
    shares run | 9 own share fails with 1 -> stop run-1
    later tick -> end 75: lost a needed node while the job ran: pod2 (no report of its share)
""",
    WORDS,
    by_torchrun(),
)


@pytest.mark.parametrize("case", ON_ALL_NODES.values(), ids=ON_ALL_NODES)
def test_shares_on_all_nodes(case: Case) -> None:
    """All nodes start their shares together, and the first failure stops them."""
    play(case)


@pytest.mark.parametrize("case", VERDICTS.values(), ids=VERDICTS)
def test_verdicts(case: Case) -> None:
    """They are the job's."""
    (end,) = play(case).outcomes
    assert end.is_jobs_verdict


@pytest.mark.parametrize("case", LOSSES.values(), ids=LOSSES)
def test_a_lost_node_is_a_loss(case: Case) -> None:
    """For any reports of other ranks, the run ends with 75 and names the node."""
    (end,) = play(case).outcomes
    assert (end.kind, end.is_jobs_verdict) == (Kind.LOST, False)


SUBMITTED_ALONE = "0.1 tick | 0.2 accepted | 9 TERM"


@pytest.mark.parametrize(
    ("workers", "history", "status"),
    [
        (1, "1 tick", "not submitted"),
        (0, "1 tick", "pending"),
        (1, "shares run", "running"),
        (1, "shares run | 9 own share done", "running"),
        (1, "shares run | 9 own share fails with 7", "failed"),
        (1, "shares run | 9 own share done | 9.2 pod2 done", "succeeded"),
        (0, SUBMITTED_ALONE, "running"),
        (0, f"{SUBMITTED_ALONE} | 9.2 own share stopped", "stopped"),
        (0, f"{SUBMITTED_ALONE} | 99 tick", "stopped"),
        (0, "1 tick | 2 it does not fit", "not submitted"),
        (1, "shares run | 9 pod2 replaced | 9.1 own share fails with 1 | 900 tick", "failed"),
    ],
)
def test_the_status_of_the_job(workers: int, history: str, status: str) -> None:
    """It is in the words of Ray's job API."""
    trace = head_after(by_torchrun(workers), *rows_of(history, WORDS))
    assert job_status(trace.state) == status


STARTED: History = [(1.0, share_of(2, at=1.0)), (2.0, SUBMITTED), (3.0, share_of(2, at=3.0))]


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
BOTH = replace(
    workers.replied(), wanted=NodeWanted("head1", 2, {SHARE: Want(1, SEAT), RETRIEVER: Want()})
)
OF_A_WORKER = {
    "prepares first": replace(workers.goal(prepare=True), by_shares=True),
    "follows": "1 reply | 2 wanted share -> start share",
    "wanted share": RUN,
    "wanted 3 share of attempt 2": workers.wanted_share(3, SEAT, attempt=2),
}

ON_A_WORKER = cases(
    """\
it follows by its report alone, and starts what the head wants, once
    follows | 3 wanted share
# The fence ended the step, and the head wants the share as soon as it is reached
a share waits for the steps of its node [prepares first]
    0 boot -> start AGENT_PREPARE_EACH | 2 reply | 31 silent: no answer
    79 tick -> stop AGENT_PREPARE_EACH | 90 wanted share -> start AGENT_PREPARE_EACH, generation 2
    91 ready AGENT_PREPARE_EACH -> start share
a share that is wanted no more ends, and the next attempt's begins
    follows | 3 wanted 2 -> stop share | 4 wanted 3 share of attempt 2 -> start share, generation 2
# Rank 0 went with the former head
a head that was started anew has no such job: its first decision ends the share
    follows | 5 reply 2 | 6 wanted 1, by head2 -> stop share
    log the head was restarted: following it
# A port is open there, and no agent answers: there is nothing to follow
a plain Ray head is no head for it
    1 GCS alone | later tick -> end 69: the head pod0 not ready in time: no agent answers…
a head that stays silent is left
    follows | later tick -> end 75: the head pod0 has been silent for 60 s…
""",
    OF_A_WORKER,
    WORKER,
)


@pytest.mark.parametrize("case", ON_A_WORKER.values(), ids=ON_A_WORKER)
def test_a_share_on_a_worker(case: Case) -> None:
    """It runs as the head wants it, and only while the head is there."""
    play(case)


def test_the_end_of_a_share_is_reported() -> None:
    """With the result of its ranks."""
    trace = worker_after(WORKER, "1 reply", (2, RUN), (4, workers.share_over(1, failed(7))))
    (item,) = worker.item_reports(trace.state)
    assert (item.share, item.is_running) == (failed(7), False)


def test_a_share_is_none_of_a_workers_services() -> None:
    """Its status lists what serves, and not the job."""
    trace = worker_after(WORKER, "1 reply", (2, RUN), (3, BOTH))
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
                for end in (None, DONE, STOPPED, failed(7), CUT_OFF)
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
