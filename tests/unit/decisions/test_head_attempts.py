"""Attempts: what counts as a loss, what follows it, its end on every node, and the last one."""

from __future__ import annotations

import signal
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
from agent.decisions.shared import (
    CHECK,
    JOB,
    RAY,
    SAVE,
    Answered,
    ItemReport,
    ItemsReported,
    LogLine,
    Step,
)
from agent.decisions.stall import Stalled
from agent.plan import waits as wait_keys
from support.event_words import cases
from support.heads import (
    RUNNING,
    TICK,
    History,
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
    resumed,
    status_of,
)
from support.histories import Case, head_after, play, play_head

if TYPE_CHECKING:
    from collections.abc import Sequence

OUT = "this container ran out of memory: the kernel's OOM killer ended a process of it"
LOST_HEAD = LostAttempt(100.0, "its head was lost")
ANNOUNCED = replace(LOST_HEAD, announced=True)
QUOTA = FailureCause("disk quota", "the quota is used up", is_permanent=True)
SHAPE = FailureCause("illegal access", "a CUDA kernel accessed memory illegally")
STALLED = Stalled(1, "no step for 5 min", then="retry")
# In one function, on whichever node and rank, and whatever else the sentence says
FIRST = ("12 min", "rank 17 on abcx is in `compute_score` (reward.py:44) since 01:12")
SECOND = ("12 min 30 s", "rank 3 on xyz is in `compute_score` (reward.py:44) (and 1 more group)")
OLD_RAY = ItemReport(RAY, Step.READY, generation=1, is_running=True)
OF_THE_JOB = tuple(ItemReport(name, Step.READY, "done", 1) for name in (JOB, SAVE, CHECK))


def failed(code: int = 1, **more: object) -> ItemsReported:
    """Return the event that the job failed, with what Ray or its log says about it."""
    return status_of(replace(JobReport("FAILED", "", code), **more))


def wedged(attempt: int, long: str, suspects: str, place: str) -> Stalled:
    """Return the event that a job makes no step."""
    return Stalled(attempt, f"no step for {long}", suspects, "retry", cause_key=f"steps: {place}")


def left_with(*names: str) -> list[object]:
    """Return what a head left that lost an attempt with these nodes."""
    left = replace(after_losses(LostAttempt(5.0, "x")), epoch=5_000)
    return [replace(left, ended=(replace(left.ended[0], nodes=names),))]


STILL_RUNS = reported(2, joined=False, items=(OLD_RAY,))
OPEN = resumed(number=6, required=2).attempt
WORDS = {
    "saves on a notice": replace(goal(1, retries=1), notice_signal=int(signal.SIGUSR1)),
    "left: a loss with pod2 and pod4": left_with("pod2", "pod4"),
    "left: five losses": [replace(after_losses(*(LostAttempt(1.0),) * 5), attempt=OPEN)],
    "left: two announced losses": [after_losses(ANNOUNCED, replace(ANNOUNCED, seconds=5.0))],
    "left: two lost heads": [after_losses(LOST_HEAD, LOST_HEAD)],
    "third attempt": "3 nodes -> submit run-3 | 4 accepted 3",
    "pair of attempt 1": (
        "3 nodes 2 -> submit run-1 | 4 pod2 runs attempt 1 | 5 accepted | 6 job RUNNING"
    ),
    "loses it": ("pair of attempt 1 | 9 nodes dead 2 | 10 job FAILED 1 -> start Ray, generation 2"),
    # The job has got its signal, and still runs 50 s later
    "saving": (
        "pair | 10 pod2 is to go -> save run-1 | 11 job RUNNING | 18 job RUNNING | 25 tick | "
        "32 job RUNNING | 59 job RUNNING"
    ),
    "Ray dies of memory": ray_lost("its raylet is gone", OUT),
    "driver ran out of memory": failed(137, memory=OUT),
    "process ran out of memory": failed(memory=OUT),
    "failed by CUDA": failed(cause=SHAPE),
    "failed by a quota": failed(cause=QUOTA),
    "failed by a quota of pod2": failed(cause=replace(QUOTA, node="pod2")),
    **{f"ended {ago} s ago": failed(ended_ago=float(ago)) for ago in (21, 50, 60, 90, 900)},
    "pod2 is to go": h.WorkerReported(replace(reported(2).worker, notice=60.0)),
    "pod2 ran out of memory": reported(2, memory=OUT),
    "pod2 reports the job": reported(2, items=OF_THE_JOB),
    "pod2 runs attempt 1": STILL_RUNS,
    "pod3 leaves, out of memory": reported(3, joined=False, has_left=True, memory=OUT),
    "pod3 ran out of memory": reported(3, memory=OUT),
    "stalled": STALLED,
    "wedged in load": wedged(1, *FIRST, "load"),
    "wedged in reward": wedged(1, *FIRST, "compute_score reward.py"),
    "wedged in reward again": wedged(2, *SECOND, "compute_score reward.py"),
    "wedged in save": wedged(2, *SECOND, "save"),
}

