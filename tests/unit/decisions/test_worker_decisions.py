"""The worker's decisions: a history of events gives a phase, actions, and an outcome."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from agent.base import times
from agent.base.ends import Kind, Outcome
from agent.decisions import worker
from agent.decisions.shared import (
    RAY,
    LogLine,
    Refused,
    Step,
    StopAsked,
    Tick,
    Wait,
)
from agent.decisions.worker import worker_state as w
from agent.decisions.worker.worker_state import WorkerPhase
from agent.plan import waits as wait_keys
from support.heads import RETRIEVER, lost, pending, ready
from support.histories import Case, Logged, Waits, play
from support.workers import (
    DOWN,
    GOAL,
    INT,
    JOINED,
    RAY_UP,
    SILENT,
    TERM,
    TICK,
    Began,
    Ended,
    History,
    WorkerTrace,
    goal,
    replied,
    wanted,
)

PREPARING = goal(prepare=True)
SAVING = replace(GOAL, limits={**GOAL.limits, wait_keys.SAVE: 25.0})
"""Under a job that saves on a notice signal."""
VERDICT = Outcome(Kind.JOB_FAILED, 7, "the job failed", "running", "job", is_jobs_verdict=True)
GCS_ALONE = replied(epoch=None, phase="")
BARE: History = [(2.0, GCS_ALONE), (2.0 + times.PLAIN_RAY, GCS_ALONE), (15.0, RAY_UP)]
START = Began(RAY)
AGAIN = Began(RAY, 2)
STOP = Ended(RAY)
PREPARED = ready("AGENT_PREPARE_EACH")


UNDER_WAY: dict[str, tuple[w.WorkerGoal, History, WorkerPhase, list[w.WorkerAction]]] = {
    "nothing yet": (GOAL, [(1, TICK)], WorkerPhase.FINDING, []),
    "no head yet": (GOAL, [(1, SILENT), (99, SILENT)], WorkerPhase.FINDING, []),
    "a head whose Ray is not up": (GOAL, [(2, replied(ready=False))], WorkerPhase.FINDING, []),
    "a head that keeps speaking is waited for": (
        GOAL,
        [(2, replied(ready=False)), (90, replied(ready=False)), (149, TICK)],
        WorkerPhase.FINDING,
        [],
    ),
    "a head": (GOAL, [(2, replied())], WorkerPhase.JOINING, [START]),
    "a head of a plain Ray": (
        GOAL,
        [(2, GCS_ALONE), (7, GCS_ALONE), (2 + times.PLAIN_RAY, GCS_ALONE)],
        WorkerPhase.JOINING,
        [START],
    ),
    "data first": (PREPARING, [(2, replied())], WorkerPhase.FINDING, []),
    "data is there": (
        PREPARING,
        [(2, replied()), (9, PREPARED)],
        WorkerPhase.JOINING,
        [START],
    ),
    "data was there first": (
        PREPARING,
        [(1, PREPARED), (2, replied())],
        WorkerPhase.JOINING,
        [START],
    ),
    "data longer than the head's deadline": (
        PREPARING,
        [(2, replied()), (101, TICK), (500, replied())],
        WorkerPhase.FINDING,
        [],
    ),
    "its Ray is up": (GOAL, JOINED, WorkerPhase.FOLLOWING, [START]),
    "its Ray did not join": (
        GOAL,
        [(2, replied()), (4, DOWN), (4.4, TICK)],
        WorkerPhase.JOINING,
        [START],
    ),
    "it tries again": (
        GOAL,
        [(2, replied()), (4, DOWN), (4.5, replied())],
        WorkerPhase.JOINING,
        [START, AGAIN],
    ),
    "not while the head is silent": (
        GOAL,
        [(2, replied()), (4, DOWN), (4.2, SILENT), (4.5, TICK)],
        WorkerPhase.JOINING,
        [START],
    ),
    "but when it speaks again, at its new address": (
        GOAL,
        [(2, replied()), (4, DOWN), (4.2, SILENT), (9, replied(ip="10.0.0.9"))],
        WorkerPhase.JOINING,
        [START, AGAIN],
    ),
    "it follows": (GOAL, [*JOINED, (30, replied()), (80, TICK)], WorkerPhase.FOLLOWING, [START]),
    "a short silence": (
        GOAL,
        [*JOINED, (29, replied()), (30, SILENT), (59, TICK)],
        WorkerPhase.FOLLOWING,
        [START],
    ),
    "the head was started anew": (
        GOAL,
        [*JOINED, (30, replied(epoch=2, ready=False))],
        WorkerPhase.JOINING,
        [START, STOP],
    ),
    "and joined anew": (
        GOAL,
        [*JOINED, (30, replied(epoch=2, ready=False)), (31, replied(epoch=2)), (35, RAY_UP)],
        WorkerPhase.FOLLOWING,
        [START, STOP, AGAIN],
    ),
    "anew while its Ray was starting": (
        GOAL,
        [(2, replied()), (3, replied(epoch=2))],
        WorkerPhase.JOINING,
        [START, AGAIN],
    ),
    "anew while its Ray was down": (
        GOAL,
        [(2, replied()), (3, DOWN), (3.1, replied(epoch=2)), (3.1, TICK)],
        WorkerPhase.JOINING,
        [START, AGAIN],
    ),
    "its Ray was lost": (GOAL, [*JOINED, (30, DOWN)], WorkerPhase.JOINING, [START]),
    "and joined again": (
        GOAL,
        [*JOINED, (30, DOWN), (30.5, replied())],
        WorkerPhase.JOINING,
        [START, AGAIN],
    ),
}


@pytest.mark.parametrize(
    ("of", "history", "phase", "actions"), UNDER_WAY.values(), ids=UNDER_WAY.keys()
)
def test_under_way(
    of: w.WorkerGoal, history: History, phase: WorkerPhase, actions: list[w.WorkerAction]
) -> None:
    """A history leads to a phase, by these actions and no others."""
    trace = WorkerTrace(of, history)
    assert trace.state.phase is phase
    assert trace.effects == actions
    assert trace.state.joined is (phase is WorkerPhase.FOLLOWING)


ENDS: dict[str, tuple[w.WorkerGoal, History, int, str, list[str]]] = {
    "the head never comes": (
        GOAL,
        [(99, SILENT), (100, TICK)],
        69,
        "the head pod0",
        ["not ready in time", "connection refused by 10.0.0.1:8266"],
    ),
    "the head is never asked": (GOAL, [(100, TICK)], 69, "the head pod0", ["not asked yet"]),
    "the head goes before its Ray is up": (
        GOAL,
        [(2, replied(ready=False)), (90, replied(ready=False)), (91, SILENT), (150, TICK)],
        69,
        "the head pod0",
        ["connection refused"],
    ),
    "data fails": (
        PREPARING,
        [(2, replied()), (3, lost("AGENT_PREPARE_EACH", "exit code 3"))],
        69,
        "AGENT_PREPARE_EACH",
        ["failed: exit code 3"],
    ),
    "data takes too long": (
        PREPARING,
        [(2, replied()), (7200, TICK)],
        69,
        "AGENT_PREPARE_EACH",
        ["not ready in time"],
    ),
    "refused": (
        GOAL,
        [(2, replied(refusal="version mismatch: Ray 2.50 here"))],
        78,
        "this node",
        ["refused by the head: version mismatch: Ray 2.50 here"],
    ),
    "its own checks forbid it": (
        GOAL,
        [(0.5, Refused(Outcome(Kind.REFUSED, 78, "/dev/shm: 64 MB", "starting", "shm")))],
        78,
        "shm",
        ["/dev/shm: 64 MB"],
    ),
    "its Ray never joins": (
        GOAL,
        [(2, replied()), (3, DOWN), (122, TICK)],
        69,
        "ray",
        ["could not join: exit code 1"],
    ),
    "its raylet never listens": (
        GOAL,
        [
            (2, replied()),
            (3, pending(RAY, "connection refused by 10.0.0.2:8268")),
            (122, TICK),
        ],
        69,
        "ray",
        ["could not join: connection refused by 10.0.0.2:8268"],
    ),
    "its Ray says nothing": (GOAL, [(2, replied()), (122, TICK)], 69, "ray", ["no output"]),
    "the verdict": (GOAL, [*JOINED, (30, replied(verdict=VERDICT))], 7, "job", ["the job failed"]),
    "the verdict before it joined": (GOAL, [(2, replied(verdict=VERDICT))], 7, "job", []),
    "the verdict under preparation": (PREPARING, [(2, replied(verdict=VERDICT))], 7, "job", []),
    "the head falls silent": (
        GOAL,
        [*JOINED, (30, SILENT), (68, TICK)],
        75,
        "head",
        ["pod0 has been silent for 60 s", "connection refused"],
    ),
    "the head's agent dies, its Ray lives": (
        GOAL,
        [*JOINED, (30, replied(epoch=None)), (60, replied(epoch=None)), (68, TICK)],
        75,
        "head",
        ["its agent is gone, though Ray's GCS still answers"],
    ),
    "a plain Ray ends": (GOAL, [*BARE, (30, DOWN)], 75, "ray", ["Ray was lost: exit code 1"]),
    "a plain Ray falls silent": (GOAL, [*BARE, (30, SILENT), (75, TICK)], 75, "head", ["silent"]),
    "stopped while finding": (GOAL, [(1, TERM)], 143, "SIGTERM", ["SIGTERM"]),
    "stopped while joining": (GOAL, [(2, replied()), (3, TERM)], 143, "SIGTERM", ["SIGTERM"]),
    "stopped where staying was the task": (
        goal(stays=True),
        [*JOINED, (30, TERM)],
        0,
        "SIGTERM",
        ["SIGTERM"],
    ),
    "stopped while it could ask the head to save, which is silent": (
        SAVING,
        [*JOINED, (30, SILENT), (31, TERM)],
        143,
        "SIGTERM",
        ["SIGTERM"],
    ),
    "stopped again while the job saves": (
        SAVING,
        [*JOINED, (30, TERM), (31, TERM)],
        143,
        "SIGTERM",
        ["SIGTERM"],
    ),
    "interrupted while following": (GOAL, [*JOINED, (30, INT)], 130, "SIGINT", ["SIGINT"]),
}


@pytest.mark.parametrize(
    ("of", "history", "code", "culprit", "words"), ENDS.values(), ids=ENDS.keys()
)
def test_ends(
    of: w.WorkerGoal, history: History, code: int, culprit: str, words: list[str]
) -> None:
    """A history ends with its last message, with this code, for this reason."""
    assert WorkerTrace(of, history[:-1]).outcomes == []
    trace = WorkerTrace(of, history)
    (end,) = trace.outcomes
    assert (end.exit_code, end.culprit) == (code, culprit)
    assert [word for word in words if word not in end.reason] == []
    assert end.phase
    assert trace.state.phase is WorkerPhase.LEAVING
    assert trace.state.verdict == end


def test_the_heads_verdict_is_taken_word_for_word() -> None:
    """A worker ends with the head's outcome, so that all nodes report the same."""
    assert WorkerTrace(GOAL, [*JOINED, (30, replied(verdict=VERDICT))]).outcomes == [VERDICT]


