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
from agent.decisions.head.losses import durable_after_attempt
from agent.decisions.head.wanted import wanted_of
from agent.decisions.shared import RAY, ItemReport, Step
from agent.decisions.worker import worker_state as w
from agent.record import files
from agent.record.files import NoRecord
from agent.record.node_record import Moment
from agent.record.run_record import RUN_FILE, ChosenRun, RunRecord, choose_run
from agent.run.head_server import count_possible_callers
from agent.run.run_store import RunStore
from support import heads, workers
from support.event_words import cases
from support.heads import FollowJob, StopJob, Trace, goal, job, nodes, reported, resumed
from support.histories import Case, play, play_head
from support.run_records import NOW, record_of, store_of, submitted, written
from support.worlds import plan_of

if TYPE_CHECKING:
    from pathlib import Path

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
HOPELESS = Outcome(Kind.UNAVAILABLE, 69, "reward server is lost for good", "running")
OF = goal(1, retries=1)
BOTH = {"10.0.0.2": "pod2", "10.0.0.3": "pod3"}
WORDS = {
    "of a former Ray": replace(goal(1), has_former_ray=True),
    "2 workers of a former Ray": replace(goal(2, services=(heads.RETRIEVER,)), has_former_ray=True),
    "left: attempt 1": [resumed(required=1, nodes=("pod2",))],
    "left: attempt 1 of two workers": [
        resumed(submitted=-9.0, required=2, workers=BOTH, nodes=("pod2", "pod3"))
    ],
    "left: a stop": [replace(on_clock(KNOWN, -100.0), stop=Stop(HOPELESS, -9.0))],
    "dies four times": (
        "10 lost reward server: exit code 1 -> start reward server, generation 2 | "
        "20 lost reward server: exit code 1 | 21 tick -> start reward server, generation 3 | "
        "30 lost reward server: exit code 1 | 32 tick -> start reward server, generation 4 | "
        "90 lost reward server: exit code 1 -> stop run-1"
    ),
    "fell silent": (
        "pair | 9 pod2 silent: no answer | 11 next agent | 1 nodes 2 -> follow run-1 | 2 accepted"
    ),
    "named pair": "2 pod2 joined | 3 nodes 2 -> submit run-1 | 5 accepted | 6 job RUNNING",
    # A worker has followed attempt 1, of which the disk of the killed agent has no record
    "remembers": "0.5 Ray opens | 0.6 remembered run 1",
    "a later head": h.LaterHead(7, "run.json"),
    "next agent of pod2": h.WorkerReported(replace(reported(2).worker, key="agent2.2")),
    "pod2 at another address": h.WorkerReported(replace(reported(3).worker, name="pod2")),
}

STOPS = cases(
    """\
a node is lost for good [1 worker]
    pair | 9 nodes dead 2 | 69 tick -> stop run-1
it is, and another attempt may follow [1 worker, 1 retry]
    pair | 9 nodes dead 2 | 69 tick -> stop run-1
a service is hopeless [reward server]
    served | dies four times
SIGTERM
    alone | 9 TERM -> stop run-1
SIGINT, then SIGTERM
    alone | 9 INT -> stop run-1 | 10 TERM
a later head
    alone | 9 a later head -> stop run-1
SIGTERM while a lost attempt stops [1 worker, 1 retry]
    pair | 9 nodes dead 2 | 69 tick -> stop run-1 | 70 TERM
a given Ray falls silent [given Ray]
    alone | 125 tick -> stop run-1
""",
    WORDS,
)


@pytest.mark.parametrize("case", STOPS.values(), ids=STOPS)
@pytest.mark.parametrize("status", ["STOPPED", "SUCCEEDED", "FAILED"])
def test_a_stop_goes_on_as_it_was_meant(case: Case, status: str) -> None:
    """The reason for a stop decides the outcome, unless the job succeeded; it is stopped again."""
    trace = play_head(case)
    assert trace.state.phase is HeadPhase.STOPPING
    after = Trace(trace.state.goal, [], on_clock(trace.persisted[-1], -trace.now - 2.0))
    after.take(nodes(2), 1)
    assert [type(action) for action in after.effects] == [FollowJob, StopJob]
    code = {"FAILED": 1}.get(status)
    for one, at in ((trace, trace.now + 3), (after, 1.5)):
        one.take(job(status, code), at)
    ends = [[(end.exit_code, end.reason) for end in one.outcomes] for one in (trace, after)]
    assert ends[0] == ends[1]
    assert after.state.attempt.number == trace.state.attempt.number
    assert after.state.phase is trace.state.phase


