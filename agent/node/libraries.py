"""Which libraries a Python has that a job rests on: by the names of their metadata, unimported.

Another Python is asked, so that this file rests on the standard library alone.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

TORCH, CUDA, NCCL = "torch", "CUDA of torch", "NCCL"
_KNOWN = {
    **{name: name for name in ("torch", "vllm", "sglang", "verl", "openrlhf", "trl")},
    **{name: name for name in ("deepspeed", "transformers", "flash-attn")},
    "nvidia-nccl-cu12": NCCL,
    "nvidia-nccl-cu13": NCCL,
}
"""From a distribution's name to the one by which it is told."""
_METADATA = ".dist-info"
_TORCH_FACT = re.compile(r"^(__version__|cuda|hip)\b[^=\n]*= '([^'\n]+)'", re.MULTILINE)
_LONGEST_VERSION = 100


def installed(path: Iterable[str]) -> dict[str, str]:
    """Return the versions of known libraries on a Python's path; the first of a name counts.

    One look at each folder's names, and at torch's own version file, costs about a millisecond.
    """
    found: dict[str, str] = {}
    for entry in path:
        with suppress(OSError):
            for name in os.listdir(entry or "."):  # noqa: PTH208 - names alone: half the time
                told = _KNOWN.get(_plain(name)) if name.endswith(_METADATA) else None
                if told is not None and told not in found:
                    found[told] = name.removesuffix(_METADATA).partition("-")[2][:_LONGEST_VERSION]
                    if told == TORCH:
                        found |= _of_torch(Path(entry or "."))
    return found


def _plain(name: str) -> str:
    """Return the distribution's name, as all its spellings have it in common."""
    return re.sub(r"[-_.]+", "-", name.partition("-")[0]).lower()


def _of_torch(folder: Path) -> dict[str, str]:
    """Read what torch was built for: its metadata leaves that out."""
    with suppress(OSError, UnicodeDecodeError):
        text = (folder / "torch" / "version.py").read_text(encoding="utf-8")
        facts = {key: value[:_LONGEST_VERSION] for key, value in _TORCH_FACT.findall(text)}
        built_for = facts.get("cuda") or (f"ROCm {facts['hip']}" if "hip" in facts else "")
        told = {TORCH: facts.get("__version__", ""), CUDA: built_for}
        return {name: value for name, value in told.items() if value}
    return {}