def test_messages_on_the_way() -> None:
    """Every turn of the trace is one sentence that a person can grep."""
    trace = WorkerTrace(
        GOAL,
        [
            (2, replied()),
            (4, DOWN),
            (4.5, replied()),
            (8, RAY_UP),
            (30, replied(epoch=9)),
            (35, RAY_UP),
            (40, DOWN),
        ],
    )
    sentences = [
        "joining Ray at the head pod0 (10.0.0.1)",
        "`ray start` ended (exit code 1): trying again",
        "joining Ray at the head pod0 (10.0.0.1)",
        "Ray is up on this node: following the head",
        "the head's Ray was restarted: leaving the old and joining the new",
        "Ray was lost here (exit code 1): joining again",
    ]
    assert [s for s in sentences if s not in trace.log] == []
    assert "joining Ray at a plain Ray head pod0" in WorkerTrace(GOAL, BARE).log


@pytest.mark.parametrize(
    ("history", "waits"),
    [
        ([], {"AGENT_PREPARE_EACH": 7200, "the head pod0": 100}),
        ([(2, replied())], {"AGENT_PREPARE_EACH": 7200}),
        ([(2, replied(ready=False))], {"AGENT_PREPARE_EACH": 7200, "the head pod0": 100}),
        ([(2, PREPARED), (90, replied(ready=False))], {"the head pod0": 150}),
        ([(2, PREPARED), (3, replied())], {"Ray on this node to join": 123}),
        (
            [(2, PREPARED), (3, replied()), (9, RAY_UP)],
            {"a reply from the head pod0": 69},
        ),
        ([(2, StopAsked(15))], {}),
    ],
)
def test_waits_have_their_deadlines(history: History, waits: dict[str, float]) -> None:
    """Each phase waits for its own things, each until its own time."""
    state = WorkerTrace(PREPARING, history).state
    assert {wait.what: wait.deadline for wait in worker.pending_waits(state)} == waits
    assert worker.deadline(state) == min(waits.values(), default=None)


