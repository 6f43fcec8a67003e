"""The worker's decisions: a history of events gives actions, log lines and an end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.base.ends import Kind, Outcome
from agent.decisions import worker
from agent.decisions.shared import RAY, SHARE, LogLine, Refused, Step, Wait
from agent.decisions.worker import worker_state as w
from agent.decisions.worker.worker_state import WorkerPhase
from agent.frameworks.recipe import NodeSize
from agent.job.groups import NodeGroup
from agent.job.services import ON_EVERY, PrepareStep
from agent.job.share import ShareArgs, ShareEnd
from agent.plan import waits as wait_keys
from support.event_words import cases
from support.heads import RETRIEVER, SHARED_DATA_STEP, lost
from support.histories import Case, play, take, worker_after
from support.workers import (
    GOAL,
    LIMITS,
    STEP,
    TERM,
    TICK,
    Began,
    Ended,
    WorkerTrace,
    goal,
    replied,
    share_over,
    wanted,
    wanted_share,
)

VERDICT = Outcome(Kind.JOB_FAILED, 7, "the job failed", "running", "job", is_jobs_verdict=True)
DATA = PrepareStep("data", "make", ON_EVERY, 50.0, "within", "/shared/.data")
OF_STEP = goal(prepare=True)
OF_STEPS = w.WorkerGoal("pod0", {**LIMITS, "prepare": 300.0}, (STEP, DATA))
OF_ALONE = w.WorkerGoal("pod0", LIMITS, service_only_ranks=frozenset({2}))


def of_group(*, is_in_ray: bool) -> w.WorkerGoal:
    """Return the goal of a node that names a group of rank 2."""
    group = NodeGroup("pool", 1, ray=is_in_ray, first_rank=2)
    return w.WorkerGoal("pod0", LIMITS, groups=(group,), group="pool")


WORDS = {
    "apart on rank 2": OF_ALONE,
    "apart, its rank known": replace(OF_ALONE, rank=2),
    "group in Ray": of_group(is_in_ray=True),
    "group outside of Ray": of_group(is_in_ray=False),
    "prepares first": OF_STEP,
    # Under a job that saves on a notice signal
    "saves": replace(GOAL, limits={**GOAL.limits, wait_keys.SAVE: 25.0}),
    "shared step": replace(GOAL, steps=(SHARED_DATA_STEP,)),
    "short step": replace(OF_STEP, steps=(replace(STEP, within=52.0),)),
    "stays": goal(stays=True),
    "step with its turn": replace(
        OF_STEP, steps=(replace(STEP, once="/data/.done", within=100.0),)
    ),
    "two steps": OF_STEPS,
    "held reply": replied(epoch=1, phase="held", ready=False, held=True),
    "its checks refuse": Refused(Outcome(Kind.REFUSED, 78, "/dev/shm: 64 MB", "starting", "shm")),
    # Unreachable since 31: the fence is at 79, AGENT_HEAD_GRACE ends at 90
    "out of reach": "joins | 30 reply | 31 silent",
    # Since 3: the fence is at 51
    "prepares out of reach": "0 boot -> start AGENT_PREPARE_EACH | 2 reply, not ready | 3 silent",
    "refusing reply": replied(refusal="version mismatch: Ray 2.50 here"),
    "reply of another run": replied(epoch=2, run="another"),
    "reply of no run": replied(run=""),
    "reply that wants retriever": replace(replied(), wanted=wanted(1, RETRIEVER).wanted),
    "the head replies until 7200": [(at, replied()) for at in range(10, 7200, 50)],
    "verdict": replied(verdict=VERDICT),
}

UNDER_WAY = cases(
    """\
nothing yet
    1 tick | phase finding the head
no head yet
    1 silent | 99 silent | phase finding the head
a head whose Ray is not up
    2 reply, not ready | phase finding the head
a head that keeps speaking is waited for
    2 reply, not ready | 90 reply, not ready | 149 tick | phase finding the head
a head
    2 reply -> start Ray | phase joining Ray
a head of a plain Ray
    2 GCS alone | 7 GCS alone | 12 GCS alone -> start Ray | phase joining Ray
data first [prepares first]
    2 reply | phase finding the head
