"""Former and later heads of a run: what a head counts on, makes room for, and remembers."""

from __future__ import annotations

import errno
import time
from typing import TYPE_CHECKING
from unittest.mock import Mock

import anyio
import anyio.lowlevel
import pytest
from msgspec.structs import replace

from agent.base import ends, times
from agent.base.ends import Kind
from agent.decisions import worker
from agent.decisions.attempts import LostAttempt
from agent.decisions.durable import EPOCH_STEP, Durable, Succession, taken_over
from agent.decisions.head import head_decide as head
from agent.decisions.head import head_state as h
from agent.decisions.head.wanted import wanted_of
from agent.decisions.shared import HERE, RAY, Publish
from agent.plan import waits as wait_keys
from agent.port.protocol import Hello, Reply, Report
from agent.port.reports import Expected, Reports
from agent.record.files import FileLock
from agent.record.node_record import NODE_FILE as NODE
from agent.record.node_record import NodeRecord, PidSpace, own_record
from agent.record.run_folder import RunFolder
from agent.record.run_record import (
    RUN_FILE,
    RUN_LOCK,
    ChosenRun,
    RunRecord,
    choose_run,
    proof_of,
)
from agent.run import make_ready
from agent.run.head_server import first_reply
from agent.run.make_goal import make_goal
from agent.run.run_store import RunStore
from agent.run.takeover import SurvivingProcesses
from agent.run.worker import record_reachability, state_with_surviving_ray
from agent.settings.redact import Redactor
from support.conditions import await_true
from support.event_words import cases
from support.free_ports import free_port
from support.heads import (
    LIMITS,
    PAIR,
    SHARED_DATA_STEP,
    TICK,
    History,
    SubmitJob,
    Trace,
    after_losses,
    goal,
    nodes,
    of_now,
    ray_lost,
    reported,
)
from support.histories import Case, head_after, play, play_head
from support.node_runs import made_run, node_run_with
from support.report_histories import FIRST, HELLO, POD1
from support.run_records import NOW, ended, record_of, store_of, submitted, written
from support.workers import GOAL, replied
from support.worlds import plan_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from agent.decisions.head.fleet import Worker
    from agent.decisions.head.head_goal import HeadGoal

# --- a later head, and what workers remember of a former one --------------------------------------

NO_JOB = replace(
    goal(1, job=False), limits={key: LIMITS[key] for key in LIMITS if key != wait_keys.JOB}
)
WORDS = {
    "a later head": h.LaterHead(7, "pod2 follows it"),
    "left: an attempt": [after_losses(LostAttempt(700.0, "its head was lost"))],
    "no job": NO_JOB,
    "no job, a former Ray": replace(NO_JOB, has_former_ray=True),
}

MAKES_ROOM = cases(
    """\
a head without a job makes room at once [1 worker, 3 retries]
    11 a later head -> end 75: superseded: a later head of run run …
a head makes room under the submission [1 worker, 3 retries]
    3 nodes 2 -> submit run-1 | 4 pod2 joined | 11 a later head -> stop run-1 | 12 a later head
    later tick -> end 75: superseded: a later head of run run …
a head makes room under the job [1 worker, 3 retries]
    pair | 11 a later head -> stop run-1 | 12 a later head
    later tick -> end 75: superseded: a later head of run run …
a head makes room after a failure [1 worker, 3 retries]
    pair | 10 job FAILED 1 -> ask the nodes
    11 a later head -> end 75: superseded: a later head of run run …
# It is the later head's now
a job on a Ray of others is left [3 retries, given Ray]
    alone | 11 a later head -> end 75: superseded: a later head of run run … | 12 a later head
    later tick
a head makes room that only serves [1 worker, no job]
    3 nodes 2 | 4 pod2 joined | 11 a later head -> end 75: superseded: a later head of run run …
# An attempt that would have followed does not start
a job that stops already is not made again [1 worker, 3 retries]
    pair | 9 pod2 silent: no answer | 70 tick -> stop run-1 | 71 a later head
    72 job STOPPED -> end 75: superseded: a later head of run run …
""",
    WORDS,
)
REMEMBERED = cases(
    """\
a decided outcome stands [1 worker, 3 retries]
    pair | 9 TERM -> stop run-1 | 10 a later head
    11 job STOPPED -> end 143: asked to stop by SIGTERM | marks nothing
# Its node is unknown: its job has ended AGENT_NODE_GRACE after the run was resumed
a head that workers remember has its time [1 retry]
    1 remembered old 1 | 3 nodes
    waits waiting for the end of attempt 1 on the former head, out of reach… (58 s left) | 60.9 tick
    61 tick -> submit old-2 | log attempt 2 of 2: its head was lost
a head that workers remember had made no attempt [1 retry]
    1 remembered old 0 | 3 nodes -> submit old-1
a worker may remember that the attempts are used up
    1 remembered old 1
        -> end 75: its head was lost; 1 attempt(s) lost, and AGENT_JOB_RETRIES=0 allows no other
    marks holds_pod
a head with a record ignores other runs [3 retries]
    left: an attempt | 1 remembered old 1 | 3 nodes -> submit run-2
a head that has submitted its job ignores other runs [3 retries]
    alone | 6 remembered old 1
# A killed agent's workers report its run; no limit of a job exists there
a cluster without a job has no attempt to find [no job]
    1 remembered run 1 | 3 nodes 2 | 4 pod2 joined | phase running
nor on the Ray of a former agent [no job, a former Ray]
    1 remembered run 1 | 3 nodes 2 | 4 pod2 joined | phase running
""",
    WORDS,
)


