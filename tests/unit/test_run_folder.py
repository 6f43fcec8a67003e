"""The run folder: one for each run and node, with `latest` beside them."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import threading
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from agent.base.errors import PreflightError
from agent.base.outcome import Kind, Outcome
from agent.boot import held
from agent.record import node_record, outcome_file
from agent.record.disk_word import DiskWord
from agent.record.events import FORMER, Began, EventLog, PhaseEntered, read_events
from agent.record.node_record import NodeRecord, own_record
from agent.record.outcome_file import Outage, read_outcome, write_outcome
from agent.record.run_folder import RunFolder
from agent.record.run_record import Attempt
from agent.runtime import parent
from unit.disks import fill_up, fill_with_files, full_disk, needs_mount, read_only

if TYPE_CHECKING:
    from collections.abc import Iterator

HOLDER = """
import sys
from pathlib import Path
from agent.record.run_folder import RunFolder
folder = RunFolder(Path(sys.argv[1]), "run-1", "pod0")
print(folder.path.name, flush=True)
sys.stdin.read()
"""


def in_run(root: Path, run: str = "run-1", node: str = "pod0") -> RunFolder:
    """Make a node's folder of a run."""
    return RunFolder(root, run, node)


@contextmanager
def another_agent(root: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Let another process hold pod0's folder of run-1."""
    argv = [sys.executable, "-c", HOLDER, str(root)]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True, env=env) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip(), process
        finally:
            process.kill()


def files_of(folder: Path) -> dict[str, str]:
    """Return what lies in a folder, but for what is the agent's own."""
    own = {"node.json", ".agent.lock"}
    return {p.name: p.read_text() for p in sorted(folder.iterdir()) if p.name not in own}


def test_a_heads_folder(tmp_path: Path) -> None:
    """Logs go into <log dir>/<run id>/<node>/, and `latest` leads to the run."""
    folder = in_run(tmp_path / "logs")
    assert folder.path == tmp_path / "logs" / "run-1" / "pod0"
    folder.file("agent.log").write_text("x")
    assert (tmp_path / "logs" / "latest" / "pod0" / "agent.log").read_text() == "x"


def test_latest_follows_the_last_run(tmp_path: Path) -> None:
    """A new run takes `latest` over, and leaves nothing else in the log dir."""
    for run in ("run-1", "run-2"):
        in_run(tmp_path, run)
    assert (tmp_path / "latest").resolve() == tmp_path / "run-2"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["latest", "run-1", "run-2"]


# --- the same node once more -------------------------------------------------------------------


def test_a_restarted_node_goes_on_in_its_own_folder(tmp_path: Path) -> None:
    """What was there stays, the former life is known, and its outcome is not taken for ours."""
    first = in_run(tmp_path)
    first.file("agent.log").write_text("first\n")
    write_outcome(first.path, Outcome(Kind.LOST, 75, "gone"))
    first.close()
    second = in_run(tmp_path)
    assert second.path == first.path
    assert second.former == first.own
    files = files_of(second.path)
    assert files["agent.log"] == "first\n"
    assert "outcome.json" not in files
    assert json.loads(files["outcome.former-1.json"])["reason"] == "gone"


def test_a_living_agent_keeps_its_folder(tmp_path: Path) -> None:
    """Another agent of the same name takes a number, whatever the one that lives has written."""
    for remove_record in (False, True):
        first = in_run(tmp_path)
        assert first.path.name == "pod0"
        if remove_record:
            (first.path / "node.json").unlink()
        second, third = in_run(tmp_path), in_run(tmp_path)
        assert [second.path.name, third.path.name] == ["pod0-2", "pod0-3"]
        for folder in (first, second, third):
            folder.close()


def test_a_killed_agents_folder_is_free_at_once(tmp_path: Path) -> None:
    """While another process holds it there is `-2`; once that is killed, its folder goes on."""
    with another_agent(tmp_path) as (name, process):
        assert name == "pod0"
        beside = in_run(tmp_path)
        assert beside.path.name == "pod0-2"
        process.kill()
        process.wait()
        after = in_run(tmp_path)
    assert after.path.name == "pod0"
    assert after.former is not None
    assert after.former.agent.pid == process.pid