# Nodes are probed once; without a recent loss or attempts left, the job's own code
OWN_ENDS = cases(
    """\
all nodes answer: it is the job's own [1 worker]
    pair | 10 job FAILED 1 -> ask the nodes
    11 all nodes answer -> end 1: the job failed with exit code 1
a node does not answer, and no retry is left [1 worker]
    pair | 10 job FAILED 1 -> ask the nodes
    11 pod2 does not answer: connection refused
        -> end 1: the job failed with exit code 1; before that, lost pod2: connection refused
the nodes are not asked for long [1 worker]
    pair | 10 job FAILED 1 -> ask the nodes | 15 tick -> end 1: the job failed with exit code 1
a node was lost before, and no retry is left [1 worker]
    pair | 9 nodes dead 2
    10 job FAILED 1 -> end 1: the job failed with exit code 1; before that, lost a needed node…
asked to stop while the nodes are asked [1 worker]
    pair | 10 job FAILED 1 -> ask the nodes | 11 TERM -> end 1: the job failed with exit code 1
Ray is lost while the nodes are asked [1 worker]
    pair | 10 job FAILED 1 -> ask the nodes
    11 Ray dies: exit 1
        -> end 1: the job failed with exit code 1; before that, Ray was lost on the head: exit 1
all nodes answer, with retries left [1 worker, 3 retries]
    pair | 10 job FAILED 1 -> ask the nodes
    11 all nodes answer -> end 1: the job failed with exit code 1
a success [1 worker, 3 retries]
    pair | 10 job SUCCEEDED 0 -> end 0: the job succeeded
its own code may be that of a loss [1 worker, 3 retries]
    pair | 10 job FAILED 75 -> ask the nodes
    11 all nodes answer -> end 75: the job failed with exit code 75
a task ran out of memory [1 worker, 3 retries]
    pair | 9 nodes dead 2
    10 job FAILED 1: ray.exceptions.OutOfMemoryError: Task was
        -> end 1: the job ran out of memory; before that, lost a needed node…
a node ran low on memory [1 worker, 3 retries]
    pair
    10 job FAILED: the node running low on memory
        -> end 75: the job ran out of memory and is not tried again: the node running low on memory
a loss long before [1 worker, 3 retries]
    pair | 9 nodes dead 2 | 12 nodes 2 | 70 job FAILED 1 -> ask the nodes
    71 all nodes answer -> end 1: the job failed with exit code 1; before that, lost a needed node…
# It is reported as such for any killed process, and is final
memory of the head's Ray [1 worker, 3 retries]
    pair
    9 Ray dies of memory
        -> end 75: the job ran out of memory and is not tried again: Ray was lost on the head: its
        raylet is gone; on the head this container ran out of memory…
memory of the driver [1 worker, 3 retries]
    pair
    9 driver ran out of memory
        -> end 137: the job ran out of memory: this container ran out of memory…
memory of a process of the job [1 worker, 3 retries]
    pair | 9 nodes dead 2
    10 process ran out of memory
        -> end 1: the job ran out of memory: this container ran out of memory…; before that, lost a
        needed node…
memory on a worker [1 worker, 3 retries]
    pair | 8 pod2 ran out of memory | 9 nodes dead 2
    10 job FAILED 1
        -> end 1: the job ran out of memory: on pod2 this container ran out of memory…; before
        that, lost a needed node…
memory of a worker's Ray [1 worker, 3 retries]
    pair | 8 pod2 ran out of memory | 9 nodes dead 2 | 80 tick -> stop run-1
    90 job STOPPED
        -> end 75: the job ran out of memory and is not tried again: lost a needed node…longer than
        AGENT_NODE_GRACE; on pod2 this container ran out of memory…
# Ray may report it much later, and a killed node is noticed after some seconds
it ended long after a loss [1 worker, 1 retry]
    pair | 9 nodes dead 2 | 12 nodes 2 | 100 ended 21 s ago -> ask the nodes
    101 all nodes answer -> end 1: the job failed with exit code 1; before that, lost a needed node…
it ended long before a loss [1 worker, 1 retry]
    pair | 60 nodes dead 2 | 62 nodes 2 | 100 ended 90 s ago -> ask the nodes
    101 all nodes answer -> end 1: the job failed with exit code 1
""",
    WORDS,
)
LOSSES = cases(
    """\
a node is gone [1 worker, 1 retry]
    pair | 9 nodes dead 2 | 10 job FAILED 1 -> start Ray, generation 2
a node does not answer [1 worker, 1 retry]
    pair | 10 job FAILED 1 -> ask the nodes
    11 pod2 does not answer: connection refused -> start Ray, generation 2
a node is gone a moment later [1 worker, 1 retry]
    pair | 10 job FAILED 1 -> ask the nodes | 10.5 nodes dead 2 -> start Ray, generation 2
a worker joins anew a moment later [1 worker, 1 retry]
    pair | 10 job FAILED 1 -> ask the nodes | 10.5 pod2 reports -> start Ray, generation 2
the head's Ray is gone a moment later [1 worker, 1 retry]
    pair | 10 job FAILED 1 -> ask the nodes | 10.5 Ray dies: exit 1 -> start Ray, generation 2
the head's Ray is gone [1 worker, 1 retry]
    pair | 10 Ray dies: exit 1 -> start Ray, generation 2
a node stays away for its grace [1 worker, 1 retry]
    pair | 9 nodes dead 2 | 69 tick -> stop run-1 | 70 job STOPPED -> start Ray, generation 2
the job has no code [1 worker, 1 retry]
    pair | 10 job FAILED: the supervisor died -> ask the nodes
    11 all nodes answer -> start Ray, generation 2
Ray has no status of the job [1 worker, 1 retry]
    pair | 126 tick -> start Ray, generation 2
memory ran out in the boot alone [1 worker, 1 retry]
    0 Ray dies of memory -> start Ray, generation 2 | pair | 9 nodes dead 2
    10 job FAILED 1 -> start Ray, generation 3
memory ran out on another node [1 worker, 1 retry]
    0 pod3 ran out of memory | 1 pod3 leaves, out of memory | pair | 9 nodes dead 2
    10 job FAILED 1 -> start Ray, generation 2
it ended soon after a loss [1 worker, 1 retry]
    pair | 9 nodes dead 2 | 12 nodes 2 | 100 ended 60 s ago -> start Ray, generation 2
it ended soon before a loss that was noticed late [1 worker, 1 retry]
    pair | 60 nodes dead 2 | 62 nodes 2 | 100 ended 50 s ago -> start Ray, generation 2
it ended by another clock [1 worker, 1 retry]
    pair | 50 job RUNNING | 60 nodes dead 2 | 70 ended 900 s ago -> start Ray, generation 2
""",
    WORDS,
)
ATTEMPTS = cases(
    """\
# A job's failure on a given Ray: is a lost node behind it?
all nodes answer: it is final at once [1 worker, 1 retry, given Ray]
    pair | 10 job FAILED 1 -> ask the nodes
    10.1 all nodes answer -> end 1: the job failed with exit code 1
GCS reports it: another attempt follows [1 worker, 1 retry, given Ray]
    pair | 10 job FAILED 1 -> ask the nodes | 12 pod2 does not answer: connection refused
    72 nodes dead 2 -> start Ray, generation 2
GCS reports it, and no retry is left [1 worker, given Ray]
    pair | 10 job FAILED 1 -> ask the nodes | 12 pod2 does not answer: connection refused
    72 nodes dead 2 -> end 1: …exit code 1; before that, …pod2…
GCS does not report it: it is final [1 worker, 1 retry, given Ray]
    pair | 10 job FAILED 1 -> ask the nodes | 12 pod2 does not answer: connection refused
    waits waiting for GCS to report a lost node, pod2: connection refused (73 s left) | 84.9 tick
    85.1 tick -> end 1: the job failed with exit code 1…
# A job that is stopped for a loss, or for a signal
its success came before the stop [1 worker, 1 retry]
    pair | 9 nodes dead 2 | 69 tick -> stop run-1
    70 job SUCCEEDED 0 -> end 0: the job succeeded; before that, lost a needed node…
a driver that exits with 0 on the agent's SIGTERM has not succeeded [1 worker]
    pair | 9 nodes dead 2 | 69 tick -> stop run-1 | 74 signaled
    75 job SUCCEEDED 0 -> end 75: lost a needed node…
a signal outranks a success [1 worker, 1 retry]
    pair | 9 TERM -> stop run-1 | 71 job SUCCEEDED 0 -> end 143: …SIGTERM…
a signal outranks a success after a loss [1 worker, 1 retry]
    pair | 9 nodes dead 2 | 69 tick -> stop run-1 | 70 TERM
    71 job SUCCEEDED 0 -> end 143: …SIGTERM…
# What the next attempt waits for
AGENT_PARTIAL=proceed ends the wait for workers, not a pause [2 workers, at least 1, 9 retries]
    left: five losses | 1 Ray dies: exit 1 -> start Ray, generation 2 | 3 nodes 2 | 3 pod2 joined
    201 tick | 301 tick -> submit run-7 | log going on with 1 worker(s), as AGENT_PARTIAL=proceed
its steps are known, and end the pause [2 retries]
    alone | 20 Ray dies: exit 1 -> start Ray, generation 2 | 22 nodes
    23 made 1, step 5 -> submit run-2
it made no step: the pause stays [2 retries]
    alone | 20 Ray dies: exit 1 -> start Ray, generation 2 | 22 nodes | 23 made 1
    waits waiting for attempt 2 to begin, a pause after the loss (7 s left)
what was there for an attempt and is not back is a loss, no missing worker [1 worker, 1 retry]
    pair | 9 nodes dead 2 | 10 job FAILED 1 -> start Ray, generation 2 | 12 nodes
    later tick -> end 75: workers not ready in time: …pod2…
the next attempt names the node that was lost [2 workers, 2 retries]
    3 nodes 2 3 -> submit run-1 | 3 pod2 joined | 3 pod3 joined | 5 accepted | 9 nodes 3, dead 2
    10 job FAILED 1 -> start Ray, generation 2 | 12 nodes 2 3 | 20 tick -> submit run-2
    log attempt 2 of 3: lost a needed node | log pod2 | log ; 3 of 3 node(s)
# When no other attempt follows
attempts are used up
    alone | 9 Ray dies: exit 1 -> end 75: Ray was lost on the head: exit 1…
three short attempts in a row made no progress, restarts included [2 retries]
    left: two announced losses | third attempt | 9 Ray dies: exit 1 -> start Ray, generation 2
    9.1 made 3 -> end 75: …no progress: 3 attempts in a row…
three losses of the head end no run that allows more attempts [3 retries]
    left: two lost heads | third attempt | 9 Ray dies: exit 1 -> start Ray, generation 2
    9.1 made 3
a permanent cause is not tried again [1 worker, 3 retries]
    pair | 9 nodes dead 2
    10 failed by a quota
        -> end 1: …before that, lost a needed node…not tried again…: the quota is used up
a cause that may pass is tried again [1 worker, 3 retries]
    pair | 9 nodes dead 2 | 10 failed by CUDA -> start Ray, generation 2
    log attempt 1 of 4 is lost
a permanent cause of a node that is away is tried again [1 worker, 3 retries]
    pair | 9 nodes dead 2 | 10 failed by a quota of pod2 -> start Ray, generation 2
# Ray has no exit code where its supervisor is killed: the cause may be outside
a driver that is killed at the same step twice is tried again [40 retries]
    60 nodes -> submit run-1 | 61 accepted
    5000 job FAILED: actor 4711 died -> start Ray, generation 2 | 5001 made 1, step 25, saved 10
    5062 nodes -> submit run-2 | 5063 accepted 2
    9999 job FAILED, attempt 2: actor 815 died -> start Ray, generation 3
    10000 made 2, step 25, saved 20
a newer checkpoint is progress, and the next attempt says from where it resumes [9 retries]
    0 made 0, saved 10 | 90 nodes -> submit run-1 | 141 accepted
    142 Ray dies: exit 1 -> start Ray, generation 2 | 143 made 1, saved 10
    180 nodes -> submit run-2 | 231 accepted 2 | 232 Ray dies: exit 1 -> start Ray, generation 3
    233 made 2, saved 10 | 270 nodes -> submit run-3 | 321 accepted 3
    322 Ray dies: exit 1 -> start Ray, generation 4 | 323 made 3, saved 20 | 360 nodes
    410 tick -> submit run-4
    log attempt 4 of 10: Ray was lost on the head: exit 1; 1 of 1 node(s); resumes from /ckpt
a job that is wedged at the same step and place twice is not tried again [40 retries]
    60 nodes -> submit run-1 | 61 accepted | 100 wedged in reward -> stop run-1
    101 job STOPPED -> start Ray, generation 2 | 102 made 1, step 25, saved 20
    163 nodes -> submit run-2 | 164 accepted 2 | 203 wedged in reward again -> stop run-2
    204 job STOPPED, attempt 2 -> start Ray, generation 3
    205 made 2, step 25, saved 20
        -> end 75: the same cause ended two attempts at step 25: … `compute_score` (reward.py:44)…
a job that is wedged at another place is tried again [40 retries]
    60 nodes -> submit run-1 | 61 accepted | 100 wedged in load -> stop run-1
    101 job STOPPED -> start Ray, generation 2 | 102 made 1, step 25, saved 20
    163 nodes -> submit run-2 | 164 accepted 2 | 203 wedged in save -> stop run-2
    204 job STOPPED, attempt 2 -> start Ray, generation 3 | 205 made 2, step 25, saved 20
attempts that are used up are worth a hold: a restarted pod could do no more
    alone | 9 Ray dies: exit 1 -> end 75: … | marks holds_pod
""",
    WORDS,
)
# An attempt has ended on every node before the next is submitted, or there is no next
CLEARED = cases(
    """\
# GCS lists the node again, and the pause is over
a worker in reach must have ended it [1 worker, 1 retry]
    loses it | 11 nodes 2 | 12 pod2 runs attempt 1 | 30 tick
    waits waiting for the end of attempt 1 on pod2… & waiting for workers… | 31 pod2 reports
    33 pod2 joined -> submit run-2
a worker that never ends it ends the run [1 worker, 1 retry]
    loses it | 11 nodes 2 | 12 pod2 runs attempt 1 | 100 pod2 runs attempt 1 | 129.9 tick
    130 tick -> end 75: the end of attempt 1 on pod2 not ready in time: …
# AGENT_NODE_GRACE after its last report its fence has ended everything: others continue
a worker out of reach before the end has its time [1 worker, 1 retry]
    pair of attempt 1 | 9 nodes dead 2 | 9.5 pod2 silent: no answer
    10 job FAILED 1 -> start Ray, generation 2 | 12 nodes 3 | 21 pod3 joined | 69.4 tick
    waits waiting for the end of attempt 1 on pod2, out of reach… | 69.5 tick -> submit run-2
a worker out of reach since the end has its time [1 worker, 1 retry]
    loses it | 20 pod2 silent: no answer | 20 nodes 3 | 21 pod3 joined | 79.9 tick
    waits waiting for the end of attempt 1 on pod2, out of reach… | 80 tick -> submit run-2
# The pod was started again: no former process runs there
a later agent of a node is proof [1 worker, 1 retry]
    loses it | 11 nodes 2 | 12 pod2 runs attempt 1 | 13 pod2 replaced | 14 nodes 3 | 15 pod3 joined
    20 tick -> submit run-2
# From its record: a silent worker gets its grace, one that reports must have ended it
a restarted head has the earlier nodes [1 worker, 3 retries]
    left: a loss with pod2 and pod4 | 3 nodes 3 | 4 pod3 joined | 30 tick | 31 pod2 runs attempt 1
    60 tick | 61 pod2 reports -> submit run-2
our own Ray ends with a lost attempt [1 worker, 1 retry]
    pair of attempt 1 | 10 Ray dies: exit 1 -> start Ray, generation 2 | alive nothing
it ends with a stalled one [1 worker, 1 retry]
    pair of attempt 1 | 9 stalled -> stop run-1 | 10 job STOPPED -> start Ray, generation 2
    alive nothing
""",
    WORDS,
)
# A job that saves on a signal does so before its platform takes the node away
NOTICES = cases(
    """\
# Until it has saved, the announced node has left, or the time of the notice is over
the job saves before it is stopped [saves on a notice]
    saving | 62 saved: step 8 is saved -> stop run-1 & release agent2
    log step 8 is saved: stopping the job
its node is gone before it has saved [saves on a notice]
    saving | 62 nodes dead 2 -> stop run-1 & release agent2
    log the job has not saved in time: stopping the job
its time to save is over [saves on a notice]
    saving | 69.9 tick | 70 tick -> stop run-1 & release agent2
    log the job has not saved in time: stopping the job
# The announced node leaves meanwhile: what the job saves by then counts all the same
a stop in a notice gives the job its own time [saves on a notice]
    saving | 54 TERM | 55 nodes dead 2 | 61.9 tick | 62 tick -> stop run-1 & release agent2
# What a worker says under its names changes nothing
no worker reports the job [saves on a notice]
    3 nodes 2 -> submit run-1 | 4 pod2 joined | 5 pod2 reports the job | phase submitting
    6 accepted | 6 TERM -> save run-1 | 7 pod2 reports the job | phase stopping
""",
    WORDS,
)


