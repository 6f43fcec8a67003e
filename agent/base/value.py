"""`Value`: the base of every class that only holds data, and types that limit its fields.

A value is immutable, equal by its fields and hashable; `msgspec.structs.replace` returns a changed
copy. msgspec creates such a class in a tenth of the time of a standard dataclass, and a hundred of
them exist before `ray start`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, TypeVar

import msgspec
from msgspec import Meta

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**_options: object) -> object:
        """Return a decorator without effect: only type checkers need the declaration."""
        return lambda cls: cls


@dataclass_transform(frozen_default=True, field_specifiers=(msgspec.field,))
class Value(msgspec.Struct, frozen=True):
    """An immutable value; subclasses declare its fields."""


# --- limits of the fields of messages -------------------------------------------------------------
#
# port/protocol.py refuses a number outside its range, and a list that is too long or too short.
# It escapes control characters in a text and cuts one that is too long.

T = TypeVar("T")

LONGEST_TEXT = 2_000  # then a text is cut
LONGEST_TAIL = 16 << 10  # then the end of a log, which keeps its line ends, is cut at its start
Required = Annotated[str, Meta(min_length=1)]

_BYTE = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_GROUP = "[0-9A-Fa-f]{1,4}"
_END = r"$(?!\n)"  # also for JSON Schema, which has no \Z
_FEW_GROUPS = (  # at most six, and `::` once in place of the others
    rf"(?=(?:[0-9A-Fa-f]{{0,4}}:){{2,7}}[0-9A-Fa-f]{{0,4}}{_END})"
    rf"(?:(?:{_GROUP}:){{1,6}}|:)(?:(?::{_GROUP}){{1,6}}|:)"
)
_FORMS = (
    rf"(?:{_BYTE}\.){{3}}{_BYTE}",
    rf"(?:{_GROUP}:){{7}}(?:{_GROUP}|:)",
    rf":(?::{_GROUP}){{7}}",
    _FEW_GROUPS,
)
_ADDRESS = rf"^(?:{'|'.join(_FORMS)}){_END}"
Address = Annotated[str, Meta(pattern=_ADDRESS)]
OptionalAddress = Annotated[str, Meta(pattern=rf"{_ADDRESS}|^{_END}")]  # '' for none

MOST_ITEMS = 64
Items = Annotated[tuple[T, ...], Meta(max_length=MOST_ITEMS)]
ByName = Annotated[Mapping[str, T], Meta(max_length=MOST_ITEMS)]
MOST_ADDRESSES = 4  # of one interface or name in a hello; further ones are left out
Addresses = ByName[Annotated[tuple[Address, ...], Meta(max_length=MOST_ADDRESSES)]]
JOB_NODES = Meta(max_length=20_000)  # EXPECTED_WORKERS allows 10,000
Variables = Annotated[Mapping[str, str], Meta(max_length=256)]

MOST_BYTES = 2**63 - 1  # the largest number that msgspec compares
Bytes = Annotated[int, Meta(ge=0, le=MOST_BYTES)]
Limit = Annotated[int, Meta(ge=-1, le=MOST_BYTES)]  # of the kernel; -1 for none
Surplus = Annotated[int, Meta(ge=-MOST_BYTES, le=MOST_BYTES)]  # below a limit; negative above it
Count = Annotated[int, Meta(ge=0, le=2**53)]
Attempt = Annotated[int, Meta(ge=0, le=10_000)]  # AGENT_JOB_RETRIES allows 1,000
Epoch = Annotated[int, Meta(ge=0, le=10**15)]  # milliseconds since 1970
Rank = Annotated[int, Meta(ge=0, le=999_999)]
Gpus = Annotated[int, Meta(ge=0, le=1_024)]  # of one node, as AGENT_NUM_GPUS
Cpus = Annotated[int, Meta(ge=0, le=100_000)]  # of one node, as AGENT_NUM_CPUS
Gigabytes = Annotated[int, Meta(ge=0, le=10_000)]  # of a GPU as on its label, which counts GiB
UserId = Annotated[int, Meta(ge=0, le=2**32)]
Port = Annotated[int, Meta(ge=0, le=65_535)]
ExitCode = Annotated[int, Meta(ge=0, le=255)]
Seconds = Annotated[float, Meta(ge=0, le=1e9)]
Rate = Annotated[float, Meta(ge=0, le=1e15)]  # bits per second
Timestamp = Annotated[float, Meta(ge=0, le=1e12)]  # seconds since 1970
Difference = Annotated[float, Meta(ge=-1e12, le=1e12)]  # seconds between two moments
RunTime = Annotated[float, Meta(extra={"clock": "run"})]  # a moment on the clock of an agent