@pytest.mark.parametrize("case", MAKES_ROOM.values(), ids=MAKES_ROOM)
def test_a_head_makes_room(case: Case) -> None:
    """Its job is stopped, never made again; one on a Ray of others' is the later head's now."""
    trace = play_head(case)
    (end,) = trace.outcomes
    assert (end.kind, end.is_superseded, end.holds_pod) == (Kind.LOST, True, False)
    assert trace.state.verdict_for_workers is None


@pytest.mark.parametrize("case", REMEMBERED.values(), ids=REMEMBERED)
def test_what_workers_remember(case: Case) -> None:
    """The run keeps its ID and its attempts count, unless the head has a record itself."""
    play(case)


def test_a_head_without_its_disk_continues_the_run_that_a_worker_reports() -> None:
    """The run keeps its ID, and its attempts count."""
    trace = Trace(goal(retries=1), [(1, h.RunRemembered("old", 1))] * 2)
    assert trace.effects == []
    (kept,) = [one for one in trace.actions if isinstance(one, h.Persist)]
    assert kept.must_be_on_disk
    assert (kept.durable.run_id, len(kept.durable.ended)) == ("old", 1)
    trace.take(nodes(), 3)
    trace.take(TICK, 61)
    assert trace.effects[-1] == SubmitJob("old-2")
    assert "attempt 2 of 2: its head was lost" in trace.log


def test_a_run_without_a_job_is_taken_over_with_its_epoch() -> None:
    """None of its attempts is counted as lost."""
    trace = head_after(NO_JOB, (1, h.RunRemembered("old", 1, 7)))
    assert trace.effects == []
    (kept,) = trace.persisted
    assert (kept.run_id, kept.epoch, kept.ended) == ("old", 7 + EPOCH_STEP, ())


@pytest.mark.parametrize(
    ("of", "history", "ray"),
    [
        (goal(1), [(1, nodes()), (2, ray_lost("exit 1"))], 2),
        (goal(1, retries=1), [*PAIR, (9, ray_lost("exit 1"))], 2),
        (goal(1), [(1, h.RunRemembered("old", 0, epoch=900))], 1),
    ],
    ids=["Ray is started again", "another attempt begins", "workers followed a higher one"],
)
def test_workers_learn_of_an_epoch_once_it_is_on_the_disk(
    of: HeadGoal, history: History, ray: int
) -> None:
    """Else an agent that is killed in between leaves one that is superseded by its own epoch.

    It is on disk before Ray starts again; replies have it once all actions are done.
    """
    *before, (at, last) = history
    trace = Trace(of, before)
    epoch = trace.state.durable.epoch
    state, actions = head.decide(trace.state, of_now(last, trace.state, at), at)
    persist = actions[0]
    assert isinstance(persist, h.Persist)
    assert persist.must_be_on_disk
    assert persist.durable == state.durable
    assert state.durable.epoch > epoch
    assert wanted_of(state, HERE)[RAY].generation == ray
    assert (Publish((HERE,)) in actions[1:]) == (ray > 1)


