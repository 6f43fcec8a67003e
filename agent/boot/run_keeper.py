"""Keeps `run.json` as the head's story goes: attempts, epoch, state."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from agent.record.files import iso_time
from agent.record.recorder import Latest
from agent.record.run_record import FILE, RunRecord, next_epoch

if TYPE_CHECKING:
    from pathlib import Path

    from agent.base.outcome import Outcome
    from agent.record.run_record import Attempt, Chosen


class RunKeeper:
    """The record of this run: as an earlier head left it, or new.

    `job_survives` where a job outlives its head, on a Ray that others keep: an attempt that was
    left open is then followed again under its own id, and no second job is started beside it.
    """

    def __init__(
        self, root: Path, fingerprint: str, chosen: Chosen, *, job_survives: bool = False
    ) -> None:
        path = root / chosen.run_id / FILE
        self._writer: Latest[RunRecord] = Latest("run.json", lambda record: record.write(path))
        self._lock = chosen.lock  # held for as long as we are there
        new = RunRecord(chosen.run_id, fingerprint, 0)
        before = chosen.before
        if before is not None and not job_survives:
            before = before.after_a_lost_head(iso_time(time.time()))
        self.record = before or new
        self._writer.start()

    @property
    def run_id(self) -> str:
        """Return the run's id."""
        return self.record.run_id

    @property
    def next_attempt(self) -> int:
        """Return the number of the attempt that comes next: those of earlier heads count."""
        if self.record.open_attempt is not None:
            return self.record.open_attempt.number
        return max((attempt.number for attempt in self.record.attempts), default=0) + 1

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """Return all attempts at this run's job."""
        return self.record.attempts

    def new_epoch(self, head: str) -> int:
        """Name the Ray that is about to start."""
        previous = self.record.epoch or None
        self._keep(self.record.at_head(head, next_epoch(previous, time.time_ns() // 1_000_000)))
        return self.record.epoch

    def submitted(self, number: int, submission_id: str) -> None:
        """Note that an attempt begins."""
        self._keep(self.record.begin(number, submission_id, iso_time(time.time())))

    def attempt_over(self, end: Outcome) -> None:
        """Note how the last attempt ended."""
        now = iso_time(time.time())
        self._keep(self.record.end_attempt(now, end.reason, end.exit_code))

    def over(self, end: Outcome) -> None:
        """Note how this head's story ended; what a restarted head may go on with has not ended.

        A job's own end, and an end that was asked for by hand, are final. After a loss, or where a
        scheduler stopped the nodes, the same run may go on.
        """
        self.attempt_over(end)
        if end.is_jobs_verdict or end.exit_code in {0, 130}:
            self._keep(self.record.ended())

    def close(self) -> None:
        """Write what waits, as far as the disk takes it."""
        self._writer.close()

    def _keep(self, record: RunRecord) -> None:
        self.record = record
        self._writer.put(record)