data is there [prepares first]
    2 reply | 9 ready AGENT_PREPARE_EACH -> start Ray | phase joining Ray
data was there first [prepares first]
    1 ready AGENT_PREPARE_EACH | 2 reply -> start Ray | phase joining Ray
data longer than the head's deadline [prepares first]
    2 reply | 101 tick | 500 reply | phase finding the head
its Ray is up
    joins | phase following the head
its Ray did not join
    2 reply -> start Ray | 4 lost Ray: exit code 1 | 4.4 tick | phase joining Ray
it tries again
    2 reply -> start Ray | 4 lost Ray: exit code 1 | 4.5 reply -> start Ray, generation 2
    phase joining Ray
not while the head is silent
    2 reply -> start Ray | 4 lost Ray: exit code 1 | 4.2 silent | 4.5 tick | phase joining Ray
but when it speaks again, at its new address
    2 reply -> start Ray | 4 lost Ray: exit code 1 | 4.2 silent
    9 reply, at 10.0.0.9 -> start Ray, generation 2 | phase joining Ray
it follows
    joins | 30 reply | 80 tick | phase following the head
a short silence
    joins | 29 reply | 30 silent | 59 tick | phase following the head
the head was started anew
    joins | 30 reply 2, not ready -> stop Ray | phase joining Ray
and joined anew
    joins | 30 reply 2, not ready -> stop Ray | 31 reply 2 -> start Ray, generation 2 | 35 ready Ray
    phase following the head
anew while its Ray was starting
    2 reply -> start Ray | 3 reply 2 -> start Ray, generation 2 | phase joining Ray
anew while its Ray was down
    2 reply -> start Ray | 3 lost Ray: exit code 1 | 3.1 reply 2 -> start Ray, generation 2
    3.1 tick | phase joining Ray
its Ray was lost
    joins | 30 lost Ray: exit code 1 | phase joining Ray
and joined again
    joins | 30 lost Ray: exit code 1 | 30.5 reply -> start Ray, generation 2 | phase joining Ray
""",
    WORDS,
    GOAL,
)
MESSAGES = cases(
    """\
# What is wanted counts by its number, for each of the head's agents
a repeated or late message changes nothing
    2 wanted 1 retriever -> start retriever | 3 wanted 1 retriever
    4 wanted 3 retriever, generation 2 -> start retriever, generation 2 | 5 wanted 2 retriever
    6 wanted 1 retriever, generation 2, by head2
a name that is not in the plan is for the executor to refuse
    2 wanted 1 rm -rf / -> start rm -rf /
what is wanted no more is ended
    2 wanted 1 retriever -> start retriever | 3 wanted 2 -> stop retriever
# A head that only holds an earlier run's verdict is waited for until it is started again
a held verdict is not for a newcomer
    1 held reply | 50 held reply | 60 reply 2 -> start Ray, generation 2
a held verdict is waited for in time
    1 held reply | 100 held reply -> end 69: …holds the verdict of an earlier run…
what `ray start` printed last is in the log, and in the reason
    2 reply -> start Ray | 3 lost Ray: exit code 1, printed: no memory
    log `ray start` ended (exit code 1; last output: no memory): trying again
    122 tick -> end 69: Ray on this node could not join: exit code 1; last output: no memory
a second join has no evidence of the first
    2 reply -> start Ray | 3 pending Ray: connection refused by 10.0.0.2:8268 | 8 ready Ray
    30 reply 2 -> start Ray, generation 2 | waits waiting for Ray on this node to join (2 min left)
every turn is a line that a person can grep
    2 reply -> start Ray | log joining Ray at the head pod0 (10.0.0.1) | 4 lost Ray: exit code 1
    log `ray start` ended (exit code 1): trying again | 4.5 reply -> start Ray, generation 2
    8 ready Ray | log Ray is up on this node: following the head
    30 reply 9 -> start Ray, generation 9
    log the head's Ray was restarted: leaving the old and joining the new | 35 ready Ray
    40 lost Ray: exit code 1 | log Ray was lost here (exit code 1): joining again
a plain head is named so
    2 GCS alone | 12 GCS alone -> start Ray | log joining Ray at a plain Ray head pod0
