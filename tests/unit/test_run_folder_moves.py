"""A worker's folder moves into the run's folder without a loss, on any disk."""

from __future__ import annotations

import errno
import os
import threading
from typing import TYPE_CHECKING

from agent.record.events import Began, EventLog, PhaseEntered, read_events
from agent.record.node_record import NodeRecord
from agent.record.run_folder import RunFolder
from unit.disks import fill_up, fill_with_files, full_disk, needs_mount, read_only
from unit.test_run_folder import files_of, in_run

if TYPE_CHECKING:
    from pathlib import Path


def test_a_workers_folder_moves_to_the_run(tmp_path: Path) -> None:
    """Files written while waiting move along, open ones too."""
    folder = RunFolder.waiting(tmp_path, "pod1")
    waiting = folder.path.parent
    assert waiting.name.startswith("no-head-")
    with folder.file("agent.log").open("w") as log:
        log.write("before\n")
        folder.move_to_run("run-1")
        log.write("after\n")
    assert folder.path == tmp_path / "run-1" / "pod1"
    assert folder.file("agent.log").read_text() == "before\nafter\n"
    assert (tmp_path / "latest").resolve() == tmp_path / "run-1"
    assert not waiting.exists()
    record = NodeRecord.read(folder.path / "node.json")
    assert isinstance(record, NodeRecord)
    assert record.run_id == "run-1"


def test_the_same_run_moves_nothing(tmp_path: Path) -> None:
    """Every reply names the run; only another run moves the folder."""
    folder = RunFolder.waiting(tmp_path, "pod1")
    for _ in range(2):
        folder.move_to_run("run-1")
    assert folder.path == tmp_path / "run-1" / "pod1"
    folder.move_to_run("run-2")
    assert folder.path == tmp_path / "run-2" / "pod1"


def test_a_restarted_worker_waits_in_the_same_folder(tmp_path: Path) -> None:
    """Another node waits in another folder."""
    (tmp_path / "no-head-20200101-000000" / "pod1").mkdir(parents=True)
    for _ in range(3):
        folder = RunFolder.waiting(tmp_path, "pod1")
        assert folder.path == tmp_path / "no-head-20200101-000000" / "pod1"
        folder.close()
    assert RunFolder.waiting(tmp_path, "pod2").path.parent != folder.path.parent


def test_nodes_on_a_shared_disk_do_not_mix(tmp_path: Path) -> None:
    """Head, workers and a worker of the same name have one folder each."""
    head = in_run(tmp_path)
    workers = [RunFolder.waiting(tmp_path, name) for name in ("pod1", "pod1", "pod2")]
    for worker in workers:
        worker.move_to_run("run-1")
    names = [folder.path.name for folder in (head, *workers)]
    assert names == ["pod0", "pod1", "pod1-2", "pod2"]


def former_life(root: Path) -> None:
    """Leave the folder of a worker that has exited."""
    former = RunFolder.waiting(root, "pod1")
    former.move_to_run("run-1")
    former.file("agent.log").write_text("first life\n")
    former.file("only.log").write_text("only then\n")
    former.file("dump").mkdir()
    former.file("dump").joinpath("a").write_text("a")
    events_of(former).append(1.0, PhaseEntered("first"))
    former.close()


def events_of(folder: RunFolder) -> EventLog:
    """Return the events of a worker's folder."""
    return EventLog(lambda: folder.held("events.jsonl"), str, Began("worker"))


def test_a_restarted_worker_uses_its_folder_again(tmp_path: Path) -> None:
    """No file of either agent is lost, and open files are still written."""
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
        folder.move_to_run("run-1")
        log.write("after\n")
    events.append(3.0, PhaseEntered("third"))
    assert folder.path == tmp_path / "run-1" / "pod1"
    assert not waiting.exists()
    assert folder.file("agent.log").read_text() == "before\nafter\n"
    assert folder.file("agent.former-1.log").read_text() == "first life\n"
    assert folder.file("only.log").read_text() == "only then\n"
    assert folder.file("new.log").read_text() == "new"
    assert folder.file("dump.former-1").joinpath("a").read_text() == "a"
    phases = [e.data["phase"] for e in read_events(folder.path) if e.kind == "PhaseEntered"]
    assert phases == ["first", "second", "third"]
    assert folder.former is not None
    assert in_run(tmp_path, node="pod1").path.name == "pod1-2"


