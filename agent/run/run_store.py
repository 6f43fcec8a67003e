"""The store of a run's record, run.json: what is durable, and what was measured beside it.

RunStore starts from what an earlier head or a killed agent has left, or from a new run. `put`
replaces what is durable and returns at once: the memory that the parent keeps has it then, a thread
writes it to the disk, and `on_disk` waits for that before others act on it. A later head of the
same run, on another node with the same disk, has a higher epoch: its record is never overwritten.

What is measured beside the decisions (hours, money, what the time was spent on, ranks) is no event:
nothing is decided on it before the next agent starts, and it would have a decision made each
second. `measure` puts it beside what is durable, in the same record.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.base import ends, times
from agent.base.text import iso_time
from agent.decisions.attempts import retries_exhausted
from agent.decisions.durable import Durable, Succession, on_clock, taken_over
from agent.decisions.head import head_state as h
from agent.record.files import FileLock, safe_name
from agent.record.log import disk_alarm
from agent.record.log_dir import log_dir
from agent.record.node_record import Moment
from agent.record.run_record import (
    RUN_FILE,
    RUN_LOCK,
    Measured,
    RunRecord,
    Submitter,
    proof_of,
)
from agent.run.effects import REAL

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from agent.base.ends import Outcome
    from agent.decisions.receipt import Meter
    from agent.port.protocol import Hello
    from agent.record.run_record import ChosenRun
    from agent.run.effects import Disk


class RunStore:
    """The record of this run: resumed from an earlier head, or new.

    `now` is the time on the run's clock, to which the moments of an earlier record are moved.
    """

    def __init__(  # noqa: PLR0913 - what a run may be found with
        self,
        root: Path,
        fingerprint: str,
        chosen: ChosenRun,
        how: Succession = Succession(),  # noqa: B008 - a value
        *,
        now: float = 0.0,
        disk: Disk = REAL.disk,
    ) -> None:
        self._root = root
        self.note_epoch: Callable[[int, float], OSError | None] = lambda _epoch, _limit: None
        """Records an epoch in node.json in time, or returns an error; before run.json has it."""
        self._noted_epoch = how.own_epoch
        self._writer = disk.run_writer(RUN_FILE, self._write, disk_alarm)
        self.lock = chosen.lock  # locked until this process ends
        self.former_head = chosen.former_head

        # What did an earlier agent leave?
        before = chosen.before
        self.has_record = before is not None
        """Whether an earlier agent's record of this run was read."""
        self.has_lost_record = bool(chosen.lost_record)
        """Whether a record of this run exists that cannot be read."""
        if before is None:
            first_epoch = how.own_epoch if self.has_lost_record else 0
            self.durable = Durable(chosen.run_id, fingerprint, first_epoch)
            self.measured = Measured()
        else:
            self.durable = taken_over(before.durable_at(now), how, iso_time(time.time()))
            self.measured = before.measured
        self._clock = Moment.before(now)

        self.has_former_ray = (
            how.replaces_agent and how.job_survives and not self.durable.has_outdated_ray
        )
        """Whether this agent keeps the Ray that a killed one has started."""
        self.used_hours = self.measured.used / 3600  # those of the run's earlier agents
        self.paid = self.measured.paid  # their dollars, and the hours that these paid
        self.paid_hours = self.measured.paid_seconds / 3600
        self._writer.start()

    # --- write ----------------------------------------------------------------------------------

    def put(self, durable: Durable, now: float) -> None:
        """Write what is durable, whose moments are on a clock that is at `now`; return at once."""
        if durable.run_id != self.durable.run_id:
            self._move_to(durable.run_id)
        self.durable = durable
        self._clock = Moment.before(now)

        # Who has submitted the attempt? The lock shows a later head whether that one has ended.
        attempt = durable.open_attempt
        known = self.measured.submitter
        if attempt is not None and (known is None or known.attempt != attempt.number):
            lock = 0 if self.lock is None else self.lock.inode
            submitter = Submitter(attempt.number, durable.head, lock)
            self.measured = replace(self.measured, submitter=submitter)
        self._save()

    def measure(self, **changes: object) -> None:
        """Write what was measured beside what is durable; return at once."""
        self.measured = replace(self.measured, **changes)
        self._writer.put(self.record)  # the next agent can do without the last of it

    def measure_use(
        self, seconds: float, cost: float | None = None, price_source: str | None = None
    ) -> None:
        """Write how long this agent has run, and what the run has cost, if that is known.

        AGENT_MAX_HOURS and AGENT_MAX_COST count all agents of the run.
        """
        used = round(self.used_hours * 3600 + seconds, 1)
        if cost is None:
            self.measure(used=used, price_source=None)
        else:
            paid = round(cost, 4)
            self.measure(used=used, paid=paid, paid_seconds=used, price_source=price_source)

    async def on_disk(self) -> None:
        """Wait until the record is on disk, within a limit."""
        await self._writer.until_settled()

    def close(self) -> None:
        """Write what is pending, as far as the disk allows."""
        self._writer.finish(disk_alarm.patience(times.FLUSH))

    @property
    def record(self) -> RunRecord:
        """Return the newest record, written or not."""
        return RunRecord(self._clock, self.durable, self.measured)

    def _save(self) -> None:
        """Keep the newest record in memory at once: a write of an older one may be blocked."""
        record = self.record
        if self._note_epoch(record, 0.0) is None:
            record.keep_in_memory(self._path_of(record))
        self._writer.put(record)

    def _write(self, record: RunRecord) -> OSError | None:
        """Write the record, unless a later head of this run has written it."""
        if self.later_epoch(record):
            return None
        # The newest: an older one must not replace in memory what was kept there meanwhile.
        newest = self.record
        error = self._note_epoch(newest, times.STALLED_DISK)
        if error is not None:
            return error
        newest.keep_in_memory(self._path_of(newest))
        return record.write_kept(self._path_of(record))

    def _note_epoch(self, record: RunRecord, limit: float) -> OSError | None:
        """Have a new epoch in node.json first; return an error if it is not there in time.

        An agent that replaces this one, killed in between, would take the epoch of another head for
        its own, or yield to its own.
        """
        if record.epoch <= self._noted_epoch:
            return None
        error = self.note_epoch(record.epoch, limit)
        if error is None:
            self._noted_epoch = record.epoch
        return error

    def _path_of(self, record: RunRecord) -> Path:
        return self._root / record.durable.run_id / RUN_FILE

    def _move_to(self, run_id: str) -> None:
        """Write to another run from now on, which workers remember: hold its lock.

        The record of the run that this head had begun is removed.
        """
        folder = self._root / run_id
        with suppress(OSError):  # the writer reports this error
            log_dir.make_folder(folder)
        with suppress(OSError):  # same
            log_dir.remove(self._root / self.durable.run_id / RUN_FILE)
            lock = FileLock(folder / RUN_LOCK)
            lock.take()
            self.lock = lock

    # --- read -----------------------------------------------------------------------------------

    def later_epoch(self, own: RunRecord | None = None) -> int:
        """Return the epoch of a later head that wrote this run's record; 0 for none."""
        own = own or self.record
        on_disk = RunRecord.read(self._root / own.durable.run_id / RUN_FILE)
        if not isinstance(on_disk, RunRecord) or on_disk.epoch <= own.epoch:
            return 0
        return on_disk.epoch

    def former_meter(self, now: float) -> Meter | None:
        """Return the meter of the run's earlier agents, on the clock of this one; or None."""
        saved = self.measured.receipt
        if saved is None:
            return None
        job_runs = self.durable.open_attempt is not None
        meter = on_clock(saved.meter, now - saved.clock.age())
        return meter.resumed(now, job_runs=job_runs)

    def outcome_at_start(
        self, retries: int, max_hours: float | None = None, max_cost: float | None = None
    ) -> Outcome | None:
        """Return the outcome of a run that is decided or out of attempts, hours or money."""
        if self.durable.verdict is not None:
            return self.durable.verdict
        if max_hours is not None and self.used_hours >= max_hours:
            return ends.MAX_HOURS.outcome(hours=max_hours)
        if max_cost is not None and self.paid >= max_cost:
            return ends.MAX_COST.outcome(cost=max_cost)
        if self.durable.open_attempt is not None:
            return None
        return retries_exhausted(self.durable.tried, retries)

    @property
    def is_superseded(self) -> bool:
        """Return whether a later head of this run replaced the killed agent's."""
        verdict = self.durable.verdict
        return verdict is not None and verdict.is_superseded

    def recall(self, send: Callable[[h.RunRemembered], None], hello: Hello, epoch: int) -> bool:
        """Send the run of a worker that outlived its head; return whether it is sent.

        It is not without a proof that the run is of this job, nor where this disk has a record of
        it. `epoch` is the last that the worker followed.
        """
        run_id = hello.run_id
        attempt = hello.attempt
        own = self.durable

        # Is it a run of this job? Nothing is read for who cannot prove it.
        if hello.fingerprint != proof_of(own.fingerprint, run_id, attempt, epoch):
            return False

        # Does this disk have a record of it?
        run_id = safe_name(run_id)
        has_record = bool(own.ended) or own.open_attempt is not None
        if run_id != own.run_id:
            has_record = isinstance(RunRecord.read(self._root / run_id / RUN_FILE), RunRecord)
        if has_record:
            return False

        later = epoch if epoch > own.epoch else 0
        is_of_other_head = epoch != own.epoch
        send(h.RunRemembered(run_id, attempt, later, is_of_other_head=is_of_other_head))
        return True