# Each phase waits for its own things, each until its own time
waits at the start [prepares first]
    0 tick
    waits waiting for AGENT_PREPARE_EACH (2 h left) & waiting for the head pod0, … (100 s left)
waits for steps alone [prepares first]
    2 reply | waits waiting for AGENT_PREPARE_EACH (119 min 58 s left)
waits for the head's Ray, too [prepares first]
    2 reply, not ready
    waits waiting for AGENT_PREPARE_EACH (119 min 58 s left)
        & waiting for the head pod0, … (98 s left)
a head that speaks is waited for longer [prepares first]
    2 ready AGENT_PREPARE_EACH | 90 reply, not ready
    waits waiting for the head pod0, … (60 s left)
waits for its own Ray, then for replies [prepares first]
    2 ready AGENT_PREPARE_EACH | 3 reply -> start Ray
    waits waiting for Ray on this node to join (2 min left) | 9 ready Ray
    waits waiting for a reply from the head pod0, … (60 s left)
nothing is waited for after the end [prepares first]
    2 TERM -> end 143: asked to stop by SIGTERM | waits nothing
""",
    WORDS,
    GOAL,
)
TURNS = cases(
    """\
its turn is waited for [two steps]
    1 ready AGENT_PREPARE_EACH | 2 reply
its turn [two steps]
    1 ready AGENT_PREPARE_EACH | 2 reply | 3 wanted 1 data -> start data | 4 wanted 1 data
then it joins [two steps]
    1 ready AGENT_PREPARE_EACH | 3 wanted 1 data -> start data | 4 reply | 9 ready data -> start Ray
what is under way is not begun twice, and each step has its own time [two steps]
    2 reply | 3 wanted 1 data -> start data | 4 wanted 2 data
    waits waiting for AGENT_PREPARE_EACH and data (49 s left) & waiting for the head pod0, …
its limit counts from its turn [two steps]
    1 ready AGENT_PREPARE_EACH | 2 reply | 200 reply | 210 wanted 1 data -> start data | 255 reply
    261 reply -> end 69: data not ready in time: it still runs
the turn itself has the limit of all of them [two steps]
    1 ready AGENT_PREPARE_EACH | 2 reply | the head replies until 7200
    7200 tick -> end 69: data not ready in time: the head last reported: booting
a plain Ray head wants nothing [two steps]
    2 GCS alone | 12 GCS alone -> start data
a head whose agent is being replaced wants a step again [two steps]
    2 GCS alone | 2.3 GCS alone | 11.9 GCS alone
GCS answers again after a silence [two steps]
    2 GCS alone | 8 silent | 13 GCS alone
a node of its own joins no Ray [apart on rank 2]
    1 reply, rank 2 | 2 reply, rank 2 | phase following the head
another rank does [apart on rank 2]
    1 reply, rank 1 -> start Ray
it follows a head that was started anew [apart on rank 2]
    1 reply, rank 2 | 2 reply 2, rank 2 | 50 reply 2, rank 2 | 100 tick
and leaves one that fell silent [apart on rank 2]
    1 reply, rank 2
    62 tick -> end 75: the head pod0 has been silent for 61 s (the head last reported: booting)
a node of its own needs a head with an agent [apart, its rank known]
    1 GCS alone | 20 GCS alone
    100 tick -> end 69: the head pod0 not ready in time: the head last reported: booting
a node of a group outside of Ray, of its rank [group outside of Ray]
    1 reply, rank 2 | phase following the head
a spare of a group outside of Ray [group outside of Ray]
    1 reply, rank 9 | phase following the head
# Before it has that rank, and once another node has it, it follows without Ray
a spare of a group in Ray joins with the group's rank [group in Ray]
    1 reply, rank 9 | phase following the head | 2 reply, rank 2 -> start Ray | phase joining Ray
    3 reply, rank 9 | phase following the head
# A restarted head adopts what runs by its generation; it has decided nothing yet at first
running processes continue under another head
    1 wanted 7 retriever, generation 2 -> start retriever, generation 2 | 2 ready retriever
    3 reply, not ready | 3 wanted 1 retriever, generation 2, by head2 | 5 lost retriever: exit 1
    5 wanted 2 retriever, generation 2, by head2
    6 wanted 3 retriever, generation 3, by head2 -> start retriever, generation 3
