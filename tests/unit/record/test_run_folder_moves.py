"""A worker's folder moves into the run's folder without a loss, on any disk."""

from __future__ import annotations

import errno
import os
import threading
from typing import TYPE_CHECKING

from agent.record import run_folder
from agent.record.events import Began, EventRecorder, PhaseEntered, read_events
from agent.record.run_folder import RunFolder
from support.disks import fill_with_files, full_disk, needs_mount, read_only
from support.run_folders import run_folder_of

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_a_workers_folder_moves_to_the_run(tmp_path: Path) -> None:
    """Files written while waiting move along, open ones too."""
    folder = RunFolder(tmp_path, "", "pod1")
    waiting = folder.path.parent
    assert waiting.name == "no-head"
    with folder.file("agent.log").open("w") as log:
        log.write("before\n")
        folder.move_to_run("run-1")
        log.write("after\n")
    assert folder.path == tmp_path / "run-1" / "pod1"
    assert folder.file("agent.log").read_text() == "before\nafter\n"
    assert (tmp_path / "latest").resolve() == tmp_path / "run-1"
    assert not waiting.exists()
    assert (folder.path / "node.json").is_file()


def test_the_same_run_moves_nothing(tmp_path: Path) -> None:
    """Every reply names the run; only another run moves the folder."""
    folder = RunFolder(tmp_path, "", "pod1")
    for _ in range(2):
        folder.move_to_run("run-1")
    assert folder.path == tmp_path / "run-1" / "pod1"
    folder.move_to_run("run-2")
    assert folder.path == tmp_path / "run-2" / "pod1"


def test_a_restarted_worker_waits_in_the_same_folder(tmp_path: Path) -> None:
    """Another node waits in another folder."""
    for _ in range(3):
        folder = RunFolder(tmp_path, "", "pod1")
        assert folder.path == tmp_path / "no-head" / "pod1"
        folder.close()
    assert RunFolder(tmp_path, "", "pod2").path == tmp_path / "no-head" / "pod2"


def test_nodes_on_a_shared_disk_do_not_mix(tmp_path: Path) -> None:
    """Head, workers and a worker of the same name have one folder each."""
    head = run_folder_of(tmp_path)
    workers = [RunFolder(tmp_path, "", name) for name in ("pod1", "pod1", "pod2")]
    for worker in workers:
        worker.move_to_run("run-1")
    names = [folder.path.name for folder in (head, *workers)]
    assert names == ["pod0", "pod1", "pod1-2", "pod2"]


def test_a_restarted_worker_has_a_folder_of_its_own(tmp_path: Path) -> None:
    """The files of the agent before it stay as they are, under another name of this node."""
    former = RunFolder(tmp_path, "", "pod1")
    former.move_to_run("run-1")
    former.file("agent.log").write_text("former\n")
    former.close()
    folder = RunFolder(tmp_path, "", "pod1")
    with folder.file("agent.log").open("w") as log:
        folder.move_to_run("run-1")
        log.write("this\n")
    assert folder.path == tmp_path / "run-1" / "pod1-2"
    assert folder.file("agent.log").read_text() == "this\n"
    assert former.file("agent.log").read_text() == "former\n"


def test_events_written_during_the_move_arrive(tmp_path: Path) -> None:
    """A thread that records meanwhile loses none, and leaves no other file."""
    folder = RunFolder(tmp_path, "", "pod1")
    waiting, begun = folder.path.parent, threading.Event()
    recorder = EventRecorder(lambda: folder.held("events.jsonl"), str, Began("worker"), lambda: 1.0)

    def write() -> None:
        for number in range(400):
            recorder.add(PhaseEntered(str(number)))
            if number == 20:
                begun.set()

    thread = threading.Thread(target=write)
    thread.start()
    assert begun.wait(10)
    folder.move_to_run("run-1")
    thread.join()
    recorder.finish()
    found = [e.data["phase"] for e in read_events(folder.path) if e.kind == "PhaseEntered"]
    assert found == [*map(str, range(400))]
    assert not waiting.exists()


def test_a_held_folder_is_not_taken(tmp_path: Path) -> None:
    """A running worker of the same name keeps its folder; this one gets a number."""
    twin = RunFolder(tmp_path, "", "pod1")
    twin.move_to_run("run-1")
    twin.file("agent.log").write_text("twin")
    folder = RunFolder(tmp_path, "", "pod1")
    folder.file("agent.log").write_text("ours")
    folder.move_to_run("run-1")
    assert folder.path.name == "pod1-2"
    assert twin.file("agent.log").read_text() == "twin"


class Waiting:
    """The folder of a waiting worker, and the lines that it logs."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lines: list[str] = []
        monkeypatch.setattr(run_folder, "say", lambda line, _level: self.lines.append(line))
        self.folder = RunFolder(root, "no-head-1", "pod1", link=False)
        self.before = self.folder.path


@needs_mount
def test_a_full_disk_ends_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without space for one more folder the log stays, with one warning."""
    with full_disk(tmp_path / "disk", "nr_inodes=8") as root:
        waiting = Waiting(root, monkeypatch)
        fills = fill_with_files(root)
        for _ in range(3):
            waiting.folder.move_to_run("run-1")
        assert waiting.folder.path == waiting.before
        assert waiting.lines == [f"the log stays in {waiting.before}: No space left on device"]
        for fill in fills:
            fill.unlink()
        waiting.folder.move_to_run("run-2")
        assert waiting.folder.path == root / "run-2" / "pod1"
        waiting.folder.close()


@needs_mount
def test_a_read_only_disk_ends_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log stays in its folder."""
    waiting = Waiting(tmp_path, monkeypatch)
    with read_only(tmp_path):
        waiting.folder.move_to_run("run-1")
    assert waiting.lines == [f"the log stays in {waiting.before}: Read-only file system"]


@needs_mount
def test_a_run_on_another_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder cannot move to another disk with its open files: it stays."""
    waiting = Waiting(tmp_path, monkeypatch)
    (tmp_path / "run-1").mkdir()
    with full_disk(tmp_path / "run-1", "size=128k"):
        waiting.folder.move_to_run("run-1")
    assert waiting.folder.path == waiting.before
    assert waiting.lines == [f"the log stays in {waiting.before}: {os.strerror(errno.EXDEV)}"]


def test_a_run_that_is_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file has the name of the run's folder: the log stays."""
    waiting = Waiting(tmp_path, monkeypatch)
    (tmp_path / "run-1").write_text("")
    waiting.folder.move_to_run("run-1")
    assert waiting.folder.path == waiting.before
    assert len(waiting.lines) == 1


def test_a_blocked_writer_delays_the_move(tmp_path: Path) -> None:
    """While a writer is blocked the folder stays; the head's next reply moves it."""
    folder = RunFolder(tmp_path, "", "pod1")
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