def test_many_at_once_never_share(tmp_path: Path) -> None:
    """Nodes of one name that start in the same instant each have a folder."""
    made: list[RunFolder] = []
    threads = [threading.Thread(target=lambda: made.append(in_run(tmp_path))) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({folder.path for folder in made}) == 12


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 99}', "\0" * 100, "[" * 100_000])
def test_a_broken_record_holds_nothing(tmp_path: Path, text: str) -> None:
    """Whatever lies in the place of node.json, the folder goes on where nobody holds it."""
    in_run(tmp_path).close()
    (tmp_path / "run-1" / "pod0" / "node.json").write_text(text)
    again = in_run(tmp_path)
    assert (again.path.name, again.former) == ("pod0", None)
    assert isinstance(NodeRecord.read(again.path / "node.json"), NodeRecord)


def test_another_machines_folder(tmp_path: Path) -> None:
    """A fresh record of a machine elsewhere keeps its folder; one from long ago does not."""
    first = in_run(tmp_path)
    path = first.path / "node.json"
    elsewhere = replace(first.own.place, boot_id="other", pid_namespace="other", hostname="other")
    replace(first.own, place=elsewhere).write(path)
    first.close()
    second = in_run(tmp_path)
    assert second.path.name == "pod0-2"
    second.close()
    os.utime(path, (path.stat().st_atime, path.stat().st_mtime - 3600))
    assert in_run(tmp_path).path.name == "pod0"


def test_another_nodes_record_keeps_its_folder(tmp_path: Path) -> None:
    """Two names may come to one folder's name: the second has a number."""
    in_run(tmp_path, node="pod:0").close()
    assert in_run(tmp_path, node="pod-0").path.name == "pod-0-2"


# --- the way into the run's folder -------------------------------------------------------------


def test_a_workers_folder_moves_when_it_hears_the_run(tmp_path: Path) -> None:
    """What was written while waiting moves along, open files too."""
    folder = RunFolder.waiting(tmp_path, "pod1")
    waiting = folder.path.parent
    assert waiting.name.startswith("no-head-")
    with folder.file("agent.log").open("w") as log:
        log.write("before\n")
        folder.belongs_to("run-1")
        log.write("after\n")
    assert folder.path == tmp_path / "run-1" / "pod1"
    assert folder.file("agent.log").read_text() == "before\nafter\n"
    assert (tmp_path / "latest").resolve() == tmp_path / "run-1"
    assert not waiting.exists()
    record = NodeRecord.read(folder.path / "node.json")
    assert isinstance(record, NodeRecord)
    assert record.run_id == "run-1"


def test_a_worker_that_hears_its_run_again_stays(tmp_path: Path) -> None:
    """Every reply names the run; only another run moves the folder."""
    folder = RunFolder.waiting(tmp_path, "pod1")
    for _ in range(2):
        folder.belongs_to("run-1")
    assert folder.path == tmp_path / "run-1" / "pod1"
    folder.belongs_to("run-2")
    assert folder.path == tmp_path / "run-2" / "pod1"


def test_a_worker_that_finds_no_head_again_and_again(tmp_path: Path) -> None:
    """It goes on in the folder in which it waited before; another node waits in its own."""
    (tmp_path / "no-head-20200101-000000" / "pod1").mkdir(parents=True)
    for _ in range(3):
        folder = RunFolder.waiting(tmp_path, "pod1")
        assert folder.path == tmp_path / "no-head-20200101-000000" / "pod1"
        folder.close()
    assert RunFolder.waiting(tmp_path, "pod2").path.parent != folder.path.parent


def test_nodes_on_a_shared_disk_do_not_mix(tmp_path: Path) -> None:
    """Head and workers of one run, and a worker's twin, each have their own folder."""
    head = in_run(tmp_path)
    workers = [RunFolder.waiting(tmp_path, name) for name in ("pod1", "pod1", "pod2")]
    for worker in workers:
        worker.belongs_to("run-1")
    names = [folder.path.name for folder in (head, *workers)]
    assert names == ["pod0", "pod1", "pod1-2", "pod2"]