""",
    WORDS,
    GOAL,
)
# A head that was started anew, or whose agent was killed
HEAD_IS_BACK = cases(
    """\
# It stops its old Ray, waits for the new head's, and joins at the new address
a worker joins the head that came back
    joins | 20 silent | 60 reply 2, at 10.0.0.9 -> start Ray, generation 2 | 62 tick
    log joining Ray at the head pod0 (10.0.0.9)
it joins, though its Ray ended meanwhile
    joins | 20 silent | 30 lost Ray: exit code 1 | 31 tick | 40 silent | 41 tick
    67 reply 2, at 10.0.0.9 -> start Ray, generation 2 | 67.5 tick
it joins once the head's Ray is up
    joins | 20 silent | 60 reply 2, not ready, at 10.0.0.9 -> stop Ray
    150 reply 2, at 10.0.0.9 -> start Ray, generation 2 | 151 tick
it joins, though it had not joined before
    2 reply -> start Ray | 3 silent | 4 lost Ray: exit code 1
    90 reply 2, at 10.0.0.9 -> start Ray, generation 2 | 91 tick
a head that does not come back is lost after AGENT_HEAD_GRACE
    joins | 20 silent | 67.9 tick -> stop Ray
    68 tick -> end 75: waited too long for the head pod0 to come back: connection refused by
        10.0.0.1:8266 for 9 s
it is lost while this node's Ray is, too
    joins | 20 silent | 30 lost Ray: exit code 1 | 67 silent | 67.9 tick
    68 tick -> end 75: waited too long for the head pod0 to come back: connection refused by
        10.0.0.1:8266 for 9 s
it is lost if its Ray is not up in time
    joins | 20 silent | 60 reply 2, not ready, at 10.0.0.9 -> stop Ray | 159.9 tick
    160 tick -> end 75: waited too long for Ray at the head pod0: the head last reported: booting
it is lost if it has begun another run
    joins | 20 reply of another run -> end 75: the head pod0 began another run: another, not run
# Before that it had none
it is lost if it has begun another run than the first that it replied
    2 reply of no run -> start Ray | 8 ready Ray | 9 reply
    20 reply of another run -> end 75: the head pod0 began another run: another, not run
# A head that is restarted before any worker joined it may begin another run
before it joined a worker takes any run
    2 reply, not ready | 5 reply of another run -> start Ray, generation 2 | 6 reply of another run
# Its agent was killed while Ray boots: no step starts unwanted, no worker joins
GCS alone is no plain head once an agent answered
    2 reply, not ready | 3 GCS alone | 4 GCS alone | 5 GCS alone
    waits waiting for the head pod0, its agent is gone, though Ray's GCS still answers (…)
    6 reply -> start Ray | 9 ready Ray | 10 reply | phase following the head
it is none once an agent held a reply
    2 held reply | 3 GCS alone | 4 GCS alone | 5 GCS alone
it is none for shared steps either [shared step]
    2 reply, not ready | 3 GCS alone | 4 GCS alone | 5 GCS alone
# AGENT_HEAD_GRACE after its last answer, or AGENT_WAIT_HEAD after the start
an agent that never returns is waited for in time
    2 reply, not ready | 98 GCS alone | 99 GCS alone | 99.9 tick
    100 tick -> end 69: the head pod0 not ready in time: its agent is gone, though Ray's GCS still
        answers
""",
    WORDS,
    GOAL,
)
ENDS = cases(
    """\
the head never comes
    99 silent | 100 tick -> end 69: …not ready in time…connection refused by 10.0.0.1:8266…
    culprit the head pod0
the head is never asked
    100 tick -> end 69: …not asked yet | culprit the head pod0
the head goes before its Ray is up
    2 reply, not ready | 90 reply, not ready | 91 silent | 150 tick -> end 69: …connection refused…
    culprit the head pod0
data fails [prepares first]
    2 reply | 3 lost AGENT_PREPARE_EACH: exit code 3 -> end 69: …failed: exit code 3
    culprit AGENT_PREPARE_EACH
data takes too long [prepares first]
    2 reply | 7200 tick -> end 69: …not ready in time… | culprit AGENT_PREPARE_EACH
