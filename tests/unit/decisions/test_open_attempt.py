"""The attempt that a killed agent left open, and how the next agent continues it."""

from __future__ import annotations

import errno
import json
import time
from contextlib import closing
from socket import socket
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from agent.base.ends import Kind, Outcome
from agent.decisions.attempts import Attempt
from agent.decisions.durable import Durable, Losses, Stop, Succession, on_clock
from agent.decisions.head import head_state as h
from agent.decisions.head.head_state import HeadPhase
from agent.decisions.head.losses import end_of_attempt
from agent.decisions.shared import Answered
from agent.record import files
from agent.record.files import NoRecord
from agent.record.node_record import Moment
from agent.record.run_record import RUN_FILE, ChosenRun, RunRecord, choose_run
from agent.run.head_server import count_possible_callers
from agent.run.run_store import RunStore
from support.heads import (
    INT,
    LOST,
    PAIR,
    REWARD,
    RUNNING,
    SERVED,
    SUBMITTED,
    TERM,
    TICK,
    WITH_REWARD,
    FollowJob,
    History,
    StopJob,
    Trace,
    goal,
    job,
    never,
    nodes,
    ray_lost,
    ray_waits,
    ready,
    reported,
    resumed,
)
from support.histories import ALONE_RUNS, NEXT_AGENT, PAIR_RUNS, Case, Logged, Row, Waits, play
from support.run_records import NOW, record_of, store_of, submitted, written
from support.worlds import plan_of

if TYPE_CHECKING:
    from pathlib import Path

    from agent.decisions.head.head_goal import HeadGoal

STOPPED = Outcome(Kind.LOST, 75, "lost a needed node: pod2", "running", culprit="node")
KNOWN = Durable(
    "run",
    attempt=Attempt(
        "run-1",
        submitted=5.0,
        start=NOW,
        required=2,
        lost_nodes=("pod2",),
        nodes=("pod2", "pod3"),
        dead_node_ids=frozenset({"id2"}),
        checkpoint=40,
    ),
    losses=Losses(31.0, "pod2 was lost", 30.0),
    stop=Stop(STOPPED, 91.0),
)
DEATHS: History = [*((10, LOST), (20, LOST), (21, TICK), (30, LOST), (32, TICK)), (90, LOST)]

STOPS: dict[str, tuple[HeadGoal, History]] = {
    "a node is lost for good": (goal(1), [*PAIR, (9, nodes(dead=(2,))), (69, TICK)]),
    "it is, and another attempt may follow": (
        goal(1, retries=1),
        [*PAIR, (9, nodes(dead=(2,))), (69, TICK)],
    ),
    "a service is hopeless": (WITH_REWARD, [*SERVED, *DEATHS]),
    "SIGTERM": (goal(), [*RUNNING, (9, TERM)]),
    "SIGINT, then SIGTERM": (goal(), [*RUNNING, (9, INT), (10, TERM)]),
    "a later head": (goal(), [*RUNNING, (9, h.LaterHead(7, "run.json"))]),
    "SIGTERM while a lost attempt stops": (
        goal(1, retries=1),
        [*PAIR, (9, nodes(dead=(2,))), (69, TICK), (70, TERM)],
    ),
    "a given Ray falls silent": (goal(given=True), [*RUNNING, (125, TICK)]),
}


def next_agent(trace: Trace, after: float = 2.0) -> Trace:
    """Return the trace of the agent that follows a killed one, by what that one persisted."""
    return Trace(trace.state.goal, [], on_clock(trace.persisted[-1], -trace.now - after))


@pytest.mark.parametrize(("of", "history"), STOPS.values(), ids=STOPS.keys())
@pytest.mark.parametrize("status", ["STOPPED", "SUCCEEDED", "FAILED"])
def test_a_stop_goes_on_as_it_was_meant(of: HeadGoal, history: History, status: str) -> None:
    """The reason for a stop decides the outcome, unless the job succeeded; it is stopped again."""
    trace = Trace(of, history)
    assert trace.state.phase is HeadPhase.STOPPING
    after = next_agent(trace)
    after.take(nodes(2), 1)
    assert [type(action) for action in after.effects] == [FollowJob, StopJob]
    code = {"FAILED": 1}.get(status)
    for one, at in ((trace, trace.now + 3), (after, 1.5)):
        one.take(job(status, code), at)
    assert [end.exit_code for end in after.outcomes] == [end.exit_code for end in trace.outcomes]
    assert [end.reason for end in after.outcomes] == [end.reason for end in trace.outcomes]
    assert after.state.attempt.number == trace.state.attempt.number
    assert after.state.phase is trace.state.phase