def test_who_joins_a_running_attempt_is_recorded() -> None:
    """A restarted head must have every node that may have taken part."""
    trace = Trace(goal(1), [(1, reported(2)), (1, reported(3)), *PAIR])
    assert trace.state.attempt.nodes == ("pod2",)
    trace.take(nodes(2, 3), 7)
    left = trace.persisted[-1]
    assert left.attempt.nodes == ("pod2", "pod3")
    next_head = taken_over(left, Succession(), NOW)
    assert head.former_nodes(goal(1), next_head) == ("pod2", "pod3")
    assert head.former_nodes(goal(1), left) == ()
    assert next_head.has_outdated_ray
    assert not next_head.starting_ray("pod0", 0.0).has_outdated_ray


def test_a_ray_that_is_to_be_replaced_is_not_taken_over() -> None:
    """The agent was killed before it stopped the Ray of a lost attempt: another one must start."""
    trace = Trace(goal(1, retries=1), PAIR)
    assert not trace.state.durable.has_outdated_ray
    after, _ = head.decide(trace.state, ray_lost("exit 1", generation=1), 10)
    assert after.durable.has_outdated_ray
    assert not after.durable.starting_ray("pod0", 0.0).has_outdated_ray
    trace.take(ray_lost("exit 1"), 10)
    assert not trace.persisted[-1].has_outdated_ray


# --- the nodes that the next head of a run counts on ----------------------------------------------

PRINT = "f" * 16
ELSEWHERE = PidSpace("another boot", "pid:[7]", "poda")


def release(chosen: ChosenRun) -> None:
    """Release the lock of a run."""
    assert chosen.lock is not None
    chosen.lock.release()


def chosen_again(root: Path) -> ChosenRun:
    """Return the run as the platform's next head finds it."""
    chosen = choose_run(root, "4711", PRINT, lambda: "new", node="podb")
    assert chosen.lock is not None
    return chosen


def left(root: Path, place: PidSpace = ELSEWHERE, *, ended: bool = False) -> None:
    """Leave a run whose head was lost in its first attempt, on its own machine."""
    chosen = chosen_again(root)
    store = RunStore(root, PRINT, chosen)
    durable = store.durable.starting_ray("poda", time.time())
    store.put(submitted(durable, nodes=("pod2",)), 0.0)
    store.close()
    release(chosen)
    folder = root / "4711" / "poda"
    folder.mkdir()
    record = replace(own_record("poda", "4711"), place=place, ended=ended)
    assert record.write(folder / NODE) is None


def test_a_lost_attempt_is_over_on_disk_before_the_next_ray_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent that replaces this one must not look for that attempt in the new Ray."""
    left(tmp_path)
    store = RunStore(tmp_path, PRINT, chosen_again(tmp_path))
    write, found = RunRecord.write, list[object]()

    def write_slowly(record: RunRecord, path: Path) -> OSError | None:
        time.sleep(0.1)  # a slow disk
        return write(record, path)

    async def prepare(*_: object) -> None:
        """Find this machine ready."""

    async def start_ray(*_: object) -> None:
        record = RunRecord.read(tmp_path / "4711" / RUN_FILE)
        assert isinstance(record, RunRecord)
        found.append((record.durable.open_attempt, record.epoch == store.durable.epoch))

    async def scenario() -> None:
        environ = {"AGENT_PORT": str(free_port()), "AGENT_NODE_IP": "127.0.0.1"}
        plan = plan_of({**environ, "AGENT_JOB_RETRIES": "3"}, command=["train"])
        folder = RunFolder(tmp_path, "4711", "podb")
        run = made_run(plan, Redactor(()), folder, time.monotonic(), "4711")
        started = await make_ready.start_head(run, store, anyio.CancelScope())
        assert started is not None
        started.local_socket.close()
        run.close()

    monkeypatch.setattr(RunRecord, "write", write_slowly)
    monkeypatch.setattr(make_ready, "prepare_machine", prepare)
    monkeypatch.setattr(make_ready, "start_ray", start_ray)
    anyio.run(scenario)
    assert found == [(None, True)]
    store.close()


def waited_for(root: Path) -> tuple[str, ...]:
    """Return the nodes that the next head counts as those of the last attempt."""
    chosen = chosen_again(root)
    store = RunStore(root, PRINT, chosen)
    plan = plan_of({"AGENT_JOB_RETRIES": "3"}, command=["train"])
    found = head.former_nodes(make_goal(plan, store, 0.0), store.durable)
    store.close()
    release(chosen)
    return found


def without_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate a disk without locks."""
    refused = OSError(errno.ENOLCK, "No locks available")
    monkeypatch.setattr("fcntl.flock", Mock(side_effect=refused))


