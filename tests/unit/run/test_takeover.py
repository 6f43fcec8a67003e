"""A killed agent's records: unreadable for a while or for good, and its decided end."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import time
from functools import partial
from typing import TYPE_CHECKING

import anyio
import psutil
import pytest
from msgspec.structs import replace

from agent.base import ends, times
from agent.decisions.durable import Succession
from agent.decisions.worker import worker_state as w
from agent.processes import process
from agent.record import files
from agent.record.files import NoRecord
from agent.record.log_dir import RefusedPathError, log_dir
from agent.record.node_record import NODE_FILE, own_record
from agent.record.outcome_file import OUTCOME_FILE, outcome_text, write_outcome
from agent.record.run_record import RUN_FILE, ChosenRun, RunRecord, choose_run
from agent.run.effects import REAL
from agent.run.end import end_of_killed
from agent.run.make_goal import make_goal
from agent.run.restarts import container_of
from agent.run.run_store import RunStore
from agent.run.takeover import KilledAgent, find_killed_agent
from agent.run.worker import record_end
from support.captured import read
from support.node_runs import node_run_with
from support.run_records import submitted
from support.worlds import plan_of

if TYPE_CHECKING:
    from pathlib import Path

STALE = OSError(errno.ESTALE, "Stale file handle")
JOB = "f" * 16
OWN_EPOCH = 5
LIMIT = 20.0
LONGER_THAN_READ_AT_ONCE = 5  # a record is read four times before it counts as unreadable


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a log folder with the records of a head's agent that was killed."""
    (tmp_path / "run" / "pod0").mkdir(parents=True)
    store = RunStore(tmp_path, JOB, ChosenRun("run", None))
    store.put(submitted(store.durable.starting_ray("pod0", time.time())), 0.0)
    store.close()
    assert own_record("pod0", "run").write(tmp_path / "run" / "pod0" / NODE_FILE) is None
    return tmp_path


def refuse_reads(
    monkeypatch: pytest.MonkeyPatch, name: str, times_: int | None = None, error: OSError = STALE
) -> None:
    """Refuse to read files of a name, so many times or always."""
    left = times_
    read_small = files.read_small

    def refuse(path: Path) -> str:
        nonlocal left
        if path.name == name and path.exists() and left != 0:
            left = None if left is None else left - 1
            raise error
        return read_small(path)

    monkeypatch.setattr(files, "read_small", refuse)


def killed_agent(root: Path, node: str, *, is_head: bool) -> KilledAgent:
    """Return what the next agent finds of a killed one, which was this process."""
    find = partial(find_killed_agent, is_head=is_head)
    return anyio.run(find, root, node, (os.getpid(),))


def chosen_by_next_agent(root: Path, *, job_outlives_agents: bool = False) -> ChosenRun:
    """Return the run that the agent in place of the killed one chooses."""
    killed = killed_agent(root, "pod0", is_head=True)
    chosen = choose_run(
        root,
        None,
        JOB,
        lambda: "new",
        node="pod0",
        resumed=killed.run_id,
        job_outlives_agents=job_outlives_agents,
    )
    assert chosen.lock is not None
    chosen.lock.release()
    return chosen


