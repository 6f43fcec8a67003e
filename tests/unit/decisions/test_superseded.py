"""A head that detects a later head of its run stops its job, and ends alone with 75."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import anyio
import pytest
from msgspec.structs import replace

from agent.base import times
from agent.base.ends import Kind
from agent.decisions.attempts import Attempt
from agent.decisions.head import head_state as h
from agent.port.protocol import Hello
from agent.record.node_record import NODE_FILE, NodeRecord
from agent.record.run_record import RUN_FILE, ChosenRun, RunRecord, proof_of
from agent.run.head_server import first_reply
from agent.run.run_keeper import RunKeeper
from support.conditions import await_true
from support.heads import PAIR, RUNNING, TERM, TICK, History, Trace, goal, job
from support.node_runs import node_run_with

if TYPE_CHECKING:
    from pathlib import Path

    from agent.decisions.head.head_goal import HeadGoal

LATER = h.LaterHead(7, "pod2 follows it")
FAILED = (10, job("FAILED", 1))


@pytest.mark.parametrize(
    ("of", "history", "actions"),
    [
        (goal(1, retries=3), [], []),
        (goal(1, retries=3), PAIR[:2], [h.SubmitJob("run-1"), h.StopJob("run-1")]),
        (goal(1, retries=3), PAIR, [h.SubmitJob("run-1"), h.StopJob("run-1")]),
        (goal(1, retries=3), [*PAIR, FAILED], [h.SubmitJob("run-1"), h.AskNodes("run-1")]),
        (goal(retries=3, given=True), RUNNING, [h.SubmitJob("run-1")]),
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


def test_workers_learn_of_an_epoch_once_it_is_on_the_disk(tmp_path: Path) -> None:
    """Else an agent that is killed in between leaves one that is superseded by its own epoch."""
    first = RunRecord("run", "f" * 16, 5)
    keeper = RunKeeper(tmp_path, "f" * 16, ChosenRun("run", first), replaces_agent=True)
    (tmp_path / "run").mkdir()
    assert keeper.epoch == 5
    keeper.new_epoch("pod0")
    assert keeper.epoch == 5
    anyio.run(keeper.flush)
    found = RunRecord.read(tmp_path / "run" / RUN_FILE)
    assert isinstance(found, RunRecord)
    assert keeper.epoch == found.epoch > 5
    keeper.adopt_run("old", 1, keeper.epoch + 10)
    assert keeper.epoch == found.epoch
    anyio.run(keeper.flush)
    assert keeper.epoch == found.epoch + 11
    keeper.close()


def test_the_record_of_a_later_head_stands(tmp_path: Path) -> None:
    """A higher epoch on the disk is reported, and not overwritten."""
    keeper = RunKeeper(tmp_path, "f" * 16, ChosenRun("run", None))
    (tmp_path / "run").mkdir()
    keeper.new_epoch("pod0")
    keeper.record_submission(Attempt("run-1"))
    keeper.close()
    assert keeper.later_epoch() == 0
    later = RunRecord("run", "f" * 16, keeper.record.epoch + 1, head="pod0")
    assert later.write(tmp_path / "run" / RUN_FILE) is None
    assert keeper.later_epoch() == later.epoch
    slow = RunKeeper(tmp_path, "f" * 16, ChosenRun("run", keeper.record), job_survives=True)
    slow.record_submission(Attempt("run-2", 2))
    slow.close()
    assert RunRecord.read(tmp_path / "run" / RUN_FILE) == later


def test_an_agent_that_replaces_a_killed_one_yields_to_a_later_head(tmp_path: Path) -> None:
    """On a disk without locks run.json has that head's epoch: node.json has its own."""
    (tmp_path / "run").mkdir()
    keeper, noted = RunKeeper(tmp_path, "f" * 16, ChosenRun("run", None)), list[int]()
    keeper.note_epoch = noted.append
    keeper.new_epoch("pod0")
    keeper.record_submission(Attempt("run-1"))
    keeper.close()
    own = keeper.record.epoch
    assert noted == [own]
    later = RunRecord("run", "f" * 16, own + 1, head="pod0")
    assert later.write(tmp_path / "run" / RUN_FILE) is None
    chosen = ChosenRun("run", later)
    for survives in (False, True):

        def replaces(epoch: int, *, survives: bool = survives) -> RunKeeper:
            about = (tmp_path, "f" * 16, chosen)
            how = {"job_survives": survives, "replaces_agent": True}
            return RunKeeper(*about, **how, own_epoch=epoch)  # type: ignore[arg-type]  # two flags

        of_later = replaces(later.epoch)
        assert of_later.final_outcome(0) is None
        of_later.close()
        replacing = replaces(own)
        end = replacing.final_outcome(0)
        assert end is not None
        assert end.is_superseded
        assert (replacing.epoch, replacing.later_epoch()) == (own, later.epoch)
        replacing.record_end(end)
        replacing.close()
        assert RunRecord.read(tmp_path / "run" / RUN_FILE) == later


def test_no_record_of_the_run_has_an_epoch_that_the_nodes_lacks(tmp_path: Path) -> None:
    """Else an agent that is killed in between would yield to itself."""
    run = node_run_with(tmp_path, ())
    keeper, before = RunKeeper(tmp_path, "f" * 16, ChosenRun("run-1", None)), list[int]()

    def note(epoch: int) -> None:
        run.node.record_epoch(epoch)
        found = NodeRecord.read(run.folder.file(NODE_FILE))
        assert isinstance(found, NodeRecord)
        before.append(found.epoch)
        assert not (tmp_path / "run-1" / RUN_FILE).exists()

    keeper.note_epoch = note
    keeper.new_epoch("node-a")
    anyio.run(keeper.flush)
    assert before == [keeper.epoch]
    keeper.close()
    run.close()


