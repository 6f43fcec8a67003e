"""The writer: never blocks, keeps the order, says what it lost, and goes on when it can."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from agent.record.background import Writer, appending
from scenario import await_true

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[2]


def read_all(reader: int) -> bytes:
    """Read a pipe to its end."""
    with os.fdopen(reader, "rb") as file:
        return file.read()


def giving(fd: int) -> Callable[[], int]:
    """Return what opens nothing, but gives a descriptor that is open."""
    return lambda: fd


def test_lines_arrive_in_order(tmp_path: Path) -> None:
    """What was put before there was a place, and after; at the end all of it is there."""
    file = tmp_path / "lines"
    writer = Writer("test")
    writer.put("one")
    writer.open(appending(file))
    for number in range(1000):
        writer.put(f"{number} é \udc80")
    writer.finish(10)
    text = "one\n" + "".join(f"{number} é \\udc80\n" for number in range(1000))
    assert file.read_text() == text


def test_the_oldest_are_lost_and_counted() -> None:
    """Nobody reads: memory has an end, the last words stay, a line says how many are missing."""
    reader, pipe = os.pipe()
    writer = Writer("test", giving(pipe), most=10_000, lost="lost {}".format)
    count = 30_000
    for number in range(count):
        writer.put(f"{number:09}")
    assert len(writer._lines) <= 1000  # noqa: SLF001 - the bound itself
    writer.close()
    lines = read_all(reader).decode().splitlines()
    numbers = [int(line) for line in lines if not line.startswith("lost")]
    lost = [(at, int(line.split()[1])) for at, line in enumerate(lines) if line.startswith("lost")]
    assert numbers == sorted(numbers)
    assert numbers[-1] == count - 1
    assert len(numbers) + sum(missing for _, missing in lost) == count
    for at, missing in lost:
        before = int(lines[at - 1]) if at else -1
        assert int(lines[at + 1]) == before + missing + 1


def test_a_line_longer_than_all_that_may_wait_is_lost(tmp_path: Path) -> None:
    """Even one line cannot take more memory than is granted."""
    file = tmp_path / "lines"
    writer = Writer("test", appending(file), most=100, lost="lost {}".format)
    writer.put("x" * 1000)
    writer.put("short")
    writer.finish(10)
    assert file.read_text() == "lost 1\nshort\n"


def test_a_place_that_fails_is_told_once_and_taken_up_again(tmp_path: Path) -> None:
    """The trouble is told, then its end; what was put meanwhile is there."""
    told: list[str] = []
    failing = threading.Event()
    failing.set()
    tries = []

    def opener() -> int:
        tries.append(1)
        if failing.is_set():
            raise OSError(errno.ENOSPC, "No space left on device")
        return appending(tmp_path / "lines")()

    writer = Writer("test", opener, trouble=told.append)
    writer.put("before")
    await_true("two tries", lambda: len(tries) > 1)
    writer.put("between")
    assert told == ["No space left on device"]
    failing.clear()
    await_true("it is written", (tmp_path / "lines").exists)
    writer.put("after")
    writer.finish(10)
    assert told == ["No space left on device", ""]
    assert (tmp_path / "lines").read_text() == "before\nbetween\nafter\n"


def test_the_end_waits_for_no_disk_that_is_full() -> None:
    """What fails when the end was asked for is given up at once."""
    told: list[str] = []
    writer = Writer("test", lambda: os.open("/dev/full", os.O_WRONLY), trouble=told.append)
    writer.put("nobody will read this")
    await_true("it was tried", lambda: bool(told))
    writer.finish(3600)
    assert told == ["No space left on device"]


def test_a_reader_that_left_is_no_trouble() -> None:
    """A broken pipe is not spoken of, and takes whatever comes."""
    told: list[str] = []
    reader, pipe = os.pipe()
    os.close(reader)
    writer = Writer("test", giving(pipe), trouble=told.append)
    for _ in range(1000):
        writer.put("x" * 1000)
    writer.finish(10)
    assert told == []


def test_a_pipe_that_does_not_block_is_waited_for() -> None:
    """Where somebody set O_NONBLOCK on our stderr, nothing is lost for that."""
    reader, pipe = os.pipe()
    os.set_blocking(pipe, False)
    writer = Writer("test", giving(pipe))
    for number in range(10_000):
        writer.put(f"{number:09}")
    writer.close()
    assert read_all(reader) == b"".join(b"%09d\n" % number for number in range(10_000))


def test_where_no_thread_can_be_had() -> None:
    """At the limit of processes the log is written by hand; a blocked pipe is not waited for."""
    script = """
import sys, threading
def refuse(_thread): raise RuntimeError("can't start new thread")
threading.Thread.start = refuse
from agent.record.log import say
from agent.runtime.signals import exit_now
for number in range(int(sys.argv[1])): say(f"sentence {number}")
say("done: the last word")
exit_now(7)
"""
    command = [sys.executable, "-c", script]
    done = subprocess.run(
        [*command, "100"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 7
    assert done.stderr.endswith(" done: the last word\n")
    assert len(done.stderr.splitlines()) == 101
    reader, pipe = os.pipe()
    code = subprocess.run(
        [*command, "20000"], cwd=ROOT, stderr=pipe, timeout=60, check=False
    ).returncode
    os.close(pipe)
    os.close(reader)
    assert code == 7