KILLED_HEADS = cases(
    """\
a stop keeps its deadline, which counts from the decision
    alone | 9 TERM -> stop run-1 | 13 next agent | 1 nodes -> follow run-1 & stop run-1 | 11.9 tick
    12.1 tick -> end 143: …SIGTERM
# No wait precedes it as before a submission
a job is followed though its worker is away, whose grace goes on [1 worker]
    pair | 9 nodes dead 2 | 11 next agent | 1 nodes -> follow run-1 | 2 accepted | 50 job RUNNING
    57.9 tick | 58.1 tick -> stop run-1 | 60 job STOPPED -> end 75: lost a needed node…
    log attempt 1 goes on: its job is followed again
a worker that fell silent is missed, though GCS still lists it [1 worker, 1 retry]
    fell silent | 50 job RUNNING | 57.9 tick | 58.1 tick -> stop run-1
# GCS never reported the worker, and it is back
a loss that the next agent did not see counts for a minute [1 worker, 1 retry]
    fell silent | 3 pod2 joined | 57.9 job FAILED 9 -> start Ray, generation 2
    log all needed nodes are back
a loss does not count after a minute [1 worker, 1 retry]
    fell silent | 3 pod2 joined | 58.1 job FAILED 9 -> ask the nodes
    59.1 all nodes answer -> end 9: …
a job that started without some of its workers does not wait for them now [2 workers, at least 1]
    3 nodes 2 | 4 pod2 joined | 200 tick -> submit run-1 | 201 accepted | 203 next agent
    1 nodes 2 -> follow run-1 | 2 accepted | waits waiting for the job's status from Ray, …
a service of a running job counts as ready, and is restarted [reward server]
    served | 9 next agent | 1 nodes -> follow run-1 | 1 job RUNNING
    2 lost reward server: exit code 1 -> start reward server, generation 2
a service that ends before it was ready ends a run without a job [reward server]
    1 lost reward server: exit code 1 -> end 69: …
its Ray is gone: the attempt is lost, and its workers are waited for [1 worker, 1 retry]
    left: attempt 1 | 1 Ray dies: exit 1 -> start Ray, generation 2
    waits waiting for Ray on this node (100 s left) & waiting for the end of attempt 1 on pod2, …
        & waiting for workers, …
its Ray is gone, and the outcome was decided [1 worker, 1 retry]
    left: a stop | 1 Ray dies: exit 1 -> end 69: reward server is lost for good
a job that was never submitted is, once all workers are there [1 worker, 1 retry]
    left: attempt 1 | 1 nodes -> follow run-1 | 2 never | 3 nodes 2 -> submit run-1
Ray does not answer: the attempt is lost [1 worker, 1 retry]
    left: attempt 1 | 1 pending Ray: refused | 100 tick -> start Ray, generation 2
    log attempt 1 of 2 is lost: timed out after the agent was killed, waiting for Ray on this node:
        refused
Ray does not answer, and no retry is left [1 worker]
    left: attempt 1 | 1 pending Ray: refused
    100 tick -> end 75: timed out after the agent was killed, waiting for Ray on this node: refused
Ray has no status of the job: the attempt is lost [1 worker, 1 retry]
    left: attempt 1 | 1 nodes 2 -> follow run-1 | 121 tick -> start Ray, generation 2
    log attempt 1 of 2 is lost: timed out after the agent was killed, waiting for the status of
        attempt 1 from Ray
Ray has no status of the job, and no retry is left [1 worker]
    left: attempt 1 | 1 nodes 2 -> follow run-1
    121 tick -> end 75: timed out after the agent was killed, waiting for the status of attempt 1
        from Ray
# It may still run there, even long after the limits: no other attempt starts beside it
a job to be stopped on a given Ray is stopped before another [1 worker, 1 retry, given Ray]
    pair | 9 nodes dead 2 | 69 tick -> stop run-1 | 369 next agent
    1 tick -> follow run-1 & stop run-1 | 1001 nodes 2 -> end 75: lost a needed node…
a job on a silent given Ray is stopped before another [1 worker, 1 retry, given Ray]
    pair | 306 next agent | 1000 tick -> follow run-1 & stop run-1 | 1001 nodes 2
asked to stop meanwhile, the job is followed until it is stopped [1 worker, 1 retry]
    left: attempt 1 | 1 TERM -> follow run-1 & stop run-1 | 2 never -> end 143: …SIGTERM
# Also if it is back before Ray reports the job: its processes are gone
a worker that was lost between two agents is a loss [2 workers]
    left: attempt 1 of two workers | 1 nodes 2 -> follow run-1 | 2 nodes 2 3 | 3 accepted
    phase running | lost pod3
# Another agent speaks for the same Ray
another agent of a node is no loss [1 worker, 1 retry]
    3 nodes 2 -> submit run-1 | 4 pod2 joined | 5 accepted
    8 pod2 silent, its Ray answers: connection refused | 9 next agent of pod2 | 9 pod2 replaced
    not logged left Ray | short nothing | lost nothing
# A worker left and another joined while no agent ran: the job hangs, and is stopped
a spare does not stand in for a worker that was lost with the agent [1 worker, 1 retry]
    named pair | 8 next agent | 1 nodes 3, dead 2 -> follow run-1 | 1.5 pod3 joined | 2 accepted
    log lost a needed node (pod2 | 60 job RUNNING | 61.9 tick | 62 tick -> stop run-1
    63 job STOPPED -> start Ray, generation 2 | log attempt 1 of 2 is lost: lost a needed node (pod2
a worker that stays is not lost [1 worker]
    named pair | 8 next agent | 1 nodes 2 -> follow run-1 | 2 accepted | phase running
    lost nothing | short nothing
# It is identified by its name, as without the restart
a worker that is back at another address is back [1 worker]
    named pair | 8 next agent | 1 nodes 3, dead 2 -> follow run-1 | 2 accepted
    3 pod2 at another address | log all needed nodes are back
""",
    WORDS,
)
# Only an agent was killed: its node has never left
SURVIVING_RAY = cases(
    """\
# Another agent speaks for the same Ray: no node left, and a job's own failure is its own
the head misses nothing of a worker whose agent is replaced [1 worker, 1 retry]
    pair | 8 pod2 silent, its Ray answers: connection refused | 9 next agent of pod2
    9 pod2 replaced | 10 job FAILED 7 -> ask the nodes
    11 all nodes answer -> end 7: the job failed with exit code 7
# GCS lists them already; the job begins once their services are ready
nodes whose agents have not reported yet are waited for [2 workers of a former Ray]
    0.5 ready retriever | 1 nodes 2 3
    waits waiting for a report from 10.0.0.2 and 10.0.0.3, … (14 s left)
    2 pod2 joined -> start retriever on agent2 | 3 pod3 joined -> start retriever on agent3
    20 pod2 joined: retriever ready | 20 pod3 joined: retriever ready -> submit run-1
nodes that have joined by hand are waited for as long as a report takes [of a former Ray]
    1 nodes 2 | 14.9 tick | 15 tick -> submit run-1
a Ray that this agent started has no node that reported before [1 worker]
    1 nodes 2 -> submit run-1
# Ray is asked for its job, which nothing else may do as long as it runs
a remembered attempt is followed on the same Ray [of a former Ray]
    remembers | 1 nodes 2 -> follow run-1 | 1.5 pod2 joined | 2 accepted
    9 job FAILED 7 -> ask the nodes | 9.1 all nodes answer -> end 7: …
# The agent was killed before Ray received it
a remembered attempt that Ray does not have begins [of a former Ray]
    remembers | 1 nodes 2 -> follow run-1 | 1.5 pod2 joined | 2 never -> submit run-1
a remembered attempt of a Ray before this agent's is lost [1 worker]
    0.6 remembered run 1 -> end 75: …
a remembered attempt is lost whose workers follow a later Ray [of a former Ray]
    0.6 remembered run 1, epoch 9 -> end 75: …
""",
    WORDS,
)


