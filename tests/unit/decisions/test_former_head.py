"""The former head's node, where the driver runs: a later head waits for that driver's end."""

from __future__ import annotations

import errno
import time
from typing import TYPE_CHECKING
from unittest.mock import Mock

import anyio
import pytest
from msgspec.structs import replace

from agent.decisions.durable import EPOCH_STEP
from agent.decisions.head import head_decide as head
from agent.decisions.head import head_state as h
from agent.plan import waits as wait_keys
from agent.record.files import FileLock
from agent.record.node_record import NODE_FILE as NODE
from agent.record.node_record import NodeRecord, PidSpace, own_record
from agent.record.run_folder import RunFolder
from agent.record.run_record import RUN_FILE, RUN_LOCK, ChosenRun, RunRecord, choose_run
from agent.run import make_ready
from agent.run.make_goal import make_goal
from agent.run.run_store import RunStore
from agent.settings.redact import Redactor
from support.free_ports import free_port
from support.heads import TICK, SubmitJob, Trace, goal, nodes, reported
from support.node_runs import made_run
from support.run_records import submitted, written
from support.worlds import plan_of

if TYPE_CHECKING:
    from pathlib import Path

PRINT = "f" * 16
ELSEWHERE = PidSpace("another boot", "pid:[7]", "poda")


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
    assert chosen.lock is not None
    chosen.lock.release()
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
    assert chosen.lock is not None
    chosen.lock.release()
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
    assert chosen.lock is not None
    chosen.lock.release()
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


def test_a_head_that_workers_remember_has_its_time() -> None:
    """Its node is unknown: its job has ended AGENT_NODE_GRACE after the run was resumed."""
    trace = Trace(goal(retries=1), [(1, h.RunRemembered("old", 1)), (3, nodes())])
    waits = [(wait.what, wait.deadline) for wait in head.pending_waits(trace.state)]
    assert ("the end of attempt 1 on the former head, out of reach", 61.0) in waits
    trace.take(TICK, 60.9)
    assert trace.effects == []
    trace.take(TICK, 61.0)
    assert trace.effects[-1] == SubmitJob("old-2")


def test_a_head_that_workers_remember_had_made_no_attempt() -> None:
    """No node of it is waited for."""
    trace = Trace(goal(retries=1), [(1, h.RunRemembered("old", 0)), (3, nodes())])
    assert trace.effects[-1] == SubmitJob("old-1")


@pytest.mark.parametrize("has_former_ray", [True, False])
def test_a_cluster_without_a_job_has_no_attempt_to_find(*, has_former_ray: bool) -> None:
    """A killed agent's workers report its run: no job is looked for, and none is counted as lost.

    Looking for it ended the run as a bug of the agent (70), since no limit of a job exists there.
    """
    of = replace(goal(1, job=False), has_former_ray=has_former_ray)
    of = replace(of, limits={key: of.limits[key] for key in of.limits if key != wait_keys.JOB})
    trace = Trace(of, [(1, h.RunRemembered("run", 1))])
    assert trace.effects == []
    trace.take(nodes(2), 3)
    trace.take(reported(2), 4)
    assert trace.state.phase is h.HeadPhase.RUNNING

    trace = Trace(of, [(1, h.RunRemembered("old", 1, 7))])
    assert trace.effects == []
    (kept,) = trace.persisted
    assert (kept.run_id, kept.epoch, kept.ended) == ("old", 7 + EPOCH_STEP, ())
