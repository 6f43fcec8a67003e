"""Records of runs as an earlier head has left them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.base import ends
from agent.decisions.attempts import Attempt
from agent.record.node_record import Moment
from agent.record.run_record import RUN_FILE, ChosenRun, Measured, RunRecord
from agent.run.run_store import RunStore

if TYPE_CHECKING:
    from pathlib import Path

    from agent.base.ends import Outcome
    from agent.decisions.durable import Durable

NOW = "2025-01-01T00:00:00.000Z"
CLOCK = Moment(NOW)


def record_of(durable: Durable, measured: Measured = Measured()) -> RunRecord:  # noqa: B008 - a value
    """Return the record of a run whose clock was 0 at NOW, on another machine."""
    return RunRecord(CLOCK, durable, measured)


def submitted(durable: Durable, start: str = NOW, at: float = 0.0, **changes: object) -> Durable:
    """Return the run with its next attempt submitted."""
    before = durable.before_attempt(required=0)
    attempt = replace(before.attempt, submitted=at, start=start, **changes)
    return replace(before, attempt=attempt)


def ended(durable: Durable, end: Outcome | None = None) -> Durable:
    """Return the run with a further attempt that has ended."""
    after = submitted(durable).with_end(end or ends.HEAD_LOST.outcome(), NOW, 0.0)
    return replace(after, attempt=Attempt())


def store_of(root: Path, run_id: str = "run", fingerprint: str = "f" * 16) -> RunStore:
    """Return the store of a new run."""
    (root / run_id).mkdir(exist_ok=True)
    return RunStore(root, fingerprint, ChosenRun(run_id, None))


def written(root: Path, run_id: str = "run") -> RunRecord:
    """Return the record of a run as it is on disk."""
    found = RunRecord.read(root / run_id / RUN_FILE)
    assert isinstance(found, RunRecord)
    return found
