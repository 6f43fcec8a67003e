"""Keeps `node.json` as things change: in a thread, since the disk may stall."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from agent.record.files import why
from agent.record.node_record import FILE, process_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from pathlib import Path

    from agent.record.disk_word import DiskWord
    from agent.record.node_record import NodeRecord

_STEP = 0.5
"""Least time between two writes of what changes all the time."""
_TOUCH = 30.0
"""A sign of life for those who share the disk, but not our pids."""
_MOST = 200
"""So many processes are remembered; services that die again and again must not add up."""


class NodeRecorder:
    """Takes changes at any time from any thread, and never waits for the disk."""

    def __init__(
        self,
        record: NodeRecord,
        where: Callable[[], AbstractContextManager[Path]],
        tell: Callable[[str], None],
        disk: DiskWord,
    ) -> None:
        self._record = record
        self._where = where
        self._tell = tell
        self._changed = threading.Condition()
        self._urgent = True
        self._dirty = True
        self._over = False
        self._failed = False
        self._disk = disk
        self._busy_since: float | None = None
        disk.watch(FILE, lambda: self._busy_since)
        self._thread = threading.Thread(target=self._run, name="node record", daemon=True)

    @property
    def record(self) -> NodeRecord:
        """Return what was recorded, be it written or not."""
        return self._record

    def start(self) -> None:
        """Begin to write."""
        try:
            self._thread.start()
        except RuntimeError as error:  # no thread can be had (pids.max)
            self._tell(f"node.json is not written: {error}")

    def started(self, name: str, pid: int) -> None:
        """Note a process that was started; one that has ended already is none."""
        process = process_of(name, pid)
        if process is not None:
            with self._changed:
                kept = [one for one in self._record.started if one.pid != pid][-_MOST + 1 :]
                self._note(replace(self._record, started=(*kept, process)), urgent=True)

    def ended(self, pid: int) -> None:
        """Note that a process is gone."""
        with self._changed:
            kept = tuple(one for one in self._record.started if one.pid != pid)
            self._note(replace(self._record, started=kept), urgent=True)

    def in_session(self, folder: str) -> None:
        """Note the folder of Ray's session."""
        with self._changed:
            self._note(replace(self._record, session=folder), urgent=True)

    def in_epoch(self, epoch: int, head_ip: str, attempt: int) -> None:
        """Note to which Ray of the head's the one here belongs, where it is, and its attempt."""
        new = replace(self._record, epoch=epoch, head_ip=head_ip, attempt=attempt)
        with self._changed:
            self._note(new, urgent=True)

    def out_of_reach(self, since: float) -> None:
        """Note since when the head is not reached; 0 where it is."""
        with self._changed:
            self._note(replace(self._record, unreached=since), urgent=False)

    def in_run(self, run_id: str) -> None:
        """Note the run that this node has heard of."""
        with self._changed:
            self._note(replace(self._record, run_id=run_id), urgent=True)

    def step_done(self, name: str) -> None:
        """Note that a prepare step is over."""
        with self._changed:
            done = (*self._record.done, name)
            self._note(replace(self._record, done=done), urgent=True)

    def passed_on(self, count: int) -> None:
        """Note how many bytes of the job's output were passed on to stdout, all in all."""
        with self._changed:
            self._note(replace(self._record, passed_on=count), urgent=False)

    def copied(self, count: int) -> None:
        """Note how many of them job.log has."""
        with self._changed:
            self._note(replace(self._record, copied=count), urgent=False)

    def output_begins(self) -> None:
        """Note that the output of another attempt begins: nothing of it is written yet."""
        with self._changed:
            self._note(replace(self._record, passed_on=0, copied=0), urgent=False)

    def counted(self, oom_kills: int) -> None:
        """Note how many processes the kernel has ended here for want of memory."""
        with self._changed:
            self._note(replace(self._record, oom_kills=oom_kills), urgent=False)

    def close(self, limit: float = 1.0) -> None:
        """Write that this agent left in good order; a disk that stalls is left to itself."""
        with self._changed:
            self._over = True
            self._note(replace(self._record, ended=True), urgent=True)
        if self._thread.is_alive():
            self._thread.join(limit)

    def _note(self, record: NodeRecord, *, urgent: bool) -> None:
        if record == self._record:
            self._changed.notify()
            return
        self._record, self._dirty = record, True
        self._urgent = self._urgent or urgent
        self._changed.notify()

    def _run(self) -> None:
        last = -_STEP
        while True:
            with self._changed:
                while (left := self._left(last)) > 0:
                    self._changed.wait(left)
                record, durable, must_write = self._record, self._urgent, self._dirty
                self._urgent = self._dirty = False
                over = self._over
            self._busy_since = time.monotonic()
            self._keep(record, durable=durable, must_write=must_write)
            self._busy_since = None
            last = time.monotonic()
            if over:
                return

    def _left(self, last: float) -> float:
        """Return how long there is nothing to do."""
        if self._urgent or self._over:
            return 0.0
        return last + (_STEP if self._dirty else _TOUCH) - time.monotonic()

    def _keep(self, record: NodeRecord, *, durable: bool, must_write: bool) -> None:
        with self._where() as path:
            if not must_write and not self._failed and self._touch(path):
                return
            error = record.write(path, durable=durable)
        self._failed = error is not None
        self._disk.tell(FILE, "" if error is None else why(error))

    @staticmethod
    def _touch(path: Path) -> bool:
        try:
            os.utime(path)
        except OSError:
            return False
        return True
