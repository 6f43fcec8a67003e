"""Background writing: nothing blocks, order is preserved, failures are retried and counted."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import pytest

from agent.base import times
from agent.record import background
from agent.record.background import (
    HANGING_DISK,
    DiskAlarm,
    ItemWriter,
    Writer,
    in_background,
    in_thread,
    result_in_thread,
)
from agent.record.files import appending
from support.scenario import await_true

if TYPE_CHECKING:
    from collections.abc import Callable


pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[3]


def read_all(reader: int) -> bytes:
    """Read a pipe to its end."""
    with os.fdopen(reader, "rb") as file:
        return file.read()


def opener_of(fd: int) -> Callable[[], int]:
    """Return an opener of a descriptor that is open already."""
    return lambda: fd


def test_lines_arrive_in_order(tmp_path: Path) -> None:
    """Lines queued before and after the destination is set are all written, in order."""
    file = tmp_path / "lines"
    writer = Writer("test")
    writer.put("one")
    writer.open(appending(file))
    for number in range(1000):
        writer.put(f"{number} é \udc80")
    writer.finish(10)
    text = "one\n" + "".join(f"{number} é \\udc80\n" for number in range(1000))
    assert file.read_text() == text


def test_the_oldest_lines_are_dropped_and_counted() -> None:
    """Without a reader the queue is bounded, the newest lines stay and the dropped are counted."""
    reader, pipe = os.pipe()
    writer = Writer("test", opener_of(pipe), most=10_000, lost="lost {}".format)
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


def test_a_line_longer_than_the_queue_is_dropped(tmp_path: Path) -> None:
    """One line cannot exceed the limit of the queue."""
    file = tmp_path / "lines"
    writer = Writer("test", appending(file), most=100, lost="lost {}".format)
    writer.put("x" * 1000)
    writer.put("short")
    writer.finish(10)
    assert file.read_text() == "lost 1\nshort\n"


def test_a_failure_is_reported_once_and_retried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The failure and the recovery are reported; lines queued in between are written."""
    monkeypatch.setattr(background, "LINES_RETRY", 0.2)
    reasons: list[str] = []
    failing = threading.Event()
    failing.set()
    tries = []

    def opener() -> int:
        tries.append(1)
        if failing.is_set():
            raise OSError(errno.ENOSPC, "No space left on device")
        return appending(tmp_path / "lines")()

    writer = Writer("test", opener, trouble=reasons.append)
    writer.put("before")
    await_true("two tries", lambda: len(tries) > 1)
    writer.put("between")
    assert reasons == ["No space left on device"]
    failing.clear()
    await_true("it is written", lambda: reasons[1:] == [""] and writer.is_idle)
    writer.put("after")
    writer.finish(60)
    assert reasons == ["No space left on device", ""]
    assert (tmp_path / "lines").read_text() == "before\nbetween\nafter\n"


def test_finish_does_not_retry_on_a_full_disk() -> None:
    """A write that fails after `finish` is not tried again."""
    reasons: list[str] = []
    writer = Writer("test", lambda: os.open("/dev/full", os.O_WRONLY), trouble=reasons.append)
    writer.put("never read")
    await_true("it was tried", lambda: bool(reasons))
    writer.finish(3600)
    assert reasons == ["No space left on device"]


def test_a_closed_pipe_is_no_failure() -> None:
    """Lines for a closed pipe are dropped, and nothing is reported."""
    reasons: list[str] = []
    reader, pipe = os.pipe()
    os.close(reader)
    writer = Writer("test", opener_of(pipe), trouble=reasons.append)
    for _ in range(1000):
        writer.put("x" * 1000)
    writer.finish(10)
    assert reasons == []


def test_a_non_blocking_pipe_loses_nothing() -> None:
    """Another process may set O_NONBLOCK on the shared stderr."""
    reader, pipe = os.pipe()
    os.set_blocking(pipe, False)
    writer = Writer("test", opener_of(pipe))
    for number in range(10_000):
        writer.put(f"{number:09}")
    writer.close()
    assert read_all(reader) == b"".join(b"%09d\n" % number for number in range(10_000))


def test_without_threads_lines_are_written_directly() -> None:
    """At the limit of processes the caller writes, as far as the pipe does not block."""
    script = """
import sys, threading
def refuse(_thread): raise RuntimeError("can't start new thread")
threading.Thread.start = refuse
from agent.record.log import say
from agent.processes.signals import exit_now
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


# --- items and the disk alarm -----------------------------------------------------------------


class Alarm:
    """A disk alarm and the lines that it logged."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.alarm = DiskAlarm(lambda sentence, _level: self.lines.append(sentence))
        self.alarm.folder = lambda: Path("/logs/run/pod0")


