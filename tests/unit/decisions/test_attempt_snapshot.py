"""The snapshot of a killed agent's attempt, and how the next agent continues from it."""

from __future__ import annotations

import errno
import json
import time
from typing import TYPE_CHECKING

import anyio
import pytest
from msgspec.structs import replace

from agent.base.ends import Kind, Outcome
from agent.decisions.attempts import Attempt, AttemptSnapshot
from agent.decisions.head import head_state as h
from agent.decisions.head.head_state import HeadPhase
from agent.record import files
from agent.record.files import NoRecord, iso_time
from agent.record.node_record import Moment
from agent.record.run_record import (
    RUN_FILE,
    AttemptRecord,
    ChosenRun,
    RunRecord,
    RunState,
    choose_run,
)
from agent.run.run_keeper import RunKeeper
from support.heads import (
    INT,
    LOST,
    PAIR,
    RUNNING,
    SERVED,
    SUBMITTED,
    TERM,
    TICK,
    WITH_REWARD,
    History,
    Trace,
    goal,
    job,
    nodes,
    reported,
)

if TYPE_CHECKING:
    from pathlib import Path

    from agent.decisions.head.head_goal import HeadGoal

STOPPED = Outcome(Kind.LOST, 75, "lost a needed node: pod2", "running", culprit="node")
KNOWN = AttemptSnapshot(
    Attempt(
        "run-1",
        submitted=5.0,
        lost_nodes=("pod2",),
        former_workers=("pod2", "pod3"),
        checkpoint=40,
    ),
    *(2, frozenset({"id2"}), "pod2 was lost", 30.0, 31.0, STOPPED, 91.0),
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


def shifted(snapshot: AttemptSnapshot, seconds: float) -> AttemptSnapshot:
    """Return a snapshot on a clock that started this many seconds earlier."""
    lost_at, short_since = snapshot.last_loss_at, snapshot.below_required_since
    return replace(
        snapshot,
        attempt=replace(snapshot.attempt, submitted=submission(snapshot) + seconds),
        stop_ordered_at=snapshot.stop_ordered_at + seconds,
        last_loss_at=None if lost_at is None else lost_at + seconds,
        below_required_since=None if short_since is None else short_since + seconds,
    )


def submission(snapshot: AttemptSnapshot) -> float:
    """Return when its attempt was submitted."""
    assert snapshot.attempt.submitted is not None
    return snapshot.attempt.submitted


def next_agent(trace: Trace, after: float = 2.0) -> Trace:
    """Return the trace of the agent that follows a killed one, from its snapshot."""
    kept = [action.snapshot for action in trace.actions if isinstance(action, h.SaveSnapshot)]
    state = trace.state
    attempt = Attempt("run-1", submitted=4.0, workers=state.attempt.workers)
    begun = AttemptSnapshot(attempt, state.required)
    known = shifted(kept[-1] if kept else begun, -trace.now - after)
    return Trace(replace(trace.state.goal, resumed_attempt=known), [])


@pytest.mark.parametrize(("of", "history"), STOPS.values(), ids=STOPS.keys())
@pytest.mark.parametrize("status", ["STOPPED", "SUCCEEDED", "FAILED"])
def test_a_stop_goes_on_as_it_was_meant(of: HeadGoal, history: History, status: str) -> None:
    """The reason for a stop decides the outcome, unless the job succeeded; it is stopped again."""
    trace = Trace(of, history)
    assert trace.state.phase is HeadPhase.STOPPING
    after = next_agent(trace)
    after.take(nodes(2), 1)
    assert [type(action) for action in after.effects] == [h.FollowJob, h.StopJob]
    code = {"FAILED": 1}.get(status)
    for one, at in ((trace, trace.now + 3), (after, 1.5)):
        one.take(job(status, code), at)
    assert [end.exit_code for end in after.outcomes] == [end.exit_code for end in trace.outcomes]
    assert [end.reason for end in after.outcomes] == [end.reason for end in trace.outcomes]
    assert after.state.attempt.number == trace.state.attempt.number
    assert after.state.phase is trace.state.phase


def test_a_stop_keeps_its_deadline() -> None:
    """It counts from the decision, not from the next agent's start."""
    trace = Trace(goal(), [*RUNNING, (9, TERM)])
    after = next_agent(trace, after=4.0)
    after.take(nodes(), 1)
    after.take(TICK, 11.9)
    assert after.outcomes == []
    after.take(TICK, 12.1)
    assert [end.exit_code for end in after.outcomes] == [143]


def test_a_job_is_followed_though_its_worker_is_away() -> None:
    """No wait precedes it as before a submission: its grace continues, and ends it."""
    trace = Trace(goal(1), [*PAIR, (9, nodes(dead=(2,)))])
    after = next_agent(trace)
    after.take(nodes(), 1)
    after.take(SUBMITTED, 2)
    assert after.state.phase is HeadPhase.RUNNING
    after.take(job("RUNNING"), 50)
    after.take(TICK, 57.9)
    assert not [action for action in after.effects if isinstance(action, h.StopJob)]
    after.take(TICK, 58.1)
    assert after.effects[-1] == h.StopJob("run-1")
    after.take(job("STOPPED"), 60)
    assert [(end.exit_code, end.culprit) for end in after.outcomes] == [(75, "node")]


def test_a_worker_that_was_lost_between_two_agents_is_a_loss() -> None:
    """Also if it is back before Ray reports the job: its processes are gone."""
    places = {"10.0.0.2": "pod2", "10.0.0.3": "pod3"}
    attempt = Attempt("run-1", submitted=-9.0, former_workers=("pod2", "pod3"), workers=places)
    known = AttemptSnapshot(attempt, 2)
    after = Trace(replace(goal(2), resumed_attempt=known), [(1, nodes(2)), (2, nodes(2, 3))])
    after.take(SUBMITTED, 3)
    assert after.state.phase is HeadPhase.RUNNING
    assert after.state.attempt.lost_nodes == ("pod3",)


@pytest.mark.parametrize(("at", "attempt"), [(57.9, 2), (58.1, 1)])
def test_a_loss_counts_for_a_minute(at: float, attempt: int) -> None:
    """Also for an agent that did not see it; the worker is back, and GCS never reported it."""
    silent = h.WorkerSilent("agent2", "no answer")
    trace = Trace(goal(1, retries=1), [*PAIR, (9, silent)])
    after = next_agent(trace)
    after.take(nodes(2), 1)
    after.take(SUBMITTED, 2)
    assert after.state.losses.below_required_since is not None
    after.take(reported(2), 3)
    assert "all needed nodes are back" in after.log
    after.take(job("FAILED", 9), at)
    after.take(h.NodesAsked("run-1"), at + 1)
    assert after.state.attempt.number == attempt
    assert [end.exit_code for end in after.outcomes] == [9] * (attempt == 1)


def test_fewer_workers_were_enough() -> None:
    """A job that started without some of its workers does not wait for them now."""
    trace = Trace(goal(2, 1), [(3, nodes(2)), (4, reported(2)), (200, TICK), (201, SUBMITTED)])
    after = next_agent(trace)
    after.take(nodes(2), 1)
    after.take(SUBMITTED, 2)
    assert (after.state.phase, after.state.losses.below_required_since) == (HeadPhase.RUNNING, None)


RESUMED = replace(goal(1, retries=1), resumed_attempt=shifted(KNOWN, -100.0))
AFRESH = replace(
    goal(1, retries=1),
    resumed_attempt=AttemptSnapshot(Attempt("run-1", submitted=-50.0, former_workers=("pod2",)), 1),
)


def test_its_ray_is_gone() -> None:
    """The attempt is over: with its decided outcome, else as lost; its workers are waited for."""
    trace = Trace(AFRESH, [(1, h.RayGone("exit 1"))])
    assert trace.state.attempt.number == 2
    assert list(trace.state.earlier.leftovers) == ["pod2"]
    stopped = replace(
        AFRESH,
        resumed_attempt=replace(
            shifted(KNOWN, -100.0), end=replace(STOPPED, exit_code=69, kind=Kind.UNAVAILABLE)
        ),
    )
    assert [end.exit_code for end in Trace(stopped, [(1, h.RayGone("exit 1"))]).outcomes] == [69]


def test_it_was_never_submitted() -> None:
    """It is submitted with its number once all workers are there."""
    trace = Trace(AFRESH, [(1, nodes()), (2, h.NeverSubmitted("run-1"))])
    assert trace.effects == [h.FollowJob("run-1")]
    assert trace.state.phase is HeadPhase.BOOTING
    trace.take(nodes(2), 3)
    trace.take(reported(2), 4)
    assert trace.effects[-1] == h.SubmitJob("run-1")


@pytest.mark.parametrize(
    ("history", "what"),
    [
        ([(1, h.HeadRaySilent("refused")), (100, TICK)], "Ray on this node: refused"),
        ([(1, nodes(2)), (121, TICK)], "the status of attempt 1 from Ray"),
    ],
)
@pytest.mark.parametrize("retries", [0, 1])
def test_neither_ray_nor_its_job_answers(retries: int, history: History, what: str) -> None:
    """The attempt is lost; another follows if AGENT_JOB_RETRIES allows it."""
    trace = Trace(replace(AFRESH, retries=retries), history)
    assert [end.exit_code for end in trace.outcomes] == [75] * (1 - retries)
    assert trace.state.attempt.number == 1 + retries
    end = trace.state.earlier.attempts[0].end if retries else trace.outcomes[0]
    assert end is not None
    assert end.reason == f"timed out after the agent was killed, waiting for {what}"


@pytest.mark.parametrize("stopped", [True, False])
def test_a_job_on_a_given_ray_is_stopped_before_another(stopped: bool) -> None:  # noqa: FBT001 - pytest's parameter
    """It may still run there, even long after the limits: no other attempt starts beside it."""
    history: History = [(9, nodes(dead=(2,))), (69, TICK)] if stopped else []
    trace = Trace(goal(1, given=True, retries=1), [*PAIR, *history])
    after = next_agent(trace, after=300.0)
    after.take(TICK, 1 if stopped else 1000)
    after.take(nodes(2), 1001)
    actions = [
        action
        for action in after.effects
        if isinstance(action, h.FollowJob | h.StopJob | h.SubmitJob)
    ]
    assert actions == [h.FollowJob("run-1"), h.StopJob("run-1")]


def test_a_stop_is_asked_for_meanwhile() -> None:
    """The job is followed until it is stopped."""
    trace = Trace(AFRESH, [(1, TERM)])
    assert [type(action) for action in trace.effects] == [h.FollowJob, h.StopJob]
    trace.take(h.NeverSubmitted("run-1"), 2)
    assert [end.exit_code for end in trace.outcomes] == [143]


def test_what_is_known_is_taken_up_whole() -> None:
    """An attempt that is followed again has the same state as before."""
    trace = Trace(RESUMED, [(1, nodes(2, 3))])
    assert h.snapshot_of(trace.state) == RESUMED.resumed_attempt


# --- the snapshot file -------------------------------------------------------------------------


def open_attempt(known: AttemptSnapshot, now: float) -> AttemptRecord:
    """Return an attempt as read from the disk."""
    nodes = KNOWN.attempt.former_workers
    begun = AttemptRecord(1, "run-1", iso_time(time.time()), checkpoint=40, nodes=nodes)
    written = RunRecord("run", "f" * 16, 1).begin_attempt(begun)
    written = written.with_snapshot(known, now)
    found = RunRecord.from_dict(json.loads(json.dumps(written.to_dict())))
    assert isinstance(found, RunRecord)
    assert found.open_attempt is not None
    return found.open_attempt


def signaled(known: AttemptSnapshot) -> AttemptSnapshot:
    """Return it after SIGTERM to the driver."""
    return replace(known, attempt=replace(known.attempt, signaled=True))


def close_to(one: AttemptSnapshot, other: AttemptSnapshot) -> bool:
    """Return whether they differ by no more than a test's duration."""
    assert one.last_loss_at is not None
    assert one.below_required_since is not None
    assert other.last_loss_at is not None
    assert other.below_required_since is not None
    mine = (submission(one), one.last_loss_at, one.below_required_since, one.stop_ordered_at)
    others = (
        submission(other),
        other.last_loss_at,
        other.below_required_since,
        other.stop_ordered_at,
    )
    return mine == pytest.approx(others, abs=5.0)


@pytest.mark.parametrize("jump", [0.0, 3600.0, -3600.0])
def test_it_survives_the_disk(monkeypatch: pytest.MonkeyPatch, jump: float) -> None:
    """Its times are converted to the next agent's clock, despite jumps of the wall clock."""
    written = open_attempt(signaled(KNOWN), 100.0)
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + jump)
    found = written.resumed(7.0)
    wanted = signaled(shifted(KNOWN, 7.0 - 100.0))
    assert close_to(found, wanted)
    assert replace(found.attempt, submitted=None) == replace(wanted.attempt, submitted=None)
    same = ("required", "dead_node_ids", "last_loss", "end")
    assert [getattr(found, name) for name in same] == [getattr(wanted, name) for name in same]