@pytest.mark.parametrize(
    ("event", "must"),
    [
        (Refused(Outcome(Kind.REFUSED, 78, "/dev/shm: 64 MB")), True),
        (lost("AGENT_PREPARE_EACH", "exit code 3", 1), True),
        (replied(verdict=VERDICT), False),
        (TERM, False),
    ],
)
def test_a_workers_own_failure_must_reach_the_head(event: w.WorkerEvent, must: bool) -> None:  # noqa: FBT001 - a table's column
    """What comes from this node alone is worth waiting for the head a little."""
    _, actions = worker.decide(worker.first_state(PREPARING), event, 1.0)
    (leave,) = [action for action in actions if isinstance(action, w.EndWorker)]
    assert leave.must_report is must


def test_a_tick_is_nothing_by_itself() -> None:
    """Between messages time alone changes nothing."""
    trace = WorkerTrace(GOAL, JOINED)
    before = trace.state
    trace.take(Tick(), 20.0)
    assert trace.state == before


HELD = replied(epoch=1, phase="held", ready=False, held=True)
MESSAGES: dict[str, Case] = {
    # What is wanted counts by its number, for each of the head's agents
    "a repeated or late message changes nothing": [
        GOAL,
        (2, wanted(1, RETRIEVER), f"start {RETRIEVER}"),
        (3, wanted(1, RETRIEVER)),
        (4, wanted(3, RETRIEVER, generation=2), f"start {RETRIEVER}, generation 2"),
        (5, wanted(2, RETRIEVER)),
        (6, wanted(1, RETRIEVER, by="head2", generation=2)),
    ],
    "a name that is not in the plan is for the executor to refuse": [
        GOAL,
        (2, wanted(1, "rm -rf /"), "start rm -rf /"),
    ],
    "what is wanted no more is ended": [
        GOAL,
        (2, wanted(1, RETRIEVER), f"start {RETRIEVER}"),
        (3, wanted(2), f"stop {RETRIEVER}"),
    ],
    # A head that only holds an earlier run's verdict is waited for until it is started again
    "a held verdict is not for a newcomer": [
        GOAL,
        (1, HELD),
        (50, HELD),
        (60, replied(epoch=2), f"start {RAY}, generation 2"),
    ],
    "a held verdict is waited for in time": [
        GOAL,
        (1, HELD),
        (100, HELD, "end 69: …holds the verdict of an earlier run…"),
    ],
    "what `ray start` printed last is in the log, and in the reason": [
        GOAL,
        (2, replied(), f"start {RAY}"),
        (3, lost(RAY, "exit code 1", output="no memory")),
        Logged("`ray start` ended (exit code 1; last output: no memory): trying again"),
        (
            122,
            TICK,
            "end 69: Ray on this node could not join: exit code 1; last output: no memory",
        ),
    ],
    "a second join has no evidence of the first": [
        GOAL,
        (2, replied(), f"start {RAY}"),
        (3, pending(RAY, "connection refused by 10.0.0.2:8268")),
        (8, RAY_UP),
        (30, replied(epoch=2), f"start {RAY}, generation 2"),
        Waits("waiting for Ray on this node to join (2 min left)"),
    ],
}