@pytest.mark.parametrize("name", [RUN_FILE, NODE_FILE])
def test_a_record_that_cannot_be_read_for_a_while_is_awaited(
    root: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Another run would begin beside the killed agent's job, or end it."""
    expected = RunRecord.read(root / "run" / RUN_FILE)
    refuse_reads(monkeypatch, name, LONGER_THAN_READ_AT_ONCE)
    chosen = chosen_by_next_agent(root)
    assert (chosen.run_id, chosen.before) == ("run", expected)


@pytest.mark.parametrize("call", ["stat", "names"])
def test_a_folder_that_cannot_be_listed_for_a_while_is_awaited(
    root: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """A network disk may refuse to look up a file, or to list a folder, that is there."""
    left = LONGER_THAN_READ_AT_ONCE
    real = getattr(log_dir, call)

    def refuse(path: Path) -> object:
        nonlocal left
        if left and (call == "names" or path.name == NODE_FILE):
            left -= 1
            raise STALE
        return real(path)

    monkeypatch.setattr(log_dir, call, refuse)
    assert killed_agent(root, "pod0", is_head=True) == KilledAgent("run")
    assert left == 0


@pytest.fixture
def _long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a test hang that awaits a record."""
    monkeypatch.setattr(times, "RECORD_UNREADABLE", 600.0)


@pytest.mark.usefixtures("_long")
def test_a_path_that_is_refused_is_not_awaited(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user's folder stays another user's, and a run may be removed meanwhile."""
    (root / "run" / "pod0" / NODE_FILE).unlink()
    (root / "file").write_text("")
    assert killed_agent(root, "pod0", is_head=True) == KilledAgent()

    def refuse(_path: Path) -> list[str]:
        raise RefusedPathError("it belongs to user 7")

    monkeypatch.setattr(log_dir, "names", refuse)
    assert killed_agent(root, "pod0", is_head=True) == KilledAgent()


@pytest.mark.usefixtures("_long")
@pytest.mark.parametrize("is_head", [True, False])
def test_a_record_of_the_run_that_is_not_awaited(
    root: Path, monkeypatch: pytest.MonkeyPatch, *, is_head: bool
) -> None:
    """A file that is not there will not come; a worker needs none, which belongs to the head."""
    if is_head:
        (root / "run" / RUN_FILE).unlink()
        assert isinstance(RunRecord.read(root / "run" / RUN_FILE), NoRecord)
    else:
        refuse_reads(monkeypatch, RUN_FILE)
    assert killed_agent(root, "pod0", is_head=is_head) == KilledAgent("run")


@pytest.fixture
def _unreadable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the run's record stay unreadable."""
    monkeypatch.setattr(times, "RECORD_UNREADABLE", 0.2)
    refuse_reads(monkeypatch, RUN_FILE)


@pytest.mark.usefixtures("_unreadable")
def test_a_run_whose_record_stays_unreadable_is_not_continued(root: Path) -> None:
    """Its own Ray is ended, and another run begins."""
    assert chosen_by_next_agent(root)[:2] == ("new", None)


@pytest.mark.usefixtures("_unreadable")
def test_on_a_given_ray_it_goes_on_without_its_record(root: Path) -> None:
    """Its job cannot be killed with the agent's processes: Ray is asked for the newest."""
    chosen = chosen_by_next_agent(root, job_outlives_agents=True)
    assert (chosen.run_id, chosen.before) == ("run", None)
    assert "Stale file handle" in chosen.lost_record

    # The record that can be read again later is this run's own: it is replaced.
    how = Succession(replaces_agent=True, job_survives=True, own_epoch=OWN_EPOCH)
    store = RunStore(root, JOB, chosen, how)
    plan = plan_of(*read("kuberay-submitter-head"))
    assert make_goal(plan, store, 0.0).asks_for_jobs
    assert store.durable.epoch == OWN_EPOCH
    store.close()


def test_a_worker_killed_while_it_leaves_has_decided(root: Path) -> None:
    """Its head may have left already: the next agent ends with the outcome, and writes it.

    What the killed agent was about to stop is stopped before that: the pod may be held.
    """
    failed = ends.JOB_FAILED.outcome(code=7, code_name="7", place="", message="", before="")
    run = node_run_with(root, ())
    ray = subprocess.Popen(["sleep", "60"], start_new_session=True)
    anyio.run(record_end, run, w.EndWorker(failed))
    environ = {"AGENT_LOG_DIR": str(root), "RAY_WORKER": "1", "AGENT_HEAD": "pod0"}
    plan = plan_of(environ, command=["true"])
    node = run.folder.own.node
    killed = killed_agent(root, node, is_head=False)
    assert killed == KilledAgent("run-1", failed)
    plan = replace(plan, topology=replace(plan.topology, node_name=node))
    container = container_of(plan, environ, ["true"])
    container = container._replace(killed_agents=(os.getpid(),))
    processes = REAL.processes._replace(
        descendants=lambda: [*filter(process.is_alive, [psutil.Process(ray.pid)])],
        reap=lambda: None,  # this test waits for it
    )
    assert anyio.run(end_of_killed, plan, container, killed, processes) == failed
    assert ray.wait(LIMIT) == -signal.SIGTERM
    assert killed_agent(root, node, is_head=False) == KilledAgent(
        "run-1", failed, wrote_outcome=True
    )
    run.close()


@pytest.mark.parametrize("is_head", [True, False])
@pytest.mark.parametrize("number", [errno.ESTALE, errno.EIO])
def test_an_outcome_that_cannot_be_read_for_a_while_is_awaited(
    root: Path, monkeypatch: pytest.MonkeyPatch, number: int, *, is_head: bool
) -> None:
    """Taken for none, a finished run would be continued: the job would run a second time."""
    done = ends.JOB_SUCCEEDED.outcome(before="")
    write_outcome(root / "run" / "pod0", outcome_text(done))
    refuse_reads(monkeypatch, OUTCOME_FILE, 6, OSError(number, "no"))
    assert killed_agent(root, "pod0", is_head=is_head) == KilledAgent(
        "run", done, wrote_outcome=True
    )


def test_an_end_that_the_head_must_receive_is_not_recorded(root: Path) -> None:
    """The next agent decides it again, and reports it: the head would wait for this node."""
    failed = ends.STEP_FAILED.outcome(name="data", evidence="exit code 1")
    run = node_run_with(root, ())
    anyio.run(record_end, run, w.EndWorker(failed, must_report=True))
    assert killed_agent(root, run.folder.own.node, is_head=False) == KilledAgent("run-1")
    run.close()


@pytest.mark.usefixtures("_unreadable")
@pytest.mark.parametrize(("outlives", "expected"), [(True, "run"), (False, "run-2")])
def test_on_a_given_ray_the_platforms_run_goes_on_without_its_record(
    root: Path, expected: str, *, outlives: bool
) -> None:
    """Its pod was made again: under another name its first job would count as the newest."""
    chosen = choose_run(root, "run", JOB, lambda: "new", node="pod0", job_outlives_agents=outlives)
    assert chosen.lock is not None
    chosen.lock.release()
    assert (chosen.run_id, chosen.before) == (expected, None)
    assert bool(chosen.lost_record) == outlives
