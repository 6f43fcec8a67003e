"""A flight recorder's dump on demand: by a byte in a rank's pipe, awaited, read and copied."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import psutil
import pytest

from agent.base import times
from agent.processes import recorder_dumps
from agent.processes.driver import JobProcess
from agent.processes.recorder_dumps import has_pipes, read_recorders

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.processes.recorder_dumps import RecorderFindings

REAL = Path(__file__).parents[2] / "data" / "stacks" / "flight-recorder-1"
RANK = """
import os, sys, time
pipe, dump, real, way = sys.argv[1:]
os.mkfifo(pipe)
print("up", flush=True)
os.close(os.open(pipe, os.O_RDONLY)) if way == "gone" else None
end = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
print("reads", flush=True)
while way != "gone":
    try:
        got = os.read(end, 99)
    except BlockingIOError:
        got = b""
    if got and way != "silent":
        data = open(real, "rb").read()
        with open(dump, "wb") as file:  # truncated, then written slowly
            for at in range(0, len(data), 500):
                file.write(data[at : at + 500] if way != "broken" else b"x")
                file.flush()
                time.sleep(0.03)
    time.sleep(0.05)
"""


@contextmanager
def rank(folder: Path, way: str) -> Iterator[JobProcess]:
    """Run a rank whose recorder behaves in some way."""
    names = {
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": str(folder / "pipe-"),
        "TORCH_FR_DUMP_TEMP_FILE": str(folder / "dump-"),
    }
    argv = [sys.executable, "-c", RANK, str(folder / "pipe-1.pipe"), str(folder / "dump-1")]
    with subprocess.Popen([*argv, str(REAL), way], env=names, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"up\n"
        if way != "gone":
            assert child.stdout.readline() == b"reads\n"
        try:
            yield JobProcess("rank 1", psutil.Process(child.pid), 1, 4)
        finally:
            child.kill()


def read(one: JobProcess, folder: Path, limit: float = 20.0) -> RecorderFindings:
    """Read the recorders of one rank."""
    return anyio.run(partial(read_recorders, [one], folder, limit))


def test_a_dump_on_demand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A former dump is not taken for the new one, which is read as a whole, twice."""
    monkeypatch.setattr(recorder_dumps, "_RECORDER_POLL", 0.3)
    kept = tmp_path / "kept"
    kept.mkdir()
    (tmp_path / "dump-1").write_bytes(b"of an earlier request")
    with rank(tmp_path, "slow") as one:
        for _ in range(2):
            found = read(one, kept)
            assert found.notes == ()
            assert [(group.rank, group.last) for group in found.progress] == [(1, 13)]
    assert (kept / "flight-recorder-1.dump").read_bytes() == REAL.read_bytes()


@pytest.mark.parametrize(
    ("way", "note"),
    [
        ("silent", "no flight recorder dump of rank 1: none was written within 1 s"),
        ("broken", "no flight recorder dump of rank 1: it "),
    ],
)
def test_no_dump(way: str, note: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A recorder that writes none, or something else, costs its limit; a note says so."""
    monkeypatch.setattr(recorder_dumps, "_RECORDER_POLL", 0.3)
    with rank(tmp_path, way) as one:
        found = read(one, tmp_path, 1.0 if way == "silent" else 20.0)
    assert found.progress == ()
    assert [text[: len(note)] for text in found.notes] == [note]


def test_a_rank_without_a_recorder(tmp_path: Path) -> None:
    """Nothing is written, and nothing said; a pipe that nobody reads does not block."""
    here = JobProcess("rank 0", psutil.Process(), 0, 1)
    assert read(here, tmp_path) == ((), ())
    with rank(tmp_path, "gone") as one:
        found = read(one, tmp_path, 1.0)
    assert len(found.notes) == 1
    assert "no flight recorder dump of rank 1" in found.notes[0]


class Rank:
    """A rank's process, as far as its environment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def environ(self) -> dict[str, str]:
        """Return where its pipe and its dump are."""
        return {
            "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": f"{self.folder}/pipe-",
            "TORCH_FR_DUMP_TEMP_FILE": f"{self.folder}/dump-",
        }


@pytest.mark.parametrize(
    ("call", "name", "has_note"),
    [
        ("stat", "pipe-1.pipe", True),
        ("stat", "dump-1", True),
        ("read_bytes", "dump-1", True),
        ("write_bytes", "flight-recorder-1.dump", False),
    ],
)
def test_a_frozen_disk_holds_nothing(
    call: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, has_note: bool
) -> None:
    """Neither the agent's loop, nor its end: each call has a thread and a limit."""
    os.mkfifo(tmp_path / "pipe-1.pipe")
    monkeypatch.setattr(times, "STALLED_DISK", 0.2)
    answers = threading.Event()
    real = getattr(Path, call)

    def frozen(path: Path, *arguments: object, **named: object) -> object:
        if path.name == name:
            answers.wait(8)
        return real(path, *arguments, **named)

    def write_dump(_pipe: Path) -> None:
        with (tmp_path / "dump-1").open("wb") as file:
            file.write(REAL.read_bytes())

    monkeypatch.setattr(Path, call, frozen)
    monkeypatch.setattr(recorder_dumps, "_write_byte", write_dump)
    process: Any = Rank(tmp_path)
    began = time.monotonic()
    found = read(JobProcess("rank 1", process, 1, 4), tmp_path, 1.5)
    assert time.monotonic() - began < 6
    assert bool(found.notes) is has_note
    assert all("no answer within" in note for note in found.notes)
    answers.set()


def test_a_disk_without_pipes(tmp_path: Path) -> None:
    """Torch would end a process that cannot make its pipe."""
    assert has_pipes(tmp_path)
    assert not has_pipes(tmp_path / "none")
    assert list(tmp_path.iterdir()) == []
