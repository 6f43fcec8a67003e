"""Keep the record of a run, run.json: epoch, attempts, outages, outcome.

RunKeeper starts from the record that an earlier head or a killed agent has left, or from a new
one: it ends an attempt that was lost with that head, and finds the verdict that already stands. As
the run proceeds, each change is saved at once and written in the background; `flush` waits for the
disk before others act on a change. A later head of the same run, on another node with the same
disk, has a higher epoch: its record is never overwritten.
"""

from __future__ import annotations

import time
from contextlib import suppress
from signal import SIGTERM
from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.base import ends, times
from agent.decisions.attempts import Attempt, AttemptSnapshot, may_be_retried, retries_exhausted
from agent.decisions.head import head_state as h
from agent.decisions.head.losses import MAX_NODES_BY_NAME
from agent.record.files import FileLock, iso_time, safe_name
from agent.record.log import disk_alarm
from agent.record.log_dir import log_dir
from agent.record.node_record import Moment
from agent.record.run_record import (
    RUN_FILE,
    RUN_LOCK,
    AttemptRecord,
    RunRecord,
    RunState,
    SavedMeter,
    proof_of,
)
from agent.run.effects import REAL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from agent.base.ends import Outcome
    from agent.decisions.attempts import FailureCause
    from agent.decisions.durable import Durable
    from agent.decisions.receipt import Meter
    from agent.port.protocol import Hello
    from agent.record.run_record import ChosenRun
    from agent.run.effects import Disk