def test_events_written_during_the_move_are_kept(tmp_path: Path) -> None:
    """A thread that records meanwhile loses none, and leaves no other file."""
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
    folder.move_to_run("run-1")
    thread.join()
    found = [e.data["phase"] for e in read_events(folder.path) if e.kind == "PhaseEntered"]
    assert found == ["first", *map(str, range(400))]
    assert not waiting.exists()


def test_a_held_folder_is_not_taken(tmp_path: Path) -> None:
    """A running worker of the same name keeps its folder; this one gets a number."""
    twin = RunFolder.waiting(tmp_path, "pod1")
    twin.move_to_run("run-1")
    twin.file("agent.log").write_text("twin")
    folder = RunFolder.waiting(tmp_path, "pod1")
    folder.file("agent.log").write_text("ours")
    folder.move_to_run("run-1")
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
            log=lambda sentence, _: self.said.append(sentence),
        )
        self.before = self.folder.path


@needs_mount
def test_a_full_disk_ends_no_run(tmp_path: Path) -> None:
    """Without space for one more folder the log stays, with one warning."""
    with full_disk(tmp_path / "disk", "nr_inodes=8") as root:
        told = Told(root)
        fills = fill_with_files(root)
        for _ in range(3):
            told.folder.move_to_run("run-1")
        assert told.folder.path == told.before
        assert told.said == [f"the log stays in {told.before}: No space left on device"]
        for fill in fills:
            fill.unlink()
        told.folder.move_to_run("run-2")
        assert told.folder.path == root / "run-2" / "pod1"
        told.folder.close()


@needs_mount
def test_a_failed_move_is_undone(tmp_path: Path) -> None:
    """If the events cannot be written, all files are moved back."""
    with full_disk(tmp_path / "disk", "size=128k") as root:
        former_life(root)
        told = Told(root)
        assert events_of(told.folder).append(1.0, PhaseEntered("x" * 9_000)) is None
        told.folder.file("agent.log").write_text("ours")
        fill_up(root)
        before, former = files_of(told.folder.path), files_of_former(root)
        told.folder.move_to_run("run-1")
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
def test_a_read_only_disk_ends_no_run(tmp_path: Path) -> None:
    """The log stays in its folder."""
    told = Told(tmp_path)
    with read_only(tmp_path):
        told.folder.move_to_run("run-1")
    assert told.said == [f"the log stays in {told.before}: Read-only file system"]


@needs_mount
def test_a_run_on_another_disk(tmp_path: Path) -> None:
    """A folder cannot move to another disk with its open files: it stays."""
    told = Told(tmp_path)
    (tmp_path / "run-1").mkdir()
    with full_disk(tmp_path / "run-1", "size=128k"):
        told.folder.move_to_run("run-1")
    assert told.folder.path == told.before
    assert told.said == [f"the log stays in {told.before}: {os.strerror(errno.EXDEV)}"]


def test_a_run_that_is_a_file(tmp_path: Path) -> None:
    """A file has the name of the run's folder: the log stays."""
    told = Told(tmp_path)
    (tmp_path / "run-1").write_text("")
    told.folder.move_to_run("run-1")
    assert told.folder.path == told.before
    assert len(told.said) == 1


def test_a_blocked_writer_delays_the_move(tmp_path: Path) -> None:
    """While a writer is blocked the folder stays; the head's next reply moves it."""
    folder = RunFolder.waiting(tmp_path, "pod1")
    held, go = threading.Event(), threading.Event()

    def write() -> None:
        with folder.held("events.jsonl"):
            held.set()
            go.wait(20)

    thread = threading.Thread(target=write)
    thread.start()
    held.wait(10)
    folder.move_to_run("run-1")
    assert folder.path.parent.name != "run-1"
    go.set()
    thread.join()
    folder.move_to_run("run-1")
    assert folder.path.parent.name == "run-1"