@pytest.mark.parametrize("case", OWN_ENDS.values(), ids=OWN_ENDS)
def test_a_jobs_failure_is_its_own(case: Case) -> None:
    """It has the job's own code, and is final, whatever else was lost."""
    (end,) = play(case).outcomes
    assert end.kind is (Kind.JOB_FAILED if end.exit_code else Kind.DONE)
    assert end.is_jobs_verdict


@pytest.mark.parametrize("case", LOSSES.values(), ids=LOSSES)
def test_a_loss_is_followed_by_another_attempt(case: Case) -> None:
    """A node or Ray ended within a minute before the job: the attempt is made again."""
    trace = play_head(case)
    assert "attempt 1 of 2 is lost: " in trace.log
    trace.take(nodes(2), trace.now + 1)
    trace.take(reported(2), trace.now)
    assert (trace.state.attempt.number, trace.state.phase) == (2, HeadPhase.BOOTING)
    trace.take(TICK, trace.state.not_before)
    assert trace.effects[-1] == SubmitJob("run-2")
    assert "attempt 2 of 2: " in trace.log
    assert "2 of 2 node(s)" in trace.log


@pytest.mark.parametrize("case", (rows := ATTEMPTS | CLEARED | NOTICES).values(), ids=rows)
def test_attempts(case: Case) -> None:
    """A lost attempt is over on every node, and followed by another one, if that may help."""
    play(case)


