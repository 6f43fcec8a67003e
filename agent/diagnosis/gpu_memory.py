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
_FREE = re.compile(r"of which " + _SIZE.format("free") + " is free")
_ALLOWED = re.compile(_SIZE.format("allowed") + " allowed")
_UNUSED = re.compile(_SIZE.format("unused") + " is reserved by PyTorch but unallocated")
_LESS = "a smaller micro batch or shorter responses, offloading, or more GPUs"
_GIB = {"KiB": 1 / 1024 / 1024, "MiB": 1 / 1024, "GiB": 1, "TiB": 1024}


def holder_of_gpu_memory(error: ParsedError) -> Cause | None:
    """Other processes hold most of a GPU, or one tensor is larger than it: torch states both.

    So it does with a limit of the process, and with memory that is free, in pieces or as a whole.
    """
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
    return _though_some_is_free(message, asked)


def _though_some_is_free(message: str, asked: float) -> Cause | None:
    """Return why a GPU gave no memory though it, or torch on it, has more than was asked for."""
    # Has the process a limit of its own?
    allowed = _gib(_ALLOWED.search(message))
    if allowed:
        return Cause(
            "GPU memory",
            f"a process used up the share of a GPU's memory that it may take ({allowed:.1f} GiB)",
            f"Raise that limit (set_per_process_memory_fraction), or take {_LESS}",
        )

    # Is it free on the GPU, or within torch's own share?
    free = _gib(_FREE.search(message))
    unused = _gib(_UNUSED.search(message))
    if asked and free > asked:
        return Cause(
            "GPU memory",
            f"a GPU gave no memory: {asked:.1f} GiB were asked for, though {free:.1f} GiB are free",
            "Another process may have held it at that moment, or a limit of the GPU holds (MIG, "
            f"vGPU): see `nvidia-smi` on the node; else take {_LESS}",
        )
    if asked and unused > asked:
        return Cause(
            "GPU memory",
            f"a GPU ran out of memory for one piece of {asked:.1f} GiB: torch holds {unused:.1f} "
            "GiB unused, in smaller pieces",
            "Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True where no engine with a sleep "
            f"mode refuses it; else take {_LESS}",
        )
    return None


def _gib(found: re.Match[str] | None) -> float:
    """Return a size in GiB; 0 where none is stated."""
    if found is None:
        return 0.0
    number, unit = found.groups()
    return float(number.rstrip(".")) * _GIB[unit]
