"""The one word of a disk that takes nothing, and who gets what written later."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from agent.record import background
from agent.record.background import STALLED_AFTER, DiskAlarm, ItemWriter

if TYPE_CHECKING:
    import pytest


class Heard:
    """A disk's word, and what it said."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.word = DiskAlarm(lambda sentence, _level: self.said.append(sentence))
        self.word.set_folder(lambda: Path("/logs/run/pod0"))


def test_many_files_of_one_disk_are_told_once() -> None:
    """Folder, cause, what follows and what to do; and that it is over when it is for all."""
    heard = Heard()
    for name in ("agent.log", "node.json", "agent.log", "run.json"):
        heard.word.report(name, "No space left on device")
    (told,) = heard.said
    assert told.startswith("/logs/run/pod0 cannot be written: No space left on device (agent.log).")
    assert "the job goes on" in told
    assert "AGENT_LOG_DIR" in told
    heard.word.report("agent.log", "")
    heard.word.report("node.json", "")
    assert len(heard.said) == 1
    heard.word.report("run.json", "")
    assert heard.said[1:] == ["/logs/run/pod0 can be written again"]


def test_a_write_that_does_not_end_is_told_of() -> None:
    """Once, when it takes too long; and when it ended after all."""
    heard = Heard()
    since: float | None = 100.0
    heard.word.watch("events.jsonl", lambda: since)
    heard.word.check(100.0 + STALLED_AFTER - 1)
    assert heard.said == []
    for later in (1, 2, 3):
        heard.word.check(100.0 + STALLED_AFTER + later)
    (told,) = heard.said
    assert "a write takes longer than 10 s (events.jsonl)" in told
    since = None
    heard.word.check(200.0)
    assert heard.said[1:] == ["/logs/run/pod0 can be written again"]


def test_what_was_put_is_waited_for_but_not_on_a_disk_that_stalls() -> None:
    """Who must know that it is written waits for that, or until it was tried, or for so long."""
    stalls, written = threading.Event(), list[int]()

    def write(value: int) -> OSError | None:
        if value == 3:
            stalls.wait(60)
        written.append(value)
        return OSError(28, "No space left on device") if value == 2 else None

    latest: ItemWriter[int] = ItemWriter("run.json", write, DiskAlarm(print))
    latest.put(1)
    latest.settle()  # its thread was not started: nobody will write it
    assert written == []
    latest.start()
    for value in (1, 2):
        latest.put(value)
        latest.settle(60)
        assert written[-1] == value
    latest.put(3)
    latest.settle(0.05)
    assert written[-1] == 2
    stalls.set()
    latest.settle(60)
    assert written[-1] == 3
    latest.finish()


def test_what_could_not_be_written_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest value reaches the disk once it has room, though nothing new comes."""
    monkeypatch.setattr(background, "_RETRY_AFTER", 0.02)
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