def former_life(root: Path) -> None:
    """Leave the folder of a worker that is gone."""
    former = RunFolder.waiting(root, "pod1")
    former.belongs_to("run-1")
    former.file("agent.log").write_text("first life\n")
    former.file("only.log").write_text("only then\n")
    former.file("dump").mkdir()
    former.file("dump").joinpath("a").write_text("a")
    events_of(former).append(1.0, PhaseEntered("first"))
    former.close()


def events_of(folder: RunFolder) -> EventLog:
    """Return the events of a worker's folder."""
    return EventLog(lambda: folder.steady("events.jsonl"), str, Began("worker"))


def test_a_restarted_worker_goes_on_in_its_own_folder(tmp_path: Path) -> None:
    """Nothing of either life is lost, and a file that is open goes on being written."""
    former_life(tmp_path)
    folder = RunFolder.waiting(tmp_path, "pod1")
    waiting = folder.path.parent
    events = events_of(folder)
    events.append(2.0, PhaseEntered("second"))
    folder.file("new.log").write_text("new")
    folder.file("dump").mkdir()
    with folder.file("agent.log").open("w") as log:
        log.write("before\n")
        log.flush()
        folder.belongs_to("run-1")
        log.write("after\n")
    events.append(3.0, PhaseEntered("third"))
    assert folder.path == tmp_path / "run-1" / "pod1"
    assert not waiting.exists()
    assert folder.file("agent.log").read_text() == "before\nafter\n"
    assert folder.file("agent.former-1.log").read_text() == "first life\n"
    assert folder.file("only.log").read_text() == "only then\n"
    assert folder.file("new.log").read_text() == "new"
    assert folder.file("dump.former-1").joinpath("a").read_text() == "a"
    phases = [e.phase for _, e in read_events(folder.path) if isinstance(e, PhaseEntered)]
    assert phases == ["first", "second", "third"]
    assert folder.former is not None
    assert in_run(tmp_path, node="pod1").path.name == "pod1-2"


def test_events_that_are_written_during_the_move_are_kept(tmp_path: Path) -> None:
    """A thread that records while the folder moves loses none, and leaves no stray file."""
    former_life(tmp_path)
    folder = RunFolder.waiting(tmp_path, "pod1")
    waiting, events, begun = folder.path.parent, events_of(folder), threading.Event()

    def write() -> None:
        for number in range(400):
            assert events.append(float(number), PhaseEntered(str(number))) is None
            if number == 20:
                begun.set()

    thread = threading.Thread(target=write)
    thread.start()
    assert begun.wait(10)
    folder.belongs_to("run-1")
    thread.join()
    found = [e.phase for _, e in read_events(folder.path) if isinstance(e, PhaseEntered)]
    assert found == ["first", *map(str, range(400))]
    assert not waiting.exists()


def test_a_former_life_that_lives_elsewhere_is_left_alone(tmp_path: Path) -> None:
    """A worker's twin that holds the run's folder keeps it; ours has a number there."""
    twin = RunFolder.waiting(tmp_path, "pod1")
    twin.belongs_to("run-1")
    twin.file("agent.log").write_text("twin")
    folder = RunFolder.waiting(tmp_path, "pod1")
    folder.file("agent.log").write_text("ours")
    folder.belongs_to("run-1")
    assert folder.path.name == "pod1-2"
    assert twin.file("agent.log").read_text() == "twin"


class Told:
    """A folder of a waiting worker, and what it said."""

    def __init__(self, root: Path) -> None:
        self.said: list[str] = []
        self.folder = RunFolder(
            root,
            "no-head-1",
            "pod1",
            link=False,
            tell=lambda sentence, _: self.said.append(sentence),
        )
        self.before = self.folder.path


@needs_mount
def test_a_full_disk_ends_no_run(tmp_path: Path) -> None:
    """On a disk without room for one more folder the log stays where it is, and says so once."""
    with full_disk(tmp_path / "disk", "nr_inodes=8") as root:
        told = Told(root)
        fills = fill_with_files(root)
        for _ in range(3):
            told.folder.belongs_to("run-1")
        assert told.folder.path == told.before
        assert told.said == [f"the log stays in {told.before}: No space left on device"]
        for fill in fills:
            fill.unlink()
        told.folder.belongs_to("run-2")
        assert told.folder.path == root / "run-2" / "pod1"
        told.folder.close()