def test_many_failing_files_make_one_line() -> None:
    """Folder, cause, effect and remedy; and one line once all files can be written again."""
    alarm = Alarm()
    for name in ("agent.log", "node.json", "agent.log", "run.json"):
        alarm.alarm.report(name, "No space left on device")
    (line,) = alarm.lines
    assert line.startswith("/logs/run/pod0 cannot be written: No space left on device (agent.log).")
    assert "the job goes on" in line
    assert "AGENT_LOG_DIR" in line
    alarm.alarm.report("agent.log", "")
    alarm.alarm.report("node.json", "")
    assert len(alarm.lines) == 1
    alarm.alarm.report("run.json", "")
    assert alarm.lines[1:] == ["/logs/run/pod0 can be written again"]


def test_a_stalled_write_is_reported() -> None:
    """One line when it takes too long, and one when it has ended."""
    alarm = Alarm()
    since: float | None = 100.0
    alarm.alarm.watch("events.jsonl", lambda: since)
    alarm.alarm.check(100.0 + times.WRITE_STALLED - 1)
    assert alarm.lines == []
    for later in (1, 2, 3):
        alarm.alarm.check(100.0 + times.WRITE_STALLED + later)
    (line,) = alarm.lines
    assert "a write takes longer than 10 s (events.jsonl, stalled)" in line
    since = None
    alarm.alarm.check(200.0)
    assert alarm.lines[1:] == ["/logs/run/pod0 can be written again"]


def test_a_write_that_did_not_end_is_not_waited_for_again() -> None:
    """The end of a run has several writes: a hung disk delays it by one of them."""
    alarm = Alarm().alarm
    assert alarm.patience(times.STALLED_DISK) == times.STALLED_DISK
    alarm.report_hang("report.html")
    assert alarm.patience(times.STALLED_DISK) == HANGING_DISK
    alarm.report("outcome.json", "")
    assert alarm.patience(times.STALLED_DISK) == HANGING_DISK
    alarm.report("report.html", "")
    assert alarm.patience(times.STALLED_DISK) == times.STALLED_DISK


def test_settle_waits_for_the_newest_item() -> None:
    """`settle` returns once the item is written, after its limit, or at once without a thread."""
    stalls, written = threading.Event(), list[int]()

    def write(value: int) -> OSError | None:
        if value == 3:
            stalls.wait(60)
        written.append(value)
        return OSError(28, "No space left on device") if value == 2 else None

    latest: ItemWriter[int] = ItemWriter("run.json", write, DiskAlarm(print))
    latest.put(1)
    latest.settle()  # its thread was not started
    assert written == []
    latest.start()
    for value, limit in ((1, 60.0), (2, 1.0)):
        latest.put(value)
        latest.settle(limit)
        assert written[-1] == value
    latest.put(3)
    latest.settle(0.05)
    assert written[-1] == 2
    stalls.set()
    latest.settle(60)
    assert written[-1] == 3
    latest.finish()


def test_a_failed_item_is_written_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest item is written once the disk has space, without another `put`."""
    monkeypatch.setattr(times, "WRITE_RETRY", 0.02)
    written: list[int] = []
    refusals = [OSError(28, "No space left on device")] * 3

    def write(value: int) -> OSError | None:
        if refusals:
            return refusals.pop()
        written.append(value)
        return None

    latest = ItemWriter("run.json", write, DiskAlarm(print))
    latest.start()
    latest.put(5)
    until = time.monotonic() + 20
    while not written:
        assert time.monotonic() < until
        time.sleep(0.01)  # a step of the wait above
    latest.finish()
    assert written == [5]


def test_a_result_or_its_error_in_time() -> None:
    """A thread that hangs holds neither the caller's limit nor its end."""
    answers = threading.Event()

    def fails() -> str:
        raise ValueError("no number")

    async def ask() -> None:
        assert await result_in_thread(lambda: 7, 60) == 7
        with pytest.raises(ValueError, match="no number"):
            await result_in_thread(fails, 60)
        with pytest.raises(TimeoutError, match="no answer within"):
            await result_in_thread(partial(answers.wait, 20), 0.05)
        with anyio.move_on_after(0.05) as scope:
            await result_in_thread(partial(answers.wait, 20), 60)
        assert scope.cancelled_caught

    began = time.monotonic()
    anyio.run(ask)
    assert time.monotonic() - began < 10
    answers.set()


def test_a_reader_that_fails_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug in what a thread runs reaches the caller at once, not after its limit."""
    traces: list[object] = []
    monkeypatch.setattr(threading, "excepthook", traces.append)

    def fails() -> str:
        raise ValueError("a bug")

    async def ask() -> None:
        with anyio.fail_after(10):
            assert await in_thread(fails, 60) is None
            future = in_background(fails)
            assert future is not None
            with pytest.raises(ValueError, match="a bug"):
                await future

    anyio.run(ask)
    await_true("two tracebacks", lambda: len(traces) == 2)