@pytest.mark.parametrize("case", (rows := KILLED_HEADS | SURVIVING_RAY).values(), ids=rows)
def test_the_next_agent_goes_on(case: Case) -> None:
    """It follows the job by what the killed one persisted, and decides as that would have."""
    play(case)


def test_what_is_known_is_taken_up_whole() -> None:
    """An attempt that is followed again has the same state as before."""
    left = replace(on_clock(KNOWN, -100.0), stop=None)
    trace = Trace(OF, [(1, nodes(2, 3))], left)
    assert trace.state.runs_attempt
    found = trace.state.durable
    assert found.attempt.nodes == ("10.0.0.3", *left.attempt.nodes)
    assert replace(found, attempt=replace(found.attempt, nodes=left.attempt.nodes)) == left


# --- the next agent of a worker ------------------------------------------------------------------

KEPT = w.WorkerState(workers.goal(), epoch=1, head_ip="10.0.0.1", run_id="run")
OF_A_WORKER = {
    "prepares first": workers.goal(prepare=True),
    "killed agent": [KEPT],
    "killed agent, out of reach for 30 s": [replace(KEPT, unreached_since=-30.0)],
    "killed agent, out of reach for long": [replace(KEPT, unreached_since=-60.0)],
    "reply of another run": workers.replied(run="another"),
}
KILLED_WORKERS = cases(
    """\
# Nothing starts or prepares again; the first report has everything that runs there
it follows from its first word [prepares first]
    killed agent | joined yes | 0.5 reply | 40 tick | phase following the head | joined yes
# The head was started anew meanwhile: the next attempt waits for this node's
a Ray of an earlier attempt is reported until it is gone
    killed agent | 0.5 reply 2, not ready -> stop Ray | joined no
    3 reply 2 -> start Ray, generation 2
a head that began another run ends it
    killed agent
    0.5 reply of another run -> end 75: the head pod0 began another run: another, not run
# At 0.8 of AGENT_NODE_GRACE since the head was out of reach, whichever agent noticed that
the fence of a head that was reached to the end
    killed agent | 3 silent | 41 silent | 42 silent -> stop Ray
the fence of a head that was missed for 30 s
    killed agent, out of reach for 30 s | 3 silent | 17 silent | 18 silent -> stop Ray
the fence of a head that was missed for long
    killed agent, out of reach for long | 3 silent -> stop Ray
# It starts its Ray again as soon as the agent replies: no job begins on it before
a worker that joined while the head had no agent has not joined
    0.5 GCS alone | 11 GCS alone -> start Ray | 20 ready Ray | phase following the head | joined no
    22 reply 7 -> start Ray, generation 7 | 25 ready Ray | joined yes
""",
    OF_A_WORKER,
    workers.goal(),
)


@pytest.mark.parametrize("case", KILLED_WORKERS.values(), ids=KILLED_WORKERS)
def test_the_next_agent_of_a_worker_goes_on(case: Case) -> None:
    """For head and fence, its node has never left."""
    play(case)


def test_a_ray_of_a_former_head_is_replaced_however_often_it_was_restarted() -> None:
    """This head's clock is behind, so that its epoch follows on that of the one before."""
    former = 1_700_000_000_000
    ray = ItemReport(RAY, Step.READY, generation=former + 20, is_running=True)
    remembered = h.RunRemembered("run", 1, former, is_of_other_head=True)
    trace = Trace(OF, [(3.0, nodes()), (4.0, remembered)])
    trace.take(reported(2, joined=False, items=(ray,)), 4.1)
    worker = trace.state.fleet.workers["agent2"]
    want = wanted_of(trace.state, "agent2").get(RAY)
    assert not worker.joined
    assert "agent2" in trace.state.earlier.leftovers
    assert want is None or want.generation > ray.generation


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
        over = replace(state, durable=durable_after_attempt(state, OWN, 1.0))
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