AFRESH = resumed(required=1, nodes=("pod2",))
OF = goal(1, retries=1)
IS_GONE: Row = (9, nodes(dead=(2,)))
FELL_SILENT: list[Row] = [
    *PAIR_RUNS,
    (9, h.WorkerSilent("agent2", "no answer")),
    (11, NEXT_AGENT),
    (1, nodes(2), "follow run-1"),
    (2, SUBMITTED),
]
HOPELESS = Outcome(Kind.UNAVAILABLE, 69, "reward server is lost for good", "running")
TO_BE_STOPPED = replace(on_clock(KNOWN, -100.0), stop=Stop(HOPELESS, -9.0))
SERVES: list[Row] = [
    (3, nodes()),
    (5, ready(REWARD), "submit run-1"),
    (6, SUBMITTED),
    (7, job("RUNNING")),
]
NO_ANSWER = "timed out after the agent was killed, waiting for "

KILLED_HEADS: dict[str, Case] = {
    "a stop keeps its deadline, which counts from the decision": [
        goal(),
        *ALONE_RUNS,
        (9, TERM, "stop run-1"),
        (13, NEXT_AGENT),
        (1, nodes(), "follow run-1", "stop run-1"),
        (11.9, TICK),
        (12.1, TICK, "end 143: …SIGTERM"),
    ],
    # No wait precedes it as before a submission
    "a job is followed though its worker is away, whose grace goes on": [
        goal(1),
        *PAIR_RUNS,
        IS_GONE,
        (11, NEXT_AGENT),
        (1, nodes(), "follow run-1"),
        (2, SUBMITTED),
        (50, job("RUNNING")),
        (57.9, TICK),
        (58.1, TICK, "stop run-1"),
        (60, job("STOPPED"), "end 75: lost a needed node…"),
        Logged("attempt 1 goes on: its job is followed again"),
    ],
    "a worker that fell silent is missed, though GCS still lists it": [
        goal(1, retries=1),
        *FELL_SILENT,
        (50, job("RUNNING")),
        (57.9, TICK),
        (58.1, TICK, "stop run-1"),
    ],
    # GCS never reported the worker, and it is back
    "a loss that the next agent did not see counts for a minute": [
        goal(1, retries=1),
        *FELL_SILENT,
        (3, reported(2)),
        (57.9, job("FAILED", 9), "start Ray, generation 2"),
        Logged("all needed nodes are back"),
    ],
    "a loss does not count after a minute": [
        goal(1, retries=1),
        *FELL_SILENT,
        (3, reported(2)),
        (58.1, job("FAILED", 9), "ask the nodes"),
        (59.1, Answered(h.NodesAsked("run-1")), "end 9: …"),
    ],
    "a job that started without some of its workers does not wait for them now": [
        goal(2, 1),
        (3, nodes(2)),
        (4, reported(2)),
        (200, TICK, "submit run-1"),
        (201, SUBMITTED),
        (203, NEXT_AGENT),
        (1, nodes(2), "follow run-1"),
        (2, SUBMITTED),
        Waits("waiting for the job's status from Ray, …"),
    ],
    "a service of a running job counts as ready, and is restarted": [
        WITH_REWARD,
        *SERVES,
        (9, NEXT_AGENT),
        (1, nodes(), "follow run-1"),
        (1, job("RUNNING")),
        (2, LOST, f"start {REWARD}, generation 2"),
    ],
    "a service that ends before it was ready ends a run without a job": [
        WITH_REWARD,
        (1, LOST, "end 69: …"),
    ],
    "its Ray is gone: the attempt is lost, and its workers are waited for": [
        OF,
        AFRESH,
        (1, ray_lost("exit 1"), "start Ray, generation 2"),
        Waits(
            "waiting for Ray on this node (100 s left)",
            "waiting for the end of attempt 1 on pod2, …",
            "waiting for workers, …",
        ),
    ],
    "its Ray is gone, and the outcome was decided": [
        OF,
        TO_BE_STOPPED,
        (1, ray_lost("exit 1"), "end 69: reward server is lost for good"),
    ],
    "a job that was never submitted is, once all workers are there": [
        OF,
        AFRESH,
        (1, nodes(), "follow run-1"),
        (2, never()),
        (3, nodes(2), "submit run-1"),
    ],
    "Ray does not answer: the attempt is lost": [
        OF,
        AFRESH,
        (1, ray_waits("refused")),
        (100, TICK, "start Ray, generation 2"),
        Logged(f"attempt 1 of 2 is lost: {NO_ANSWER}Ray on this node: refused"),
    ],
    "Ray does not answer, and no retry is left": [
        goal(1),
        AFRESH,
        (1, ray_waits("refused")),
        (100, TICK, f"end 75: {NO_ANSWER}Ray on this node: refused"),
    ],
    "Ray has no status of the job: the attempt is lost": [
        OF,
        AFRESH,
        (1, nodes(2), "follow run-1"),
        (121, TICK, "start Ray, generation 2"),
        Logged(f"attempt 1 of 2 is lost: {NO_ANSWER}the status of attempt 1 from Ray"),
    ],
    "Ray has no status of the job, and no retry is left": [
        goal(1),
        AFRESH,
        (1, nodes(2), "follow run-1"),
        (121, TICK, f"end 75: {NO_ANSWER}the status of attempt 1 from Ray"),
    ],
    # It may still run there, even long after the limits: no other attempt starts beside it
    "a job on a given Ray that was to be stopped is stopped before another": [
        goal(1, given=True, retries=1),
        *PAIR_RUNS,
        IS_GONE,
        (69, TICK, "stop run-1"),
        (369, NEXT_AGENT),
        (1, TICK, "follow run-1", "stop run-1"),
        (1001, nodes(2), "end 75: lost a needed node…"),
    ],
    "a job on a given Ray that does not answer is stopped before another": [
        goal(1, given=True, retries=1),
        *PAIR_RUNS,
        (306, NEXT_AGENT),
        (1000, TICK, "follow run-1", "stop run-1"),
        (1001, nodes(2)),
    ],
    "asked to stop meanwhile, the job is followed until it is stopped": [
        OF,
        AFRESH,
        (1, TERM, "follow run-1", "stop run-1"),
        (2, never(), "end 143: …SIGTERM"),
    ],
}


