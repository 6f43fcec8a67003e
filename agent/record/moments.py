"""Times that a later process can place, whatever somebody did to the wall clock meanwhile."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from agent.record.files import iso_time, seconds_between
from agent.record.node_record import read_place

if TYPE_CHECKING:
    from collections.abc import Mapping


def moment(ago: float, boot_id: str | None = None) -> dict[str, object]:
    """Write down when it was so many seconds ago: by this machine's boot, and in UTC."""
    boot = read_place().boot_id if boot_id is None else boot_id
    return {
        "utc": iso_time(time.time() - ago),
        "boot": boot,
        "seconds": round(time.monotonic() - ago, 3),
    }


def seconds_since(data: Mapping[str, object], boot_id: str | None = None) -> float:
    """Return how long ago that was; raises ValueError where nothing tells.

    On a machine that was started since, or on another, only the wall clock can tell.
    """
    boot, seconds, utc = data.get("boot"), data.get("seconds"), data.get("utc")
    here = read_place().boot_id if boot_id is None else boot_id
    if boot and boot == here and isinstance(seconds, int | float) and seconds <= time.monotonic():
        return time.monotonic() - seconds
    if not isinstance(utc, str):
        raise ValueError("a moment has no time")  # noqa: TRY004 - one error type for bad data
    return seconds_between(utc, iso_time(time.time()))
