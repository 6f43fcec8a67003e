"""Rows about a GPU that ran out of memory, by the numbers that torch states."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from agent.diagnosis.cause import Cause

if TYPE_CHECKING:
    from agent.diagnosis.errors.parsed_error import ParsedError

_SIZE = r"(?P<{0}>\d[\d.]{{0,9}}) (?P<{0}_unit>[KMGT]iB)"
_ASKED = re.compile(r"Tried to allocate " + _SIZE.format("asked"))
_TOTAL = re.compile(r"total capacity of " + _SIZE.format("total"))
_TOTAL_OF_TORCH_1 = re.compile(_SIZE.format("total") + " total capacity")
_OTHERS = re.compile(r"\bProcess \d{1,9} has " + _SIZE.format("held") + " memory in use")
_OWN = re.compile(r"this process has " + _SIZE.format("own") + " memory in use")
_GIB = {"KiB": 1 / 1024 / 1024, "MiB": 1 / 1024, "GiB": 1.0, "TiB": 1024.0}


def holder_of_gpu_memory(error: ParsedError) -> Cause | None:
    """Other processes hold most of a GPU, or one tensor is larger than it: torch states both."""
    message = error.message
    total = _gib(_TOTAL.search(message) or _TOTAL_OF_TORCH_1.search(message))
    asked = _gib(_ASKED.search(message))
    own = _gib(_OWN.search(message))
    others = sum(_gib(found) for found in _OTHERS.finditer(message))
    if total and asked > total:
        return Cause(
            "GPU memory",
            f"a GPU ran out of memory: one tensor of {asked:.0f} GiB is larger than its "
            f"{total:.0f} GiB",
            "The frames show which tensor: a very long sequence, a large batch, or all logits or "
            "pairs at once; make it in parts",
        )
    if own and others > own:
        return Cause(
            "GPU memory",
            f"a GPU ran out of memory: other processes held {others:.0f} of its {total:.0f} GiB",
            "`nvidia-smi` shows whose: end a leftover; where engines share the GPUs, give them a "
            "smaller share, or take a smaller micro batch",
        )
    return None


def _gib(found: re.Match[str] | None) -> float:
    """Return a size in GiB; 0 where none is stated."""
    if found is None:
        return 0.0
    number, unit = found.groups()
    return float(number.rstrip(".")) * _GIB[unit]