@pytest.mark.parametrize("case", MESSAGES.values(), ids=MESSAGES)
def test_what_the_heads_messages_change(case: Case) -> None:
    """Each counts once, and for its own Ray and run."""
    play(case)


def test_a_wanted_service_is_reported() -> None:
    """The next report has its state."""
    trace = WorkerTrace(GOAL, [(2, wanted(1, RETRIEVER, generation=2)), (3, ready(RETRIEVER))])
    (item,) = worker.item_reports(trace.state)
    assert (item.step, item.generation, item.is_running) == (Step.READY, 2, True)
    trace.take(lost(RETRIEVER, "exit code 1"), 5)
    (item,) = worker.item_reports(trace.state)
    assert (item.step, item.evidence, item.is_running) == (Step.LOST, "exit code 1", False)


def test_a_silent_head_is_a_wait_to_log() -> None:
    """One failed call is not logged; a head that stays silent is, until it answers again."""
    trace = WorkerTrace(GOAL, [*JOINED, (20, SILENT), (20.5, replied())])

    def wait() -> Wait:
        (found,) = worker.pending_waits(trace.state)
        return found

    for at, event, is_quiet in ((30.0, SILENT, True), (33.0, SILENT, False)):
        trace.take(event, at)
        assert wait().is_following is is_quiet
    said = wait().sentence(33.0)
    assert said.startswith("waiting for a reply from the head pod0, connection refused by ")
    assert said.endswith(" (48 s left)")
    trace.actions = []
    trace.take(replied(), 40.0)
    assert wait().is_following
    logged = [one.sentence for one in trace.actions if isinstance(one, LogLine)]
    assert logged == ["the head pod0 answers again"]