@pytest.mark.parametrize("case", KILLED_HEADS.values(), ids=KILLED_HEADS)
def test_the_next_agent_goes_on(case: Case) -> None:
    """It follows the job by what the killed one persisted, and decides as that would have."""
    play(case)


def test_a_worker_that_was_lost_between_two_agents_is_a_loss() -> None:
    """Also if it is back before Ray reports the job: its processes are gone."""
    places = {"10.0.0.2": "pod2", "10.0.0.3": "pod3"}
    left = resumed(submitted=-9.0, required=2, workers=places, nodes=("pod2", "pod3"))
    after = Trace(goal(2), [(1, nodes(2)), (2, nodes(2, 3))], left)
    after.take(SUBMITTED, 3)
    assert after.state.phase is HeadPhase.RUNNING
    assert after.state.attempt.lost_nodes == ("pod3",)


def test_what_is_known_is_taken_up_whole() -> None:
    """An attempt that is followed again has the same state as before."""
    left = replace(on_clock(KNOWN, -100.0), stop=None)
    trace = Trace(OF, [(1, nodes(2, 3))], left)
    assert trace.state.runs_attempt
    found = trace.state.durable
    assert found.attempt.nodes == ("10.0.0.3", *left.attempt.nodes)
    assert replace(found, attempt=replace(found.attempt, nodes=left.attempt.nodes)) == left


