"""A worker's folder moves into the run's folder without a loss, on any disk."""

from __future__ import annotations

import errno
import os
import threading
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import pytest

from agent.record import run_folder
from agent.record.events import Began, EventRecorder, PhaseEntered, read_events
from agent.record.run_folder import RunFolder
from support.disks import fill_with_files, full_disk, needs_mount, read_only
from support.run_folders import run_folder_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def test_a_workers_folder_moves_to_the_run(tmp_path: Path) -> None:
    """Files written while waiting move along, open ones too."""
    folder = RunFolder(tmp_path, "", "pod1")
    waiting = folder.path.parent
    assert waiting.name == "no-head"
    with folder.file("agent.log").open("w") as log:
        log.write("before\n")
        for _ in range(2):  # every reply names the run
            folder.move_to_run("run-1")
        log.write("after\n")
    assert folder.path == tmp_path / "run-1" / "pod1"
    assert folder.file("agent.log").read_text() == "before\nafter\n"
    assert (tmp_path / "latest").resolve() == tmp_path / "run-1"
    assert not waiting.exists()
    assert (folder.path / "node.json").is_file()
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


@pytest.mark.parametrize("runs", [False, True])
def test_another_agent_of_a_worker_has_a_folder_of_its_own(tmp_path: Path, *, runs: bool) -> None:
    """The files of the one before it, which may run, stay as they are."""
    former = RunFolder(tmp_path, "", "pod1")
    former.move_to_run("run-1")
    former.file("agent.log").write_text("former\n")
    if not runs:
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


def blocked_by_file(root: Path) -> AbstractContextManager[object]:
    """Have a file with the name of the run's folder."""
    (root / "run-1").write_text("")
    return nullcontext()


def on_another_disk(root: Path) -> AbstractContextManager[object]:
    """Have the run's folder on a disk to which open files cannot move."""
    (root / "run-1").mkdir()
    return full_disk(root / "run-1", "size=128k")


@pytest.mark.parametrize(
    ("obstacle", "why"),
    [
        pytest.param(read_only, errno.EROFS, marks=needs_mount),
        pytest.param(on_another_disk, errno.EXDEV, marks=needs_mount),
        (blocked_by_file, errno.ENOTDIR),
    ],
)
def test_a_log_that_cannot_move_stays(
    tmp_path: Path,
    obstacle: Callable[[Path], AbstractContextManager[object]],
    why: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The run goes on, with one warning."""
    said = logged(monkeypatch)
    folder = RunFolder(tmp_path, "no-head-1", "pod1", link=False)
    before = folder.path
    with obstacle(tmp_path):
        folder.move_to_run("run-1")
    assert folder.path == before
    assert said == [f"the log stays in {before}: {os.strerror(why)}"]


def logged(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return what is logged from now on."""
    said: list[str] = []
    monkeypatch.setattr(run_folder, "say", lambda line, _level: said.append(line))
    return said


@needs_mount
def test_a_full_disk_ends_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without space for one more folder the log stays, with one warning."""
    said = logged(monkeypatch)
    with full_disk(tmp_path / "disk", "nr_inodes=8") as root:
        folder = RunFolder(root, "no-head-1", "pod1", link=False)
        before = folder.path
        fills = fill_with_files(root)
        for _ in range(3):
            folder.move_to_run("run-1")
        assert folder.path == before
        assert said == [f"the log stays in {before}: No space left on device"]
        for fill in fills:
            fill.unlink()
        folder.move_to_run("run-2")
        assert folder.path == root / "run-2" / "pod1"
        folder.close()


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