refused
    2 refusing reply -> end 78: refused by the head: version mismatch: Ray 2.50 here
    culprit this node
its own checks forbid it
    0.5 its checks refuse -> end 78: /dev/shm: 64 MB | culprit shm
its Ray never joins
    2 reply -> start Ray | 3 lost Ray: exit code 1
    122 tick -> end 69: …could not join: exit code 1 | culprit ray
its raylet never listens
    2 reply -> start Ray | 3 pending Ray: connection refused by 10.0.0.2:8268
    122 tick -> end 69: …could not join: connection refused by 10.0.0.2:8268 | culprit ray
its Ray says nothing
    2 reply -> start Ray | 122 tick -> end 69: …no output… | culprit ray
the verdict
    joins | 30 verdict -> end 7: the job failed | culprit job
the verdict before it joined
    2 verdict -> end 7: … | culprit job
the verdict under preparation [prepares first]
    2 verdict -> end 7: … | culprit job
the head falls silent
    joins | 30 silent | 68 tick -> end 75: …pod0 has been silent for 60 s…connection refused…
    culprit head
the head's agent dies, its Ray lives
    joins | 30 GCS alone | 60 GCS alone
    68 tick -> end 75: …its agent is gone, though Ray's GCS still answers… | culprit head
a plain Ray ends
    2 GCS alone | 12 GCS alone -> start Ray | 15 ready Ray
    30 lost Ray: exit code 1 -> end 75: Ray was lost: exit code 1 | culprit ray
a plain Ray falls silent
    2 GCS alone | 12 GCS alone -> start Ray | 15 ready Ray | 30 silent | 75 tick -> end 75: …silent…
    culprit head
stopped while finding
    1 TERM -> end 143: …SIGTERM | culprit SIGTERM
stopped while joining
    2 reply -> start Ray | 3 TERM -> end 143: …SIGTERM | culprit SIGTERM
stopped where staying was the task [stays]
    joins | 30 TERM -> end 0: …SIGTERM | culprit SIGTERM
stopped while it could ask the head to save, which is silent [saves]
    joins | 30 silent | 31 TERM -> end 143: …SIGTERM | culprit SIGTERM
stopped again while the job saves [saves]
    joins | 30 TERM | 31 TERM -> end 143: …SIGTERM | culprit SIGTERM
interrupted while following
    joins | 30 INT -> end 130: …SIGINT | culprit SIGINT
""",
    WORDS,
    GOAL,
)
# All that could run beside the next attempt ends before that may begin; then it joins again
FENCES = cases(
    """\
# At 0.8 of AGENT_NODE_GRACE, and not before
Ray ends, and is started again by the same head's reply
    out of reach | 78.9 silent | 79 tick -> stop Ray | 85 silent
    88 reply -> start Ray, generation 2 | 95 ready Ray
    log neither the head pod0 nor its GCS was reached for 48 s | log Ray is up on this node
    waits waiting for a reply from the head pod0, …
a head that came back elsewhere is joined, too
    out of reach | 79 tick -> stop Ray | 80 reply 2, at 10.0.0.9 -> start Ray, generation 2
    log joining Ray at the head pod0 (10.0.0.9)
AGENT_HEAD_GRACE stays as it is
    out of reach | 79 tick -> stop Ray | 89 silent
    90 tick -> end 75: waited too long for the head pod0 to come back: …
an answer of the agent is enough: the limit begins again
    out of reach | 60 reply | 61 silent | 85 tick
an answer of GCS is enough
    out of reach | 60 GCS alone | 61 silent | 85 tick
time without a reply before the loss was noticed counts
    joins | 20 reply | 35 silent | 76 silent | 77 tick -> stop Ray
# Ray itself detects the loss of such a head
a head without an agent makes no attempts: nothing ends
    2 GCS alone | 12 GCS alone -> start Ray | 13 ready Ray | 14 GCS alone | 15 silent | 65 tick
a service ends, once, also where no Ray runs yet
    2 reply, not ready | 3 wanted 1 retriever -> start retriever | 4 silent
    52 tick -> stop retriever | 53 tick
a service and Ray end, once
    joins | 30 reply that wants retriever -> start retriever | 31 silent
    79 tick -> stop retriever & stop Ray | 80 tick
