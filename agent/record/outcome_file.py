"""`outcome.json`: how a run ended, with what is known of the run as a whole."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, NamedTuple

from msgspec import MsgspecError, ValidationError, field, to_builtins

from agent.base.ends import Outcome
from agent.base.text import error_text, iso_time
from agent.base.typed import convert, decode
from agent.base.value import Value
from agent.decisions.receipt import ReceiptStatus
from agent.decisions.shared import HERE
from agent.record.files import NoRecord, read_json, read_small, write_atomically
from agent.record.log import disk_alarm
from agent.record.run_record import RunRecord, outcomes_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from agent.decisions.shared import Shortage
    from agent.record.run_record import AttemptOutcome

OUTCOME_FILE = "outcome.json"


class OutageRecord(Value):
    """A time in which a service was down; UTC, ISO 8601."""

    service: str
    node: str
    since: str = field(name="from")
    until: str | None = field(name="to", default=None)


class ShortageRecord(Value):
    """A time in which fewer members of a group's service served than needed; UTC, ISO 8601."""

    group: str
    service: str
    since: str = field(name="from")
    until: str | None = field(name="to", default=None)
    seconds: float = 0.0
    seconds_without_any: float = 0.0
    why: str = ""

    @classmethod
    def of(cls, shortage: Shortage, now: float, utc: Callable[[float], str]) -> ShortageRecord:
        """Return a shortage as a record; `utc` formats a time of its clock."""
        return cls(
            shortage.group,
            shortage.service,
            since=utc(shortage.since),
            until=None if shortage.until is None else utc(shortage.until),
            seconds=round(shortage.seconds(now), 1),
            seconds_without_any=round(shortage.seconds_without_any(now), 1),
            why=shortage.why,
        )


class RunFacts(NamedTuple):
    """What outcome.json has of the run as a whole; a worker does not know it."""

    attempts: Sequence[AttemptOutcome] = ()
    outages: Sequence[OutageRecord] = ()
    shortages: Sequence[ShortageRecord] = ()  # of groups
    cost: float | None = None  # dollars of all nodes, where the price is known
    price_source: str | None = None
    receipt: ReceiptStatus | None = None  # what the time was spent on


NO_FACTS = RunFacts()


def facts_of(record: RunRecord, head: str) -> RunFacts:
    """Return what a run's record has for outcome.json; `head` is the name of its head's node."""
    measured = record.measured
    has_price = measured.price_source is not None
    return RunFacts(
        attempts=outcomes_of(record.durable),
        outages=_outages(record, head),
        shortages=_shortages(record),
        cost=round(measured.paid, 2) if has_price else None,
        price_source=measured.price_source,
        receipt=_receipt(record),
    )


def _outages(record: RunRecord, head: str) -> list[OutageRecord]:
    now = time.time()
    return [
        OutageRecord(
            service=outage.service,
            node=head if outage.node == HERE else outage.node,
            since=iso_time(now + outage.since),
            until=iso_time(now + outage.until) if outage.until is not None else None,
        )
        for outage in record.durable_at(0.0).outages
    ]


def _shortages(record: RunRecord) -> list[ShortageRecord]:
    now = time.time()
    known = record.durable_at(0.0).shortages
    return [ShortageRecord.of(one, 0.0, lambda at: iso_time(now + at)) for one in known]


def _receipt(record: RunRecord) -> ReceiptStatus | None:
    saved = record.measured.receipt
    if saved is None:
        return None
    verdict = record.durable.verdict
    has_succeeded = verdict is not None and verdict.exit_code == 0
    receipt = saved.meter.receipt(saved.clock.age(), has_succeeded=has_succeeded)
    return receipt.to_status(saved.price)


def outcome_text(outcome: Outcome, facts: RunFacts = NO_FACTS, bundle: str = "") -> str:
    """Return the content of outcome.json; `bundle` is the name of the failure bundle."""
    data = {
        **to_builtins(outcome),
        "attempts": to_builtins([*facts.attempts]),
        "outages": to_builtins(facts.outages),
    }
    if facts.shortages:
        data["shortages"] = to_builtins(facts.shortages)
    if bundle:
        data["bundle"] = bundle
    if facts.cost is not None:
        data["cost"] = facts.cost
    if facts.price_source is not None:
        data["price_source"] = facts.price_source
    if facts.receipt is not None:
        data["receipt"] = to_builtins(facts.receipt)
    return json.dumps(data, indent=2) + "\n"


def write_outcome(folder: Path, text: str) -> OSError | None:
    """Write outcome.json as a whole; report a failure to the disk alarm."""
    error = write_atomically(folder / OUTCOME_FILE, text)
    disk_alarm.report(OUTCOME_FILE, "" if error is None else error_text(error))
    return error


def read_outcome(folder: Path) -> Outcome | NoRecord:
    """Read outcome.json; NoRecord if there is none, or it cannot be read."""

    def to_outcome(data: object) -> Outcome | NoRecord:
        try:
            return convert(data, Outcome)
        except ValidationError as error:
            return NoRecord(f"it is no outcome: {error}")

    return read_json(folder / OUTCOME_FILE, to_outcome)


class _WithReceipt(Value):
    """What is read of outcome.json for its receipt."""

    receipt: ReceiptStatus | None = None


def read_receipt(folder: Path) -> ReceiptStatus | None:
    """Read the receipt of a run from outcome.json; None if there is none."""
    try:
        return decode(read_small(folder / OUTCOME_FILE), _WithReceipt).receipt
    except (OSError, MsgspecError, ValueError, RecursionError):
        return None
