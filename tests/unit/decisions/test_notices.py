"""Notices of a platform: a job that saves on a signal does so before its node is taken away."""

from __future__ import annotations

import signal

import pytest
from msgspec.structs import replace

from agent.decisions.head import head_state as h
from support.heads import (
    TERM,
    TICK,
    History,
    SaveJob,
    StopJob,
    Trace,
    accepted,
    goal,
    job,
    nodes,
    reported,
    saved,
)

SAVES = replace(goal(1, retries=1), notice_signal=int(signal.SIGUSR1))
JOINED = reported(2, joined=True)
NOTICED = h.WorkerReported(replace(JOINED.worker, notice=60.0))
RUNNING: History = [
    (3, nodes(2)),
    (4, JOINED),
    (5, accepted()),
    (6, job("RUNNING")),
]
SAVE = SaveJob("run-1")
STOP = StopJob("run-1")


def saving() -> Trace:
    """Return a head whose job has got its signal, and still runs 50 s later."""
    trace = Trace(SAVES, [*RUNNING, (10, NOTICED)])
    assert trace.effects[-1] == SAVE
    for at in range(11, 60, 7):
        trace.take(TICK, at)
        trace.take(job("RUNNING"), at)
    assert STOP not in trace.actions
    return trace


@pytest.mark.parametrize(
    ("then", "at", "why"),
    [
        (saved("step 8 is saved"), 62, "step 8 is saved: stopping the job"),
        (nodes(dead=(2,)), 62, "the job has not saved in time: stopping the job"),
        (TICK, 70, "the job has not saved in time: stopping the job"),
    ],
    ids=["it has saved", "its node is gone", "its time is over"],
)
def test_the_job_saves_before_it_is_stopped(then: h.HeadEvent, at: float, why: str) -> None:
    """Until it has saved, the announced node has left, or the time of the notice is over."""
    trace = saving()
    trace.take(then, at)
    assert STOP in trace.actions
    assert why in trace.log


def test_a_stop_in_a_notice_gives_the_job_its_own_time() -> None:
    """The announced node leaves meanwhile: what the job saves by then counts all the same."""
    trace = saving()
    trace.take(TERM, 54)
    trace.take(nodes(dead=(2,)), 55)
    assert STOP not in trace.actions
    trace.take(TICK, 62)
    assert STOP in trace.actions