# The head learns that it is lost, and wants the next generation
a service starts again by a later decision alone
    2 wanted 1 retriever -> start retriever | 4 silent | 52 tick -> stop retriever
    53 reply, not ready | 54 wanted 2 retriever, generation 2 -> start retriever, generation 2
# Another node may take its turn meanwhile; the worker joins after its steps are done
prepare steps end, and run again with their whole time [prepares first]
    prepares out of reach | 50 silent | 51 tick -> stop AGENT_PREPARE_EACH | 55 silent
    60 reply -> start AGENT_PREPARE_EACH, generation 2
    waits waiting for AGENT_PREPARE_EACH (2 h left) | 70 ready AGENT_PREPARE_EACH -> start Ray
a step that the head wants, too, runs again once [prepares first]
    prepares out of reach | 51 tick -> stop AGENT_PREPARE_EACH
    59 wanted 1 AGENT_PREPARE_EACH -> start AGENT_PREPARE_EACH, generation 2 | 60 reply, not ready
    61 wanted 2 AGENT_PREPARE_EACH
# It does not run: the wait for the head ends by its own deadline
the time of a step that is stopped does not count [short step]
    prepares out of reach | 51 tick -> stop AGENT_PREPARE_EACH | 53 tick | 99 tick
    later tick -> end 69: the head pod0 not ready in time…
# The turns' limit of a start may be long over when a node is cut off
a turn is waited for anew [step with its turn]
    2 reply | 60 wanted 1 AGENT_PREPARE_EACH -> start AGENT_PREPARE_EACH | 90 reply, not ready
    91 silent | 139 tick -> stop AGENT_PREPARE_EACH | 140 silent | 145 reply, not ready
    150 wanted 9 AGENT_PREPARE_EACH, generation 2 -> start AGENT_PREPARE_EACH, generation 2
workers may start long before their head: no step ends [prepares first]
    2 silent | 60 silent | 99 tick
""",
    WORDS,
    GOAL,
)


@pytest.mark.parametrize(
    "case", (rows := MESSAGES | TURNS | HEAD_IS_BACK | ENDS | FENCES).values(), ids=rows
)
def test_histories(case: Case) -> None:
    """A history of events gives these actions, lines, waits and ends, and no others."""
    play(case)


@pytest.mark.parametrize("case", UNDER_WAY.values(), ids=UNDER_WAY)
def test_who_follows_has_joined(case: Case) -> None:
    """A history leads to a phase, by these actions and no others."""
    trace = play(case)
    assert isinstance(trace, WorkerTrace)
    assert trace.state.joined is (trace.state.phase is WorkerPhase.FOLLOWING)


def test_the_heads_verdict_is_taken_word_for_word() -> None:
    """A worker ends with the head's outcome, so that all nodes report the same."""
    assert play(ENDS["the verdict"]).outcomes == [VERDICT]


@pytest.mark.parametrize(
    ("event", "must"),
    [
        (WORDS["its checks refuse"], True),
        (lost("AGENT_PREPARE_EACH", "exit code 3", 1), True),
        (WORDS["verdict"], False),
        (TERM, False),
    ],
)
def test_a_workers_own_failure_must_reach_the_head(event: w.WorkerEvent, must: bool) -> None:  # noqa: FBT001 - a table's column
    """What comes from this node alone is worth waiting for the head a little."""
    _, actions = worker.decide(worker.first_state(OF_STEP), event, 1.0)
    (leave,) = [action for action in actions if isinstance(action, w.EndWorker)]
    assert leave.must_report is must


def reported(trace: WorkerTrace) -> list[tuple[str, Step, int, str, bool]]:
    """Return what the next report has of each item."""
    items = worker.item_reports(trace.state)
    return [(one.name, one.step, one.generation, one.evidence, one.is_running) for one in items]