def test_another_boot_goes_by_the_wall_clock() -> None:
    """A monotonic clock has no meaning on another machine."""
    before = replace(Moment.before(30.0), boot="another")
    assert before.age() == pytest.approx(30.0, abs=5.0)


def test_an_attempt_without_a_snapshot() -> None:
    """Only its record exists: its start, and its workers."""
    attempt = AttemptRecord(1, "run-1", iso_time(time.time() - 50), nodes=("a", "b"))
    found = attempt.resumed(7.0)
    assert submission(found) == pytest.approx(7.0 - 50.0, abs=5.0)
    assert (found.required, found.last_loss, found.last_loss_at, found.end) == (2, "", None, None)
    assert not found.is_worth_saving


@pytest.mark.parametrize("change", [{"known": []}, {"clock": 7}, {"known": {"required": 1}}])
def test_a_snapshot_of_another_form_is_no_record(change: dict[str, object]) -> None:
    """The run is not resumed, and the log gives the reason."""
    record = RunRecord("run", "f" * 16, 1).begin_attempt(
        AttemptRecord(1, "run-1", iso_time(time.time()))
    )
    data = record.with_snapshot(KNOWN, 100.0).to_dict()
    data = json.loads(json.dumps(data))
    data["attempts"][0]["snapshot"].update(change)
    found = RunRecord.from_dict(data)
    assert isinstance(found, NoRecord)
    assert "- at `$.attempts[0].snapshot" in found.why


