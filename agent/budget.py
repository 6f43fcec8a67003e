"""How one grace for the whole stop is shared out, below what the platform allows."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Budget:
    """Seconds for each part of a stop; the parts sum to less than the whole."""

    job: float
    farewell: float
    """For the workers to hear the verdict before the head's port closes."""
    services: float
    ray: float
    leftovers: float


def share(grace: float) -> Budget:
    """Give the job what the others leave; a small grace shrinks every part alike."""
    scale = min(1.0, grace / 25.0)
    farewell, services, ray, leftovers = (x * scale for x in (1.5, 2.0, 3.0, 1.5))
    # services and Ray stop side by side with the farewell; the rest is slack for the exit itself
    job = max(0.5, grace - farewell - services - ray - leftovers - 1.0 * scale)
    return Budget(job, farewell, services, ray, leftovers)
