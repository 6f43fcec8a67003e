"""A head that detects a later head of its run stops its job, and ends alone with 75."""

from __future__ import annotations

import errno
import time
from typing import TYPE_CHECKING

import anyio
import pytest
from msgspec.structs import replace

from agent.base import times
from agent.base.ends import Kind
from agent.decisions.durable import EPOCH_STEP, Durable, Succession, taken_over
from agent.decisions.head import head_decide as head
from agent.decisions.head import head_state as h
from agent.decisions.head.head_decide import former_nodes
from agent.decisions.head.wanted import wanted_of
from agent.decisions.shared import HERE, RAY, Publish
from agent.port.protocol import Hello
from agent.record.node_record import NODE_FILE, NodeRecord
from agent.record.run_record import RUN_FILE, ChosenRun, RunRecord, proof_of
from agent.run.head_server import first_reply
from agent.run.run_store import RunStore
from support.conditions import await_true
from support.heads import (
    PAIR,
    RUNNING,
    TERM,
    TICK,
    History,
    StopJob,
    SubmitJob,
    Trace,
    goal,
    job,
    nodes,
    of_now,
    ray_lost,
    reported,
)
from support.node_runs import node_run_with
from support.run_records import NOW, ended, record_of, store_of, submitted, written

if TYPE_CHECKING:
    from pathlib import Path

    from agent.decisions.head.head_goal import HeadGoal

LATER = h.LaterHead(7, "pod2 follows it")
FAILED = (10, job("FAILED", 1))


@pytest.mark.parametrize(
    ("of", "history", "actions"),
    [
        (goal(1, retries=3), [], []),
        (goal(1, retries=3), PAIR[:2], [SubmitJob("run-1"), StopJob("run-1")]),
        (goal(1, retries=3), PAIR, [SubmitJob("run-1"), StopJob("run-1")]),
        (goal(1, retries=3), [*PAIR, FAILED], [SubmitJob("run-1"), h.Ask(h.AskNodes("run-1"))]),
        (goal(retries=3, given=True), RUNNING, [SubmitJob("run-1")]),
        (goal(1, job=False), PAIR[:2], []),
    ],
)
def test_a_head_makes_room(of: HeadGoal, history: History, actions: list[h.HeadAction]) -> None:
    """Its job is stopped, never made again; one on a Ray of others' is the later head's now."""
    trace = Trace(of, [*history, (11, LATER), (12, LATER)])
    assert trace.finish()
    assert trace.effects[:-1] == actions
    (end,) = trace.outcomes
    assert (end.kind, end.exit_code, end.is_superseded) == (Kind.LOST, 75, True)
    assert "superseded: a later head of run run has taken over (pod2 follows it)" in end.reason
    assert not end.holds_pod
    assert trace.state.verdict_for_workers is None


def test_a_job_that_stops_already_is_not_made_again() -> None:
    """A decided outcome stands; an attempt that would have followed does not start."""
    lost: History = [*PAIR, (9, h.WorkerSilent("agent2", "no answer")), (70, TICK)]
    trace = Trace(goal(1, retries=3), [*lost, (71, LATER), (72, job("STOPPED"))])
    assert [end.is_superseded for end in trace.outcomes] == [True]
    asked = Trace(goal(1, retries=3), [*PAIR, (9, TERM), (10, LATER), (11, job("STOPPED"))])
    assert [(end.exit_code, end.is_superseded) for end in asked.outcomes] == [(143, False)]


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
        found = NodeRecord.read(run.folder.file(NODE_FILE))
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
    store = store_of(tmp_path, "new")
    store.put(store.durable.starting_ray("pod0", time.time()), 0.0)
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
    store = store_of(tmp_path)
    store.put(store.durable.starting_ray("pod0", time.time()), 0.0)
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


def test_who_joins_a_running_attempt_is_recorded() -> None:
    """A restarted head must have every node that may have taken part."""
    trace = Trace(goal(1), [(1, reported(2)), (1, reported(3)), *PAIR])
    assert trace.state.attempt.nodes == ("pod2",)
    trace.take(nodes(2, 3), 7)
    left = trace.persisted[-1]
    assert left.attempt.nodes == ("pod2", "pod3")
    next_head = taken_over(left, Succession(), NOW)
    assert former_nodes(goal(1), next_head) == ("pod2", "pod3")
    assert former_nodes(goal(1), left) == ()
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
