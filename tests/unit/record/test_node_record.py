"""node.json: its processes, which of them still run, and its recorder."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.record import node_record
from agent.record.background import DiskAlarm
from agent.record.files import FileLock, LockHolder, NoRecord
from agent.record.node_record import (
    NODE_FILE,
    NodeRecord,
    NodeRecorder,
    PidSpace,
    ProcessStat,
    StartedProcess,
    may_reuse,
    own_record,
    process_of,
    read_stat,
    running_processes,
)
from support.conditions import await_true

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HERE = PidSpace("boot-1", "pid:[1]", "node-a")
AGENT = StartedProcess("agent", 10, 1000)
RAY = StartedProcess("ray start", 20, 2000)
RECORD = NodeRecord(
    "pod0", "run-1", HERE, AGENT, (RAY,), "/tmp/ray", passed_on=12, epoch=3, head_ip="10.0.0.4"
)
RUNS = ProcessStat("agent", "S", 1000)


@contextmanager
def sleeper() -> Iterator[StartedProcess]:
    """Run a process that does nothing, and end it."""
    with subprocess.Popen(["sleep", "60"]) as process:
        started = process_of("sleep", process.pid)
        assert started is not None
        try:
            yield started
        finally:
            process.kill()


PROCESSES = st.builds(StartedProcess, st.text(), st.integers(), st.integers())


@given(
    st.builds(
        NodeRecord,
        st.text(),
        st.text(),
        st.builds(PidSpace, st.text(), st.text(), st.text()),
        PROCESSES,
        st.lists(PROCESSES).map(tuple),
        st.text(),
        st.text(),
        st.integers(0),
        st.lists(st.text()).map(tuple),
        st.booleans(),
    )
)
def test_a_record_survives_the_disk(record: NodeRecord) -> None:
    """The record that is read equals the one written."""
    assert NodeRecord.from_dict(json.loads(json.dumps(record.to_dict()))) == record


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"agent": None},
        {"agent": {"name": "agent", "pid": "10", "start": 1}},
        {"started": None},
        {"started": [[]]},
        {"place": []},
        {"place": {"boot_id": 1}},
        {"passed_on": True},
        {"copied": "9"},
        {"done": None},
        {"ended": 0},
        {"node": None},
    ],
)
def test_invalid_records_have_a_reason(change: dict[str, object]) -> None:
    """Any other content is refused with a reason."""
    assert isinstance(NodeRecord.from_dict({**RECORD.to_dict(), **change}), NoRecord)


# --- what lives --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "processes", "found"),
    [
        (HERE, {10: RUNS, 20: ProcessStat("ray", "R", 2000)}, (AGENT, RAY)),
        (HERE, {20: ProcessStat("ray", "R", 2000)}, (RAY,)),
        (HERE, {10: ProcessStat("agent", "S", 1001)}, ()),
        (HERE, {10: ProcessStat("agent", "Z", 1000)}, ()),
        (HERE, {11: RUNS}, ()),
        (HERE, {}, ()),
        (replace(HERE, boot_id="boot-2"), {10: RUNS}, ()),
        (replace(HERE, pid_namespace="pid:[2]"), {10: RUNS}, ()),
        (replace(HERE, hostname="renamed"), {10: RUNS}, (AGENT,)),
        (PidSpace("", "pid:[1]"), {10: RUNS}, ()),
        (PidSpace("boot-1", ""), {10: RUNS}, ()),
        (PidSpace("", ""), {10: RUNS}, ()),
    ],
)
def test_running_processes_by_proc(
    monkeypatch: pytest.MonkeyPatch,
    place: PidSpace,
    processes: dict[int, ProcessStat],
    found: tuple[StartedProcess, ...],
) -> None:
    """A pid is valid in its own scope, if that is known, with its start time, until it exits."""
    monkeypatch.setattr(node_record, "read_pid_space", lambda: place)
    monkeypatch.setattr(node_record, "read_stat", processes.get)
    is_known = bool(place.boot_id and place.pid_namespace)
    assert running_processes(RECORD if is_known else replace(RECORD, place=place)) == found


def test_a_real_process_runs_until_its_exit() -> None:
    """Running, zombie, exited; another process with the same pid does not count."""
    with subprocess.Popen(["sleep", "60"]) as process:
        started = process_of("sleep", process.pid)
        assert started is not None
        record = replace(own_record("pod0", "run-1"), started=(started,))
        assert running_processes(record) == (record.agent, started)
        reused = replace(started, start=started.start - 1)
        assert running_processes(replace(record, started=(reused,))) == (record.agent,)
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert running_processes(record) == (record.agent,)
    assert running_processes(record) == (record.agent,)
    assert process_of("sleep", process.pid) is None


@pytest.mark.parametrize(
    ("name", "found"),
    [("sleep", True), ("a) R 1 2 3 (b", True), ("x\ny", True), (None, False)],
)
def test_stat_with_any_process_name(
    name: str | None,
    found: bool,  # noqa: FBT001 - a table's column
    tmp_path: Path,
) -> None:
    """A process name may contain anything; other text is refused."""
    rest = "S 7 1 1 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 12345 1 1"
    text = "" if name is None else f"42 ({name}) {rest}"
    (tmp_path / "42").mkdir()
    (tmp_path / "42" / "stat").write_text(text)
    assert read_stat(42, tmp_path) == (ProcessStat(str(name), "S", 12345) if found else None)


# --- whose folder it is ------------------------------------------------------------------------

ELSEWHERE = PidSpace("boot-2", "pid:[7]", "node-b")
RESTARTED = PidSpace("boot-1", "pid:[7]", "node-a")
OURS, THEIRS, UNKNOWN = LockHolder.OURS, LockHolder.THEIRS, LockHolder.UNKNOWN
AT = {place: replace(RECORD, place=place) for place in (HERE, ELSEWHERE, RESTARTED)}


class Found(NamedTuple):
    """What is found in a folder, which was there before as a rule."""

    lock: LockHolder
    record: NodeRecord | None
    is_new: bool = False
    agent_lives: bool = False


@pytest.mark.parametrize(
    ("there", "free"),
    [
        (Found(OURS, None, is_new=True), True),
        (Found(UNKNOWN, None, is_new=True), True),
        (Found(THEIRS, None, is_new=True), False),
        (Found(OURS, None, is_new=False), True),
        (Found(UNKNOWN, None, is_new=False), False),
        (Found(OURS, AT[HERE]), True),
        (Found(OURS, AT[HERE], agent_lives=True), False),
        (Found(THEIRS, AT[HERE]), False),
        (Found(UNKNOWN, AT[HERE]), True),
        (Found(OURS, replace(AT[HERE], node="pod:0")), False),
        (Found(OURS, AT[RESTARTED]), True),
        (Found(UNKNOWN, AT[RESTARTED]), False),
        (Found(OURS, AT[ELSEWHERE]), False),
        (Found(OURS, replace(AT[ELSEWHERE], ended=True)), True),
        (Found(THEIRS, replace(AT[ELSEWHERE], ended=True)), False),
    ],
)
def test_which_folders_may_be_reused(
    there: Found,
    free: bool,  # noqa: FBT001 - a table's column
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """New, ended, killed here, or of a restarted pod."""
    monkeypatch.setattr(node_record, "is_agent_running", lambda _record: there.agent_lives)
    assert may_reuse(there.record, there.lock, "pod0", HERE, is_new=there.is_new) is free


def test_a_lock_is_exclusive(tmp_path: Path) -> None:
    """A second taker is refused, in this process too, and no child inherits the lock."""
    path = tmp_path / ".lock"
    first, second = FileLock(path), FileLock(path)
    assert first.take() is LockHolder.OURS
    assert second.take() is LockHolder.THEIRS
    with sleeper():
        first.release()
        assert second.take() is LockHolder.OURS
    second.release()


# --- the writer --------------------------------------------------------------------------------


class Recording:
    """A recorder, its file, and its log lines."""

    def __init__(self, folder: Path, hold: AbstractContextManager[object] | None = None) -> None:
        self.path = folder / NODE_FILE
        self.lines: list[str] = []
        self.writes = 0
        self._hold = hold or nullcontext()
        disk = DiskAlarm(lambda sentence, _level: self.lines.append(sentence))
        own = own_record("pod0", "run-1")
        self.recorder = NodeRecorder(own, self._where, disk)
        self.recorder.start()

    @contextmanager
    def _where(self) -> Iterator[Path]:
        with self._hold:
            self.writes += 1
            yield self.path

    def read(self) -> NodeRecord | None:
        """Return what is on the disk."""
        found = NodeRecord.read(self.path)
        return None if isinstance(found, NoRecord) else found


def test_processes_are_recorded_at_once(tmp_path: Path) -> None:
    """Started processes are added, exited ones removed, unknown ones skipped."""
    recording = Recording(tmp_path)
    with sleeper() as process:
        recording.recorder.add_process("sleep", process.pid)
        recording.recorder.add_process("gone", 2**22 + 1)
        recording.recorder.update(session="/tmp/ray/session_1")
        recording.recorder.update(run_id="run-2")
        await_true(lambda: recording.read() == recording.recorder.record)
        assert recording.recorder.record.started == (process,)
        assert recording.recorder.record.session == "/tmp/ray/session_1"
        recording.recorder.remove_process(process.pid)
        recording.recorder.finish()
    written = recording.read()
    assert written is not None
    assert (written.started, written.run_id, written.ended) == ((), "run-2", True)


def test_counters_are_written_rarely(tmp_path: Path) -> None:
    """Many changes make few writes, and the last value is written."""
    recording = Recording(tmp_path)
    await_true(lambda: recording.read() is not None)
    began = time.monotonic()
    former = recording.writes
    for count in range(100_000):
        recording.recorder.update(passed_on=count)
    await_true(lambda: getattr(recording.read(), "passed_on", 0) == 99_999, 60.0)
    writes = recording.writes - former
    assert writes <= 2 + (time.monotonic() - began) / 0.5  # one may have been due, one is the last
    recording.recorder.finish()


def test_a_stalled_disk_blocks_no_caller(tmp_path: Path) -> None:
    """Changes return at once, and `finish` within its limit; an epoch is not kept yet."""
    disk = threading.Lock()
    with disk:
        recording = Recording(tmp_path, disk)
        for count in range(1000):
            recording.recorder.update(passed_on=count)
            recording.recorder.update(session=str(count))
        assert recording.recorder.record_epoch(7, 0.05) is not None
        assert recording.read() is None
    assert recording.recorder.record_epoch(7, 20.0) is None
    written = recording.read()
    assert written is not None
    assert written.epoch == 7
    with disk:
        recording.recorder.update(session="last")
        recording.recorder.finish(0.1)


def test_a_later_epoch_on_disk_ends_the_wait_for_an_earlier_one(tmp_path: Path) -> None:
    """The head's first epoch may be followed by the next before its record was written once."""
    disk = threading.Lock()
    with ThreadPoolExecutor(1) as thread:
        with disk:
            recorder = Recording(tmp_path, disk).recorder
            earlier = thread.submit(recorder.record_epoch, 7, 5.0)
            await_true(lambda: recorder.record.epoch == 7)
            assert recorder.record_epoch(8, 0.0) is not None
        assert earlier.result() is None
    recorder.finish(20.0)


def test_a_failing_disk_is_reported_once(tmp_path: Path) -> None:
    """A record that cannot be written makes one log line."""
    recording = Recording(tmp_path / "gone")
    for count in range(3):
        recording.recorder.update(session=str(count))
        await_true(lambda count=count: recording.writes > count)  # type: ignore[misc] # bound early
    recording.recorder.finish()
    (line,) = recording.lines
    assert line.startswith("node.json cannot be written: No such file or directory. ")