def test_a_head_that_took_the_lock_of_the_former_is_alone(tmp_path: Path) -> None:
    """The former head holds that lock as long as it runs."""
    left(tmp_path)
    assert waited_for(tmp_path) == ("pod2",)


@pytest.mark.parametrize("what", ["no locks", "another lock", "no lock before"])
def test_a_former_head_may_still_run_its_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Without locks on the disk, or after a lost lock, a free lock proves nothing.

    The same holds if no record names its node.
    """
    if what == "no lock before":
        with monkeypatch.context() as patch:
            without_locks(patch)
            left(tmp_path)
    else:
        left(tmp_path)
    if what == "no locks":
        without_locks(monkeypatch)
    held = FileLock(tmp_path / "4711" / RUN_LOCK)
    if what == "another lock":
        held.take()
        (tmp_path / "4711" / RUN_LOCK).unlink()
    assert waited_for(tmp_path) == ("pod2", "poda")
    (tmp_path / "4711" / "poda" / NODE).unlink()
    assert waited_for(tmp_path) == ("pod2", "poda")
    held.release()


@pytest.mark.parametrize("what", ["it left in good order", "its processes are seen here"])
def test_a_former_head_whose_job_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """No lock is needed: none of its processes can run elsewhere."""
    if what == "it left in good order":
        left(tmp_path, ended=True)
    else:
        left(tmp_path, own_record("poda", "4711").place)
        died = NodeRecord.read(tmp_path / "4711" / "poda" / NODE)
        assert isinstance(died, NodeRecord)
        gone = replace(died.agent, start=died.agent.start + 1)
        replace(died, agent=gone).write(tmp_path / "4711" / "poda" / NODE)
    without_locks(monkeypatch)
    assert waited_for(tmp_path) == ("pod2",)


def test_a_run_that_workers_remember_has_no_submitter(tmp_path: Path) -> None:
    """The lock that was taken counts as the former head's."""
    left(tmp_path)
    record = written(tmp_path, "4711")
    assert record.measured.submitter is not None
    assert (record.measured.submitter.head, record.measured.submitter.lock > 0) == ("poda", True)
    unknown = replace(record, measured=replace(record.measured, submitter=None))
    unknown.write(tmp_path / "4711" / RUN_FILE)
    assert waited_for(tmp_path) == ("pod2",)


def test_a_head_in_between_hides_nobody(tmp_path: Path) -> None:
    """The head that submitted the attempt counts, not one that only followed it."""
    left(tmp_path)
    held = FileLock(tmp_path / "4711" / RUN_LOCK)
    held.take()
    (tmp_path / "4711" / RUN_LOCK).unlink()
    chosen = chosen_again(tmp_path)
    between = RunStore(tmp_path, PRINT, chosen)
    between.put(between.durable.starting_ray("podb", time.time()), 0.0)
    between.close()
    release(chosen)
    assert waited_for(tmp_path) == ("pod2", "poda")
    held.release()


