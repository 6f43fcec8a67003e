"""What the GPUs' driver says of them, as values; only `doctor` asks it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.base.value import dataclass

if TYPE_CHECKING:
    from agent.base.ranges import Count


@dataclass(frozen=True)
class DriverGpu:
    """A GPU as its driver knows it."""

    index: Count
    name: str
    memory: Count
    """In MiB; 0 where the driver does not tell."""
    errors: Count = 0
    """Memory errors that ECC could not mend since the driver was loaded."""


@dataclass(frozen=True)
class Driver:
    """What the GPUs' driver says, by its own tool."""

    tool: str
    gpus: tuple[DriverGpu, ...] = ()
    fault: str = ""
    """Why the tool told nothing; '' where it did."""
    events: tuple[str, ...] = ()
    """What the kernel's log has of faults (NVIDIA calls them Xid), where it may be read."""