# --- the record on disk ------------------------------------------------------------------------


@pytest.mark.parametrize("jump", [0.0, 3600.0, -3600.0])
def test_it_survives_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jump: float) -> None:
    """Its times are converted to the next agent's clock, despite jumps of the wall clock."""
    store = store_of(tmp_path)
    store.put(KNOWN, 100.0)
    store.close()
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + jump)
    found = written(tmp_path).durable_at(7.0)
    assert found.attempt.submitted is not None
    by = found.attempt.submitted - 5.0
    assert by == pytest.approx(7.0 - 100.0, abs=5.0)
    assert found.stop is not None
    moments = (found.losses.last_at, found.losses.below_required_since, found.stop.began_at)
    assert moments == pytest.approx((30.0 + by, 31.0 + by, 91.0 + by))
    same = replace(found, attempt=KNOWN.attempt, losses=KNOWN.losses, stop=KNOWN.stop)
    assert same == KNOWN
    assert replace(found.attempt, submitted=5.0) == KNOWN.attempt


def test_another_boot_goes_by_the_wall_clock() -> None:
    """A monotonic clock has no meaning on another machine."""
    before = replace(Moment.before(30.0), boot="another")
    assert before.age() == pytest.approx(30.0, abs=5.0)


@pytest.mark.parametrize(
    "change", [{"attempt": []}, {"losses": {"last_at": "x"}}, {"stop": {"began_at": 1.0}}]
)
def test_what_has_another_form_is_no_record(change: dict[str, object]) -> None:
    """The run is not resumed, and the log gives the reason."""
    data = json.loads(json.dumps(record_of(KNOWN).to_dict()))
    data["durable"].update(change)
    found = RunRecord.from_dict(data)
    assert isinstance(found, NoRecord)
    assert f"- at `$.durable.{next(iter(change))}" in found.why


# --- how the next agent uses it ----------------------------------------------------------------


def killed(root: Path, end: Outcome | None = None, leaving: Outcome | None = None) -> ChosenRun:
    """Return the run of an agent that was killed in its first attempt."""
    store = store_of(root)
    durable = submitted(store.durable.starting_ray("pod0", time.time()), nodes=("pod2",))
    durable = replace(durable, verdict=leaving, stop=None if end is None else Stop(end, 91.0))
    store.put(durable, 100.0)
    store.close()
    return ChosenRun("run", written(root))


def succeeding(root: Path, chosen: ChosenRun, **how: object) -> RunStore:
    """Return the store of the next agent, closed."""
    store = RunStore(root, "f" * 16, chosen, replace(Succession(), **how))
    store.close()
    return store


OWN = Outcome(Kind.JOB_FAILED, 7, "the job failed", "running", "job", is_jobs_verdict=True)


def test_it_is_on_the_disk_before_anything_follows(tmp_path: Path) -> None:
    """A head that continues with the running job knows the reason of its stop."""
    chosen = killed(tmp_path, HOPELESS)
    store = succeeding(tmp_path, chosen, job_survives=True, replaces_agent=True)
    found = store.durable
    assert found.stop is not None
    assert found.stop.outcome == HOPELESS
    assert (found.attempt.is_submitted, found.attempt.nodes) == (True, ("pod2",))
    assert store.outcome_at_start(0) is None


@pytest.mark.parametrize(("end", "code"), [(HOPELESS, 69), (OWN, 7), (STOPPED, None), (None, None)])
def test_a_job_that_is_gone_ends_as_it_was_to(
    tmp_path: Path, end: Outcome | None, code: int | None
) -> None:
    """Also if Ray ended: with the decided outcome; after a loss, another attempt may follow."""
    store = succeeding(tmp_path, killed(tmp_path, end), replaces_agent=True)
    (over,) = store.durable.ended
    reason = "its head was lost" if end is None else end.reason
    assert (over.reason, over.exit_code) == (reason, 75 if code is None else code)
    decided = store.outcome_at_start(1)
    assert (None if decided is None else decided.exit_code) == code
    assert store.durable.open_attempt is None