def test_a_head_that_no_attempt_was_made_by_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No job, no driver: the next head need not wait."""
    chosen = chosen_again(tmp_path)
    store = RunStore(tmp_path, PRINT, chosen)
    store.put(store.durable.starting_ray("poda", time.time()), 0.0)
    store.close()
    without_locks(monkeypatch)
    assert waited_for(tmp_path) == ()


# --- records of the run ---------------------------------------------------------------------------


def begun(root: Path, run_id: str = "run") -> RunStore:
    """Return the store of a head that starts Ray in a new run."""
    store = store_of(root, run_id)
    store.put(store.durable.starting_ray("pod0", time.time()), 0.0)
    return store


def test_the_record_of_a_later_head_stands(tmp_path: Path) -> None:
    """A higher epoch on the disk is reported, and not overwritten."""
    store = store_of(tmp_path)
    store.put(submitted(store.durable.starting_ray("pod0", time.time())), 0.0)
    store.close()
    assert store.later_epoch() == 0
    later = record_of(Durable("run", "f" * 16, store.durable.epoch + 1, head="pod0"))
    assert later.write(tmp_path / "run" / RUN_FILE) is None
    assert store.later_epoch() == later.epoch
    chosen = ChosenRun("run", store.record)
    slow = RunStore(tmp_path, "f" * 16, chosen, Succession(job_survives=True))
    slow.put(ended(slow.durable), 0.0)
    slow.close()
    assert written(tmp_path) == later


def test_an_agent_that_replaces_a_killed_one_yields_to_a_later_head(tmp_path: Path) -> None:
    """On a disk without locks run.json has that head's epoch: node.json has its own."""
    store, noted = store_of(tmp_path), list[int]()
    store.note_epoch = lambda epoch, _limit: noted.append(epoch)
    store.put(submitted(store.durable.starting_ray("pod0", time.time())), 0.0)
    store.close()
    own = store.durable.epoch
    assert noted == [own]
    later = record_of(Durable("run", "f" * 16, own + 1, head="pod0"))
    assert later.write(tmp_path / "run" / RUN_FILE) is None
    chosen = ChosenRun("run", later)
    for survives in (False, True):

        def replaces(epoch: int, *, survives: bool = survives) -> RunStore:
            how = Succession(replaces_agent=True, job_survives=survives, own_epoch=epoch)
            return RunStore(tmp_path, "f" * 16, chosen, how)

        of_later = replaces(later.epoch)
        assert of_later.outcome_at_start(0) is None
        of_later.close()
        replacing = replaces(own)
        end = replacing.outcome_at_start(0)
        assert end is not None
        assert end.is_superseded
        assert (replacing.durable.epoch, replacing.later_epoch()) == (own, later.epoch)
        replacing.put(replacing.durable.with_end(end, NOW), 0.0)
        replacing.close()
        assert written(tmp_path) == later


def test_no_record_of_the_run_has_an_epoch_that_the_nodes_lacks(tmp_path: Path) -> None:
    """Else an agent that is killed in between would yield to itself."""
    run = node_run_with(tmp_path, ())
    store, before = RunStore(tmp_path, "f" * 16, ChosenRun("run-1", None)), list[int]()

    def note(epoch: int, limit: float) -> OSError | None:
        error = run.node.record_epoch(epoch, limit)
        if error is not None:
            return error
        found = NodeRecord.read(run.folder.file(NODE))
        assert isinstance(found, NodeRecord)
        before.append(found.epoch)
        assert not (tmp_path / "run-1" / RUN_FILE).exists()
        return None

    store.note_epoch = note
    store.put(store.durable.starting_ray("node-a", time.time()), 0.0)
    anyio.run(store.on_disk)
    assert before == [store.durable.epoch]
    store.close()
    run.close()