@needs_mount
def test_a_full_disk_in_the_midst_of_the_move_undoes_it(tmp_path: Path) -> None:
    """Where the events find no room any more, everything is as it was before."""
    with full_disk(tmp_path / "disk", "size=128k") as root:
        former_life(root)
        told = Told(root)
        assert events_of(told.folder).append(1.0, PhaseEntered("x" * 9_000)) is None
        told.folder.file("agent.log").write_text("ours")
        fill_up(root)
        before, former = files_of(told.folder.path), files_of_former(root)
        told.folder.belongs_to("run-1")
        assert told.folder.path == told.before
        assert files_of(told.folder.path) == before
        assert files_of_former(root) == former
        assert told.said == [f"the log stays in {told.before}: No space left on device"]
        told.folder.close()


def files_of_former(root: Path) -> dict[str, str]:
    """Return the files of the worker's former life."""
    folder = root / "run-1" / "pod1"
    own = {"node.json", ".agent.lock", "dump"}
    return {p.name: p.read_text() for p in sorted(folder.iterdir()) if p.name not in own}


@needs_mount
def test_a_disk_that_became_read_only_ends_no_run(tmp_path: Path) -> None:
    """The log stays, and so does the run."""
    told = Told(tmp_path)
    with read_only(tmp_path):
        told.folder.belongs_to("run-1")
    assert told.said == [f"the log stays in {told.before}: Read-only file system"]


@needs_mount
def test_a_run_on_another_disk(tmp_path: Path) -> None:
    """A folder cannot move to another disk with its open files: it stays."""
    told = Told(tmp_path)
    (tmp_path / "run-1").mkdir()
    with full_disk(tmp_path / "run-1", "size=128k"):
        told.folder.belongs_to("run-1")
    assert told.folder.path == told.before
    assert told.said == [f"the log stays in {told.before}: {os.strerror(errno.EXDEV)}"]


def test_a_run_that_is_a_file(tmp_path: Path) -> None:
    """Something else lies where the run's folder should be: the log stays."""
    told = Told(tmp_path)
    (tmp_path / "run-1").write_text("")
    told.folder.belongs_to("run-1")
    assert told.folder.path == told.before
    assert len(told.said) == 1


def test_a_writer_that_is_held_up_holds_nobody_up(tmp_path: Path) -> None:
    """While the disk holds a writer up the folder stays; the head's next word moves it."""
    folder = RunFolder.waiting(tmp_path, "pod1")
    held, go = threading.Event(), threading.Event()

    def write() -> None:
        with folder.steady("events.jsonl"):
            held.set()
            go.wait(20)

    thread = threading.Thread(target=write)
    thread.start()
    held.wait(10)
    folder.belongs_to("run-1")
    assert folder.path.parent.name != "run-1"
    go.set()
    thread.join()
    folder.belongs_to("run-1")
    assert folder.path.parent.name == "run-1"


@pytest.mark.parametrize(
    ("run", "node"), [("../../etc", ".."), ("a/b", "c/d"), ("", ""), ("run 1", "pod:0")]
)
def test_no_name_leads_out_of_the_log_dir(tmp_path: Path, run: str, node: str) -> None:
    """Names come from platforms and from the head: none may leave the log dir."""
    root = tmp_path / "logs"
    folder = RunFolder(root, run, node)
    assert folder.path.resolve().parent.parent == root
    folder.belongs_to(f"{run}-other")
    assert folder.path.resolve().parent.parent == root


def test_a_name_of_any_length(tmp_path: Path) -> None:
    """A head may say what it likes: a name that no disk takes is cut."""
    folder = RunFolder.waiting(tmp_path, "n" * 400)
    folder.belongs_to("r" * 4000)
    assert folder.path.parent.name == "r" * 200


def test_an_unwritable_root_is_a_preflight_error(tmp_path: Path) -> None:
    """A log dir that cannot be made ends with 78 and names the variable."""
    (tmp_path / "file").write_text("")
    with pytest.raises(PreflightError) as caught:
        RunFolder(tmp_path / "file" / "logs", "run-1", "pod0")
    assert caught.value.culprit == "AGENT_LOG_DIR"
    assert "cannot be written: Not a directory" in caught.value.sentence()


# --- single files ------------------------------------------------------------------------------


