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
    RUNNING,
    SERVED,
    SUBMITTED,
    TERM,
    TICK,
    WITH_REWARD,
    FollowJob,
    History,
    Started,
    StopJob,
    SubmitJob,
    Trace,
    goal,
    job,
    never,
    nodes,
    ray_lost,
    ray_waits,
    reported,
    resumed,
)
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
    assert not [action for action in after.effects if isinstance(action, StopJob)]
    after.take(TICK, 58.1)
    assert after.effects[-1] == StopJob("run-1")
    after.take(job("STOPPED"), 60)
    assert [(end.exit_code, end.culprit) for end in after.outcomes] == [(75, "node")]


def test_a_worker_that_was_lost_between_two_agents_is_a_loss() -> None:
    """Also if it is back before Ray reports the job: its processes are gone."""
    places = {"10.0.0.2": "pod2", "10.0.0.3": "pod3"}
    left = resumed(submitted=-9.0, required=2, workers=places, nodes=("pod2", "pod3"))
    after = Trace(goal(2), [(1, nodes(2)), (2, nodes(2, 3))], left)
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
    after.take(Answered(h.NodesAsked("run-1")), at + 1)
    assert after.state.attempt.number == attempt
    assert [end.exit_code for end in after.outcomes] == [9] * (attempt == 1)


def test_fewer_workers_were_enough() -> None:
    """A job that started without some of its workers does not wait for them now."""
    trace = Trace(goal(2, 1), [(3, nodes(2)), (4, reported(2)), (200, TICK), (201, SUBMITTED)])
    after = next_agent(trace)
    after.take(nodes(2), 1)
    after.take(SUBMITTED, 2)
    assert (after.state.phase, after.state.losses.below_required_since) == (HeadPhase.RUNNING, None)


AFRESH = resumed(required=1, nodes=("pod2",))
OF = goal(1, retries=1)


def test_its_ray_is_gone() -> None:
    """The attempt is over: with its decided outcome, else as lost; its workers are waited for."""
    trace = Trace(OF, [(1, ray_lost("exit 1"))], AFRESH)
    assert trace.state.attempt.number == 2
    assert list(trace.state.earlier.leftovers) == ["pod2"]
    hopeless = replace(STOPPED, exit_code=69, kind=Kind.UNAVAILABLE)
    stopped = replace(on_clock(KNOWN, -100.0), stop=Stop(hopeless, -9.0))
    ended = Trace(OF, [(1, ray_lost("exit 1"))], stopped)
    assert [end.exit_code for end in ended.outcomes] == [69]


def test_it_was_never_submitted() -> None:
    """It is submitted with its number once all workers are there."""
    trace = Trace(OF, [(1, nodes()), (2, never())], AFRESH)
    assert trace.effects == [FollowJob("run-1")]
    assert trace.state.phase is HeadPhase.BOOTING
    trace.take(nodes(2), 3)
    trace.take(reported(2), 4)
    assert trace.effects[-1] == SubmitJob("run-1")


@pytest.mark.parametrize(
    ("history", "what"),
    [
        ([(1, ray_waits("refused")), (100, TICK)], "Ray on this node: refused"),
        ([(1, nodes(2)), (121, TICK)], "the status of attempt 1 from Ray"),
    ],
)
@pytest.mark.parametrize("retries", [0, 1])
def test_neither_ray_nor_its_job_answers(retries: int, history: History, what: str) -> None:
    """The attempt is lost; another follows if AGENT_JOB_RETRIES allows it."""
    trace = Trace(replace(OF, retries=retries), history, AFRESH)
    assert [end.exit_code for end in trace.outcomes] == [75] * (1 - retries)
    assert trace.state.attempt.number == 1 + retries
    end = trace.state.durable.ended[0] if retries else trace.outcomes[0]
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
        action for action in after.effects if isinstance(action, FollowJob | StopJob | SubmitJob)
    ]
    assert actions == [FollowJob("run-1"), StopJob("run-1")]


def test_a_stop_is_asked_for_meanwhile() -> None:
    """The job is followed until it is stopped."""
    trace = Trace(OF, [(1, TERM)], AFRESH)
    assert [type(action) for action in trace.effects] == [FollowJob, StopJob]
    trace.take(never(), 2)
    assert [end.exit_code for end in trace.outcomes] == [143]


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


HOPELESS = Outcome(Kind.UNAVAILABLE, 69, "reward server is lost for good", "running")
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


def test_a_service_of_a_running_job_counts_as_ready() -> None:
    """If it exits before it has answered the next agent, it is restarted; the run continues."""
    after = next_agent(Trace(WITH_REWARD, SERVED))
    after.take(nodes(), 1.0)
    after.take(job("RUNNING"), 1.0)
    after.take(LOST, 2.0)
    assert not [one for one in after.actions if isinstance(one, h.EndRun | StopJob)]
    (again,) = [one for one in after.actions if isinstance(one, Started)]
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