class RunKeeper:
    """The record of this run: resumed from an earlier head, or new.

    `job_survives`: the job outlives its head, on a Ray that the platform runs; an open attempt is
    then followed again under its id, so that no second job starts. `replaces_agent`: this agent
    replaces a killed one, whose verdict stands. `own_epoch`: the epoch of that one by node.json, if
    known: a later one in run.json is of another head, to which this one yields. `memory` is the
    out-of-memory evidence if Ray has ended since: the job would run out of memory again.
    """

    def __init__(  # noqa: PLR0913 - what a run may be found with
        self,
        root: Path,
        fingerprint: str,
        chosen: ChosenRun,
        *,
        job_survives: bool = False,
        replaces_agent: bool = False,
        own_epoch: int = 0,
        memory: str = "",
        disk: Disk = REAL.disk,
    ) -> None:
        self._root = root
        self.note_epoch: Callable[[int], OSError | None] = lambda _epoch: None
        """Records an epoch in node.json, or returns an error; called before run.json has it."""
        self._noted_epoch = own_epoch
        self._writer = disk.run_writer(RUN_FILE, self._write, disk_alarm)
        self.lock = chosen.lock  # locked until this process ends
        self._former_head = chosen.former_head
        self._replaces_agent = replaces_agent
        self._verdict: Outcome | None = None
        before = chosen.before
        if before is not None:
            before = self._adopt_ending(before, own_epoch)
        if before is not None and not job_survives:
            before = self._end_lost_attempt(before, memory)
        self.has_record = before is not None
        """Whether an earlier agent's record of this run was read."""
        self.has_lost_record = bool(chosen.lost_record)
        """Whether a record of this run exists that cannot be read."""
        first_epoch = own_epoch if self.has_lost_record else 0
        self.record = before or RunRecord(chosen.run_id, fingerprint, first_epoch)
        self.has_former_ray = replaces_agent and job_survives and not self.has_outdated_ray
        """Whether this agent keeps the Ray that a killed one has started."""
        self.epoch = self.record.epoch
        """The epoch that workers may follow; a later Ray has a higher one.

        Only `flush` changes it: the next agent must find on disk what workers follow, or its own
        former epoch would supersede it.
        """
        self.used_hours = self.record.used / 3600  # those of the run's earlier agents
        self.paid = self.record.paid  # their dollars, and the hours that these paid
        self.paid_hours = self.record.paid_seconds / 3600
        self._writer.start()

    def _adopt_ending(self, before: RunRecord, own_epoch: int) -> RunRecord:
        """Set the verdict that already stands; return the record that this agent goes on with."""
        # A killed agent's verdict stands. A user who starts a run again wants it to continue.
        if self._replaces_agent:
            self._verdict = before.ending
        else:
            before = replace(before, ending=None)

        # Did a later head write the record? Then that stands.
        if 0 < own_epoch < before.epoch:
            evidence = "run.json has its epoch"
            self._verdict = ends.SUPERSEDED.outcome(run=before.run_id, evidence=evidence)
            before = replace(before, epoch=own_epoch)
        return before

    def _end_lost_attempt(self, before: RunRecord, memory: str) -> RunRecord:
        """End the attempt that was lost with the earlier head, if it left one open."""
        if before.open_attempt is None:
            return before

        # Was its end decided while the job was stopped, or did it run out of memory?
        snapshot = before.open_attempt.snapshot
        end = snapshot.known.end if snapshot else None
        if end is None and memory:
            end = ends.OUT_OF_MEMORY.outcome(evidence=memory)
        if self._replaces_agent and end is not None and not may_be_retried(end):
            self._verdict = self._verdict or end

        lost = end or ends.HEAD_LOST.outcome()
        return before.end_attempt(iso_time(time.time()), lost.reason, lost.exit_code)

    def put(self, durable: Durable, now: float) -> None:
        """Write what decisions made durable, whose moments are on a clock that is at `now`."""
        self.save(replace(self.record, clock=Moment.before(now), durable=durable))

    def save(self, record: RunRecord) -> None:
        """Change the record, and write it soon."""
        self.record = record
        self._writer.put(record)

    @property
    def next_attempt(self) -> int:
        """Return the number of the next attempt; attempts of earlier heads count."""
        if self.record.open_attempt is not None:
            return self.record.open_attempt.number
        return max((attempt.number for attempt in self.record.attempts), default=0) + 1

    def record_use(self, seconds: float, cost: float | None = None) -> None:
        """Record how long this agent has run, and what the run has cost, if that is known.

        AGENT_MAX_HOURS and AGENT_MAX_COST count all agents of the run.
        """
        used = round(self.used_hours * 3600 + seconds, 1)
        record = replace(self.record, used=used)
        if cost is not None:
            record = replace(record, paid=round(cost, 4), paid_seconds=used)
        self.save(record)

    def record_meter(self, meter: Meter, now: float, price: float | None = None) -> None:
        """Record what the run's time was spent on so far, on a clock that is at `now`.

        `price` is dollars an hour of all nodes.
        """
        self.save(replace(self.record, receipt=SavedMeter(Moment.before(now), meter, price)))

    def former_meter(self, now: float) -> Meter | None:
        """Return the meter of the run's earlier agents, on the clock of this one; or None."""
        saved = self.record.receipt
        if saved is None:
            return None
        job_runs = self.record.open_attempt is not None
        return saved.on_clock(now).resumed(now, job_runs=job_runs)

    def final_outcome(
        self, retries: int, max_hours: float | None = None, max_cost: float | None = None
    ) -> Outcome | None:
        """Return the outcome of a run that is decided or out of attempts, hours or money."""
        if self._verdict is not None:
            return self._verdict
        if max_hours is not None and self.used_hours >= max_hours:
            return ends.MAX_HOURS.outcome(hours=max_hours)
        if max_cost is not None and self.paid >= max_cost:
            return ends.MAX_COST.outcome(cost=max_cost)
        if self.record.open_attempt is not None:
            return None
        return retries_exhausted(self.record.tried, retries)

    @property
    def is_superseded(self) -> bool:
        """Return whether a later head of this run replaced the killed agent's."""
        return self._verdict is not None and self._verdict.is_superseded

    @property
    def _is_between_attempts(self) -> bool:
        return bool(self.record.attempts) and self.record.open_attempt is None

    @property
    def has_outdated_ray(self) -> bool:
        """Return whether a running Ray belongs to an attempt that is over."""
        return self._is_between_attempts and self.record.state is not RunState.BOOTING

    @property
    def former_nodes(self) -> tuple[str, ...]:
        """Return the nodes that may still run the last attempt: its workers and a lost head."""
        if not self._is_between_attempts:
            return ()
        return (*self.record.attempts[-1].nodes, *filter(None, [self._former_head]))

    def proof(self, submitted: int) -> str:
        """Return the proof of so many attempts, which workers show to a later head."""
        return proof_of(self.record.fingerprint, self.record.run_id, submitted, self.epoch)

    def new_epoch(self, head: str) -> None:
        """Set the epoch of the Ray that is about to start."""
        epoch = max(self.record.epoch + 1, time.time_ns() // 1_000_000)  # the clock may go back
        self.save(replace(self.record, head=head, epoch=epoch, state=RunState.BOOTING))

    def record_ranks(self, names: tuple[str, ...]) -> None:
        """Record the ranks that the head assigned."""
        self.save(replace(self.record, ranks=names))

    def recall(self, send: Callable[[h.RunRemembered], None], hello: Hello, epoch: int) -> bool:
        """Send the run of a worker that outlived its head; return whether it is sent.

        It is not without a proof that the run is of this job, nor where this disk has a record of
        it. `epoch` is the last that the worker followed.
        """
        run_id = hello.run_id
        attempt = hello.attempt
        record = self.record

        # Is it a run of this job? Nothing is read for who cannot prove it.
        proof = proof_of(record.fingerprint, run_id, attempt, epoch)
        if hello.fingerprint != proof:
            return False

        # Does this disk have a record of it?
        has_record = bool(record.attempts)
        if run_id != record.run_id:
            former = RunRecord.read(self._root / safe_name(run_id) / RUN_FILE)
            has_record = isinstance(former, RunRecord)
        if has_record:
            return False

        later = epoch if epoch > record.epoch else 0
        is_of_other_head = epoch != record.epoch
        send(h.RunRemembered(run_id, attempt, later, is_of_other_head=is_of_other_head))
        return True

    def later_epoch(self, own: RunRecord | None = None) -> int:
        """Return the epoch of a later head that wrote this run's record; 0 for none."""
        own = own or self.record
        on_disk = RunRecord.read(self._root / own.run_id / RUN_FILE)
        if not isinstance(on_disk, RunRecord) or on_disk.epoch <= own.epoch:
            return 0
        return on_disk.epoch

    def adopt_run(self, run_id: str, attempts: int, epoch: int = 0) -> None:
        """Resume a run that workers remember, with so many lost attempts and its head's epoch."""
        now = iso_time(time.time())
        former = self.record.run_id
        end = ends.HEAD_LOST
        lost = tuple(
            AttemptRecord(number, f"{run_id}-{number}", now, now, end.reason, end.exit_code)
            for number in range(1, attempts + 1)
        )
        folder = self._root / safe_name(run_id)
        with suppress(OSError):  # the writer reports this error
            log_dir.make_folder(folder)
        own = max(self.record.epoch, epoch + 1)
        self.save(replace(self.record, run_id=folder.name, attempts=lost, epoch=own))

        # Another run than this head had begun: remove the record of that, and lock the other.
        if former == self.record.run_id:
            return
        with suppress(OSError):  # same
            log_dir.remove(self._root / former / RUN_FILE)
            lock = FileLock(folder / RUN_LOCK)
            lock.take()
            self.lock = lock

    def record_submission(
        self, attempt: Attempt, nodes: tuple[str, ...] = (), required: int = 0
    ) -> None:
        """Record that an attempt begins on these nodes; it needs so many workers.

        It may not be submitted yet: an agent that replaces this one asks Ray for it.
        """
        record = self.record.begin_attempt(
            AttemptRecord(
                attempt.number,
                attempt.id,
                iso_time(time.time()),
                checkpoint=attempt.checkpoint,
                nodes=nodes,
                head=self.record.head,
                lock=0 if self.lock is None else self.lock.inode,
            )
        )
        begun = Attempt(
            attempt.id,
            attempt.number,
            submitted=0.0,
            workers=attempt.workers,
            checkpoint=attempt.checkpoint,
        )
        self.save(record.with_snapshot(AttemptSnapshot(begun, required), 0.0))

    def withdraw_submission(self, job_id: str) -> None:
        """Remove an attempt that was refused or canceled before it was handed to Ray."""
        last = self.record.open_attempt
        if last is not None and last.submission_id == job_id:
            earlier = self.record.attempts[:-1]
            self.save(replace(self.record, attempts=earlier, state=RunState.BOOTING))

    def open_attempt(self, now: float) -> AttemptSnapshot | None:
        """Return the attempt that an earlier agent left open."""
        if self.record.open_attempt is None:
            return None
        snapshot = self.record.open_attempt.resumed(now)
        if self._replaces_agent or snapshot.end is None or may_be_retried(snapshot.end):
            return snapshot
        return replace(snapshot, end=None)  # a user who starts a run again wants it to continue

    def record_outcome(self, end: Outcome) -> None:
        """Record the outcome to exit with: an agent that replaces this one uses it."""
        self.save(replace(self.record, ending=end))

    async def flush(self) -> None:
        """Wait until all records are on disk, within a limit."""
        epoch = self.record.epoch
        await self._writer.until_settled()
        self.epoch = max(self.epoch, epoch)

    def record_nodes(self, nodes: Iterable[str]) -> None:
        """Record the nodes of a running attempt: Ray may use any that joins."""
        last = self.record.open_attempt
        present = (*nodes,)
        if last is None or {*present} <= {*last.nodes}:
            return
        names = (*dict.fromkeys((*present, *last.nodes)),)
        self.save(self.record.with_changes(nodes=names[:MAX_NODES_BY_NAME]))

    def record_attempt_end(
        self, end: Outcome, *, announced: bool = False, cause: FailureCause | None = None
    ) -> None:
        """Record how the last attempt ended; `announced` if nodes were taken away.

        `cause` is the job's own, if it is not a loss from outside.
        """
        now = iso_time(time.time())
        code = end.exit_code
        if end.culprit in ends.LIMITS_OF_RUN:  # stopped, not lost: no retry is used
            code = 128 + SIGTERM
        record = self.record.end_attempt(now, end.reason, code, announced=announced, cause=cause)
        self.save(record)

    def record_last_step(self, attempt: int, step: int | None) -> None:
        """Record the last step of an attempt that has ended, once its output was read."""
        attempts = self.record.attempts
        if step is not None and attempts and attempts[-1].number == attempt:
            self.save(self.record.with_changes(last_step=step))

    def record_end(self, end: Outcome) -> None:
        """Record how this head ended; a run that can be resumed stays open."""
        self.record_outcome(end)
        self.record_attempt_end(end)
        if self.record.is_over:
            self.save(replace(self.record, state=RunState.ENDED))

    def close(self) -> None:
        """Write what is pending, as far as the disk allows."""
        self._writer.finish(disk_alarm.patience(times.FLUSH))

    def _write(self, record: RunRecord) -> OSError | None:
        """Write the record, unless a later head of this run has written it.

        A new epoch is in node.json first: an agent that replaces this one, killed in between,
        would take the epoch of another head for its own, or yield to its own.
        """
        if self.later_epoch(record):
            return None
        if record.epoch != self._noted_epoch:
            error = self.note_epoch(record.epoch)
            if error is not None:
                return error
            self._noted_epoch = record.epoch
        return record.write(self._root / record.run_id / RUN_FILE)