def test_what_is_wanted_is_reported() -> None:
    """The next report has its state, also that of a step that waits for its turn."""
    trace = worker_after(GOAL, "2 wanted 1 retriever, generation 2 | 3 ready retriever")
    assert reported(trace) == [(RETRIEVER, Step.READY, 2, "", True)]
    take(trace, "5 lost retriever: exit code 1")
    assert reported(trace) == [(RETRIEVER, Step.LOST, 2, "exit code 1", False)]

    trace = worker_after(OF_STEPS, "1 reply")
    own = (STEP.name, Step.PENDING, 1, "", True)
    assert reported(trace) == [own, ("data", Step.PENDING, 1, "", False)]
    take(trace, "2 wanted 1 data")
    assert reported(trace) == [own, ("data", Step.PENDING, 1, "", True)]
    take(trace, "3 ready data")
    assert reported(trace) == [own, ("data", Step.READY, 1, "", False)]


def test_a_silent_head_is_a_wait_to_log() -> None:
    """One failed call is not logged; a head that stays silent is, until it answers again."""
    trace = worker_after(GOAL, "joins | 20 silent | 20.5 reply")

    def wait() -> Wait:
        (found,) = worker.pending_waits(trace.state)
        return found

    for text, is_quiet in (("30 silent", True), ("33 silent", False)):
        take(trace, text)
        assert wait().is_following is is_quiet
    said = wait().sentence(33.0)
    assert said.startswith("waiting for a reply from the head pod0, connection refused by ")
    assert said.endswith(" (48 s left)")
    trace.actions = []
    take(trace, "40 reply")
    assert wait().is_following
    logged = [one.sentence for one in trace.actions if isinstance(one, LogLine)]
    assert logged == ["the head pod0 answers again"]


PART = wanted_share(2, ShareArgs(1, (NodeSize(1), NodeSize(1))))
OF_SHARES = replace(GOAL, by_shares=True)


def test_a_share_that_is_stopped_has_no_code_for_the_job() -> None:
    """The head counts it as lost, since other ranks may wait for it in a collective."""
    trace = worker_after(OF_SHARES, "2 reply", (9, PART), "30 reply | 31 silent | 79 tick")
    assert trace.effects[-1] == Ended(SHARE)
    (never_began,) = worker.item_reports(trace.state)
    assert never_began.share == ShareEnd(143, by_stop=True, lost=True)
    trace.take(replied(), 80)
    trace.take(share_over(1, ShareEnd(143, by_stop=True), was_stopped=True), 81)
    (item,) = worker.item_reports(trace.state)
    assert item.share == ShareEnd(143, by_stop=True, lost=True)


def test_a_share_that_ended_before_counts() -> None:
    """A failure before the fence is reported; only stopped ranks are lost."""
    failed = (20, share_over(1, ShareEnd(7)))
    trace = worker_after(OF_SHARES, "2 reply", (9, PART), failed, "31 silent | 79 tick")
    assert Ended(SHARE) not in trace.effects
    (item,) = worker.item_reports(trace.state)
    assert item.share == ShareEnd(7)


@pytest.mark.parametrize(
    ("of", "rank", "is_apart"),
    [
        (OF_ALONE, 2, True),
        (of_group(is_in_ray=False), 9, True),
        (of_group(is_in_ray=True), 2, False),
    ],
)
def test_a_node_of_its_own_is_reported_as_one(
    of: w.WorkerGoal, rank: int, *, is_apart: bool
) -> None:
    """It is there for a service only, and has never joined."""
    state = worker_after(of, f"1 reply, rank {rank}").state
    assert (state.service_only, state.joined, state.rank) == (is_apart, False, rank)


EVENTS = st.sampled_from(
    [
        *(TICK, TERM, replied(epoch=None), w.HeadSilent("x"), wanted(1, "data")),
        *(replace(replied(epoch), rank=2) for epoch in (1, 2)),
    ]
)


@given(st.lists(st.tuples(EVENTS, st.sampled_from([0.1, 5.0, 61.0]))))
def test_a_node_of_its_own_never_starts_ray(events: list[tuple[w.WorkerEvent, float]]) -> None:
    """Whatever happens, it starts no Ray; left alone, it ends, once."""
    trace = WorkerTrace(replace(OF_ALONE, rank=2), [])
    for event, pause in events:
        trace.take(event, trace.now + pause)
    assert trace.finish()
    assert len(trace.outcomes) == 1
    assert not any(isinstance(deed, Began) and deed.name == RAY for deed in trace.effects)