# --- how the next agent uses it ----------------------------------------------------------------


def killed(root: Path, end: Outcome | None = None, leaving: Outcome | None = None) -> ChosenRun:
    """Return the run of an agent that was killed in its first attempt."""
    keeper = RunKeeper(root, "f" * 16, ChosenRun("run", None))
    keeper.new_epoch("pod0")
    keeper.record_submission(Attempt("run-1"), ("pod2",), 1)
    if end is not None:
        keeper.save(keeper.record.with_snapshot(replace(KNOWN, end=end), 100.0))
    if leaving is not None:
        keeper.record_outcome(leaving)
    anyio.run(keeper.flush)
    found = RunRecord.read(root / "run" / RUN_FILE)
    keeper.close()
    assert isinstance(found, RunRecord)
    return ChosenRun("run", found)


HOPELESS = Outcome(Kind.UNAVAILABLE, 69, "reward server is lost for good", "running")
OWN = Outcome(Kind.JOB_FAILED, 7, "the job failed", "running", "job", is_jobs_verdict=True)


def test_it_is_on_the_disk_before_anything_follows(tmp_path: Path) -> None:
    """A head that continues with the running job knows the reason of its stop."""
    (tmp_path / "run").mkdir()
    chosen = killed(tmp_path, HOPELESS)
    keeper = RunKeeper(tmp_path, "f" * 16, chosen, job_survives=True, replaces_agent=True)
    found = keeper.open_attempt(0.0)
    assert found is not None
    assert (found.end, found.required, found.attempt.former_workers) == (HOPELESS, 2, ("pod2",))
    assert keeper.final_outcome(0) is None
    keeper.close()