def test_the_record_of_the_run_waits_for_the_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where node.json cannot take the epoch, run.json does not name it, until it can."""
    monkeypatch.setattr(times, "WRITE_RETRY", 0.05)
    (tmp_path / "run-1").mkdir()
    store = RunStore(tmp_path, "f" * 16, ChosenRun("run-1", None))
    errors = [OSError(errno.EAGAIN, "busy"), OSError(errno.EAGAIN, "busy"), None]
    is_written = list[bool]()

    def note(_epoch: int, _limit: float) -> OSError | None:
        is_written.append((tmp_path / "run-1" / RUN_FILE).exists())
        return errors[len(is_written) - 1]

    store.note_epoch = note
    store.put(store.durable.starting_ray("node-a", time.time()), 0.0)
    await_true((tmp_path / "run-1" / RUN_FILE).exists)
    assert is_written == [False, False, False]
    store.close()


def test_a_head_without_its_disk_outranks_the_one_before(tmp_path: Path) -> None:
    """If its clock is behind, its epoch is still higher than the one that its workers have."""
    store = begun(tmp_path, "new")
    before = store.durable.epoch + 1_000_000
    lower = store.durable.epoch - 5
    remembered = recalled(store, of_run("old", 1, lower), lower)
    assert remembered == h.RunRemembered("old", 1, is_of_other_head=True)
    remembered = recalled(store, of_run("old", 0, before), before)
    assert remembered == h.RunRemembered("old", 0, before, is_of_other_head=True)
    trace = Trace(goal(1), [(1, remembered)], store.durable)
    assert (trace.state.durable.run_id, trace.state.durable.epoch) == ("old", before + EPOCH_STEP)
    store.put(submitted(trace.state.durable), 1.0)
    assert recalled(store, of_run("old", 1, before), before) is None
    store.close()


def recalled(store: RunStore, hello: Hello, epoch: int) -> h.RunRemembered | None:
    """Return the run that a hello recalls to a head, if it is taken for one."""
    sent: list[h.RunRemembered] = []
    assert store.recall(sent.append, hello, epoch) == bool(sent)
    return sent[0] if sent else None


def of_run(run_id: str, attempt: int, epoch: int) -> Hello:
    """Return the hello of a worker that outlived a head of this job."""
    proof = proof_of("f" * 16, run_id, attempt, epoch)
    return Hello("pod1", 1, run_id=run_id, attempt=attempt, fingerprint=proof)


def test_no_stranger_renames_a_run(tmp_path: Path) -> None:
    """What the head's replies hold proves their own run, attempt and epoch, and nothing else."""
    store = begun(tmp_path)
    reply = anyio.run(first_reply, store, 1, "10.0.0.1")
    own = Hello("evil", 1, run_id=reply.run_id, fingerprint=reply.fingerprint)
    assert recalled(store, own, reply.epoch) == h.RunRemembered("run", 0)
    assert Trace(goal(1), [(1, h.RunRemembered("run", 0))]).effects == []
    for evil, epoch in (
        (replace(own, run_id="evil"), reply.epoch),
        (replace(own, attempt=10**15), reply.epoch),
        (own, reply.epoch + 1),
        (replace(own, run_id="evil", fingerprint=""), 0),
    ):
        assert recalled(store, evil, epoch) is None
    store.close()


def test_nothing_is_read_for_who_cannot_prove_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else anyone could let the head read its disk, in the loop, again and again."""
    store = store_of(tmp_path)
    store.close()
    read: list[str] = []
    monkeypatch.setattr(RunRecord, "read", lambda path: read.append(path.parent.name))
    assert recalled(store, Hello("evil", 1, run_id="old", fingerprint="x"), 5) is None
    assert read == []
    assert recalled(store, of_run("old", 1, 5), 5) is not None
    assert read == ["old"]


def test_what_others_remember_is_written_down(tmp_path: Path) -> None:
    """The next head of this pod finds it on the disk, under the run's own ID."""
    store = store_of(tmp_path, "new")
    own = store.durable.starting_ray("pod0", 1e9)
    store.put(own, 0.0)
    anyio.run(store.on_disk)
    trace = Trace(goal(retries=3), [(1, h.RunRemembered("old", 2))], own)
    store.put(trace.state.durable, 1.0)
    store.close()
    assert not (tmp_path / "new" / RUN_FILE).exists()
    found = written(tmp_path, "old").durable
    assert [(one.number, one.exit_code) for one in found.ended] == [(1, 75), (2, 75)]
    assert (found.attempt.id, found.epoch) == ("old-3", own.epoch)


def test_a_workers_next_agent_finds_in_its_record_that_the_head_has_one(tmp_path: Path) -> None:
    """Both agents were killed before this node joined."""
    run = made_run(plan_of({}), Redactor(()), RunFolder(tmp_path, "run", "pod1"), 0.0)
    preparing = replace(GOAL, steps=(SHARED_DATA_STEP,))
    before = state_with_surviving_ray(run, preparing)
    assert not before.has_agent
    after, _ = worker.decide(before, replied(ready=False), 1)
    record_reachability(run, before, after)
    run.surviving = SurvivingProcesses(run.node.record)
    run.close()
    first = state_with_surviving_ray(run, preparing)
    assert (first.has_agent, first.ray) == (True, None)
    state, actions = worker.decide(first, replied(epoch=None, phase="", run=""), 1)
    assert (state.is_plain_head, state.ray_ready, actions) == (False, False, ())