def test_the_outcome_has_the_contracts_fields(tmp_path: Path) -> None:
    """outcome.json has the fields that the contract names, and no half-written twin beside it."""
    outcome = Outcome(Kind.LOST, 75, "Ray was lost", "running", "ray", "Run again")
    contract: dict[str, object] = {
        "kind": "lost",
        "exit_code": 75,
        "phase": "running",
        "culprit": "ray",
        "reason": "Ray was lost",
        "remedy": "Run again",
        "attempts": [],
        "outages": [],
    }
    assert write_outcome(tmp_path, outcome) is None
    data = json.loads((tmp_path / "outcome.json").read_text())
    assert {field: data.get(field) for field in contract} == contract
    attempt = Attempt(1, "run-1", "2025-01-01T00:00:00Z", "2025-01-01T01:00:00Z", "lost", 75)
    outage = Outage("reward server", "pod0", "2025-01-01T00:00:00Z")
    write_outcome(tmp_path, outcome, [attempt], [outage])
    data = json.loads((tmp_path / "outcome.json").read_text())
    assert data["attempts"] == [
        {
            "number": 1,
            "start": "2025-01-01T00:00:00Z",
            "end": "2025-01-01T01:00:00Z",
            "reason": "lost",
            "exit_code": 75,
        }
    ]
    assert data["outages"] == [
        {"service": "reward server", "node": "pod0", "from": "2025-01-01T00:00:00Z", "to": None}
    ]
    assert [file.name for file in tmp_path.iterdir()] == ["outcome.json"]


def test_an_outcome_that_cannot_be_written_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that is gone ends nothing: it is a warning."""
    said: list[str] = []
    word = DiskWord(lambda sentence, _level: said.append(sentence))
    monkeypatch.setattr(outcome_file, "disk", word)
    error = write_outcome(tmp_path / "gone", Outcome(Kind.DONE, 0, "done"))
    assert isinstance(error, FileNotFoundError)
    (told,) = said
    assert told.startswith("outcome.json cannot be written: No such file or directory. ")


def test_leftovers_of_a_killed_writer_go(tmp_path: Path) -> None:
    """What a killed agent left half written does not add up."""
    in_run(tmp_path).close()
    part = tmp_path / "run-1" / "pod0" / ".run.json.0123.part"
    part.write_text("{")
    in_run(tmp_path)
    assert not part.exists()


def test_of_many_lives_the_oldest_gives_way(tmp_path: Path) -> None:
    """A pod that restarts for ever keeps a bounded number of former outcomes."""
    for number in range(60):
        folder = in_run(tmp_path)
        write_outcome(folder.path, Outcome(Kind.LOST, 75, str(number)))
        stamp = 1_000_000.0 + number
        os.utime(folder.file("outcome.json"), (stamp, stamp))
        folder.close()
    kept = list((tmp_path / "run-1" / "pod0").glob("outcome.former-*.json"))
    assert len(kept) == 50
    assert {json.loads(path.read_text())["reason"] for path in kept} == {*map(str, range(9, 59))}


def test_own_record_is_of_this_process() -> None:
    """The record begins with the agent itself, and where it is."""
    record = own_record("pod0", "run-1")
    assert record.agent.pid == os.getpid()
    assert record.agent.start > 0
    assert record.place.boot_id
    assert FORMER.endswith(".jsonl")


def test_a_verdict_is_found_by_the_agent_after_a_killed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed while it held the pod: its verdict is read; one killed under the job had none."""
    folder = RunFolder(tmp_path, "run-1", "pod0")
    folder.own.write(folder.path / node_record.FILE)
    monkeypatch.setattr(parent, "former", os.getpid)
    assert held.verdict(tmp_path, "pod0") is None
    outcome = Outcome(Kind.JOB_FAILED, 5, "the job failed", is_jobs_verdict=True)
    write_outcome(folder.path, outcome)
    assert held.verdict(tmp_path, "pod0") == outcome
    assert held.verdict(tmp_path, "pod1") is None
    monkeypatch.setattr(parent, "former", lambda: None)
    assert held.verdict(tmp_path, "pod0") is None
    (folder.path / "outcome.json").write_text("[]")
    assert read_outcome(folder.path) is None
    folder.close()