def test_the_record_of_the_run_waits_for_the_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where node.json cannot take the epoch, run.json does not name it, until it can."""
    monkeypatch.setattr(times, "WRITE_RETRY", 0.05)
    (tmp_path / "run-1").mkdir()
    keeper = RunKeeper(tmp_path, "f" * 16, ChosenRun("run-1", None))
    errors = [OSError(errno.EAGAIN, "busy"), OSError(errno.EAGAIN, "busy"), None]
    written = list[bool]()

    def note(_epoch: int) -> OSError | None:
        written.append((tmp_path / "run-1" / RUN_FILE).exists())
        return errors[len(written) - 1]

    keeper.note_epoch = note
    keeper.new_epoch("node-a")
    await_true((tmp_path / "run-1" / RUN_FILE).exists)
    assert written == [False, False, False]
    keeper.close()


def test_a_head_without_its_disk_outranks_the_one_before(tmp_path: Path) -> None:
    """If its clock is behind, its epoch is still higher than the one that its workers have."""
    keeper = RunKeeper(tmp_path, "f" * 16, ChosenRun("new", None))
    keeper.new_epoch("pod0")
    before = keeper.record.epoch + 1_000_000
    lower = keeper.record.epoch - 5
    remembered = recalled(keeper, of_run("old", 1, lower), lower)
    assert remembered == h.RunRemembered("old", 1, is_of_other_head=True)
    remembered = recalled(keeper, of_run("old", 0, before), before)
    assert remembered == h.RunRemembered("old", 0, before, is_of_other_head=True)
    trace = Trace(goal(1), [(1, remembered)])
    assert trace.effects == [h.AdoptRun("old", 0, before)]
    keeper.adopt_run("old", 0, before)
    assert keeper.record.epoch == before + 1
    keeper.record_submission(Attempt("old-1"))
    assert recalled(keeper, of_run("old", 1, before), before) is None
    keeper.close()


def recalled(keeper: RunKeeper, hello: Hello, epoch: int) -> h.RunRemembered | None:
    """Return the run that a hello recalls to a head, if it is taken for one."""
    sent: list[h.RunRemembered] = []
    assert keeper.recall(sent.append, hello, epoch) == bool(sent)
    return sent[0] if sent else None


def of_run(run_id: str, attempt: int, epoch: int) -> Hello:
    """Return the hello of a worker that outlived a head of this job."""
    proof = proof_of("f" * 16, run_id, attempt, epoch)
    return Hello("pod1", 1, run_id=run_id, attempt=attempt, fingerprint=proof)


def test_no_stranger_renames_a_run(tmp_path: Path) -> None:
    """What the head's replies hold proves their own run, attempt and epoch, and nothing else."""
    keeper = RunKeeper(tmp_path, "f" * 16, ChosenRun("run", None))
    keeper.new_epoch("pod0")
    anyio.run(keeper.flush)
    reply = anyio.run(first_reply, keeper, 1, "10.0.0.1")
    own = Hello("evil", 1, run_id=reply.run_id, fingerprint=reply.fingerprint)
    assert recalled(keeper, own, reply.epoch) == h.RunRemembered("run", 0)
    assert Trace(goal(1), [(1, h.RunRemembered("run", 0))]).effects == []
    for evil, epoch in (
        (replace(own, run_id="evil"), reply.epoch),
        (replace(own, attempt=10**15), reply.epoch),
        (own, reply.epoch + 1),
        (replace(own, run_id="evil", fingerprint=""), 0),
    ):
        assert recalled(keeper, evil, epoch) is None
    keeper.close()


def test_nothing_is_read_for_who_cannot_prove_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else anyone could let the head read its disk, in the loop, again and again."""
    keeper = RunKeeper(tmp_path, "f" * 16, ChosenRun("run", None))
    keeper.close()
    read: list[str] = []
    monkeypatch.setattr(RunRecord, "read", lambda path: read.append(path.parent.name))
    assert recalled(keeper, Hello("evil", 1, run_id="old", fingerprint="x"), 5) is None
    assert read == []
    assert recalled(keeper, of_run("old", 1, 5), 5) is not None
    assert read == ["old"]


def test_who_joins_a_running_attempt_is_recorded(tmp_path: Path) -> None:
    """A restarted head must have every node that may have taken part."""
    keeper = RunKeeper(tmp_path, "f" * 16, ChosenRun("run", None))
    keeper.record_nodes(["pod3"])
    keeper.record_submission(Attempt("run-1"), ("pod1",), 1)
    keeper.record_nodes(["pod1", "pod2"])
    assert (keeper.record.attempts[0].nodes, keeper.former_nodes) == (("pod1", "pod2"), ())
    keeper.close()
    again = RunKeeper(tmp_path, "f" * 16, ChosenRun("run", keeper.record))
    assert again.former_nodes == ("pod1", "pod2")
    assert again.has_outdated_ray
    again.new_epoch("pod0")
    assert not again.has_outdated_ray
    again.record_nodes(["pod4"])
    assert again.former_nodes == ("pod1", "pod2")
    again.close()