# --- the end of an attempt on this node -----------------------------------------------------------

BEGUN: History = [(1, ray_open()), *RUNNING]
PAIR_HISTORY: History = [
    (3, nodes(2)),
    (4, STILL_RUNS),
    (5, accepted()),
    (6, job("RUNNING")),
]
AGAIN = [SubmitJob("run-1"), SubmitJob("run-2")]


def submitted(trace: Trace) -> Sequence[h.HeadAction]:
    """Return the submissions so far."""
    return [deed for deed in trace.effects if isinstance(deed, SubmitJob)]


RESISTS = "python (pid 7) cannot be ended"


def test_this_node_must_be_clear_too() -> None:
    """A process that cannot be killed here is named, and no attempt starts beside it."""
    trace = Trace(goal(retries=1), BEGUN)
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
    trace = Trace(goal(retries=1), BEGUN)
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
    trace = Trace(goal(retries=1), BEGUN)
    trace.state, _ = head.decide(trace.state, ray_lost("exit 1", generation=1), 200)
    trace.take(ray_lost("exit 1", generation=1, is_running=False), 290)
    trace.take(ray_waits("connection refused", generation=2), 290)
    trace.take(ray_lost("it gave up", generation=2), 325)
    assert "starting it again: 1 of 2" in trace.log
    assert trace.outcomes == []


def test_the_output_of_the_job_is_read_to_its_end() -> None:
    """Then the last step is asked for; the next attempt is submitted later, on a given Ray, too."""
    trace = Trace(goal(1, retries=1, given=True), [(2, ray_open()), *PAIR_HISTORY])
    trace.state = reading(trace.state)
    trace.state, actions = head.decide(trace.state, nodes(dead=(2,)), 9)
    trace.state, actions = head.decide(trace.state, of_now(job("FAILED", 1), trace.state, 10), 10)
    trace.state = reading(trace.state)
    assert trace.state.phase is HeadPhase.BOOTING
    for event in (ray_waits("", generation=2), ray_open(generation=2), nodes(2), STILL_RUNS, TICK):
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


def test_a_lost_spare_is_cleared_too() -> None:
    """It joined a running attempt, which may use it: the next begins once it is out of reach."""
    text = "pair | 7 pod3 joined as 9 | 8 nodes 2 3 | 20 pod3 silent: no answer | 21 job FAILED 1"
    trace = head_after(goal(1, retries=1), text)
    assert trace.state.attempt.number == 2
    assert "agent3" in trace.state.earlier.leftovers


# --- the rules -----------------------------------------------------------------------------------


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
