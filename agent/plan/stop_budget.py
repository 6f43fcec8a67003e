"""How one grace for the whole stop is shared out, below what the platform allows."""

from __future__ import annotations

from agent.base.value import dataclass


@dataclass(frozen=True)
class StopBudget:
    """Seconds for each part of a stop; the parts sum to less than the whole."""

    job: float
    farewell: float
    """For the workers to hear the verdict before the head's port closes."""
    services: float
    ray: float
    leftovers: float
    output: float
    """For the last of the job's output to be copied."""
    bundle: float
    """For what is kept of a failure; of that which is left for KILL and the exit."""


def share(grace: float) -> StopBudget:
    """Give the job what the others leave; a small grace shrinks every part alike."""
    scale = min(1.0, grace / 25.0)
    farewell, services, ray, leftovers, output = (x * scale for x in (2.0, 3.0, 3.0, 1.5, 2.0))
    # farewell, services and Ray take their time side by side; KILL and the exit itself take some
    side_by_side = max(farewell, services, ray)
    job = grace - side_by_side - leftovers - output - 4.0 * scale
    return StopBudget(job, farewell, services, ray, leftovers, output, 2.0 * scale)
