"""Disks and threads of simulated machines: real files, written by threads in virtual time."""

from __future__ import annotations

import asyncio
import errno
import math
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import anyio

from agent.base import times
from agent.record import files
from agent.record.background import ItemWriter, Writer
from agent.record.files import PART_SUFFIX
from agent.record.node_record import NodeRecord, NodeRecorder
from agent.record.run_record import RUN_FILE
from support.simulated.virtual import LIFE, here, is_over

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path
    from random import Random

    from support.simulated.machines import Machine
    from support.simulated.virtual import Life

T = TypeVar("T")
_SETTLED_WITHIN = 0.5
_FAST = 0.01
_WRITTEN_BACK = 30.0
"""Seconds after which the kernel has written a file by itself."""
_write_atomically = files.write_atomically


# --- threads ------------------------------------------------------------------------------------


class DoneThread:
    """A thread that has ended: in a world each runs at once."""

    def join(self, _limit: float | None = None) -> None:
        """Return: it has ended."""

    def is_alive(self) -> bool:
        """Return False: it has ended."""
        return False


def start_thread(act: Callable[[], object], name: str | None = None) -> DoneThread:
    """Run a thread's work at once; one that writes lines writes them nowhere."""
    del name
    if not isinstance(getattr(act, "__self__", None), Writer):
        act()
    return DoneThread()


# --- the threads that write records ---------------------------------------------------------------


class Drive:
    """The thread of one ItemWriter: it writes when an item is due, in virtual time."""

    def __init__(self, writer: ItemWriter[Any], life: Life) -> None:
        self._writer = writer
        self._life = life
        self._world = life.machine.world
        self._slow = self._world.random.uniform(0.05, 0.9 * _SETTLED_WITHIN)
        """Seconds of a write where disks are slow."""
        self._waits: asyncio.TimerHandle | None = None
        self._item: Any = None  # the item of the write that is under way

    def is_put(self) -> None:
        """Note a new item; kill the agent as it writes it, if the setup says so."""
        if self._writer.name == RUN_FILE:
            place = self._world.counted(self._life.machine.label, RUN_FILE)
            if place in self._world.setup.lost_writes:
                self._world.later(self._slow * self._world.random.random(), self._kill)
        self.look()

    def _kill(self) -> None:
        machine = self._life.machine
        if machine.agent is self._life.agent:
            machine.world.note(machine.label, f"agent is killed as it writes {RUN_FILE}")
            machine.kill_agent()

    def look(self) -> None:
        """Begin to write an item that is due, or wait until it is."""
        if self._item is not None:
            return
        self._wait_no_more()
        pause = self._writer.due_in()
        if pause == math.inf:
            return
        step = self.look
        if pause == 0.0:
            self._item = self._writer.begin_write()
            self._keep_in_memory()
            pause = self._slow if self._world.disks_are_slow else _FAST
            stalled = self._life.machine.stalled_until - self._world.now
            pause = max(pause, stalled)
            step = self._write
        self._waits = asyncio.get_running_loop().call_later(pause, step)

    def _keep_in_memory(self) -> None:
        """Begin the write: the record is in memory before the disk has it."""
        with _beginning():
            self._writer._write(self._item)  # noqa: SLF001 - the first half of `end_write`

    def _write(self) -> None:
        item = self._item
        self._item = None
        if not is_over():
            self._writer.end_write(item)
        self.look()

    def write_now(self) -> None:
        """Write what is left at once."""
        self._wait_no_more()
        if self._item is None:
            self._item = self._writer.begin_write()
        if self._item is not None:
            self._write()

    def _wait_no_more(self) -> None:
        if self._waits is not None:
            self._waits.cancel()
            self._waits = None


class DrivenWriter(ItemWriter[T]):
    """A writer of records whose thread is a `Drive`."""

    _drive: Drive | None = None

    def _run(self) -> None:
        """Begin what the thread does."""
        life = LIFE.get()
        assert life is not None
        self._drive = Drive(self, life)
        self._drive.look()

    def put(self, item: T, *, urgent: bool = True) -> None:
        """Replace the item to write."""
        super().put(item, urgent=urgent)
        if self._drive is not None and not is_over():
            self._drive.is_put()

    async def until_settled(self) -> None:
        """Wait in virtual time until the newest item is written."""
        with anyio.move_on_after(_SETTLED_WITHIN):
            while not self.is_settled:  # noqa: ASYNC110 - a disk has no event
                await asyncio.sleep(_FAST)

    def finish(self, limit: float = times.FLUSH) -> None:
        """Write what is left at once."""
        del limit
        self.close()
        if self._drive is not None and not is_over():
            self._drive.write_now()


class DrivenNodeRecorder(NodeRecorder, DrivenWriter[NodeRecord]):
    """The writer of node.json."""


# --- files --------------------------------------------------------------------------------------


_begins = False  # True while a write of a record only begins


@contextmanager
def _beginning() -> Iterator[None]:
    global _begins  # noqa: PLW0603 - all worlds run in one thread
    _begins = True
    try:
        yield
    finally:
        _begins = False


def write_atomically(
    path: Path, text: str, *, durable: bool = True, mode: int | None = None
) -> OSError | None:
    """Write a file, if this machine's disk takes it and its agent runs."""
    if is_over():
        return None
    if _begins:
        return OSError(errno.EINPROGRESS, "the disk has not taken it yet")
    machine = here()
    fault = machine.world.disk_fault(machine, path)
    if fault is not None:
        return fault
    if machine.torn_writes:
        machine.torn_writes -= 1
        return _break_off(machine, path, text)
    if durable:
        machine.unsynced.pop(path, None)
    else:
        machine.unsynced[path] = (text, machine.world.now)
    return _write_atomically(path, text, durable=False, mode=mode)


def _break_off(machine: Machine, path: Path, text: str) -> OSError:
    """Kill the agent amid a write: a part of the text lies beside the file."""
    world = machine.world
    part = path.with_name(f".{path.name}.{world.random.randrange(16**8):08x}{PART_SUFFIX}")
    part.write_text(text[: world.random.randrange(len(text) + 1)], encoding="utf-8")
    world.note(machine.label, f"agent is killed amid a write of {path.name}")
    world.later(0.0, machine.kill_agent)
    return OSError(errno.EIO, "the agent ends")


def tear(files: Mapping[Path, tuple[str, float]], now: float, random: Random) -> None:
    """Leave a part of each file that was just written without a sync, as a power failure may."""
    for path, (text, at) in files.items():
        if path.exists() and now < at + _WRITTEN_BACK:
            path.write_text(text[: random.randrange(len(text))], encoding="utf-8")


def no_space() -> OSError:
    """Return the error of a full disk."""
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class MachineMemory:
    """The memory of records of the machine on which it is used."""

    def keep(self, path: Path, text: str) -> bool:
        """Keep a record's content; return whether the next agent gets it."""
        return not is_over() and here().records.keep(path, text)

    def forget(self, path: Path, text: str) -> None:
        """Forget a record that the disk has."""
        if not is_over():
            here().records.forget(path, text)

    def path_of(self, name: str) -> Path | None:
        """Return where a killed agent's record belongs."""
        return here().records.path_of(name)

    def text_of(self, path: Path) -> str | None:
        """Return what a killed agent could not write."""
        return here().records.text_of(path)

    def attach(self, descriptor: int | None) -> None:
        """Read what a killed agent left."""
        here().records.attach(descriptor)
