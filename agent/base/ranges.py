"""Types that limit the fields of messages between nodes.

control/protocol.py refuses a number outside its range, and a list that is too long or too short.
It removes control characters from a text and cuts one that is too long.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, NamedTuple


class Range(NamedTuple):
    """The smallest and the largest value of a number; NaN is in no range."""

    minimum: float
    maximum: float


class Text(NamedTuple):
    """The length of a text; a longer one is cut."""

    max_length: int
    required: bool = False
    """True if '' is refused."""
    multiline: bool = False
    """True for the end of a log: it keeps its line ends and is cut at its start."""


class MaxItems(NamedTuple):
    """The largest and the smallest length of a list or mapping."""

    items: int
    minimum: int = 0


TEXT = Text(2_000)
"""The limit of a `str` without another one."""
ITEMS = MaxItems(64)
"""The limit of a list or mapping without another one."""

Name = Annotated[str, Text(253, required=True)]
"""The longest name that DNS allows."""
Required = Annotated[str, Text(2_000, required=True)]
Line = Annotated[str, Text(500)]
"""One line for a person."""
LONGEST_TAIL = 16 << 10
Tail = Annotated[str, Text(LONGEST_TAIL, multiline=True)]

Count = Annotated[int, Range(0, 2**53)]
"""2**53 is more than any count reaches."""
Attempt = Annotated[int, Range(0, 10_000)]
"""AGENT_JOB_RETRIES allows 1,000."""
Epoch = Annotated[int, Range(0, 10**15)]
"""Milliseconds since 1970."""
Rank = Annotated[int, Range(0, 999_999)]
Gpus = Annotated[int, Range(0, 1_024)]
"""GPUs of one node, with the limit of AGENT_NUM_GPUS."""
Cpus = Annotated[int, Range(0, 100_000)]
"""CPUs of one node, with the limit of AGENT_NUM_CPUS."""
Bytes = Annotated[int, Range(0, 2**64)]
Limit = Annotated[int, Range(-1, 2**64)]
"""A kernel limit; -1 for none."""
UserId = Annotated[int, Range(0, 2**32)]
Port = Annotated[int, Range(0, 65_535)]
ExitCode = Annotated[int, Range(0, 255)]
Surplus = Annotated[int, Range(-(2**64), 2**64)]
"""The distance to a limit; negative above it."""
Seconds = Annotated[float, Range(0, 1e9)]
Timestamp = Annotated[float, Range(0, 1e12)]
"""Seconds since 1970."""
Difference = Annotated[float, Range(-1e12, 1e12)]
"""Seconds between two moments."""

MOST_ADDRESSES = 4
"""The most addresses of one interface or name in a hello; further ones are left out."""
Addresses = Mapping[str, Annotated[tuple[str, ...], MaxItems(MOST_ADDRESSES)]]
"""Addresses by interface or by name."""
JOB_NODES = MaxItems(20_000)
"""The nodes of a job: EXPECTED_WORKERS allows 10,000."""
Variables = Annotated[Mapping[str, str], MaxItems(256)]
