"""What the fields of messages between nodes may hold, declared as the types of these fields.

A message is read by its types (control/fields.py): a number outside its range is refused with the
name of the field; a text has no control characters and is cut where it is too long.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, NamedTuple


class Range(NamedTuple):
    """The least and the greatest value of a number; NaN is in no range."""

    least: float
    greatest: float


class Text(NamedTuple):
    """How long a text may be; a longer one is cut."""

    longest: int
    is_needed: bool = False
    """True where '' is refused."""
    has_lines: bool = False
    """True for the end of a log: it keeps its line ends, and is cut at its beginning."""


class Most(NamedTuple):
    """How many items a list, or a mapping, may have, and how many it must have."""

    items: int
    least: int = 0


TEXT = Text(2_000)
"""Of every `str` that declares nothing else."""
ITEMS = Most(64)
"""Of every list and mapping that declares nothing else."""

Name = Annotated[str, Text(253, is_needed=True)]
"""What DNS allows."""
Required = Annotated[str, Text(2_000, is_needed=True)]
Shown = Annotated[str, Text(500)]
"""A line that a person is shown."""
LONGEST_TAIL = 16 << 10
Tail = Annotated[str, Text(LONGEST_TAIL, has_lines=True)]

Count = Annotated[int, Range(0, 2**53)]
"""Nothing is ever made in such a number."""
Attempt = Annotated[int, Range(0, 10_000)]
"""AGENT_JOB_RETRIES allows 1,000."""
Epoch = Annotated[int, Range(0, 10**15)]
"""Milliseconds since 1970."""
Rank = Annotated[int, Range(0, 999_999)]
Gpus = Annotated[int, Range(0, 1_024)]
"""Of one node, as AGENT_NUM_GPUS."""
Cpus = Annotated[int, Range(0, 100_000)]
"""Of one node, as AGENT_NUM_CPUS."""
Bytes = Annotated[int, Range(0, 2**64)]
Limit = Annotated[int, Range(-1, 2**64)]
"""A limit of the kernel's: -1 where there is none."""
UserId = Annotated[int, Range(0, 2**32)]
Port = Annotated[int, Range(0, 65_535)]
ExitCode = Annotated[int, Range(0, 255)]
Surplus = Annotated[int, Range(-(2**64), 2**64)]
"""What is left below a limit, or missing."""
Seconds = Annotated[float, Range(0, 1e9)]
Moment = Annotated[float, Range(0, 1e12)]
"""Seconds since 1970."""
Difference = Annotated[float, Range(-1e12, 1e12)]
"""Seconds between two moments."""

MOST_ADDRESSES = 4
"""Of a machine with more at one interface, or a name with more, a hello leaves the rest out."""
Addresses = Mapping[str, Annotated[tuple[str, ...], Most(MOST_ADDRESSES)]]
"""By interface or by name."""
SEATS = Most(20_000)
"""Nodes that share a job: EXPECTED_WORKERS allows 10,000."""
Variables = Annotated[Mapping[str, str], Most(256)]
