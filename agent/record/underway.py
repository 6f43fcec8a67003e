"""What `run.json` keeps of an attempt under way, for an agent that goes on with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.decisions.head.underway import Underway
from agent.record.moments import moment, seconds_since

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.record.run_record import Attempt


def to_data(known: Underway, now: float) -> dict[str, object]:
    """Return it as run.json has it; `now` is the time on the run's own clock."""

    def at(then: float | None) -> dict[str, object] | None:
        return None if then is None else moment(now - then)

    stopping = None
    if known.end is not None:
        stopping = {"as": known.end.to_dict(), "at": at(known.stopped_at)}
    return {
        "began": at(known.submitted),
        "required": known.required,
        "gone": [*known.gone],
        "places": {**known.places},
        "missed": {**known.missed},
        "dead": sorted(known.dead),
        "loss": None if known.lost_at is None else {"what": known.loss, "at": at(known.lost_at)},
        "short": at(known.short_since),
        "stopping": stopping,
        "signaled": known.signaled,
    }


def taken_from(attempt: Attempt, now: float, needed: int) -> Underway:
    """Return what is known of an attempt that was left open, on the clock of this run.

    A record of an older agent knows less: then `needed` workers are required, or those it had.
    """
    data = attempt.underway
    began = _ago(data, "began")
    began = _by_utc(attempt) if began is None else began
    required, gone, dead = data.get("required"), data.get("gone"), data.get("dead")
    loss, stopping = data.get("loss"), data.get("stopping")
    lost = _ago(loss, "at") if isinstance(loss, dict) else None
    short = _ago(data, "short")
    stopped = _ago(stopping, "at") if isinstance(stopping, dict) else None
    return Underway(
        number=attempt.number,
        submitted=now - began,
        required=required if isinstance(required, int) else min(needed, len(attempt.nodes)),
        checkpoint=attempt.checkpoint,
        nodes=attempt.nodes,
        gone=_names(gone),
        places=_places(data.get("places")),
        missed=_places(data.get("missed")),
        dead=frozenset(_names(dead)),
        loss=str(loss.get("what", "")) if isinstance(loss, dict) else "",
        lost_at=None if lost is None else now - lost,
        short_since=None if short is None else now - short,
        end=attempt.end_in_sight,
        stopped_at=now - (stopped or 0.0),
        signaled=data.get("signaled") is True,
        id=attempt.submission_id,
    )


def _by_utc(attempt: Attempt) -> float:
    return seconds_since({"utc": attempt.start})


def _ago(data: Mapping[str, object], name: str) -> float | None:
    found = data.get(name)
    try:
        return seconds_since(found) if isinstance(found, dict) else None
    except ValueError:
        return None


def _places(data: object) -> dict[str, str]:
    """Read addresses with names; an older record had places without names."""
    if not isinstance(data, dict):
        return {name: name for name in _names(data)}
    return {ip: str(name) for ip, name in data.items()}


def _names(data: object) -> tuple[str, ...]:
    return tuple(str(one) for one in data) if isinstance(data, list) else ()
