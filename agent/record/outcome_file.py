"""`outcome.json`: how the run ended on this node, for whoever asks later."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from agent.base.outcome import Outcome
from agent.base.value import dataclass
from agent.record.files import read_small, why, write_atomically
from agent.record.log import disk

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from agent.record.run_record import Attempt

FILE = "outcome.json"


@dataclass(frozen=True)
class Outage:
    """A time in which a service did not answer; UTC, ISO 8601."""

    service: str
    node: str
    since: str
    until: str | None = None

    def in_outcome(self) -> dict[str, object]:
        """Return it as outcome.json has it."""
        return {
            "service": self.service,
            "node": self.node,
            "from": self.since,
            "to": self.until,
        }


def text_of(
    outcome: Outcome,
    attempts: Sequence[Attempt] = (),
    outages: Sequence[Outage] = (),
    bundle: str = "",
) -> str:
    """Return what outcome.json says; `bundle` is the file in its folder that has all logs."""
    data = {
        **outcome.to_dict(),
        "attempts": [attempt.in_outcome() for attempt in attempts],
        "outages": [outage.in_outcome() for outage in outages],
        **({"bundle": bundle} if bundle else {}),
    }
    return json.dumps(data, indent=2) + "\n"


def read_outcome(folder: Path) -> Outcome | None:
    """Return the outcome that was written there; None where there is none to be read."""
    try:
        data = json.loads(read_small(folder / FILE))
        return Outcome.from_dict(data) if isinstance(data, dict) else None
    except (OSError, ValueError, KeyError, RecursionError):
        return None


def write_outcome(
    folder: Path,
    outcome: Outcome,
    attempts: Sequence[Attempt] = (),
    outages: Sequence[Outage] = (),
    bundle: str = "",
) -> OSError | None:
    """Write outcome.json so that a reader never sees half of it; tell where it cannot be."""
    error = write_atomically(folder / FILE, text_of(outcome, attempts, outages, bundle))
    disk.tell(FILE, "" if error is None else why(error))
    return error
