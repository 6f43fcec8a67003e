"""Records that the log disk did not take: the agent after a killed one reads them in memory."""

from __future__ import annotations

import json
import os
import threading
import time
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from agent.decisions.durable import Durable
from agent.record import files, node_record
from agent.record.background import DiskAlarm
from agent.record.log import say
from agent.record.memory import RecordMemory
from agent.record.node_record import (
    NODE_FILE,
    NodeRecord,
    NodeRecorder,
    folder_of,
    own_record,
)
from agent.record.run_record import RUN_FILE, RunRecord
from support.disks import fill_up, full_disk, needs_mount
from support.run_records import record_of, store_of, submitted, written

if TYPE_CHECKING:
    from collections.abc import Iterator

LIMIT = 20.0


@pytest.fixture
def kept() -> Iterator[int]:
    """Return the descriptor of a parent's file in memory."""
    descriptor = os.memfd_create("test")
    yield descriptor
    os.close(descriptor)


def attached(descriptor: int | None) -> RecordMemory:
    """Return the memory of an agent whose parent has this file."""
    memory = RecordMemory()
    memory.attach(descriptor)
    return memory


def next_agent(descriptor: int, monkeypatch: pytest.MonkeyPatch) -> RecordMemory:
    """Let this process read and write records as an agent whose parent has this file."""
    memory = attached(descriptor)
    for module in (files, node_record):
        monkeypatch.setattr(module, "record_memory", memory)
    return memory


def block_writes(monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, threading.Event]:
    """Have each write of a file wait; return what shows that one does, and what lets all go on."""
    write = files.write_atomically
    is_blocked = threading.Event()
    goes_on = threading.Event()

    def write_late(*arguments: Any, **options: Any) -> OSError | None:  # noqa: ANN401 - passed on
        is_blocked.set()
        goes_on.wait(LIMIT)
        return write(*arguments, **options)

    monkeypatch.setattr(files, "write_atomically", write_late)
    return is_blocked, goes_on


