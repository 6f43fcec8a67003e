"""Keeps `run.json` as the head's story goes: attempts, epoch, state."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from agent.decisions.attempts import is_loss, spent
from agent.record.disk_thread import Latest
from agent.record.files import FileLock, iso_time, safe
from agent.record.run_record import FILE, LOCK, Attempt, RunRecord, State, next_epoch, proof_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from agent.base.outcome import Outcome
    from agent.decisions.head.underway import Underway
    from agent.record.run_choice import Chosen


class RunKeeper:
    """The record of this run: as an earlier head left it, or new.

    `job_survives` where a job outlives its head, on a Ray that others keep: an attempt that was
    left open is then followed again under its own id, and no second job is started beside it.
    `replaces_agent` where this one goes on for an agent that was killed: what that one had decided
    stands. `memory` is what the kernel did for want of memory, where Ray has ended since: the job
    would run out of it again.
    """

    def __init__(  # noqa: PLR0913 - what a run may be found with
        self,
        root: Path,
        fingerprint: str,
        chosen: Chosen,
        *,
        job_survives: bool = False,
        replaces_agent: bool = False,
        memory: str = "",
    ) -> None:
        self._root = root
        self._writer: Latest[RunRecord] = Latest("run.json", self._write)
        self._lock = chosen.lock  # held for as long as we are there
        self._former_head = chosen.former_head
        new = RunRecord(chosen.run_id, fingerprint, 0)
        before = chosen.before
        self._decided: Outcome | None = None
        self._replaces_agent, self._before = replaces_agent, before
        if before is not None and before.ending is not None:
            self._decided = before.ending if replaces_agent else None
            before = before if replaces_agent else replace(before, ending=None)
        if before is not None and not job_survives and before.open_attempt is not None:
            end = before.open_attempt.end_in_sight or _out_of(memory)
            if replaces_agent and end is not None and not is_loss(end):
                self._decided = self._decided or end
            before = before.after_a_lost_head(iso_time(time.time()), end)
        self.record = before or new
        self._epoch = self.record.epoch
        self._writer.start()

    def begin(self) -> None:
        """Write down what of a former life counts no more, for an agent that follows this one."""
        if self.record is not self._before and self._before is not None:
            self._keep(self.record)

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

    def spent(self, retries: int) -> Outcome | None:
        """Return the end of a run that is decided, or used its attempts up: nothing is submitted.

        Decided by an agent that was killed before it had left; the workers hear it of this one.
        """
        if self._decided is not None:
            return self._decided
        return None if self.record.open_attempt is not None else spent(self.record.tried, retries)

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """Return all attempts at this run's job."""
        return self.record.attempts

    @property
    def is_between_attempts(self) -> bool:
        """Say whether an attempt is over and no other has begun: the next has a Ray of its own."""
        return bool(self.attempts) and self.record.open_attempt is None

    @property
    def has_old_ray(self) -> bool:
        """Say whether a Ray that lives is the one of an attempt that is over."""
        return self.is_between_attempts and self.record.state is not State.BOOTING

    @property
    def former_nodes(self) -> tuple[str, ...]:
        """Return the nodes that may still run the last attempt, where another follows it.

        Its workers; and its head, where the driver runs, unless that is known to be over.
        """
        if not self.is_between_attempts:
            return ()
        return (*self.attempts[-1].nodes, *filter(None, [self._former_head]))

    @property
    def epoch(self) -> int:
        """Return the number of the head's Ray that workers may follow; a later one has a higher.

        It changes with `settled` alone: the next agent must find on the disk what workers follow,
        or its own former epoch would supersede it.
        """
        return self._epoch

    def proof(self, submitted: int) -> str:
        """Return what workers show to a later head of this job, after so many attempts."""
        return proof_of(self.record.fingerprint, self.run_id, submitted, self.epoch)

    def new_epoch(self, head: str) -> None:
        """Name the Ray that is about to start."""
        previous = self.record.epoch or None
        self._keep(self.record.at_head(head, next_epoch(previous, time.time_ns() // 1_000_000)))

    def given_ranks(self, names: tuple[str, ...]) -> None:
        """Note which node has which rank, where the head gives them."""
        self._keep(replace(self.record, ranks=names))

    def has_record_of(self, run_id: str) -> bool:
        """Say whether a run of this id is on this disk: what is there says more than others do."""
        if run_id == self.run_id:
            return bool(self.record.attempts)
        return isinstance(RunRecord.read(self._root / safe(run_id) / FILE), RunRecord)

    def later_epoch(self) -> int:
        """Return the epoch of a later head that has written this run's record; 0 for none."""
        return _epoch_above(self.record, self._root)

    def take_up(self, run_id: str, attempts: int, epoch: int = 0) -> None:
        """Go on with a run that others remember, with so many attempts that were lost.

        `epoch` is that of its former head, where it is higher than ours: clocks differ.
        """
        now, former = iso_time(time.time()), self.run_id
        lost = tuple(
            Attempt(number, f"{run_id}-{number}", now, now, "its head was lost", 75)
            for number in range(1, attempts + 1)
        )
        folder = self._root / safe(run_id)
        with suppress(OSError):  # what cannot be written is told by whoever writes it
            folder.mkdir(parents=True, exist_ok=True)
        own = max(self.record.epoch, epoch + 1)
        self._keep(replace(self.record, run_id=folder.name, attempts=lost, epoch=own))
        if former == self.run_id:
            return
        with suppress(OSError):  # same
            (self._root / former / FILE).unlink(missing_ok=True)
            lock = FileLock(folder / LOCK)
            lock.take()
            self._lock = lock

    def submitted(  # noqa: PLR0913 - what a next agent must know of it
        self,
        number: int,
        submission_id: str,
        checkpoint: int | None = None,
        nodes: tuple[str, ...] = (),
        required: int | None = None,
        places: Mapping[str, str] | None = None,
    ) -> None:
        """Note that an attempt begins, from which step on it may go, and on which workers.

        So many of those at its `places`, address to name, are `required`.
        """
        from agent.record.moments import moment  # noqa: PLC0415 - while Ray boots

        now = iso_time(time.time())
        lock = 0 if self._lock is None else self._lock.inode
        record = self.record.begin(number, submission_id, now, checkpoint, nodes, lock)
        began = {
            "began": moment(0.0),
            "required": len(nodes) if required is None else required,
            "places": {**(places or {})},
        }
        self._keep(record.knowing(number, began))

    def keep(self, known: Underway, now: float) -> None:
        """Note what another agent must know that goes on with an attempt; `now` by its clock."""
        from agent.record.underway import to_data  # noqa: PLC0415 - few runs lose anything

        self._keep(self.record.knowing(known.number, to_data(known, now)))

    def underway(self, now: float, needed: int) -> Underway | None:
        """Return the attempt that an earlier agent left open; `needed` as the settings have it."""
        if self.record.open_attempt is None:
            return None
        from agent.record.underway import taken_from  # noqa: PLC0415 - few runs go on with one

        found = taken_from(self.record.open_attempt, now, needed)
        if self._replaces_agent or found.end is None or is_loss(found.end):
            return found
        return replace(found, end=None)  # who starts a run again wants it to go on

    def leaving(self, end: Outcome) -> None:
        """Note as what this head is about to leave: an agent that goes on for it says the same."""
        self._keep(self.record.leaving(end))

    async def settled(self) -> None:
        """Wait until what was noted is on the disk, though not for long where that stalls."""
        import anyio  # noqa: PLC0415 - loaded long before

        epoch = self.record.epoch
        await anyio.to_thread.run_sync(self._writer.settle, abandon_on_cancel=True)
        self._epoch = max(self._epoch, epoch)

    def served_by(self, nodes: Iterable[str]) -> None:
        """Note who is there while an attempt runs: Ray may use whoever joins."""
        record = self.record.served_by(tuple(nodes))
        if record is not self.record:
            self._keep(record)

    def attempt_over(self, end: Outcome) -> None:
        """Note how the last attempt ended."""
        now = iso_time(time.time())
        self._keep(self.record.end_attempt(now, end.reason, end.exit_code))

    def over(self, end: Outcome) -> None:
        """Note how this head's story ended; what a restarted head may go on with has not ended."""
        self.leaving(end)
        self.attempt_over(end)
        if self.record.is_over:
            self._keep(self.record.ended())

    def close(self) -> None:
        """Write what waits, as far as the disk takes it."""
        self._writer.close()

    def _write(self, record: RunRecord) -> OSError | None:
        """Write the record, unless a later head of this run has done so: its word stands."""
        if _epoch_above(record, self._root):
            return None
        return record.write(self._root / record.run_id / FILE)

    def _keep(self, record: RunRecord) -> None:
        self.record = record
        self._writer.put(record)


def _out_of(memory: str) -> Outcome | None:
    if not memory:
        return None
    from agent.decisions.verdict import out_of_memory  # noqa: PLC0415 - few runs end so

    return out_of_memory(memory)


def _epoch_above(record: RunRecord, root: Path) -> int:
    found = RunRecord.read(root / record.run_id / FILE)
    is_later = isinstance(found, RunRecord) and found.epoch > record.epoch
    return found.epoch if is_later and isinstance(found, RunRecord) else 0
