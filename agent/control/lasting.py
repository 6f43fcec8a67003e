"""What of a status lasts: what is left without the clocks in it, which run by themselves."""

from __future__ import annotations

_PASSING = frozenset(
    {
        *("seconds", "seconds_in_phase", "seconds_left", "heard_seconds_ago", "outage_seconds"),
        "latency",
    }
)
"""What changes by itself, with the clock or with each probe."""


def lasting(status: object) -> object:
    """Return a status without what changes by itself."""
    if isinstance(status, dict):
        return {name: lasting(value) for name, value in status.items() if name not in _PASSING}
    return [lasting(one) for one in status] if isinstance(status, list) else status