@needs_mount
def test_a_full_disk(tmp_path: Path, kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run, attempt and processes of a killed agent are found, though no file has them."""
    next_agent(kept, monkeypatch)
    with full_disk(tmp_path / "logs", "size=64k") as root:
        folder = root / "run-1" / "poda"
        folder.mkdir(parents=True)
        filling = fill_up(root)
        node = own_record("poda", "run-1")
        assert node.write(folder / NODE_FILE, durable=False) is not None
        run = record_of(Durable("run-1", "print", 7))
        assert run.write(root / "run-1" / RUN_FILE) is not None

        next_agent(kept, monkeypatch)
        assert folder_of(root, "poda", [os.getpid()]) == folder
        assert NodeRecord.read(folder / NODE_FILE) == node
        assert RunRecord.read(root / "run-1" / RUN_FILE) == run

        # once the disk takes a write, the disk's content counts
        filling.unlink()
        later = record_of(Durable("run-1", "print", 8))
        assert later.write(root / "run-1" / RUN_FILE) is None
        next_agent(kept, monkeypatch)
        assert RunRecord.read(root / "run-1" / RUN_FILE) == later
        assert NodeRecord.read(folder / NODE_FILE) == node


def test_a_written_record_is_not_kept(
    tmp_path: Path, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another head may have written a later one: the disk decides."""
    path = tmp_path / RUN_FILE
    next_agent(kept, monkeypatch)
    assert record_of(Durable("run-1", "print", 7)).write(path) is None
    memory = next_agent(kept, monkeypatch)
    assert memory.path_of(RUN_FILE) is None


def test_a_write_that_was_cut_off(tmp_path: Path, kept: int) -> None:
    """The content before it is read."""
    path = tmp_path / RUN_FILE
    memory = attached(kept)
    memory.keep(path, "first")
    memory.keep(path, "second")
    os.pwrite(kept, b"?", 16)  # in the slot of the second write
    assert attached(kept).text_of(path) == "first"


def test_a_later_heads_record_stands(
    tmp_path: Path, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent was killed before its write ended; another head has written since."""
    path = tmp_path / RUN_FILE
    own = record_of(Durable("run-1", "print", 7))
    next_agent(kept, monkeypatch).keep(path, json.dumps(own.to_dict()))
    later = record_of(Durable("run-1", "print", 9))
    path.write_text(json.dumps(later.to_dict()))
    next_agent(kept, monkeypatch)
    assert RunRecord.read(path) == later


def test_epoch_and_processes_are_kept_while_a_write_is_blocked(
    tmp_path: Path, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The write of an older record that ends later does not take it from the memory."""
    path = tmp_path / NODE_FILE
    next_agent(kept, monkeypatch)
    is_blocked, goes_on = block_writes(monkeypatch)
    recorder = NodeRecorder(own_record("poda", "run-1"), lambda: nullcontext(path), DiskAlarm(say))
    recorder.start()
    assert is_blocked.wait(LIMIT)
    began = time.monotonic()
    assert recorder.record_epoch(7, LIMIT) is None
    recorder.add_process("step", os.getpid())
    recorder.update(done=("data",))
    assert time.monotonic() - began < LIMIT
    assert not path.exists()
    next_agent(kept, monkeypatch)
    record = NodeRecord.read(path)
    assert isinstance(record, NodeRecord)
    assert record.epoch == 7
    assert [process.name for process in record.started] == ["step"]
    assert record.done == ("data",)

    # Once the disk has it, the disk counts.
    goes_on.set()
    recorder.finish(LIMIT)
    assert next_agent(kept, monkeypatch).path_of(NODE_FILE) is None
    record = NodeRecord.read(path)
    assert isinstance(record, NodeRecord)
    assert record.epoch == 7


def test_what_is_durable_is_kept_while_a_write_is_blocked(
    tmp_path: Path, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next agent knows of the attempt, and so do not two heads submit it."""
    next_agent(kept, monkeypatch)
    is_blocked, goes_on = block_writes(monkeypatch)
    store = store_of(tmp_path)
    path = tmp_path / "run" / RUN_FILE
    store.put(store.durable.starting_ray("poda", time.time()), 0.0)
    assert is_blocked.wait(LIMIT)
    store.put(submitted(store.durable), 1.0)
    next_agent(kept, monkeypatch)
    assert RunRecord.read(path) == store.record

    # Once the disk has it, the disk counts.
    goes_on.set()
    store.close()
    assert next_agent(kept, monkeypatch).path_of(RUN_FILE) is None
    assert written(tmp_path) == store.record


def test_an_older_write_does_not_take_the_epoch_back(
    tmp_path: Path, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the next agent would yield to its own: node.json has an epoch below run.json's."""
    next_agent(kept, monkeypatch)
    node_path = tmp_path / NODE_FILE
    recorder = NodeRecorder(
        own_record("poda", "run"), lambda: nullcontext(node_path), DiskAlarm(say)
    )
    recorder.start()
    recorder.settle(LIMIT)
    store = store_of(tmp_path)
    store.note_epoch = recorder.record_epoch
    store.put(store.durable.starting_ray("poda", time.time()), 0.0)
    store.close()

    # A write of that record begins, and is slow to look for a later head.
    looks = threading.Event()
    goes_on = threading.Event()
    older = store.record

    def look_slowly(_record: RunRecord) -> int:
        looks.set()
        goes_on.wait(LIMIT)
        return 0

    monkeypatch.setattr(store, "later_epoch", look_slowly)
    writing = threading.Thread(target=store._write, args=(older,))  # noqa: SLF001 - its thread has ended
    writing.start()
    assert looks.wait(LIMIT)
    store.put(store.durable.with_epoch(time.time() + 60), 1.0)
    goes_on.set()
    writing.join(LIMIT)
    next_agent(kept, monkeypatch)
    node = NodeRecord.read(node_path)
    assert isinstance(node, NodeRecord)
    assert older.epoch < node.epoch == store.durable.epoch
    recorder.finish(LIMIT)


def test_an_older_write_takes_nothing_from_memory(tmp_path: Path, kept: int) -> None:
    """Only the content that the disk has is forgotten."""
    path = tmp_path / NODE_FILE
    memory = attached(kept)
    assert memory.keep(path, "older")
    assert memory.keep(path, "newer")
    memory.forget(path, "older")
    assert attached(kept).text_of(path) == "newer"
    memory.forget(path, "newer")
    assert attached(kept).path_of(NODE_FILE) is None


def test_a_relative_path(tmp_path: Path, kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """AGENT_LOG_DIR may be relative to the folder in which the agent was started."""
    monkeypatch.chdir(tmp_path)
    attached(kept).keep(Path("logs") / RUN_FILE, "text")
    assert attached(kept).text_of(tmp_path / "logs" / RUN_FILE) == "text"


def test_without_a_parent(tmp_path: Path) -> None:
    """Verbs that only read, and an agent whose machine has no such files."""
    memory = attached(None)
    assert not memory.keep(tmp_path / RUN_FILE, "text")
    assert memory.text_of(tmp_path / RUN_FILE) is None