@pytest.mark.parametrize(("end", "code"), [(HOPELESS, 69), (OWN, 7), (STOPPED, None), (None, None)])
def test_a_job_that_is_gone_ends_as_it_was_to(
    tmp_path: Path, end: Outcome | None, code: int | None
) -> None:
    """Also if Ray ended: with the decided outcome; after a loss, another attempt may follow."""
    (tmp_path / "run").mkdir()
    keeper = RunKeeper(tmp_path, "f" * 16, killed(tmp_path, end), replaces_agent=True)
    keeper.close()
    (over,) = keeper.record.attempts
    reason = "its head was lost" if end is None else end.reason
    assert (over.reason, over.exit_code) == (reason, 75 if code is None else code)
    decided = keeper.final_outcome(1)
    assert (None if decided is None else decided.exit_code) == code
    assert keeper.open_attempt(0.0) is None


def test_memory_that_ran_out_with_the_agent_is_not_tried_again(tmp_path: Path) -> None:
    """Also if the kernel's OOM killer took Ray; an earlier decision stands."""
    (tmp_path / "run").mkdir()
    for end, code, words in ((None, 75, "ran out of memory"), (HOPELESS, 69, "reward server")):
        chosen = killed(tmp_path, end)
        keeper = RunKeeper(tmp_path, "f" * 16, chosen, replaces_agent=True, memory="1 process")
        keeper.close()
        decided = keeper.final_outcome(3)
        assert decided is not None
        assert (decided.exit_code, decided.is_jobs_verdict) == (code, end is None)
        assert words in decided.reason