def test_memory_that_ran_out_with_the_agent_is_not_tried_again(tmp_path: Path) -> None:
    """Also if the kernel's OOM killer took Ray; an earlier decision stands."""
    for end, code, words in ((None, 75, "ran out of memory"), (HOPELESS, 69, "reward server")):
        chosen = killed(tmp_path, end)
        store = succeeding(tmp_path, chosen, replaces_agent=True, memory="1 process")
        decided = store.outcome_at_start(3)
        assert decided is not None
        assert (decided.exit_code, decided.is_jobs_verdict) == (code, end is None)
        assert words in decided.reason


def test_a_verdict_stands_though_its_agent_was_killed_while_it_left(tmp_path: Path) -> None:
    """The next agent starts no other run, and reports the same; a manual start begins a new one."""
    chosen = killed(tmp_path, leaving=OWN)
    assert chosen.before is not None
    store = succeeding(tmp_path, chosen, job_survives=True, replaces_agent=True)
    assert store.outcome_at_start(3) == OWN
    ended = replace(chosen.before, durable=store.durable.with_end(OWN, NOW))
    (tmp_path / "latest").symlink_to("run")
    for before, resumed_run, run_id in (
        (ended, "run", "run"),
        (chosen.before, "", "new"),
        (ended, "", "new"),
    ):
        before.write(tmp_path / "run" / RUN_FILE)
        found = choose_run(
            tmp_path, None, "f" * 16, lambda: "new", node="pod0", resumed=resumed_run
        )
        assert found.run_id == run_id
        assert found.lock is not None
        found.lock.release()


def test_a_verdict_is_sent_to_all_nodes_of_its_attempt() -> None:
    """The killed agent may have sent it to none: a spare that joined waits for it, too."""
    left = resumed(required=1, nodes=("pod2", "pod3", "pod4"), lost_nodes=("pod4",))
    state = Trace(OF, [], replace(left, verdict=OWN)).state
    plan = plan_of({"EXPECTED_WORKERS": "1"})
    with closing(socket()) as port:
        assert count_possible_callers(plan, [port], state) == 2
        over = replace(state, durable=end_of_attempt(state, OWN, 1.0))
        assert over.attempt.submitted is None
        assert count_possible_callers(plan, [port], over) == 2


def test_a_pod_that_was_started_again_decides_anew(tmp_path: Path) -> None:
    """The outcome of a head that may come back does not end the next head."""
    chosen = killed(tmp_path, leaving=HOPELESS)
    store = RunStore(tmp_path, "f" * 16, chosen)
    store.put(store.durable, 0.0)
    store.close()
    assert store.outcome_at_start(1) is None
    assert store.durable.verdict is None
    assert written(tmp_path) == store.record  # its successor reads this


@pytest.mark.parametrize(("end", "kept"), [(STOPPED, STOPPED), (HOPELESS, None), (OWN, None)])
def test_who_starts_a_run_again_wants_its_job_to_go_on(
    tmp_path: Path, end: Outcome, kept: Outcome | None
) -> None:
    """On a Ray that outlasts its heads; only a lost job is still to be stopped."""
    stop = succeeding(tmp_path, killed(tmp_path, end), job_survives=True).durable.stop
    assert (None if stop is None else stop.outcome) == kept


@pytest.mark.parametrize(
    "fault",
    [OSError(errno.EIO, "Input/output error"), OSError(errno.ESTALE, "Stale file handle"), '{"run'],
    ids=["EIO", "ESTALE", "torn"],
)
def test_a_record_that_cannot_be_read_once_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: OSError | str
) -> None:
    """The agent that replaces a killed one begins no other run beside the job."""
    expected = killed(tmp_path).before
    tries: list[Path] = []

    def read_once_badly(path: Path) -> str:
        tries.append(path)
        if len(tries) > 1:
            return path.read_text()
        if isinstance(fault, str):
            return fault
        raise fault

    monkeypatch.setattr(files, "read_small", read_once_badly)
    found = choose_run(tmp_path, None, "f" * 16, lambda: "new", node="pod0", resumed="run")
    assert found.lock is not None
    found.lock.release()
    assert (found.run_id, found.before, len(tries)) == ("run", expected, 2)