# --- the replies to workers -----------------------------------------------------------------------

KNOWING = replace(POD1, hello=replace(HELLO, run_id="old", attempt=1), epoch=9)


def reports_with(on_memory: Callable[[Hello, int], bool]) -> Reports:
    """Return a head's reports, with what it does about a worker with a run."""
    expected = Expected("2.60.0", "3.11.7", "", "abc")
    return Reports(FIRST, expected, lambda _event: None, lambda: 1.0, on_recalled_run=on_memory)


def test_a_worker_with_a_run_is_answered_after_the_decision() -> None:
    """Until then no reply names another run to it, even if it asks again while that is recorded."""
    remembered: list[tuple[str, int, int]] = []

    def on_memory(hello: Hello, epoch: int) -> bool:
        remembered.append((hello.run_id, hello.attempt, epoch))
        return len(remembered) == 1  # the second time the disk has it

    reports = reports_with(on_memory)
    replies: list[Reply] = []

    async def ask() -> None:
        replies.append(await reports.handle(KNOWING))

    async def trace() -> None:
        with anyio.fail_after(4):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask)
                tasks.start_soon(ask)
                while len(remembered) < 2:
                    await anyio.lowlevel.checkpoint()
                await anyio.wait_all_tasks_blocked()
                assert replies == []
                reports.publish(run_id="old")
                reports.run_decided.set()

    anyio.run(trace)
    assert remembered == [("old", 1, 9)] * 2
    assert [reply.run_id for reply in replies] == ["old"] * 2


@pytest.mark.parametrize("asks_before", [True, False])
def test_a_worker_with_a_run_is_answered_at_the_end(*, asks_before: bool) -> None:
    """A head that has ended decides on no run: the verdict follows at once."""
    recalled: list[str] = []

    def on_memory(hello: Hello, _epoch: int) -> bool:
        recalled.append(hello.run_id)
        return True

    reports = reports_with(on_memory)
    verdict = ends.STOPPED_BY_SIGNAL.outcome(code=0, signal="SIGTERM")
    replies: list[Reply] = []

    async def ask() -> None:
        replies.append(await reports.handle(KNOWING))

    async def trace() -> None:
        with anyio.fail_after(times.RUN_DECIDED / 2):
            async with anyio.create_task_group() as tasks:
                if asks_before:
                    tasks.start_soon(ask)
                    await anyio.wait_all_tasks_blocked()
                reports.publish(verdict=verdict)
                if not asks_before:
                    tasks.start_soon(ask)

    anyio.run(trace)
    assert [reply.verdict for reply in replies] == [verdict]
    assert recalled == (["old"] if asks_before else [])


def test_ranks_come_with_the_reply() -> None:
    """The first hello gets rank 1; a node with a rank from its platform gets none."""
    received: list[Worker] = []
    kept: list[tuple[str, ...]] = []
    first = Reply(1, "run-1", "booting", ray_ready=False, head_ip="10.0.0.1", news=0)
    reports = Reports(
        first,
        Expected(None, "", "", ""),
        lambda event: received.append(event.worker) if hasattr(event, "worker") else None,
        lambda: 1.0,
        keep_ranks=kept.append,
        has_token=True,
    )

    def rank(key: str, name: str, own: int | None = None) -> int | None:
        ip = f"10.0.0.{ord(key)}"
        report = Report(key, ip, "joining", hello=Hello(name, own))
        reply = anyio.run(reports.handle, Report.from_dict(report.to_dict()))
        return Reply.from_dict(reply.to_dict()).rank

    assert [rank("a", "pod1"), rank("b", "pod2"), rank("c", "pod9", 5)] == [1, 2, None]
    assert rank("d", "pod1") == 1
    assert kept == [("pod1",), ("pod1", "pod2")]
    assert [one.effective_rank for one in received] == [1, 2, 5, 1]