def test_a_verdict_stands_though_its_agent_was_killed_while_it_left(tmp_path: Path) -> None:
    """The next agent starts no other run, and reports the same; a manual start begins a new one."""
    (tmp_path / "run").mkdir()
    chosen = killed(tmp_path, leaving=OWN)
    assert chosen.before is not None
    keeper = RunKeeper(tmp_path, "f" * 16, chosen, job_survives=True, replaces_agent=True)
    assert keeper.final_outcome(3) == OWN
    keeper.record_end(OWN)
    keeper.close()
    (tmp_path / "latest").symlink_to("run")
    ended = RunRecord.read(tmp_path / "run" / RUN_FILE)
    assert not isinstance(ended, NoRecord)
    assert ended.state is RunState.ENDED
    for before, resumed, run_id in (
        (ended, "run", "run"),
        (chosen.before, "", "new"),
        (ended, "", "new"),
    ):
        before.write(tmp_path / "run" / RUN_FILE)
        found = choose_run(tmp_path, None, "f" * 16, lambda: "new", node="pod0", resumed=resumed)
        assert found.run_id == run_id
        assert found.lock is not None
        found.lock.release()


def test_a_pod_that_was_started_again_decides_anew(tmp_path: Path) -> None:
    """The outcome of a head that may come back does not end the next head."""
    (tmp_path / "run").mkdir()
    chosen = killed(tmp_path, leaving=HOPELESS)
    keeper = RunKeeper(tmp_path, "f" * 16, chosen)
    keeper.save(keeper.record)
    keeper.close()
    assert keeper.final_outcome(1) is None
    assert keeper.record.ending is None
    assert RunRecord.read(tmp_path / "run" / RUN_FILE) == keeper.record  # its successor reads this


@pytest.mark.parametrize(("end", "kept"), [(STOPPED, STOPPED), (HOPELESS, None), (OWN, None)])
def test_who_starts_a_run_again_wants_its_job_to_go_on(
    tmp_path: Path, end: Outcome, kept: Outcome | None
) -> None:
    """On a Ray that outlasts its heads; only a lost job is still to be stopped."""
    (tmp_path / "run").mkdir()
    keeper = RunKeeper(tmp_path, "f" * 16, killed(tmp_path, end), job_survives=True)
    found = keeper.open_attempt(0.0)
    assert found is not None
    assert found.end == kept
    keeper.close()


def test_a_service_of_a_running_job_counts_as_ready() -> None:
    """If it exits before it has answered the next agent, it is restarted; the run continues."""
    after = next_agent(Trace(WITH_REWARD, SERVED))
    after.take(nodes(), 1.0)
    after.take(job("RUNNING"), 1.0)
    after.take(LOST, 2.0)
    assert not [one for one in after.actions if isinstance(one, h.EndRun | h.StopJob)]
    (again,) = [one for one in after.actions if isinstance(one, h.StartService)]
    assert again.generation == 2
    fresh = Trace(WITH_REWARD, [(1.0, LOST)])
    assert [one.outcome.exit_code for one in fresh.actions if isinstance(one, h.EndRun)] == [69]


@pytest.mark.parametrize(
    "fault",
    [OSError(errno.EIO, "Input/output error"), OSError(errno.ESTALE, "Stale file handle"), '{"run'],
    ids=["EIO", "ESTALE", "torn"],
)
def test_a_record_that_cannot_be_read_once_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: OSError | str
) -> None:
    """The agent that replaces a killed one begins no other run beside the job."""
    (tmp_path / "run").mkdir()
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
